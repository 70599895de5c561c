"""Command `serve`: Spark Connect, and HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lake.cli import FiniteNumber, Shell, common_options
from lake.session.remote import TOKEN

if TYPE_CHECKING:
    from lake.serve.spark_server import Server


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
@common_options
def connect(shell: Shell, port: int) -> None:
    """Run a Spark Connect server on loopback: commands with SPARK_REMOTE set to it share one warm JVM.

    Prints SPARK_REMOTE when it is ready. Commands of this project find its token themselves.

    \b
    Example: lake serve connect --port 15002
    """
    from lake.serve.spark_server import serve as run

    def on_ready(server: Server) -> None:
        shell.emit(asdict(server), f"SPARK_REMOTE={server.remote}")
        token = f"$(cat {server.token_file})" if server.token_file else "the token it was started with"
        shell.report(f"pid {server.pid}; programs other than lake need {TOKEN}={token}")

    run(shell.settings, port=port, on_ready=on_ready)


@serve.command()
@click.argument("source", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8480, show_default=True, help="The port to listen on; 0: any."
)
@common_options
def http(shell: Shell, source: str | None, host: str, port: int) -> None:
    """Serve published tables to readers by HTTP, and take events for SOURCE, declared in sources/SOURCE.toml.

    SOURCE is by default the only one of kind http; a project without one is read from only. Acknowledged events are on
    disk. lake reader add grants tables to a reader. Prints its address when it is ready; a page there explains how to
    post and how to read.

    \b
    Example: lake serve http --port 8480
    """
    from lake.serve import check_installed

    check_installed("lake serve http")
    from lake.serve.server import Serving, serve

    def ready(serving: Serving) -> None:
        shell.emit(asdict(serving), serving.url)
        token = f"$(cat {serving.token_file})" if serving.token_file else "from the environment"
        posted = f"token {token}; streams {', '.join(serving.streams)}" if serving.streams else "no events are taken"
        shell.report(f"pid {serving.pid}; {posted}; for readers: lake reader add")
        if serving.shared:
            shell.report(
                f"{host} is reachable from other machines: anyone with a token may post or read, and there is no TLS;"
                " put a proxy before it"
            )

    serve(shell.settings, source, host=host, port=port, ready=ready)


@serve.command()
@click.option(
    "--port", type=click.IntRange(1024, 65535), default=15002, show_default=True, help="The port that it listens on."
)
@click.option(
    "--wait", type=FiniteNumber(), default=0.0, metavar="SECONDS", help="Keep trying for SECONDS (default: 0)."
)
@common_options
def ready(shell: Shell, port: int, wait: float) -> None:
    """Ask this project's Spark Connect server whether it is ready: a readiness probe.

    It opens a session with the project's token and closes it again. Exit code 75 if the server does not answer,
    2 if it refuses the token.

    \b
    lake serve ready
    lake serve ready --port 15002 --wait 60
    """
    from lake.serve.spark_server import await_ready

    version = await_ready(shell.settings, port=port, patience=wait)
    remote = f"sc://localhost:{port}"
    shell.emit({"remote": remote, "spark": version}, f"ready: Spark {version} at {remote}")
