"""A whole table on its way to a reader, as it is read: no faster than it is taken, and at most for so long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from lake.http.problems import Problem
from lake.http.reading.desk import Desk
from lake.http.reading.forms import MEDIA
from lake.http.reading.query_worker import QueryTask
from lake.http.reading.work import Channel, Ended, Work, while_waited_for
from lake.read.sql import Reader
from lake.store.ledger.reads import Read


@dataclass
class Download:
    """What `query` answers, on its way; `read` is its record."""

    desk: Desk
    reader: Reader
    query: str
    kind: str
    read: Read
    work: Work = field(default_factory=Work)
    channel: Channel = field(default_factory=Channel)
    was_read: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    complete: bool = False
    fault: Problem | None = None
    rows: int | None = None

    async def response(self, request: Request, headers: Mapping[str, str]) -> Response:
        """The answer, once its beginning is there and its record on the disk. Raises Problem where there is none."""
        self.work.on_stop = self.channel.close
        self.desk.keep(asyncio.create_task(self._run()))
        try:
            async with while_waited_for(request, self.work):
                first = await self._next()
            if first is None and self.fault is not None:
                raise self.fault
            await self.desk.recording.record(self.read)
        except BaseException:
            self.end()
            raise
        return _Sent(self, self._blocks(first), dict(headers))

    def end(self) -> None:
        """Says that nobody takes more of it."""
        self.work.stop("gone")
        self.channel.close()
        self.ended.set()

    async def _run(self) -> None:
        """Reads it, waits until it is sent, and records how it ended."""
        with self.desk.shelf.held():
            try:
                task = QueryTask(self.reader, self.query, self.kind)
                most = self.desk.serve.download_seconds
                self.rows = (await self.desk.queue.run(self.work, task, self.channel.write, most))["rows"]
            except Problem as problem:
                self.fault = problem
            self.was_read.set()
            await self.channel.end()
            await self.ended.wait()
        how = self.work.outcome or ("failed" if self.fault else "answered" if self.complete else "gone")
        with suppress(Problem):
            await self.desk.recording.record(self.read.ended(how, rows=self.rows, size=self.channel.size))

    async def _next(self) -> bytes | None:
        """The next block; None where there is no more, and it is known whether something went wrong."""
        block = await self.channel.next()
        if block is None:
            await self.was_read.wait()
        return block

    async def _blocks(self, first: bytes | None) -> AsyncIterator[bytes]:
        block = first
        while block is not None:
            yield block
            block = await self._next()
        if self.fault is not None:
            raise Ended(self.fault.detail)
        self.complete = True


class _Sent(StreamingResponse):
    """The response, which is cut off where its end cannot be read: no reader takes a part for the whole."""

    def __init__(self, download: Download, blocks: AsyncIterator[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(blocks, 200, headers, MEDIA[download.kind])
        self.download = download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(Ended, asyncio.CancelledError):  # the latter where the server ends, and nobody took more
                await super().__call__(scope, receive, send)
        finally:
            self.download.end()
