"""Services of the read API's endpoints: grants, editions, the query pool, and the access log."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.requests import Request

from lake.config import ServeSettings, Settings
from lake.errors import Unavailable
from lake.read.public_files import PublicFiles
from lake.read.sql import EditionChoice, EditionReader
from lake.serve.problems import Problem
from lake.serve.reading.edition_cache import EditionCache
from lake.serve.reading.query_pool import QueryPool, RunningQuery
from lake.serve.reading.query_worker import CopyTask
from lake.serve.reading.signed_urls import UrlSigner
from lake.serve.reading.stored_answers import StoredAnswers
from lake.serve.tokens import ReaderTokens
from lake.session import file_modes
from lake.session.file_modes import kept_secret
from lake.store.ledger.grants import Grant
from lake.store.ledger.reads import Journal, Read
from lake.store.snapshot import Published

BOOK_SECONDS: Final = 300.0
BOOK_LINES: Final = 2_000
"""After BOOK_SECONDS or BOOK_LINES lines, the journal is moved to its table."""


@dataclass
class AccessLog:
    """Log of reads, written before they are answered. Concurrent entries share one write to the disk."""

    journal: Journal
    _waiting: list[tuple[Read, asyncio.Future[None]]] = field(default_factory=list)
    _writing: asyncio.Task[None] | None = None
    _booked: float = field(default_factory=time.monotonic)

    async def record(self, read: Read) -> None:
        """Write an entry. Raises Problem if that fails: then the read must not be answered."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((read, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        try:
            await asyncio.shield(done)
        except OSError as error:
            raise Problem("unrecorded", "the record cannot be written", after=10) from error

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                fault = None
                try:
                    await asyncio.to_thread(self.journal.add, [read for read, _ in group])
                except OSError as error:
                    logging.getLogger("lake").warning("reads cannot be recorded: %s", error)
                    fault = error
                for _, done in group:
                    if not done.done():
                        done.set_exception(fault) if fault else done.set_result(None)
        finally:
            self._writing = None

    async def book(self, *, now: bool = False) -> None:
        """Move the journal's lines to the table if that is due, or `now`. A failure is retried when due."""
        due = time.monotonic() - self._booked >= BOOK_SECONDS or self.journal.lines >= BOOK_LINES
        if now or due:
            self._booked = time.monotonic()
            with suppress(Unavailable):  # another process does it
                await asyncio.to_thread(self.journal.record)

    async def close(self) -> None:
        """Move all lines to the table. If that fails, the next server does it."""
        if self._writing is not None:
            await self._writing
        await asyncio.to_thread(self.journal.close)
        try:
            await self.book(now=True)
        except Exception as error:  # of any kind, such as a damaged table
            logging.getLogger("lake").warning("reads are not in their table yet: %s", error)


@dataclass
class RequestContext:
    settings: Settings
    tokens: ReaderTokens
    editions: EditionCache
    public_files: PublicFiles
    access_log: AccessLog
    pool: QueryPool
    answers: StoredAnswers
    links: UrlSigner
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def of(cls, settings: Settings, loop: asyncio.AbstractEventLoop) -> RequestContext:
        pool, scratch = QueryPool.of(settings), file_modes.scratch(settings, "serve")

        def copy(reader: EditionReader, table: Published, folder: Path) -> None:
            running = pool.run(
                RunningQuery(), CopyTask(reader, table.name, folder), _nothing, settings.serve.download_seconds
            )
            asyncio.run_coroutine_threadsafe(running, loop).result()

        return cls(
            settings,
            ReaderTokens(settings),
            EditionCache(settings),
            PublicFiles(settings, copy),
            AccessLog(Journal(settings)),
            pool,
            StoredAnswers(scratch, settings.serve.answers_bytes),
            UrlSigner(kept_secret(scratch / "link.key", lambda: secrets.token_bytes(32))),
        )

    @property
    def serve(self) -> ServeSettings:
        return self.settings.serve

    async def grant(self, request: Request) -> Grant:
        if (cached := self.tokens.cached(request.headers)) is not None:
            return cached
        return await asyncio.to_thread(self.tokens.of, request.headers)

    async def reader(self, grant: Grant, asked: EditionChoice) -> EditionReader:
        if (cached := self.editions.cached_reader(grant, asked)) is not None:
            return cached
        return await asyncio.to_thread(self.editions.reader, grant, asked)

    def keep(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def stop(self) -> None:
        self.pool.stop()
        self.answers.stop()

    async def close(self) -> None:
        self.answers.stop()
        await self.pool.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.access_log.close()


async def _nothing(block: bytes) -> None: ...
