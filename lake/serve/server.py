"""Server of `lake serve http`: answers readers and accepts events for one source, until SIGTERM or SIGINT.

At shutdown it rejects new connections, answers pending requests, and commits their events.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from lake.config import ServeSettings, Settings
from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError, Unavailable, install
from lake.project.project import load
from lake.serve.decide.command_validation import CommandValidator
from lake.serve.decide.rule import rules
from lake.serve.source import DeclaredIntake, find_declaration_if_any, intake_writer
from lake.session import file_modes

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from lake.serve.app import Intake

PACKAGES: Final = ("httptools", "starlette", "uvicorn", "uvloop", "standardwebhooks")
GRACE_SECONDS: Final = 20
IDLE_SECONDS: Final = 30


@dataclass(frozen=True)
class Serving:
    """`token_file` has the token generated for producers, if there is one."""

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

    Raises DeclarationError for a wrong declaration or a missing extra, Unavailable if the port is in use or another
    process serves the source.
    """
    check_installed()
    from lake.serve.reading.app import ReadingApp
    from lake.serve.site import Site, is_loopback

    declared = find_declaration_if_any(settings, source)
    with _bound(host, port) as listening, ExitStack() as ends:
        url = f"http://{_in_url(host)}:{listening.getsockname()[1]}"
        intake = _intake(settings, declared, url, ends) if declared else None
        site = Site(ReadingApp(settings), intake, shared=not is_loopback(host))
        name, streams = (declared.name, declared.streams) if declared else (None, ())
        token_file = intake.access.token_file if intake else None
        serving = Serving(url, name, streams, os.getpid(), token_file, site.shared)
        site.ready = lambda: ready(serving)
        _run(site.app, settings.serve, listening, stop=site.stop)


def _intake(settings: Settings, declared: DeclaredIntake, url: str, ends: ExitStack) -> Intake:
    from lake.serve.access import Access
    from lake.serve.app import Intake

    contracts = load_contracts(settings)
    access = Access.of(settings, declared)
    validator = CommandValidator(declared, rules(load(settings), declared)) if declared.decide else None
    writer = intake_writer(settings, declared.name)
    ends.callback(writer.close)
    if validator is not None:
        validator.begin()
        ends.enter_context(_published_address(settings, declared.name, url))
    return Intake(settings, declared, contracts, access, writer, validator=validator)


@contextmanager
def _published_address(settings: Settings, source: str, url: str) -> Iterator[None]:
    note = address_of(settings, source)
    new = note.with_suffix(".new")
    new.write_text(url, "utf-8")
    new.replace(note)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def address_of(settings: Settings, source: str) -> Path:
    return file_modes.scratch(settings, "http") / f"{source}.address"


def check_installed() -> None:
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise DeclarationError(
            f"lake serve http needs {', '.join(missing)}, which the extra `serve` installs",
            fix=install("serve"),
        )


def _run(app: Starlette, serve: ServeSettings, listening: socket.socket, *, stop: Callable[[], None]) -> None:
    import uvicorn
    import uvloop

    from lake.serve.connections import ACCEPTED_AT_ONCE, protocol

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
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with _signals_ignored(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Ending(config).serve([listening]))


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore the signals that uvicorn raises again after it has shut down for them."""
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


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
