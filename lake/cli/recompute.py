"""Commands that evaluate tables again: rebuild, backfill, plan, deploy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lake.cli import LocalPath, Shell, WholeNumber, common_options, table
from lake.errors import DeclarationError, LakeError
from lake.lazy import SparkSession
from lake.text import shown as cell

if TYPE_CHECKING:
    from lake.engine.inputs import Inputs
    from lake.engine.pending_change import TableChange
    from lake.engine.verbs import Advanced
    from lake.project.project import Project

TABLES = click.argument("tables", nargs=-1)
CUT = click.option("--cut", "number", type=WholeNumber(), help="The cut (default: the latest).")
ALL = click.option("--all", "everything", is_flag=True, help="Every table, in dependency order.")
YES = click.option("--yes", is_flag=True, help="Allow published columns to be dropped, or to lose values to a type.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would change, without changing anything.")
ADVANCED = ("table", "verb", "cut", "version", "inserted", "updated", "deleted", "seconds")


@click.command()
@TABLES
@ALL
@CUT
@click.option("--downstream", is_flag=True, help="Also every table derived from those.")
@click.option(
    "--to",
    "folder",
    type=LocalPath(),
    metavar="DIR",
    help="Write the tables to DIR, new or empty, and change nothing else.",
)
@DRY_RUN
@YES
@common_options
def rebuild(
    shell: Shell,
    tables: tuple[str, ...],
    number: int | None,
    *,
    everything: bool,
    downstream: bool,
    folder: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Recompute tables from their inputs. Commits only the difference; adopts a changed definition.

    Each table changes in one commit, which readers see when the cut is published. A table that would lose a published
    column, or values of one to another type, is left unchanged unless --yes is given.

    With --to, tables are evaluated from the logs at any cut, by definitions and contracts of now and without people
    forgotten since, into a folder of Delta tables: DIR/gold/carrier_daily. It is a copy: lake forget does not reach it.

    \b
    lake rebuild carrier_daily --dry-run
    lake rebuild flight --downstream
    lake rebuild --all
    lake rebuild carrier_daily --cut 12 --to old
    """
    shell.load()
    from lake.engine.rebuild import rebuild_all

    _check_tables(tables, everything=everything, downstream=downstream)
    _check_effects(folder, dry_run=dry_run, yes=yes)
    inputs = inputs_at(shell, number, recompute=folder is not None)
    picked = [declaration.name for declaration in inputs.project.pick(tables)]
    if downstream:
        picked += inputs.project.below(*picked)
    if folder is not None:
        return _rebuild_into(shell, inputs, picked, folder)
    done = rebuild_all(inputs, picked, dry_run=dry_run, yes=yes, on_progress=line_reporter(shell))
    emit_recomputed(shell, done)


def line_reporter(shell: Shell) -> Callable[[Advanced], None]:
    return lambda advanced: shell.report(advanced.line)


def _check_tables(tables: Sequence[str], *, everything: bool, downstream: bool) -> None:
    if bool(tables) == everything:
        what = "tables and --all cannot be combined" if tables else "no table was named"
        raise DeclarationError(what, fix="lake rebuild TABLE…, or lake rebuild --all")
    if everything and downstream:
        raise DeclarationError("--all already includes all that is downstream", fix="leave out --downstream")


def _check_effects(folder: str | None, *, dry_run: bool, yes: bool) -> None:
    if dry_run and yes:
        raise DeclarationError("--yes and --dry-run cannot be combined", fix="use only one of them")
    if folder is not None and (dry_run or yes):
        raise DeclarationError("--to changes no table, so it has no --dry-run and no --yes", fix="leave them out")


def _rebuild_into(shell: Shell, inputs: Inputs, names: Sequence[str], folder: str) -> None:
    from lake.engine.at_cut import build_to

    if not folder:
        raise DeclarationError(f"not a folder's name: {folder!r}", fix="lake rebuild TABLE --cut N --to DIR")
    built = build_to(inputs, names, Path(folder), on_progress=shell.report).tables
    rows = [{"table": name, "rows": entry.rows, "path": f"{folder}/{entry.path}"} for name, entry in built.items()]
    shell.emit({"cut": inputs.cut.number, "tables": rows}, table(rows, "table", "rows", "path"))


@click.command()
@click.argument("name", metavar="TABLE")
@click.option("--from", "start", required=True, help="Events at or after this time: 2013-01-31, 2013-01-31T06:00Z.")
@click.option("--to", "end", required=True, help="Events before this time.")
@DRY_RUN
@common_options
def backfill(shell: Shell, name: str, start: str, end: str, *, dry_run: bool) -> None:
    """Recompute keys of TABLE with events in a time range. It is a range of event time; tables derived from it follow.

    The table stays at its cut. Times without a zone are in UTC.

    \b
    lake backfill carrier_daily --from 2013-01-01 --to 2013-02-01
    """
    shell.load()
    from lake.engine.backfill import backfill as run

    declared = shell.load_project()
    [declaration] = declared.pick([name])
    first, last = _instant("--from", start), _instant("--to", end)
    if first >= last:
        raise DeclarationError(
            f"--from {start} is not before --to {end}", fix="--to is exclusive: the first moment left out"
        )
    done = run(
        lambda: connect(shell),
        declared,
        declaration,
        (first, last),
        dry_run=dry_run,
        on_progress=line_reporter(shell),
    )
    below = declared.below(name)
    shell.report(f"downstream of {name}: {', '.join(below) or 'no table'}")
    emit_recomputed(shell, done)


@click.command()
@TABLES
@click.option("--diff", is_flag=True, help="Evaluate the named tables and show what would change in each column.")
@common_options
def plan(shell: Shell, tables: tuple[str, ...], *, diff: bool) -> None:
    """Show which definitions have changed, and what that costs.

    Shows their lines that differ, and lists the tables that follow.

    A table is `wider` if its inputs have gained columns that it would pass on: it stays without them until
    `lake deploy`.

    \b
    lake plan
    lake plan carrier_daily --diff
    """
    shell.load()
    from lake.engine.engines import by_either
    from lake.engine.pending_change import table_change
    from lake.engine.plan import plan as compare

    if diff and not tables:
        raise DeclarationError("--diff needs the names of tables to evaluate", fix="lake plan TABLE… --diff")
    declared = shell.load_project()
    planned = [asdict(row) for row in compare(declared, tables, lambda: shell.spark)]
    questions = _deploy_questions(shell, declared, planned)
    for row in planned:
        row["changes"] = [*row["changes"], *questions.get(row["table"], ())]
    lines = list(_plan_lines(planned))
    if diff:
        for declaration in declared.pick(tables):
            work = partial(table_change, project=declared, declaration=declaration)
            change = by_either(declared.settings, lambda: shell.spark, work)
            lines += ["", *_change_lines(change)]
            for row in planned:
                if row["table"] == declaration.name:
                    row["diff"] = asdict(change)
    shell.emit({"tables": planned}, lines)


@click.command()
@YES
@common_options
def deploy(shell: Shell, *, yes: bool) -> None:
    """Build changed tables and publish them in one edition. They are built and checked beside the live ones.

    Readers see the old tables until then, and `lake publish --edition N` shows them again. If a table would lose a
    published column, or values of one to another type, nothing is built unless --yes is given. A table whose job was
    removed leaves the edition; `lake maintain --drop-retired --yes` deletes it.

    \b
    lake deploy
    """
    shell.load()
    from lake.publish.deploy import deploy as publish

    began = datetime.now(UTC)
    edition = publish(shell.load_project(), lambda: connect(shell), line_reporter(shell), shell.report, yes=yes)
    tables = {name: {"path": entry.path, "version": entry.version} for name, entry in edition.tables.items()}
    data = {"edition": edition.number, "cut": edition.cut, "tables": tables}
    published = f"edition {edition.number} of cut {edition.cut}"
    is_unchanged = edition.published_at < began
    text = f"nothing to deploy: {published} is the newest" if is_unchanged else f"{published}: {len(tables)} tables"
    shell.emit(data, text)


def inputs_at(shell: Shell, number: int | None, *, recompute: bool = False) -> Inputs:
    from lake.engine.inputs import Inputs
    from lake.publish.cut import pick_cut

    declared = shell.load_project()
    return Inputs(lambda: connect(shell), declared, pick_cut(declared, number), recompute=recompute)


def connect(shell: Shell) -> SparkSession:
    from lake.quality import gate

    gate.warm_up(shell.settings)
    return shell.spark


def emit_recomputed(shell: Shell, done: Sequence[Advanced]) -> None:
    from lake.engine.rebuild import Recomputed

    rows = [asdict(advanced) for advanced in done]
    lines = table(rows, *ADVANCED)
    for advanced in done:
        if not isinstance(advanced, Recomputed):
            continue
        lines += [f"{advanced.table}: column {column} {what}" for column, what in advanced.columns.items()]
        lines += list(changed_rows(advanced.table, advanced.sample))
    shell.emit({"tables": rows}, lines)


def changed_rows(name: str, sample: tuple[dict[str, Any], ...]) -> Iterator[str]:
    """Yield a line per row: `carrier_daily carrier=UA: update, flights 84 → 85`."""
    for row in sample:
        key = " ".join(f"{k}={cell(v)}" for k, v in row.items() if k not in ("change", "columns"))
        changed = row.get("columns", {}).items()
        values = "".join(f", {c} {cell(old)} → {cell(new)}" for c, (old, new) in changed)
        yield f"{name} {key}: {row['change']}{values}"


def _deploy_questions(shell: Shell, declared: Project, planned: list[dict[str, Any]]) -> dict[str, list[str]]:
    from lake.publish.deploy import confirmations_needed

    changed = [row["table"] for row in planned if row["state"] in {"changed", "wider", "follows"}]
    try:
        reasons = confirmations_needed(declared, lambda: shell.spark) if changed else {}
    except LakeError as fault:
        return {name: [f"whether lake deploy needs --yes is unknown: {fault.what}"] for name in changed}
    return {name: [f"lake deploy needs --yes: {what}"] for name, what in reasons.items()}


def _plan_lines(planned: list[dict[str, Any]]) -> Iterator[str]:
    rows = [{**row, "follows": ", ".join(row["follows"])} for row in planned]
    yield from table(rows, "table", "state", "rows", "rate", "seconds", "follows")
    for row in planned:
        for change in row["changes"]:
            yield f"{row['table']}: {change}"
        yield from (f"    {line}" for line in row["text"])


def _change_lines(change: TableChange) -> Iterator[str]:
    counts = change.counts
    yield f"{change.table} at cut {change.cut}: +{counts.inserted} ~{counts.updated} -{counts.deleted} rows"
    rows = [asdict(column) | {"rows changed": column.rows} for column in change.columns]
    yield from table(rows, "column", "type", "rows changed", "before", "after")
    yield from changed_rows(change.table, change.sample)


def _instant(option: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise DeclarationError(
            f"{option} {text!r} is not a valid time", fix="write 2013-01-31 or 2013-01-31T06:00Z"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
