"""Server of `lake serve http`: answers readers and accepts events for one source, until SIGTERM or SIGINT.

At shutdown it rejects new connections, answers pending requests, and commits their events.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from lake.config import ServeSettings, Settings
from lake.contracts.contract import sound_contracts
from lake.errors import Unavailable
from lake.project.project import sound_project
from lake.serve import pages
from lake.serve.access import Access
from lake.serve.app import Intake
from lake.serve.connections import ACCEPTED_AT_ONCE, protocol
from lake.serve.decide.command_validation import CommandValidator
from lake.serve.decide.rule import faulty_streams, rules
from lake.serve.describe import openapi
from lake.serve.problems import Problem, handle_problems
from lake.serve.reading.app import ReadingApp
from lake.serve.reading.describe import home_section, paths
from lake.serve.source import DeclaredIntake, find_declaration_if_any, intake_writer
from lake.session import file_modes
from lake.store.process import end_signals_handled

if TYPE_CHECKING:
    from lake.serve.problems import Endpoint

GRACE_SECONDS: Final = 20
KEEP_ALIVE_SECONDS: Final = 30
HOST_HEADER: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::[0-9]*)?")


@dataclass(frozen=True)
class Serving:
    """`token_file` has the generated token of producers, if any. `shared`: other machines can reach the server."""

    url: str
    source: str | None
    streams: tuple[str, ...]
    pid: int
    token_file: Path | None
    shared: bool


def serve(
    settings: Settings, source: str | None = None, *, host: str, port: int, ready: Callable[[Serving], None]
) -> None:
    """Serve readers, and the intake of `source` (None: the only HTTP source, if any). Calls `ready` once it listens.

    Raises DeclarationError for a wrong declaration, Unavailable if the port is in use or another process serves the
    source.
    """
    contracts, _ = sound_contracts(settings)
    declared = find_declaration_if_any(settings, contracts, source)
    with _bound(host, port) as listening, ExitStack() as ends:
        url = f"http://{_in_url(host)}:{listening.getsockname()[1]}"
        intake = _intake(settings, declared, url, ends) if declared else None
        site = Site(ReadingApp(settings), intake, shared=not is_loopback(host))
        name = declared.name if declared else None
        streams = tuple(contract.name for contract in intake.accepted_contracts) if intake else ()
        token_file = intake.access.token_file if intake else None
        serving = Serving(url, name, streams, os.getpid(), token_file, site.shared)
        site.ready = lambda: ready(serving)
        _run(site.app, settings.serve, listening, stop=site.stop)


def _intake(settings: Settings, declared: DeclaredIntake, url: str, ends: ExitStack) -> Intake:
    contracts, faults = sound_contracts(settings)
    access = Access.of(settings, declared)
    project = sound_project(settings)[0] if declared.decide else None
    faulty = faulty_streams(settings, declared, faults, project.tables if project else ())
    validator = CommandValidator(declared, rules(project, declared, faulty)) if project else None
    for stream, fault in faulty.items():
        logging.getLogger("lake").warning("no events of %s are taken: %s", stream, fault)
    writer = intake_writer(settings, declared.name, patience=settings.lease_seconds)
    ends.callback(writer.close)
    if validator is not None:
        validator.begin()
        ends.enter_context(_published_address(settings, declared.name, url))
    return Intake(settings, declared, contracts, access, writer, validator, faulty)


@contextmanager
def _published_address(settings: Settings, source: str, url: str) -> Iterator[None]:
    file = address_of(settings, source)
    new = file.with_suffix(".new")
    new.write_text(url, "utf-8")
    new.replace(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def address_of(settings: Settings, source: str) -> Path:
    return file_modes.scratch(settings, "http") / f"{source}.address"


def _run(app: Starlette, serve: ServeSettings, listening: socket.socket, *, stop: Callable[[], None]) -> None:
    class Ending(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            stop()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        http=protocol(serve),
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    # Uvicorn raises the signals again after it has shut down for them.
    with end_signals_handled(lambda _: None), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Ending(config).serve([listening]))


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on port {port}: {error.strerror or error}",
            where=f"{host}:{port}",
            fix="another server may be running: stop it, or choose another port with --port N",
        ) from None
    with listening:
        yield listening


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@dataclass
class Site:
    reading: ReadingApp
    intake: Intake | None = None
    shared: bool = False
    ready: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        contracts, decides = (self.intake.accepted_contracts, self.intake.decides) if self.intake else ([], ())
        self.described = openapi(contracts, decides, paths(self.reading.settings.serve))

    @property
    def app(self) -> Starlette:
        routes = [
            *(self.intake.routes if self.intake else []),
            *self.reading.routes,
            Route("/", handle_problems(self._guarded(self.home))),
            Route("/problems", handle_problems(self._guarded(self.problems))),
            Route("/openapi.json", handle_problems(self._guarded(self.openapi))),
            Route("/health", handle_problems(self.health)),
        ]
        handlers = {HTTPException: page_not_found}
        application = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        application.router.redirect_slashes = False  # a redirection asks for no token
        return application

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
        if self.intake:
            self.intake.check_capacity()
        return JSONResponse({"status": "ok"})

    def _guarded(self, page: Endpoint) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            if not self._is_local(request) and not self._has_token(request):
                host = request.headers.get("host", "")
                raise Problem("no-token", f"no token; only http://localhost shows pages without one (Host: {host!r})")
            return await page(request)

        return endpoint

    def _is_local(self, request: Request) -> bool:
        return not self.shared and is_loopback_header(request.headers.get("host", ""))

    def _has_token(self, request: Request) -> bool:
        is_producer = self.intake is not None and bool(self.intake.access.streams(request.headers))
        return is_producer or self.reading.has_any_token(request.headers)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as parts:
            await parts.enter_async_context(self.reading.lifespan())
            if self.intake:
                await parts.enter_async_context(self.intake.lifespan())
            self.ready()
            yield


async def page_not_found(request: Request, error: Exception) -> Response:
    is_wrong_method = isinstance(error, HTTPException) and error.status_code == 405
    return Problem("wrong-method" if is_wrong_method else "no-page", f"{request.method} {request.url.path}").response


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def is_loopback_header(header: str) -> bool:
    """Return False for a foreign name that resolves to this machine (DNS rebinding): the `header` is untrusted."""
    host = HOST_HEADER.fullmatch(header)
    return host is not None and is_loopback(host[1] or host[2])
