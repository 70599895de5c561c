"""Group commit: requests that come within ten milliseconds, or a mebibyte of them, are one file and one fsync."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from lake.http.bodies import Record
from lake.http.problems import Problem
from lake.sources.http_files import Group, Writer

GROUP_SECONDS: Final = 0.01
GROUP_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Place:
    """Where the records of a request are: in group `number`, from ordinal `first` on."""

    number: int
    first: int


@dataclass
class _Next:
    """The group that is gathered: its lines, and who waits for them, each with the ordinal of its first record.

    Where any was `decided` on, by what is in it and before it, it gets its `number` or fails.
    """

    number: int
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    waiting: list[tuple[asyncio.Future[Place], int]] = field(default_factory=list)
    decided: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    failed: Problem | None = None


class Commits:
    """The commits of one writer. `put` answers once the disk has what it was given."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._next = writer, _Next(writer.last + 1)
        self._flying: _Next | None = None
        self._thread = ThreadPoolExecutor(1, "commits")
        self._came, self._full = asyncio.Event(), asyncio.Event()
        self._ending = False
        self._task = asyncio.create_task(self._run())
        self.groups, self.records = 0, 0
        """So many were committed."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called where the disk fails, before anybody is told."""

    @property
    def next(self) -> Place:
        """Where the first record that is `put` now will be, if it is `decided`. Raises Problem as `put` does."""
        self._must_go_on()
        return Place(self._next.number, len(self._next.lines))

    async def hold(self, number: int) -> None:
        """Returns once the disk has group `number`, or one before it. Raises Problem where that failed."""
        for group in (self._flying, self._next):
            if group is not None and group.number == number and group.waiting:
                await group.settled.wait()
                if group.failed is not None:
                    raise group.failed

    async def put(self, records: Sequence[tuple[str, Record]], *, decided: bool = False) -> Place:
        """Commits the records of one request, each with its stream, in their order and in one group.

        What was `decided` on fails with what it may rest on. Raises Problem where the disk fails.
        """
        self._must_go_on()
        group, done = self._next, asyncio.get_running_loop().create_future()
        lines = [_line(stream, record) for stream, record in records]
        group.waiting.append((done, len(group.lines)))
        group.decided |= decided
        group.lines += lines
        group.size += sum(map(len, lines))
        self._came.set()
        if group.size >= GROUP_BYTES:
            self._full.set()
        place: Place = await asyncio.shield(done)  # its record is committed whether or not the client still listens
        return place

    def _must_go_on(self) -> None:
        if self._ending:
            raise Problem("stopping", "the server is shutting down", after=RETRY_SECONDS)

    async def close(self) -> None:
        """Commits what was given, and takes no more."""
        self._ending = True
        self._came.set()
        self._full.set()
        await self._task
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._came.wait()
            if not self._ending:
                with_room = loop.call_later(GROUP_SECONDS, self._full.set)
                await self._full.wait()
                with_room.cancel()
            group = self._next
            self._next = _Next(group.number + bool(group.waiting))
            self._came.clear()
            self._full.clear()
            if group.waiting:
                self._flying = group
                await self._commit(group)
                self._flying = None
            if self._ending and not self._next.waiting:
                return

    async def _commit(self, group: _Next) -> None:
        loop = asyncio.get_running_loop()
        try:
            put = loop.run_in_executor(self._thread, self._writer.put, group.lines, len(group.lines))
            written: Group = await put
        except Exception as error:  # whatever it is: those who wait are told, and the next group is tried
            why = error.strerror if isinstance(error, OSError) else repr(error)
            fault = Problem("disk", f"nothing was kept: {why}", after=RETRY_SECONDS)
            self.on_failure()
            self._fail(group, fault)
            if self._next.decided:
                self._fail(self._next, fault)
                self._next = _Next(0)
            self._next.number = self._writer.last + 1
            return
        self.groups, self.records = self.groups + 1, self.records + written.records
        group.settled.set()
        for done, first in group.waiting:
            done.set_result(Place(written.number, first))

    def _fail(self, group: _Next, fault: Problem) -> None:
        group.failed = fault
        group.settled.set()
        for done, _ in group.waiting:
            done.set_exception(fault)
            done.exception()  # whose client may have gone


def _line(stream: str, record: Record) -> bytes:
    facts: Mapping[str, str] = record.facts
    return json.dumps([stream, record.text, facts]).encode() + b"\n"
