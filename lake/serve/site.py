"""Web application: the intake if the project has an HTTP source, the read API, and pages about both."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from lake.serve import pages
from lake.serve.describe import openapi
from lake.serve.problems import Problem, handle_problems
from lake.serve.reading.describe import home_section

if TYPE_CHECKING:
    from lake.serve.app import Intake
    from lake.serve.problems import Endpoint
    from lake.serve.reading.app import ReadingApp


@dataclass
class Site:
    """`shared`: other machines can reach it."""

    reading: ReadingApp
    intake: Intake | None = None
    shared: bool = False
    ready: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        taken, decides = (self.intake.accepted_contracts, self.intake.decides) if self.intake else ([], ())
        self.described = openapi(taken, decides, self.reading.described)

    @property
    def app(self) -> Starlette:
        routes = [
            *(self.intake.routes if self.intake else []),
            *self.reading.routes,
            Route("/", handle_problems(self._looking(self.home))),
            Route("/problems", handle_problems(self._looking(self.problems))),
            Route("/openapi.json", handle_problems(self._looking(self.openapi))),
            Route("/health", handle_problems(self.health)),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: page_not_found})

    def stop(self) -> None:
        self.reading.stop()
        if self.intake:
            self.intake.stop()

    async def home(self, request: Request) -> Response:
        base = str(request.base_url).rstrip("/")
        posted = [self.intake.page(base, local=self._is_local(request))] if self.intake else []
        return HTMLResponse(pages.home([home_section(base, alone=not posted), *posted]))

    async def problems(self, _: Request) -> Response:
        return HTMLResponse(pages.problems())

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(self.described)

    async def health(self, _: Request) -> Response:
        """Answer 503 if the disk or the backlog prevents intake. Reveals nothing else."""
        if self.intake:
            self.intake.check_capacity()
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
        posts = self.intake is not None and self.intake.access.has_any_token(request.headers)
        return posts or self.reading.has_any_token(request.headers)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(self.reading.lifespan())
            if self.intake:
                await parts.enter_async_context(self.intake.lifespan())
            self.ready()
            yield


HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::[0-9]*)?")


async def page_not_found(request: Request, error: Exception) -> Response:
    method = isinstance(error, HTTPException) and error.status_code == 405
    return Problem("wrong-method" if method else "no-page", f"{request.method} {request.url.path}").response


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def is_loopback_header(header: str) -> bool:
    """Return whether an untrusted Host header names this machine.

    A browser sends the name in the page's address, so a foreign name that resolves to this machine (DNS rebinding)
    fails.
    """
    host = HOST.fullmatch(header)
    return host is not None and is_loopback(host[1] or host[2])
