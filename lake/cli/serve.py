"""Commands that serve: Spark Connect for this project's commands and for other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lake.cli import Shell, shared
from lake.remote import TOKEN

if TYPE_CHECKING:
    from lake.serve import Server


@click.group()
def serve() -> None:
    """Serve this project on this machine, until SIGTERM or Ctrl-C.

    \b
    Example: lake serve connect
    """


@serve.command()
@click.option(
    "--port", type=click.IntRange(1024, 65535), default=15002, show_default=True, help="The port to listen on."
)
@shared
def connect(shell: Shell, port: int) -> None:
    """Run a Spark Connect server on loopback: commands with SPARK_REMOTE set to it share one warm JVM.

    Prints SPARK_REMOTE when it is ready. Commands of this project find its token themselves.

    \b
    Example: lake serve connect --port 15002
    """
    from lake.serve import connect as run

    def ready(server: Server) -> None:
        shell.emit(asdict(server), f"SPARK_REMOTE={server.remote}")
        token = f"$(cat {server.token_file})" if server.token_file else "the token it was started with"
        shell.say(f"pid {server.pid}; programs other than lake need {TOKEN}={token}")

    run(shell.settings, port=port, ready=ready)
