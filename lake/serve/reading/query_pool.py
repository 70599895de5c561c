"""Worker processes of queries: limits of time and memory per query, and a queue for a free worker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from starlette.requests import Request

from lake.config import Settings
from lake.read.locked_database import spill_folders
from lake.serve.problems import Problem
from lake.serve.reading.query_worker import (
    BLOCK,
    CHECKED,
    HEAD,
    KEPT_BYTES,
    LENGTH,
    LOG,
    READY,
    REPORT,
    Report,
    Task,
    memory_used,
)

PS: Final = ("ps", "-o", "rss=", "-p")
COMMAND: Final = (sys.executable, "-P", "-m", "lake.serve.reading.query_worker")
OVERHEAD: Final = (128 << 20) + (os.cpu_count() or 1) * (32 << 20)
"""Bytes that a worker maps besides those of a query: stacks of threads, and reserves of their allocators."""
Take = Callable[[bytes], Awaitable[None]]
PATIENCE_SECONDS: Final = 30.0
MOST_WAITING: Final = 1_000
LOOK: Final = 0.01
"""Seconds between two measurements of a worker's memory: it allocates little meanwhile."""
GROWTH: Final = 1.5
"""A worker is killed if it grows by KEPT_BYTES and this multiple of `query_memory`, from which on DuckDB spills."""


class WorkerEnded(Exception):
    pass


@dataclass(eq=False)
class WorkerProcess:
    """One worker. `fresh` is its resident memory before the first task. It is `busy` from a task to its report."""

    process: asyncio.subprocess.Process
    fresh: int = 0
    busy: bool = False

    @classmethod
    async def start(cls) -> WorkerProcess:
        """Return once it is ready. Raises OSError, WorkerEnded."""
        pipe = asyncio.subprocess.PIPE
        worker = cls(await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, limit=1 << 20))
        try:
            kind, _ = await worker._frame()
            assert kind == READY
            worker.fresh, _ = await worker.usage()
        except BaseException:
            worker.kill()
            raise
        return worker

    async def run(self, task: Task, take: Take, check: Callable[[Report], None]) -> Report:
        """Give the CHECKED frame to `check`, each block to `take`. Raises WorkerEnded, and whatever `take` raises."""
        self.busy = True
        content = pickle.dumps(replace(task, reader=replace(task.reader, opened={})))
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

    async def growth(self) -> int:
        resident, _ = await self.usage()
        return resident - self.fresh

    async def usage(self) -> tuple[int, int]:
        """Return resident memory without files, and mapped memory, in bytes; 0 if the process has ended."""
        if sys.platform == "linux":
            return memory_used(self.process.pid)
        ps = await asyncio.create_subprocess_exec(*PS, str(self.process.pid), stdout=asyncio.subprocess.PIPE)
        resident = int((await ps.communicate())[0] or 0) << 10
        return resident, resident

    async def limit(self, memory: int) -> None:
        """Let the next task allocate `memory` bytes; more fails in the worker, before it is measured. Linux only."""
        if sys.platform == "linux":
            import resource

            most = (await self.usage())[1] + memory + OVERHEAD
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_DATA)
                resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (most, hard))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def close(self, settings: Settings) -> int:
        self.kill()
        code = await self.process.wait()
        for folder in spill_folders(settings, self.process.pid):
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


class AnswerClosed(Exception):
    pass


@dataclass(eq=False)
class RunningQuery:
    """One query, stopped for a reason: `time`, `memory`, `room`, `gone` or `stopping`.

    `checked` has its tables, and its text without literals.
    """

    reason: str = ""
    checked: Report = field(default_factory=dict)
    worker: WorkerProcess | None = None
    ended: bool = False

    def stop(self, reason: str) -> None:
        if not self.reason and not self.ended:
            self.reason = reason
            if self.worker is not None:
                self.worker.kill()

    @property
    def outcome(self) -> str:
        return "" if self.reason == "memory" else self.reason

    def problem(self, seconds: float = 0) -> Problem:
        match self.reason:
            case "time":
                return Problem("too-slow-query", f"more than {seconds:g} seconds")
            case "stopping":
                return Problem("stopping", "the server ends")
            case "gone":
                return Problem("bad-request", "nobody waits for the answer")
            case "room":
                return Problem("busy", "newer answers need the disk of this one (serve.answers_bytes)", after=10)
        return Problem("too-much", "the query needs more memory (query_memory) than it may take")


@dataclass
class QueryPool:
    settings: Settings
    free: asyncio.Semaphore
    waiting: int = 0
    working: set[RunningQuery] = field(default_factory=set)
    stopped: bool = False
    _idle: list[WorkerProcess] = field(default_factory=list)
    _replacing: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def of(cls, settings: Settings) -> QueryPool:
        return cls(settings, asyncio.Semaphore(settings.serve.queries_at_once))

    async def run(self, work: RunningQuery, task: Task, take: Take, seconds: float) -> Report:
        async with self._turn(work) as worker:
            timer = asyncio.get_running_loop().call_later(seconds, work.stop, "time")
            watch = asyncio.create_task(self._watch(work, worker))
            try:
                report = await worker.run(task, take, work.checked.update)
            except (WorkerEnded, AnswerClosed):
                raise work.problem(seconds) from None
            except asyncio.CancelledError:
                work.stop("gone")
                raise
            finally:
                work.ended = True
                timer.cancel()
                watch.cancel()
        if problem := report.get("problem"):
            raise Problem(**problem)
        return report

    def stop(self) -> None:
        self.stopped = True
        for work in [*self.working]:
            work.stop("stopping")

    async def close(self) -> None:
        self.stop()
        while self._replacing:
            await asyncio.wait(self._replacing)
        await asyncio.gather(*(worker.close(self.settings) for worker in self._idle))

    async def _watch(self, work: RunningQuery, worker: WorkerProcess) -> None:
        most = KEPT_BYTES + GROWTH * self.settings.serve.query_memory
        while await worker.growth() <= most:
            await asyncio.sleep(LOOK)
        work.stop("memory")

    @asynccontextmanager
    async def _turn(self, work: RunningQuery) -> AsyncIterator[WorkerProcess]:
        await self._acquire()
        worker = None
        try:
            self._check(work)
            worker = await self._live_idle() or await self._started()
            self._check(work)
            work.worker = worker
            self.working.add(work)
            yield worker
        finally:
            self.working.discard(work)
            replacing = asyncio.create_task(self._give_back(worker, work))
            self._replacing.add(replacing)
            replacing.add_done_callback(self._replacing.discard)

    def _check(self, work: RunningQuery) -> None:
        """Raise the problem of a query that was stopped while it waited."""
        if self.stopped:
            work.stop("stopping")
        if work.reason:
            raise work.problem()

    async def _live_idle(self) -> WorkerProcess | None:
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker
            await worker.close(self.settings)
        return None

    async def _acquire(self) -> None:
        if self.waiting >= MOST_WAITING:
            raise Problem("busy", f"{self.waiting} queries wait", after=5)
        self.waiting += 1
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.free.acquire()
        except TimeoutError:
            raise Problem("busy", f"no turn within {PATIENCE_SECONDS:g} seconds", after=5) from None
        finally:
            self.waiting -= 1

    async def _give_back(self, worker: WorkerProcess | None, work: RunningQuery) -> None:
        try:
            if worker is None:
                return
            memory = self.settings.serve.query_memory
            if not (worker.busy or work.reason) and await worker.growth() <= KEPT_BYTES + memory // 2:
                await worker.limit(2 * memory)
                self._idle.append(worker)
                return
            code = await worker.close(self.settings)
            if worker.busy and not work.reason:
                logging.getLogger("lake").warning("the process of a query ended: exit code %s", code)
            with suppress(Problem):
                if not self.stopped:
                    self._idle.append(await self._started())
        finally:
            self.free.release()

    async def _started(self) -> WorkerProcess:
        try:
            worker = await WorkerProcess.start()
            await worker.limit(2 * self.settings.serve.query_memory)
            return worker
        except (OSError, WorkerEnded) as error:
            logging.getLogger("lake").warning("no process for a query: %s", error)
            raise Problem("busy", "no process for a query can be started", after=5) from None


@asynccontextmanager
async def stop_on_disconnect(request: Request, work: RunningQuery) -> AsyncIterator[None]:
    """Stop `work` if the client disconnects. The request's body must have been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        work.stop("gone")

    listening = asyncio.create_task(gone())
    try:
        yield
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
