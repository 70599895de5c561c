"""Commands about the project and the machine: init, setup, doctor, serve."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lake.cli import FiniteNumber, LocalPath, Shell, common_options
from lake.errors import DeclarationError, LakeError
from lake.remote import TOKEN

if TYPE_CHECKING:
    from lake.serve import Server


@click.command()
@click.argument("folder", type=LocalPath(path_type=Path))
@click.option(
    "--example",
    type=click.Choice(["social"]),
    help="A worked example instead: social keeps timelines, a search index, a cache and alerts in step.",
)
@common_options
def init(shell: Shell, folder: Path, example: str | None) -> None:
    """Create a project in FOLDER. It has a stream, two tables, their expectations, a few events and a test.

    \b
    Example: lake init shop && cd shop && lake run
    """
    from lake import jars
    from lake.config import Settings
    from lake.scaffold import EXAMPLES
    from lake.scaffold import init as make

    if shell.project is not None:
        raise DeclarationError("--project cannot be combined with init", fix=f"lake init {folder}")
    files = make(folder, example)
    shell.emit({"project": str(folder.resolve()), "files": files}, files)
    ready = "" if jars.are_in(Settings.jars) else "lake setup && "
    table = EXAMPLES[example] if example else "customer_daily"
    shell.report(f"next: cd {shlex.quote(str(folder))} && {ready}lake run && lake sql 'select * from {table}'")


@click.command()
@click.option(
    "--from",
    "source",
    type=LocalPath(exists=True, file_okay=False, path_type=Path),
    help="Copy the jars from this folder instead of fetching them.",
)
@click.option(
    "--ivy-settings",
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    help="Fetch them as this ivysettings.xml says, such as from a mirror.",
)
@click.option("--s3", "for_s3", is_flag=True, help="Fetch those for an object store too.")
@common_options
def setup(shell: Shell, source: Path | None, ivy_settings: Path | None, for_s3: bool) -> None:
    """Fetch the jars that Spark needs for Delta, and verify them. Each has a pinned SHA-256.

    They go where the setting `jars` says, by default into this Python's environment. What is in place already needs no
    network. What is in an object store needs more of them, and a class that is compiled: --s3, or in its project.

    \b
    lake setup
    lake setup --s3
    lake setup --from /media/jars
    """
    from lake import file_modes, jars, s3
    from lake.config import Settings, find_project

    if source is not None and ivy_settings is not None:
        raise DeclarationError("--from and --ivy-settings cannot be combined", fix="use only one of them")
    folder = Settings.jars
    with suppress(DeclarationError):  # outside a project, the jars are for all projects
        shell.project = shell.project or find_project(Path.cwd())
    if shell.project is not None:
        folder, for_s3 = shell.settings.path(shell.settings.jars), for_s3 or bool(shell.settings.stores)
    above = (folder.parent,) if folder.resolve() == Settings.jars.resolve() else ()  # created for all projects
    with file_modes.for_all(folder, *above):
        fetched = jars.provide(folder, shell.report, source=source, ivy_settings=ivy_settings)
        count = len(jars.listed())
        if for_s3:
            fetched += s3.provide(folder, shell.report, source=source, ivy_settings=ivy_settings)
            count += len(jars.listed(s3.LIST))
    done = f"jars: {count} verified in {folder}" if fetched else f"jars: {count} in place"
    shell.emit({"jars": str(folder), "listed": count, "fetched": fetched}, done)


@click.command()
@common_options
def doctor(shell: Shell) -> None:
    """Check that Headwater can work on this machine. Says how to fix what fails; exit code 1 if anything does.

    \b
    Example: lake doctor --json
    """
    from lake.report.doctor import examine

    findings = examine(shell.project)
    lines = []
    for finding in findings:
        lines.append(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.subject:<18}  {finding.found}")
        if not finding.ok:
            lines.append(f"{'':<26}fix: {finding.fix}")
    shell.emit([{"ok": finding.ok, **asdict(finding)} for finding in findings], lines)
    if failed := sum(not finding.ok for finding in findings):
        raise LakeError(f"{failed} of {len(findings)} checks failed", fix="see the FAIL lines above")


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
    from lake.serve import connect as run

    def ready(server: Server) -> None:
        shell.emit(asdict(server), f"SPARK_REMOTE={server.remote}")
        token = f"$(cat {server.token_file})" if server.token_file else "the token it was started with"
        shell.report(f"pid {server.pid}; programs other than lake need {TOKEN}={token}")

    run(shell.settings, port=port, ready=ready)


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
    disk. lake reader add lets somebody read. Prints its address when it is ready; a page there says how to post and
    how to read.

    \b
    Example: lake serve http --port 8480
    """
    from lake.http.server import Serving, serve

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
    "--wait", type=FiniteNumber(), default=0.0, metavar="SECONDS", help="Keep trying for so long (default: 0)."
)
@common_options
def ready(shell: Shell, port: int, wait: float) -> None:
    """Ask this project's Spark Connect server whether it is ready: a readiness probe.

    It opens a session with the project's token and closes it again. Exit code 75 where the server does not answer,
    2 where it refuses the token.

    \b
    lake serve ready
    lake serve ready --port 15002 --wait 60
    """
    from lake.serve import ready as ask

    version = ask(shell.settings, port=port, patience=wait)
    remote = f"sc://localhost:{port}"
    shell.emit({"remote": remote, "spark": version}, f"ready: Spark {version} at {remote}")
