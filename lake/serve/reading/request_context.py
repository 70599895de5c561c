"""Shared services of the read API's endpoints: grants, editions, the query pool, and the access log."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request

from lake import file_modes
from lake.config import ServeSettings, Settings
from lake.read.public_files import PublicFiles
from lake.read.sql import EditionReader
from lake.serve.reading.access_log import AccessLog
from lake.serve.reading.authentication import ReaderTokens
from lake.serve.reading.edition_cache import EditionCache, EditionRequest
from lake.serve.reading.query_pool import QueryPool, RunningQuery
from lake.serve.reading.query_worker import CopyTask
from lake.serve.reading.stored_answers import StoredAnswers
from lake.store.ledger.grants import Grant
from lake.store.ledger.reads import Journal
from lake.store.snapshot import Published


@dataclass
class RequestContext:
    """Services of one server, on its event loop. `scratch` is a folder that outlives the server."""

    settings: Settings
    tokens: ReaderTokens
    editions: EditionCache
    public_files: PublicFiles
    access_log: AccessLog
    pool: QueryPool
    answers: StoredAnswers
    scratch: Path
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
            scratch,
        )

    @property
    def serve(self) -> ServeSettings:
        return self.settings.serve

    async def grant(self, request: Request) -> Grant:
        return await asyncio.to_thread(self.tokens.of, request.headers)

    async def reader(self, grant: Grant, asked: EditionRequest) -> EditionReader:
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
