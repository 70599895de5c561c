"""Parent's side of a worker process: sends tasks, reads frames, measures memory, and kills it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import shutil
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from lake.config import Settings
from lake.read.sql import spilled
from lake.serve.reading.query_worker import BLOCK, CHECKED, HEAD, LENGTH, LOG, READY, REPORT, Report, Task

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
PS: Final = ("ps", "-o", "rss=", "-p")
COMMAND: Final = (sys.executable, "-P", "-m", "lake.serve.reading.query_worker")
OVERHEAD: Final = (128 << 20) + (os.cpu_count() or 1) * (32 << 20)
"""Bytes that a worker maps besides those of a query: stacks of threads, and reserves of their allocators."""


class WorkerEnded(Exception):
    """The process ended before its report."""


@dataclass(eq=False)
class WorkerProcess:
    """One worker. `fresh` is its `usage` before the first task. It is `busy` from a task to its report."""

    process: asyncio.subprocess.Process
    fresh: tuple[int, int] = (0, 0)
    busy: bool = False

    @classmethod
    async def start(cls, memory: int) -> WorkerProcess:
        """Start a worker for queries of `memory` bytes, and wait until it is ready. Raises OSError, WorkerEnded."""
        pipe = asyncio.subprocess.PIPE
        worker = cls(await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, limit=1 << 20))
        try:
            kind, _ = await worker._frame()
            assert kind == READY
            worker.fresh = await worker.usage()
            worker._limit(2 * memory)
        except BaseException:
            worker.kill()
            raise
        return worker

    async def run(
        self, task: Task, take: Callable[[bytes], Awaitable[None]], check: Callable[[Report], None]
    ) -> Report:
        """Run a task. `check` gets the CHECKED frame, `take` each block. Raises WorkerEnded, and whatever `take`
        raises.
        """
        self.busy = True
        content = pickle.dumps(replace(task, reader=replace(task.reader, _opened={})))
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(LENGTH.pack(len(content)) + content)
            await stdin.drain()
        except ConnectionError:
            raise WorkerEnded from None
        while True:
            kind, content = await self._frame()
            if kind == BLOCK:
                await take(content)
            elif kind == CHECKED:
                check(json.loads(content))
            elif kind == LOG:
                logging.getLogger("lake").warning("%s", content.decode())
            else:
                assert kind == REPORT
                self.busy = False
                report: Report = json.loads(content)
                return report

    @property
    def has_ended(self) -> bool:
        return self.process.returncode is not None

    async def is_small(self, memory: int) -> bool:
        resident, mapped = await self.growth()
        return resident <= memory // 2 and mapped <= memory // 2 + OVERHEAD

    async def growth(self) -> tuple[int, int]:
        resident, mapped = await self.usage()
        return resident - self.fresh[0], mapped - self.fresh[1]

    async def usage(self) -> tuple[int, int]:
        """Return resident memory without files, and mapped memory, in bytes; 0 if the process has ended."""
        if sys.platform != "linux":
            ps = await asyncio.create_subprocess_exec(*PS, str(self.process.pid), stdout=asyncio.subprocess.PIPE)
            resident = int((await ps.communicate())[0] or 0) << 10
            return resident, resident
        try:
            with open(f"/proc/{self.process.pid}/statm", "rb") as file:
                pages = file.read().split()
        except OSError:
            return 0, 0
        return (int(pages[1]) - int(pages[2])) * PAGE, int(pages[5]) * PAGE

    def _limit(self, memory: int) -> None:
        """Make allocations beyond the limit fail in the worker, before the next measurement. Linux only."""
        if sys.platform == "linux":
            import resource

            most = self.fresh[1] + memory + OVERHEAD
            resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (most, most))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def close(self, settings: Settings) -> int:
        self.kill()
        code = await self.process.wait()
        for folder in spilled(settings, self.process.pid):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return code

    async def _frame(self) -> tuple[bytes, bytes]:
        stdout = self.process.stdout
        assert stdout is not None
        try:
            kind, length = HEAD.unpack(await stdout.readexactly(HEAD.size))
            return kind, await stdout.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise WorkerEnded from None
