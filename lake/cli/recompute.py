"""Commands that evaluate tables again: rebuild, verify."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lake.cli import Shell, shared, table
from lake.errors import DeclarationError, LawError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.project import Project
    from lake.run.inputs import Inputs
    from lake.run.rebuild import Recomputed
    from lake.run.verify import Verdict

TABLES = click.argument("tables", nargs=-1)
CUT = click.option("--cut", "number", type=int, help="The cut; the latest unless given.")
ALL = click.option("--all", "everything", is_flag=True, help="Every table, in dependency order.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
ADVANCED = ("table", "verb", "cut", "version", "inserted", "updated", "deleted", "seconds")


@click.command()
@TABLES
@ALL
@CUT
@click.option("--downstream", is_flag=True, help="Also every table that is derived from those.")
@DRY_RUN
@shared
def rebuild(
    shell: Shell, tables: tuple[str, ...], number: int | None, *, everything: bool, downstream: bool, dry_run: bool
) -> None:
    """Evaluate tables from their inputs, show what differs, and commit only that; adopts a changed definition.

    Each table changes in one commit. Readers see it when the cut is published.

    \b
    lake rebuild carrier_daily --dry-run
    lake rebuild flight --downstream
    lake rebuild --all
    """
    from lake.run.cycle import line
    from lake.run.rebuild import rebuild_all

    if bool(tables) == everything:
        raise DeclarationError("say which tables to rebuild", fix="lake rebuild TABLE…, or lake rebuild --all")
    inputs = inputs_at(shell, number)
    picked = [each.name for each in inputs.project.pick(tables)]
    if downstream:
        picked += inputs.project.below(picked)
    done = rebuild_all(inputs, picked, dry_run=dry_run, tell=lambda each: shell.say(line(each)))
    emit_recomputed(shell, done)


@click.command()
@TABLES
@ALL
@click.option("--shallow", is_flag=True, help="Trust the tables that a table is derived from.")
@shared
def verify(shell: Shell, tables: tuple[str, ...], *, everything: bool, shallow: bool) -> None:
    """Prove that tables (all, for none) equal their recomputation from the first event.

    A verdict is `identical`, with the fingerprint of the rows, `differs`, with the first rows that do, or `unknown`,
    with the reason. Exit code 1 where one is not identical.

    \b
    lake verify
    lake verify carrier_daily --shallow
    """
    from lake.run.verify import verify_all

    if tables and everything:
        raise DeclarationError("tables and --all were given", fix="give one of them")
    verdicts = verify_all(
        lambda: shell.spark,
        project(shell),
        tables,
        shallow=shallow,
        tell=lambda each: shell.say(f"verify  {each.table}: {each.verdict}"),
    )
    shell.emit({"tables": [asdict(each) for each in verdicts]}, _told(verdicts))
    wrong = [each.table for each in verdicts if each.verdict != "identical"]
    if wrong:
        raise LawError(f"not proved: {', '.join(wrong)}", fix="lake rebuild TABLE makes a table what the log says")


def project(shell: Shell) -> Project:
    """The shell's project, loaded."""
    from lake.project import load

    return load(shell.settings)


def inputs_at(shell: Shell, number: int | None) -> Inputs:
    """The inputs at a cut. What is there already needs no session, so none is started before it is asked for."""
    from lake.run import gate
    from lake.run.cut import pick_cut
    from lake.run.inputs import Inputs

    def connect() -> SparkSession:
        gate.warm_up()
        return shell.spark

    found = project(shell)
    return Inputs(connect, found, pick_cut(found, number))


def emit_recomputed(shell: Shell, done: list[Recomputed]) -> None:
    """What was or would be changed, table by table, then the first rows of each."""
    rows = [asdict(each) for each in done]
    lines = table(rows, *ADVANCED)
    for each in done:
        lines += [f"{each.table}: column {column} {what}" for column, what in each.columns.items()]
        lines += list(changed_rows(each.table, each.sample))
    shell.emit({"tables": rows}, lines)


def changed_rows(name: str, sample: tuple[dict[str, Any], ...]) -> Iterator[str]:
    """Rows as `shown` gives them, a line each: `carrier_daily carrier=UA: update, flights 84 → 85`."""
    for row in sample:
        key = " ".join(f"{k}={v}" for k, v in row.items() if k not in ("change", "columns"))
        values = "".join(f", {c} {old} → {new}" for c, (old, new) in row.get("columns", {}).items())
        yield f"{name} {key}: {row['change']}{values}"


def _told(verdicts: list[Verdict]) -> list[str]:
    rows = [asdict(each) for each in verdicts]
    lines = table(rows, "table", "verdict", "cut", "rows", "fingerprint", "differing", "why")
    for each in verdicts:
        lines += changed_rows(each.table, each.differences)
    return lines
