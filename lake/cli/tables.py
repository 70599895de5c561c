"""Commands that make tables: cut, advance, check, publish, run."""

from __future__ import annotations

from dataclasses import asdict
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

import click

from lake.cli import Shell, WholeNumber, check_alone, common_options, table
from lake.cli.recompute import CUT, TABLES, emit_recomputed, inputs_at, line_reporter
from lake.errors import DeclarationError
from lake.text import duration

if TYPE_CHECKING:
    from lake.ops.pipeline import Cycle
    from lake.publish.blocked_groups import BlockedGroups


@click.command()
@click.option("--label", help="Record the cut under this name; the same label returns the same cut again (idempotent).")
@common_options
def cut(shell: Shell, label: str | None) -> None:
    """Record the newest batch of every log as one numbered cut.

    \b
    lake cut
    lake cut --label nightly-2013-01-31
    """
    from lake.publish.cut import cut as record

    new = record(shell.load_project(), label=label)
    shell.emit({"cut": new.number, "batches": dict(new.batches), "voids": new.voids}, f"cut {new.number}")


@click.command()
@TABLES
@CUT
@common_options
def advance(shell: Shell, tables: tuple[str, ...], number: int | None) -> None:
    """Bring tables (default: all) to a cut, each in one commit.

    \b
    lake advance
    lake advance carrier_daily --cut 7
    """
    shell.load()
    from lake.engine.advance import advance_all

    emit_recomputed(shell, advance_all(inputs_at(shell, number), tables, on_progress=line_reporter(shell)))


@click.command()
@TABLES
@CUT
@click.option("--strict", is_flag=True, help="Fail if a table has no quality file.")
@common_options
def check(shell: Shell, tables: tuple[str, ...], number: int | None, *, strict: bool) -> None:
    """Check tables (default: all) at a cut against expectations.

    Exit code 1 if an expectation of severity stop fails.

    \b
    lake check --strict
    """
    shell.load()
    from lake.publish.check import check as judge
    from lake.publish.cut import pick_cut
    from lake.quality.failures import warning_messages

    project = shell.load_project()
    at = pick_cut(project, number)
    judged = judge(project, lambda: shell.spark, tables=tables or None, cut=at.number, strict=strict)
    for warning in warning_messages(judged):
        shell.report(warning)
    data = [asdict(judgement) for judgement in judged]
    shell.emit({"cut": at.number, "checks": data}, table(data, "table", "outcome", "version"))


@click.command()
@CUT
@click.option("--edition", type=WholeNumber(), help="Show readers this edition, and pin them to it.")
@click.option("--resume", is_flag=True, help="Unpin: readers move on to new editions again.")
@common_options
def publish(shell: Shell, number: int | None, edition: int | None, *, resume: bool) -> None:
    """Publish a checked cut, or go back to an older edition.

    Where the settings name publish groups, one that is held stays as it was and the others are published; the exit code
    is that of what holds it.

    \b
    lake publish
    lake publish --edition 3
    lake publish --resume
    """
    to_newest = edition is None and not resume
    held: BlockedGroups | None = None
    if to_newest:
        shell.load()
    from lake.publish.cut import pick_cut
    from lake.publish.publish import changes, pin
    from lake.publish.publish import publish as move

    _check_target(edition, number, resume=resume)
    if to_newest:
        project = shell.load_project()
        published, held = move(project, pick_cut(project, number), lambda: shell.spark, shell.report)
    else:
        published = pin(shell.settings, edition)
    changed = changes(shell.settings, published) if to_newest else {}
    data = {
        "edition": published.number,
        "cut": published.cut,
        "tables": {name: entry.version for name, entry in published.tables.items()},
        "changed": {name: asdict(counts) for name, counts in changed.items()},
        **_held_data(held),
    }
    tables = f"{len(published.tables)} tables{_published_note(held)}"
    shell.emit(data, f"edition {published.number} of cut {published.cut}: {tables}")
    if held is not None:
        raise held.error


def _check_target(edition: int | None, cut: int | None, *, resume: bool) -> None:
    if edition is not None:
        fix = "lake publish --edition N; later lake publish --resume"
        check_alone("--edition", {"--cut": cut, "--resume": resume}, fix)
    if resume:
        check_alone("--resume", {"--cut": cut}, fix="lake publish --resume, then lake publish --cut N")


@click.command()
@click.option("--follow", is_flag=True, help="Repeat in one warm process until SIGTERM.")
@click.option("--every", help="With --follow: the pause between cycles, such as 30s or 5m (default: 30s).")
@common_options
def run(shell: Shell, every: str | None, *, follow: bool) -> None:
    """Ingest, cut, advance, check and publish.

    \b
    lake run
    lake run --follow --every 10s
    """
    if every is not None and not follow:
        raise DeclarationError("--every needs --follow", fix="lake run --follow --every 30s")
    if follow and shell.json:
        what = "--json cannot be combined with --follow, which runs until stopped"
        raise DeclarationError(what, fix="leave out --json")
    if follow:
        pause = duration(every or "30s")
        if pause is None:
            raise DeclarationError(f"--every {every!r} is not a valid duration", fix="write 30s, 5m or 1h")
        shell.load()
        from lake.ops.follow import follow as cycles

        cycles(shell.settings, lambda: shell.spark, shell.report, every=min(pause.total_seconds(), TIMEOUT_MAX))
    else:
        _run_once(shell)


def _run_once(shell: Shell) -> None:
    from lake.ops.idle import IdleRuns

    runs = IdleRuns(shell.settings)
    if (last := runs.last()) is not None:
        for line in [*last.warnings, "nothing new since the last run"]:
            shell.report(line)
        shell.emit(last.data, last.text)
        return
    lines = list[str]()
    done = _cycle(shell, lines)
    edition = done.edition.number if done.edition else None
    data = {
        "cut": done.cut,
        "edition": edition,
        "streams": {name: asdict(counts) for name, counts in done.streams.items()},
        "failures": {name: str(failure) for name, failure in done.failures.items()},
        "tables": [asdict(table) for table in done.tables],
        **({"undelivered": {name: str(why) for name, why in done.undelivered.items()}} if done.undelivered else {}),
        **_held_data(done.held),
    }
    published = f"edition {edition} of cut {done.cut}{_published_note(done.held)}"
    text = published if edition else f"cut {done.cut}, not published"
    shell.emit(data, text)
    done.raise_held()
    for failure in (*done.failures.values(), *done.undelivered.values()):
        raise failure
    if done.found_nothing and edition and not shell.has_warned:
        runs.keep(data, text, [line for line in lines if line.startswith("warning ")])


def _cycle(shell: Shell, lines: list[str]) -> Cycle:
    shell.load()
    from lake.ops.pipeline import run as cycle

    def report(line: str) -> None:
        lines.append(line)
        shell.report(line)

    return cycle(shell.settings, lambda: shell.spark, report)


def _held_data(held: BlockedGroups | None) -> dict[str, Any]:
    return {} if held is None else {"held": dict(held.groups)}


def _published_note(held: BlockedGroups | None) -> str:
    return "" if held is None else f"; published: {held}"
