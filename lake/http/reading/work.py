"""A query at work: in a thread, within its limits, and no longer than somebody waits for its answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import duckdb
from starlette.requests import Request

from lake.http.problems import Problem
from lake.http.reading.faults import problem_of

T = TypeVar("T")
PATIENCE: Final = 30.0
"""Seconds that a query waits for its turn."""
WAITING: Final = 1_000
"""So many may wait."""
AGAIN: Final = 0.05
"""Seconds between two interrupts: one that comes between two statements interrupts nothing."""
IN_MEMORY: Final = 1 << 20
"""Bytes of an answer that are kept in memory; beyond, it is on the disk until it has been sent."""


class Ended(OSError):
    """An answer is not written on: too long, or for nobody."""


@dataclass(eq=False)
class Work:
    """One query: `stop` ends it, for a reason: `time`, `gone` or `stopping`.

    All but `watch` is called on the event loop.
    """

    reason: str = ""
    on_stop: Callable[[], None] = lambda: None
    _con: duckdb.DuckDBPyConnection | None = None
    _ended: bool = False

    def watch(self, con: duckdb.DuckDBPyConnection) -> None:
        """Notes the connection that is to be interrupted. Called in the thread."""
        self._con = con

    def stop(self, reason: str) -> None:
        """Ends the work; its first reason counts."""
        if not self.reason and not self._ended:
            self.reason = reason
            self.on_stop()
            self._interrupt()

    def _interrupt(self) -> None:
        if not self._ended:
            if self._con is not None:
                with suppress(duckdb.Error):
                    self._con.interrupt()
            asyncio.get_running_loop().call_later(AGAIN, self._interrupt)

    async def done(self, future: asyncio.Future[T], seconds: float) -> T:
        """What the thread gives, which has so many seconds. Raises Problem where it fails, or was stopped."""
        timer = asyncio.get_running_loop().call_later(seconds, self.stop, "time")
        try:
            return await future
        except asyncio.CancelledError:
            self.stop("gone")
            raise
        except BaseException as error:  # DuckDB's interrupt is a KeyboardInterrupt to the reader of an edition
            if self.reason == "time":
                raise Problem("too-slow-query", f"more than {seconds:g} seconds") from error
            if self.reason == "stopping":
                raise Problem("stopping", "the server ends") from error
            if self.reason:
                raise Problem("bad-request", "nobody waits for the answer") from error
            raise problem_of(error) from error
        finally:
            self._ended = True
            timer.cancel()


@dataclass
class Queue:
    """The threads of queries, and those who wait for one."""

    threads: ThreadPoolExecutor
    free: asyncio.Semaphore
    waiting: int = 0
    working: set[Work] = field(default_factory=set)

    @classmethod
    def of(cls, at_once: int) -> Queue:
        """So many at once."""
        return cls(ThreadPoolExecutor(at_once, thread_name_prefix="query"), asyncio.Semaphore(at_once))

    @asynccontextmanager
    async def turn(self, work: Work) -> AsyncIterator[None]:
        """Waits for a free thread. Raises Problem where that takes too long, or too many wait already."""
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
        self.working.add(work)
        try:
            yield
        finally:
            self.working.discard(work)
            self.free.release()

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Runs it in a thread."""
        return asyncio.get_running_loop().run_in_executor(self.threads, call)

    def stop(self) -> None:
        """Ends what is at work."""
        for work in [*self.working]:
            work.stop("stopping")

    async def close(self) -> None:
        """Ends what is at work, and the threads."""
        self.stop()
        await asyncio.to_thread(self.threads.shutdown)


class Kept:
    """An answer that is kept until it is whole; at most `most` bytes."""

    def __init__(self, folder: Path, most: int) -> None:
        """An empty one, which goes to `folder` where it is long."""
        self._file = tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder))  # noqa: SIM115  `close` ends it
        self.most = most
        self.size = 0

    def write(self, block: bytes) -> None:
        """Adds to it. Raises Ended where that is too much."""
        self.size += len(block)
        if self.size > self.most:
            raise Ended("size")
        self._file.write(block)

    async def blocks(self) -> AsyncIterator[bytes]:
        """What it has; it is gone afterwards."""
        self._file.seek(0)
        try:
            while block := await asyncio.to_thread(self._file.read, 1 << 18):
                yield block
        finally:
            self._file.close()

    def close(self) -> None:
        """Lets it go."""
        self._file.close()


class Channel:
    """An answer that is sent as it comes: from a thread, no faster than it is taken."""

    def __init__(self) -> None:
        """An empty one, on this event loop."""
        self._loop = asyncio.get_running_loop()
        self._blocks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=8)
        self._closed = False
        self.size = 0

    def write(self, block: bytes) -> None:
        """Passes a block on, in the thread. Raises Ended where nobody takes it."""
        if not self._closed:
            asyncio.run_coroutine_threadsafe(self._blocks.put(block), self._loop).result()
        if self._closed:
            raise Ended("gone")
        self.size += len(block)

    async def end(self) -> None:
        """Says that there is no more."""
        if not self._closed:
            await self._blocks.put(None)

    async def next(self) -> bytes | None:
        """The next block; None where there is no more."""
        return await self._blocks.get()

    def close(self) -> None:
        """Takes no more: whoever writes is told, and whoever reads."""
        self._closed = True
        while not self._blocks.empty():
            self._blocks.get_nowait()
        self._blocks.put_nowait(None)


@asynccontextmanager
async def while_waited_for(request: Request, work: Work) -> AsyncIterator[None]:
    """Stops the work where the client hangs up while the block runs. The request's body has been read."""

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
