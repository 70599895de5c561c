"""Group commit: requests that come within ten milliseconds, or a mebibyte of them, are one file and one fsync."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
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
    """The group that is gathered: its lines, and who waits for them, each with the ordinal of its first record."""

    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    waiting: list[tuple[asyncio.Future[Place], int]] = field(default_factory=list)


class Commits:
    """The commits of one writer. `put` answers once the disk has what it was given."""

    def __init__(self, writer: Writer) -> None:
        self._writer, self._next = writer, _Next()
        self._thread = ThreadPoolExecutor(1, "commits")
        self._came, self._full = asyncio.Event(), asyncio.Event()
        self._ending = False
        self._task = asyncio.create_task(self._run())
        self.groups, self.records = 0, 0
        """So many were committed."""

    async def put(self, records: Sequence[tuple[str, Record]]) -> Place:
        """Commits the records of one request, each with its stream, in their order and in one group.

        Raises Problem where the disk fails.
        """
        if self._ending:
            raise Problem("stopping", "the server is shutting down", after=RETRY_SECONDS)
        group, done = self._next, asyncio.get_running_loop().create_future()
        lines = [_line(stream, record) for stream, record in records]
        group.waiting.append((done, len(group.lines)))
        group.lines += lines
        group.size += sum(map(len, lines))
        self._came.set()
        if group.size >= GROUP_BYTES:
            self._full.set()
        place: Place = await asyncio.shield(done)  # its record is committed whether or not the client still listens
        return place

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
            group, self._next = self._next, _Next()
            self._came.clear()
            self._full.clear()
            if group.waiting:
                await self._commit(group)
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
            for done, _ in group.waiting:
                done.set_exception(fault)
                done.exception()  # whose client may have gone
            return
        self.groups, self.records = self.groups + 1, self.records + written.records
        for done, first in group.waiting:
            done.set_result(Place(written.number, first))


def _line(stream: str, record: Record) -> bytes:
    facts: Mapping[str, str] = record.facts
    return json.dumps([stream, record.text, facts]).encode() + b"\n"
