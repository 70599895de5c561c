"""Pool of worker processes for queries: limits of time and memory per query, and a queue for a free worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from lake.config import Settings
from lake.serve.problems import Problem
from lake.serve.reading.query_worker import Report, Task
from lake.serve.reading.worker_process import WorkerEnded, WorkerProcess

Take = Callable[[bytes], Awaitable[None]]
PATIENCE: Final = 30.0
WAITING: Final = 1_000
LOOK: Final = 0.01
"""Seconds between two measurements of a worker's memory: it allocates little meanwhile."""
GROWTH: Final = 1.5
"""A worker is killed if its resident memory grows to this multiple of `query_memory`, at which DuckDB spills."""


class AnswerClosed(Exception):
    """An answer is closed: it accepts no more blocks."""


@dataclass(eq=False)
class RunningQuery:
    """One query. `stop` ends it for a reason: `time`, `memory`, `room`, `gone` or `stopping`.

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

    def problem(self, seconds: float) -> Problem:
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
    """Worker processes of a server, and the queries that wait for one."""

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
        """Run a task in a worker for at most `seconds`. `take` gets the blocks. Raises Problem if it fails or is
        stopped.
        """
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
        most = GROWTH * self.settings.serve.query_memory
        while (await worker.growth())[0] <= most:
            await asyncio.sleep(LOOK)
        work.stop("memory")

    @asynccontextmanager
    async def _turn(self, work: RunningQuery) -> AsyncIterator[WorkerProcess]:
        await self._acquire()
        worker = None
        try:
            while self._idle and (worker is None or worker.has_ended):
                worker = self._idle.pop()
            if not (work.reason or self.stopped) and (worker is None or worker.has_ended):
                worker = await self._started()
            if self.stopped:
                work.reason = work.reason or "stopping"
            if work.reason or worker is None:  # stopped while it waited
                raise work.problem(0)
            work.worker = worker
            self.working.add(work)
            yield worker
        finally:
            self.working.discard(work)
            replacing = asyncio.create_task(self._give_back(worker, work))
            self._replacing.add(replacing)
            replacing.add_done_callback(self._replacing.discard)

    async def _acquire(self) -> None:
        if self.waiting >= WAITING:
            raise Problem("busy", f"{self.waiting} queries wait", after=5)
        self.waiting += 1
        try:
            async with asyncio.timeout(PATIENCE):
                await self.free.acquire()
        except TimeoutError:
            raise Problem("busy", f"no turn within {PATIENCE:g} seconds", after=5) from None
        finally:
            self.waiting -= 1

    async def _give_back(self, worker: WorkerProcess | None, work: RunningQuery) -> None:
        try:
            if worker is None:
                return
            if not (worker.busy or work.reason) and await worker.is_small(self.settings.serve.query_memory):
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
            return await WorkerProcess.start(self.settings.serve.query_memory)
        except (OSError, WorkerEnded) as error:
            logging.getLogger("lake").warning("no process for a query: %s", error)
            raise Problem("busy", "no process for a query can be started", after=5) from None


@asynccontextmanager
async def stop_on_disconnect(request: Request, work: RunningQuery) -> AsyncIterator[None]:
    """Stop the query if the client disconnects while the block runs. The request's body must have been read."""

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
