"""Commands that make tables: cut, advance, check, publish, run, rebuild, verify."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lake.cli import Shell, shared, table
from lake.errors import DeclarationError, LawError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.run.inputs import Inputs
    from lake.run.verify import Verdict

TABLES = click.argument("tables", nargs=-1)
CUT = click.option("--cut", "number", type=int, help="The cut; the latest unless given.")


@click.command()
@click.option("--label", help="Record it once under this name; asked again, the same cut is answered.")
@shared
def cut(shell: Shell, label: str | None) -> None:
    """Record how far every log goes, as one number.

    \b
    lake cut
    lake cut --label nightly-2013-01-31
    """
    from lake.project import load
    from lake.run.cut import cut as record

    made = record(load(shell.settings), label=label)
    shell.emit({"cut": made.number, "batches": dict(made.batches), "voids": made.voids}, f"cut {made.number}")


@click.command()
@TABLES
@CUT
@shared
def advance(shell: Shell, tables: tuple[str, ...], number: int | None) -> None:
    """Bring tables (all, for none) to a cut, each in one commit.

    \b
    lake advance
    lake advance carrier_daily --cut 7
    """
    from lake.run.advance import advance_all
    from lake.run.cycle import line

    inputs = _inputs(shell, number)
    done = advance_all(inputs, tables, tell=lambda each: shell.say(line(each)))
    _emit_advanced(shell, [asdict(each) for each in done])


@click.command()
@TABLES
@CUT
@click.option("--all", "everything", is_flag=True, help="Every table, in dependency order.")
@shared
def rebuild(shell: Shell, tables: tuple[str, ...], number: int | None, *, everything: bool) -> None:
    """Evaluate tables from their inputs and commit what differs; adopts a changed definition.

    \b
    lake rebuild carrier_daily
    lake rebuild --all
    """
    from lake.run.cycle import line
    from lake.run.rebuild import rebuild as again

    if bool(tables) == everything:
        raise DeclarationError("say which tables to rebuild", fix="lake rebuild TABLE…, or lake rebuild --all")
    inputs = _inputs(shell, number)
    done = []
    for declaration in inputs.project.pick(tables):
        done.append(again(inputs, declaration))
        shell.say(line(done[-1]))
    _emit_advanced(shell, [asdict(each) for each in done])


@click.command()
@TABLES
@click.option("--shallow", is_flag=True, help="Trust the tables that a table is derived from.")
@shared
def verify(shell: Shell, tables: tuple[str, ...], *, shallow: bool) -> None:
    """Prove that tables (all, for none) equal their recomputation from the first event.

    Exit code 1 where one differs, with the first keys that do.

    \b
    lake verify
    lake verify carrier_daily --shallow
    """
    from lake.project import load
    from lake.run.verify import verify as prove

    project = load(shell.settings)
    picked = project.pick(tables)
    verdicts = []
    for declaration in picked:
        verdicts.append(prove(shell.spark, project, declaration, shallow=shallow))
        shell.say(f"verify  {declaration.name}: {verdicts[-1].verdict}")
    shell.emit({"tables": [asdict(each) for each in verdicts]}, _told(verdicts))
    wrong = [each.table for each in verdicts if each.verdict != "identical"]
    if wrong:
        raise LawError(f"not proved: {', '.join(wrong)}", fix="lake rebuild TABLE makes a table what the log says")


@click.command()
@TABLES
@CUT
@click.option("--strict", is_flag=True, help="Refuse a table that has no quality file.")
@shared
def check(shell: Shell, tables: tuple[str, ...], number: int | None, *, strict: bool) -> None:
    """Judge tables (all, for none) at a cut by their expectations.

    Exit code 1 where an expectation of severity stop failed.

    \b
    lake check --strict
    """
    from lake.project import load
    from lake.run.check import check as judge
    from lake.run.cut import pick_cut

    project = load(shell.settings)
    at = pick_cut(project, number)
    judged = judge(project, lambda: shell.spark, tables=tables or None, cut=at.number, strict=strict)
    data = [asdict(each) for each in judged]
    shell.emit({"cut": at.number, "checks": data}, table(data, "table", "outcome", "version"))


@click.command()
@CUT
@click.option("--edition", type=int, help="Go back to this edition and stay there.")
@click.option("--resume", is_flag=True, help="Let editions move again.")
@shared
def publish(shell: Shell, number: int | None, edition: int | None, *, resume: bool) -> None:
    """Show readers a checked cut; or go back to an older edition.

    \b
    lake publish
    lake publish --edition 3
    lake publish --resume
    """
    from lake.project import load
    from lake.run.cut import pick_cut
    from lake.run.publish import publish as move
    from lake.store.meta import pin_edition, resume_editions

    if edition is not None and (resume or number is not None):
        raise DeclarationError("--edition goes alone", fix="lake publish --edition N, later lake publish --resume")
    if edition is not None:
        shown = pin_edition(shell.settings, edition)
    elif resume:
        latest = resume_editions(shell.settings)
        if latest is None:
            raise DeclarationError("there is no edition yet", fix="lake publish")
        shown = latest
    else:
        project = load(shell.settings)
        shown = move(project, pick_cut(project, number), lambda: shell.spark)
    versions = {name: each.version for name, each in shown.tables.items()}
    data = {"edition": shown.number, "cut": shown.cut, "tables": versions}
    shell.emit(data, f"edition {shown.number} of cut {shown.cut}: {len(versions)} tables")


@click.command()
@click.option("--follow", is_flag=True, help="Again and again, in one warm process, until SIGTERM.")
@click.option("--every", default="30s", show_default=True, help="The pause between cycles: 30s, 5m.")
@shared
def run(shell: Shell, every: str, *, follow: bool) -> None:
    """Ingest, cut, advance, check and publish.

    \b
    lake run
    lake run --follow --every 10s
    """
    from lake.run.cycle import follow as cycles
    from lake.run.cycle import run as cycle

    if follow:
        cycles(shell.settings, lambda: shell.spark, shell.say, every=_seconds(every))
        return
    done = cycle(shell.settings, lambda: shell.spark, shell.say)
    edition = done.edition.number if done.edition else None
    data = {
        "cut": done.cut,
        "edition": edition,
        "streams": {name: asdict(counts) for name, counts in done.streams.items()},
        "failures": {name: str(failure) for name, failure in done.failures.items()},
        "tables": [asdict(each) for each in done.tables],
    }
    shell.emit(data, f"edition {edition} of cut {done.cut}" if edition else f"cut {done.cut}, not published")
    if done.failures:
        raise next(iter(done.failures.values()))


def _inputs(shell: Shell, number: int | None) -> Inputs:
    """The inputs at a cut. What is there already needs no session, so none is started before it is asked for."""
    from lake.project import load
    from lake.run import gate
    from lake.run.cut import pick_cut
    from lake.run.inputs import Inputs

    def connect() -> SparkSession:
        gate.warm_up()
        return shell.spark

    project = load(shell.settings)
    return Inputs(connect, project, pick_cut(project, number))


def _emit_advanced(shell: Shell, done: list[dict[str, Any]]) -> None:
    columns = ("table", "verb", "cut", "version", "inserted", "updated", "deleted", "seconds")
    shell.emit({"tables": done}, table(done, *columns))


def _told(verdicts: list[Verdict]) -> list[str]:
    lines = table([asdict(each) for each in verdicts], "table", "verdict", "cut", "rows", "differing", "why")
    for each in verdicts:
        lines += [f"{each.table}: {row}" for row in each.differences]
    return lines


def _seconds(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        return float(text[:-1]) * units[text[-1]]
    except (ValueError, KeyError, IndexError):
        raise DeclarationError(f"--every {text!r} is no duration", fix="write 30s, 5m or 1h") from None
