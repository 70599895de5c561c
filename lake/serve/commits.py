"""Group commit of posted records: requests within ten milliseconds, or one MiB, share one file and one fsync."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from lake.serve.bodies import PostedRecord
from lake.serve.intake_folder import Group, GroupWriter
from lake.serve.problems import Problem

GROUP_SECONDS: Final = 0.01
GROUP_BYTES: Final = 1 << 20
RETRY_SECONDS: Final = 10.0


@dataclass(frozen=True)
class GroupPlace:
    """Number of the group of a request's records, and ordinal of the first of them there."""

    number: int
    first: int


@dataclass
class _OpenGroup:
    """Group being collected: its lines, and for each request a future and its first ordinal.

    If it has a `decided` request, it gets `number` or fails.
    """

    number: int
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    waiting: list[tuple[asyncio.Future[GroupPlace], int]] = field(default_factory=list)
    decided: bool = False


class Commits:
    def __init__(self, writer: GroupWriter) -> None:
        self._writer, self._next = writer, _OpenGroup(writer.last + 1)
        self._in_flight: _OpenGroup | None = None
        self._thread = ThreadPoolExecutor(1, "commits")
        self._has_waiting, self._is_due = asyncio.Event(), asyncio.Event()
        self._ending = False
        self._task = asyncio.create_task(self._run())
        self.groups, self.records = 0, 0

        self.on_failure: Callable[[], None] = lambda: None
        """Called if the disk fails, before any request is answered."""

    @property
    def next(self) -> GroupPlace:
        self._check_open()
        return GroupPlace(self._next.number, len(self._next.lines))

    async def wait_for(self, number: int) -> None:
        """Return when the group is on the disk. Raises Problem if the disk fails."""
        for group in (self._in_flight, self._next):
            if group is not None and group.number == number and group.waiting:
                done, _ = group.waiting[0]
                await asyncio.shield(done)

    async def put(self, records: Sequence[tuple[str, PostedRecord]], *, decided: bool = False) -> GroupPlace:
        """Commit the records of one request in order and in one group; return when they are on the disk.

        A `decided` request fails if a group before it failed. Raises Problem if the disk fails.
        """
        self._check_open()
        group, done = self._next, asyncio.get_running_loop().create_future()
        lines = [_line(stream, record) for stream, record in records]
        group.waiting.append((done, len(group.lines)))
        group.decided |= decided
        group.lines += lines
        group.size += sum(map(len, lines))
        self._has_waiting.set()
        if group.size >= GROUP_BYTES:
            self._is_due.set()
        place: GroupPlace = await asyncio.shield(done)  # committed even if the client disconnects
        return place

    def _check_open(self) -> None:
        if self._ending:
            raise Problem("stopping", "the server is shutting down", after=RETRY_SECONDS)

    async def close(self) -> None:
        self._ending = True
        self._has_waiting.set()
        self._is_due.set()
        await self._task
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_waiting.wait()
            if not self._ending:
                timer = loop.call_later(GROUP_SECONDS, self._is_due.set)
                await self._is_due.wait()
                timer.cancel()
            group = self._next
            self._next = _OpenGroup(group.number + bool(group.waiting))
            self._has_waiting.clear()
            self._is_due.clear()
            if group.waiting:
                self._in_flight = group
                await self._commit(group)
                self._in_flight = None
            if self._ending and not self._next.waiting:
                return

    async def _commit(self, group: _OpenGroup) -> None:
        loop = asyncio.get_running_loop()
        try:
            put = loop.run_in_executor(self._thread, self._writer.put, group.lines, len(group.lines))
            written: Group = await put
        except Exception as error:  # of any kind: it fails the waiting requests, and the next group is tried
            why = error.strerror if isinstance(error, OSError) else repr(error)
            fault = Problem("disk", f"nothing was kept: {why}", after=RETRY_SECONDS)
            self.on_failure()
            self._fail(group, fault)
            if self._next.decided:
                self._fail(self._next, fault)
                self._next = _OpenGroup(0)
            self._next.number = self._writer.last + 1
            return
        self.groups, self.records = self.groups + 1, self.records + written.records
        for done, first in group.waiting:
            done.set_result(GroupPlace(written.number, first))

    def _fail(self, group: _OpenGroup, fault: Problem) -> None:
        for done, _ in group.waiting:
            done.set_exception(fault)
            done.exception()  # marks it as retrieved: the client may have disconnected


def _line(stream: str, record: PostedRecord) -> bytes:
    facts: Mapping[str, str] = record.facts
    return json.dumps([stream, record.text, facts]).encode() + b"\n"
