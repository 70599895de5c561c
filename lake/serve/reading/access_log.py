"""Access log of reads, written before they are answered. Concurrent entries share one write to the disk."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from lake.errors import LakeError
from lake.serve.problems import Problem
from lake.store.ledger.reads import Journal, Read

BOOK_SECONDS: Final = 300.0
BOOK_LINES: Final = 2_000
"""After BOOK_SECONDS or BOOK_LINES lines, the journal is moved to its table."""


@dataclass
class AccessLog:
    """Journal of this process, on an event loop."""

    journal: Journal
    _waiting: list[tuple[Read, asyncio.Future[None]]] = field(default_factory=list)
    _writing: asyncio.Task[None] | None = None
    _booked: float = field(default_factory=time.monotonic)

    async def record(self, read: Read) -> None:
        """Write an entry to the disk. Raises Problem if that fails: then the read must not be answered."""
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
        """Move the journal's lines to the table if that is due, or `now`. A failure is retried later."""
        due = time.monotonic() - self._booked >= BOOK_SECONDS or self.journal.lines >= BOOK_LINES
        if now or due:
            self._booked = time.monotonic()
            with suppress(LakeError, OSError):
                await asyncio.to_thread(self.journal.record)

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        await asyncio.to_thread(self.journal.close)
        await self.book(now=True)
