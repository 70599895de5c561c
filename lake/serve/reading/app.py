"""Read API: `GET /tables`, `POST /sql` and Delta Sharing, for requests with a reader's token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lake.config import Settings
from lake.errors import LakeError
from lake.serve.periodic import repeated
from lake.serve.problems import Problem, handle_problems, problem_of
from lake.serve.reading.describe import list_tables
from lake.serve.reading.queries import get_table, post_query
from lake.serve.reading.request_context import RequestContext
from lake.serve.reading.sharing import ROUTES, Sharing, protocol_problem

if TYPE_CHECKING:
    from lake.serve.problems import Endpoint

TICK_SECONDS: Final = 2.0
SWEEP_SECONDS: Final = 60.0
STOP_SECONDS: Final = 15.0
"""Seconds that queries and downloads get at shutdown: less than the server waits for them."""


@dataclass
class ReadingApp:
    settings: Settings
    loop: asyncio.AbstractEventLoop | None = None
    context: RequestContext = field(init=False)

    def has_any_token(self, headers: Mapping[str, str]) -> bool:
        with suppress(Problem, LakeError):
            self.context.tokens.of(headers)
            return True
        return False

    @property
    def routes(self) -> list[Route]:
        def answered(answer: Callable[[RequestContext, Request], Awaitable[Response]]) -> Endpoint:
            async def endpoint(request: Request) -> Response:
                return await answer(self.context, request)

            return handle_problems(endpoint, problem_of)

        def shared(answer: Callable[[Sharing, Request], Awaitable[Response]]) -> Endpoint:
            async def endpoint(request: Request) -> Response:
                return await answer(Sharing(self.context), request)

            return handle_problems(endpoint, protocol_problem)

        return [
            Route("/tables", answered(list_tables)),
            Route("/tables/{table}", answered(get_table)),
            Route("/sql", answered(post_query), methods=["POST"]),
            *(Route(path, shared(answer), methods=[method]) for path, method, answer, _ in ROUTES),
        ]

    def stop(self) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.call_later, STOP_SECONDS, self.context.stop)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        self.context = await asyncio.to_thread(RequestContext.of, self.settings, self.loop)
        await asyncio.to_thread(self.context.editions.renew)
        renewing = repeated("renewing the hold on files", self._renew, TICK_SECONDS)
        booking = repeated("moving the record of reads to its table", self.context.access_log.book, TICK_SECONDS)
        sweeping = repeated("deleting copies of files", self._sweep, SWEEP_SECONDS)
        try:
            async with renewing, booking, sweeping:
                yield
        finally:
            await self.context.close()

    async def _renew(self) -> None:
        await asyncio.to_thread(self.context.editions.renew)

    async def _sweep(self) -> None:
        before = datetime.now(UTC) - timedelta(seconds=self.context.serve.link_seconds)
        await asyncio.to_thread(self.context.public_files.sweep, before=before)
