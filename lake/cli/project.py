"""Commands about the project and the machine: init, setup, doctor."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from lake.cli import EXISTING_FILE, EXISTING_FOLDER, LocalPath, Shell, common_options
from lake.connectors import connector, connectors
from lake.errors import DeclarationError, LakeError


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
    from lake.config import Settings
    from lake.ops.scaffold import EXAMPLES
    from lake.ops.scaffold import init as make
    from lake.session import jars

    if shell.project is not None:
        raise DeclarationError("--project cannot be combined with init", fix=f"lake init {folder}")
    files = make(folder, example)
    shell.emit({"project": str(folder.resolve()), "files": files}, files)
    ready = "" if jars.are_in(Settings.jars) else "lake setup && "
    table = EXAMPLES[example] if example else "customer_daily"
    shell.report(f"next: cd {shlex.quote(str(folder))} && {ready}lake run && lake sql 'select * from {table}'")


def _storage_options(command: Callable[..., None]) -> Callable[..., None]:
    for name in connectors("lake.storage"):
        words = f"Fetch those for the storage {name}:// too."
        command = click.option(f"--{name}", "storages", flag_value=name, multiple=True, help=words)(command)
    return command


@click.command()
@click.option("--from", "source", type=EXISTING_FOLDER, help="Copy the jars from this folder instead of fetching them.")
@click.option(
    "--ivy-settings", type=EXISTING_FILE, help="Fetch them as this ivysettings.xml says, such as from a mirror."
)
@click.option("--no-archive", is_flag=True, help="Make no archive of classes: 200 MB less, and slower starts of Spark.")
@_storage_options
@common_options
def setup(
    shell: Shell, source: Path | None, ivy_settings: Path | None, no_archive: bool, storages: Sequence[str] = ()
) -> None:
    """Fetch the jars that Spark needs for Delta, and verify them. Each has a pinned SHA-256.

    They go to the folder of the setting `jars`, by default in this Python's environment. Jars in place need no network.
    An object storage needs more of them: name its scheme, or a project that has its data there. Beside them is an
    archive of Java's classes, from a run of a small project: a cold run takes a fifth less CPU.

    \b
    lake setup
    lake setup --from /media/jars
    """
    from lake.config import Settings, StorageAccess, find_project
    from lake.session import class_archive, file_modes, jars

    if source is not None and ivy_settings is not None:
        raise DeclarationError("--from and --ivy-settings cannot be combined", fix="use only one of them")
    folder = Settings.jars
    kinds: list[StorageAccess] = [connector("lake.storage", name, f"--{name}") for name in storages]
    with suppress(DeclarationError):  # outside a project, the jars are for all projects
        shell.project = shell.project or find_project(Path.cwd())
    if shell.project is not None:
        folder = shell.settings.path(shell.settings.jars)
        kinds += filter(None, [shell.settings.object_storage])
    above = (folder.parent,) if folder.resolve() == Settings.jars.resolve() else ()  # created for all projects
    with file_modes.for_all(folder, *above):
        fetched = count = 0
        for name, file in {"": jars.LIST, **{kind.scheme: kind.jars for kind in kinds}}.items():
            origin = source and source / name
            fetched += jars.provide(folder / name, shell.report, file=file, source=origin, ivy_settings=ivy_settings)
            count += len(jars.listed(file))
        archived = bool(class_archive.java_options(folder))
        if not no_archive:
            archived = class_archive.make(folder, shell.report)
    done = f"jars: {count} verified in {folder}" if fetched else f"jars: {count} in place"
    answer = {"jars": str(folder), "listed": count, "fetched": fetched, "archived": archived}
    shell.emit(answer, f"{done}, with an archive of classes" if archived else done)


@click.command()
@common_options
def doctor(shell: Shell) -> None:
    """Check that Headwater can work on this machine. Says how to fix what fails; exit code 1 if anything does.

    \b
    Example: lake doctor --json
    """
    from lake.ops.doctor import examine

    findings = examine(shell.project)
    lines = []
    for finding in findings:
        lines.append(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.subject:<18}  {finding.found}")
        if not finding.ok:
            lines.append(f"{'':<26}fix: {finding.fix}")
    shell.emit([{"ok": finding.ok, **asdict(finding)} for finding in findings], lines)
    if failed := sum(not finding.ok for finding in findings):
        raise LakeError(f"{failed} of {len(findings)} checks failed", fix="see the FAIL lines above")
