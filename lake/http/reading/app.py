"""Reading: `GET /tables`, `POST /sql` and Delta Sharing, each for whoever shows a reader's token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.routing import Route

from lake.config import Settings
from lake.errors import LakeError
from lake.http.answering import answering
from lake.http.problems import Problem
from lake.http.reading import sharing
from lake.http.reading.asking import Asking
from lake.http.reading.describe import paths
from lake.http.reading.desk import Desk
from lake.http.reading.faults import faulting
from lake.http.reading.links import Links
from lake.http.reading.listing import Listing
from lake.http.reading.sharing import Sharing

TICK_SECONDS: Final = 2.0
SWEEP_TICKS: Final = 30
STOP_SECONDS: Final = 15.0
"""Queries and downloads have so long to end once the server is to: less than it waits for them."""


@dataclass
class Reading:
    """What answers readers."""

    settings: Settings
    loop: asyncio.AbstractEventLoop | None = None
    desk: Desk = field(init=False)

    def may_look(self, headers: Mapping[str, str]) -> bool:
        """Whether a request shows any reader's token."""
        with suppress(Problem, LakeError):
            self.desk.guests.of(headers)
            return True
        return False

    @property
    def described(self) -> dict[str, Any]:
        """The paths of the OpenAPI document."""
        return paths(self.settings.serve)

    @property
    def routes(self) -> list[Route]:
        """What is read from. `living` has begun before anything is."""

        async def tables(request: Request) -> Any:
            return await Listing(self.desk).tables(request)

        async def table(request: Request) -> Any:
            return await Asking(self.desk).table(request)

        async def query(request: Request) -> Any:
            return await Asking(self.desk).query(request)

        return [
            Route("/tables", answering(faulting(tables))),
            Route("/tables/{table}", answering(faulting(table))),
            Route("/sql", answering(faulting(query)), methods=["POST"]),
            *(Route(path, answering(self._shared(name)), methods=[method]) for path, name, method in sharing.ROUTES),
        ]

    def stop(self) -> None:
        """Has what is at work end before the server does. Called by a signal, while the server runs."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.call_later, STOP_SECONDS, self.desk.stop)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """Answers while the block runs."""
        self.loop = asyncio.get_running_loop()
        self.desk = await asyncio.to_thread(Desk.of, self.settings, self.loop)
        self.links = await asyncio.to_thread(Links.of, self.desk.scratch)
        await asyncio.to_thread(self.desk.shelf.renew)
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            await self.desk.close()

    def _shared(self, name: str) -> Any:
        async def answer(request: Request) -> Any:
            return await sharing.answer(Sharing(self.desk, self.links), name, request)

        return answer

    async def _tick(self) -> None:
        """Says what is still read, books what was, and removes copies that nobody needs."""
        ticks = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            ticks += 1
            with suppress(LakeError, OSError):
                await asyncio.to_thread(self.desk.shelf.renew)
                await self.desk.recording.book()
            if ticks % SWEEP_TICKS == 0:
                before = datetime.now(UTC) - timedelta(seconds=self.desk.serve.link_seconds)
                with suppress(LakeError, OSError):
                    await asyncio.to_thread(self.desk.public_files.sweep, before=before)
