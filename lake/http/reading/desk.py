"""What every answer to a reader needs: who may read, the editions, the workers, and the record of reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request

from lake import file_modes
from lake.config import ServeSettings, Settings
from lake.http.reading.guests import Guests
from lake.http.reading.kept import KeptAnswers
from lake.http.reading.query_worker import CopyTask
from lake.http.reading.recording import Recording
from lake.http.reading.shelf import Asked, Shelf
from lake.http.reading.work import Queue, Work
from lake.read.public_files import PublicFiles
from lake.read.sql import EditionReader
from lake.store.ledger.grants import Grant
from lake.store.ledger.reads import Journal
from lake.store.snapshot import Published


@dataclass
class Desk:
    """Of one server, on its event loop. `scratch` has what it keeps between its starts."""

    settings: Settings
    guests: Guests
    shelf: Shelf
    public_files: PublicFiles
    recording: Recording
    queue: Queue
    answers: KeptAnswers
    scratch: Path
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @classmethod
    def of(cls, settings: Settings, loop: asyncio.AbstractEventLoop) -> Desk:
        """Return a new one for `loop`. Raises OSError if this user may not write to the project."""
        queue, scratch = Queue.of(settings), file_modes.scratch(settings, "serve")

        def copy(reader: EditionReader, table: Published, folder: Path) -> None:
            running = queue.run(Work(), CopyTask(reader, table.name, folder), _nothing, settings.serve.download_seconds)
            asyncio.run_coroutine_threadsafe(running, loop).result()

        return cls(
            settings,
            Guests(settings),
            Shelf(settings),
            PublicFiles(settings, copy),
            Recording(Journal(settings)),
            queue,
            KeptAnswers(scratch, settings.serve.answers_bytes),
            scratch,
        )

    @property
    def serve(self) -> ServeSettings:
        """The limits."""
        return self.settings.serve

    async def grant(self, request: Request) -> Grant:
        """What the reader who asks may read. Raises Problem for anybody else."""
        return await asyncio.to_thread(self.guests.of, request.headers)

    async def reader(self, grant: Grant, asked: Asked) -> EditionReader:
        """An edition as somebody may see it. Raises Problem where there is none."""
        return await asyncio.to_thread(self.shelf.reader, grant, asked)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Has a task end before the server does."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def stop(self) -> None:
        """End queries, and answers that are not sent yet."""
        self.queue.stop()
        self.answers.stop()

    async def close(self) -> None:
        """Ends what is at work, and records it."""
        self.answers.stop()
        await self.queue.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.recording.close()


async def _nothing(block: bytes) -> None:
    """Take the answer of a task that has none."""
