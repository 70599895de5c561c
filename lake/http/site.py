"""One server: events for a source where the project has one, published tables for readers, and pages about both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from lake.http import pages
from lake.http.answering import Endpoint, answering, no_page
from lake.http.describe import openapi
from lake.http.hosts import is_loopback_header
from lake.http.problems import Problem
from lake.http.reading import pages as reading_pages

if TYPE_CHECKING:
    from lake.http.app import Intake
    from lake.http.reading.app import Reading


@dataclass
class Site:
    """The parts of a server; `shared` says whether others than this machine reach it."""

    reading: Reading
    intake: Intake | None = None
    shared: bool = False
    ready: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        taken, decides = (self.intake.taken, self.intake.decides) if self.intake else ([], ())
        self.described = openapi(taken, decides, self.reading.described)

    @property
    def app(self) -> Starlette:
        """The application; its lifespan is that of its parts."""
        routes = [
            *(self.intake.routes if self.intake else []),
            *self.reading.routes,
            Route("/", answering(self._looking(self.home))),
            Route("/problems", answering(self._looking(self.problems))),
            Route("/openapi.json", answering(self._looking(self.openapi))),
            Route("/health", answering(self.health)),
        ]
        return Starlette(routes=routes, lifespan=self._living, exception_handlers={HTTPException: no_page})

    def stop(self) -> None:
        """Has those who wait for an edition answered now, and queries end in time.

        Called by a signal, while the server runs.
        """
        self.reading.stop()
        if self.intake:
            self.intake.stop()

    async def home(self, request: Request) -> Response:
        """The page about all of it."""
        base = str(request.base_url).rstrip("/")
        posted = [self.intake.page(base, local=self._is_local(request))] if self.intake else []
        return HTMLResponse(pages.home([reading_pages.part(base, alone=not posted), *posted]))

    async def problems(self, _: Request) -> Response:
        """The page about problems."""
        return HTMLResponse(pages.problems())

    async def openapi(self, _: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(self.described)

    async def health(self, _: Request) -> Response:
        """Whether events are taken: 503 where the disk or the backlog forbids it. Tells nothing else."""
        if self.intake:
            self.intake.must_take()
        return JSONResponse({"status": "ok"})

    def _looking(self, page: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            if not self._is_local(request) and not self._may_look(request):
                host = request.headers.get("host", "")
                raise Problem("no-token", f"no token, which only pages of http://localhost need not (Host: {host!r})")
            return await page(request)

        return guarded

    def _is_local(self, request: Request) -> bool:
        return not self.shared and is_loopback_header(request.headers.get("host", ""))

    def _may_look(self, request: Request) -> bool:
        posts = self.intake is not None and self.intake.access.may_look(request.headers)
        return posts or self.reading.may_look(request.headers)

    @asynccontextmanager
    async def _living(self, _: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(self.reading.living())
            if self.intake:
                await parts.enter_async_context(self.intake.living())
            self.ready()
            yield
