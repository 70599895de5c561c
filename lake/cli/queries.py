"""Commands that read data: sql, export, tables, status, graph, explain, diff. `sql --recompute` may start a JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lake.cli import EXISTING_FILE, FiniteNumber, LocalPath, Shell, WholeNumber, common_options, exits, table
from lake.errors import DeclarationError, LakeError, install

if TYPE_CHECKING:
    from lake.read.sql import EditionChoice

SHELL_PACKAGES = ("prompt_toolkit", "pygments")
COLUMNS = ("table", "kind", "key", "rows", "version", "path", "description")


def _edition_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @click.option("--edition", type=WholeNumber(), metavar="N", help="Read edition N instead of the current one.")
    @click.option("--cut", type=WholeNumber(), metavar="N", help="Read the newest edition at or before cut N.")
    @click.option(
        "--verified", is_flag=True, help="First verify that the tables are what was published; reads all of them."
    )
    @wraps(command)
    def choosing(*given: Any, edition: int | None, cut: int | None, verified: bool, **others: Any) -> Any:
        from lake.read.sql import EditionChoice

        return command(*given, choice=EditionChoice(edition, cut, verified=verified), **others)

    return choosing


@click.command()
@click.argument("query", required=False)
@click.option("--file", "-f", type=EXISTING_FILE, help="Read the query from this file.")
@_edition_options
@click.option("--recompute", is_flag=True, help="With --cut: evaluate the named tables at exactly that cut, by Spark.")
@click.option("--after", multiple=True, metavar="TOKEN", help="First wait until readers see this batch: flights@12.")
@click.option("--timeout", type=FiniteNumber(), metavar="SECONDS", help="With --after: how long to wait; default 60.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "csv", "json", "jsonl", "md", "parquet"]),
    help="Default: by the extension of FILE, else a table.",
)
@click.option(
    "--output", "-o", type=LocalPath(), metavar="FILE", help="Write to a .csv, .json, .jsonl, .md or .parquet file."
)
@common_options
def sql(
    shell: Shell,
    query: str | None,
    file: Path | None,
    choice: EditionChoice,
    recompute: bool,
    after: tuple[str, ...],
    timeout: float | None,
    kind: str | None,
    output: str | None,
) -> None:
    """Query the published edition, or open a shell. Without a query: a shell on a terminal, else standard input.

    Tables are named as in `lake tables`: carrier_daily or gold.carrier_daily. log.<stream> has the events up to the
    edition's cut, without voided events and personal fields. lake.runs, lake.checks, lake.cuts, lake.editions,
    lake.quarantine and lake.reads record the work done. The dialect is DuckDB's, read only.
    Decimals are exact, but avg(decimal) and a division of decimals are DOUBLE in DuckDB: cast the result, for
    instance avg(fare)::DECIMAL(10, 2). Times are in UTC. In JSON, decimals are strings.

    --recompute reads any old cut, even if its edition has expired, by definitions and contracts of now, without
    personal fields of people forgotten since. It prints first how much it reads.

    `<table>_at(moment)` is a History as of a moment; with --edition or --cut, as it was known then (bitemporal).

    \b
    lake sql "select carrier, sum(flights) from carrier_daily group by all order by all"
    lake sql --cut 12 "from aircraft_operator_at('2013-03-01')"
    lake sql --after flights@12 "select count(*) from flight"
    lake sql "select _place, status from log.orders where order_id = 2 order by _time"
    lake sql --file question.sql -o answer.csv
    """
    text, into = _query_text(query, file), _output_path(output)
    form = _answer_format(text, _wanted_format(shell, kind), into)
    choice = replace(choice, after=after, timeout=60.0 if timeout is None else timeout)
    _check_choice(text, file, choice, timeout)
    answer = _answer_recomputed if recompute else _answer
    answer(shell, text, choice, form, into)


def _answer_format(text: str | None, wanted: str | None, into: Path | None) -> str:
    from lake.read.export import choose_format

    if text is None and (wanted or into):
        raise DeclarationError(
            "--format, --json and --output need a query: a shell has no use for them",
            fix='lake sql "SELECT …" --output FILE',
        )
    if text is None:
        _require_shell()
    return choose_format(wanted, into)


def _check_choice(text: str | None, file: Path | None, choice: EditionChoice, timeout: float | None) -> None:
    if timeout is not None and not choice.after:
        raise DeclarationError("--timeout needs --after", fix="lake sql --after TOKEN")
    if text is not None and "\0" in text:
        raise DeclarationError("the query has a zero byte", where=str(file or "the query"), fix="remove it")
    if choice.after and (choice.edition is not None or choice.cut is not None):
        raise DeclarationError(
            "--after waits for the current edition, so it cannot be combined with --edition or --cut",
            fix="leave out --edition and --cut",
        )


def _answer(shell: Shell, query: str | None, choice: EditionChoice, form: str, into: Path | None) -> None:
    from lake.read.export import export
    from lake.read.sql import open_reader

    reader = open_reader(shell.settings, query, choice)
    if query is None:
        from lake.read.shell import run_shell

        exits.interrupt_queries_only()
        return run_shell(reader)
    return export(reader, query, form, into, begin=shell.begin_answer)


def _answer_recomputed(shell: Shell, query: str | None, choice: EditionChoice, form: str, into: Path | None) -> None:
    if query is None or choice.cut is None or choice.edition is not None or choice.after or choice.verified:
        raise DeclarationError(
            "--recompute needs a query and --cut, and no other choice of what is read",
            fix='lake sql --cut N --recompute "SELECT …"',
        )
    shell.load()
    from lake.cli.recompute import inputs_at
    from lake.engine.at_cut import recomputed_reader
    from lake.read.export import export

    with recomputed_reader(inputs_at(shell, choice.cut, recompute=True), query, on_progress=shell.report) as reader:
        export(reader, query, form, into, begin=shell.begin_answer)


def _wanted_format(shell: Shell, kind: str | None) -> str | None:
    if shell.json and kind not in {None, "json"}:
        raise DeclarationError(f"--json and --format {kind} cannot be combined", fix="use only one of them")
    return "json" if shell.json else kind


def _output_path(output: str | None) -> Path | None:
    if output is None:
        return None
    if Path(output).is_dir():
        raise DeclarationError("--output is a folder", where=output, fix="name a file in that folder")
    return Path(output)


def _require_shell() -> None:
    if missing := [package for package in SHELL_PACKAGES if find_spec(package) is None]:
        raise DeclarationError(
            f"a shell needs {' and '.join(missing)}, which the extra `shell` installs",
            fix=f'{install("shell")}, or give a query: lake sql "SELECT …"',
        )


def _query_text(query: str | None, file: Path | None) -> str | None:
    if query is not None and file is not None:
        raise DeclarationError("a query and --file cannot be combined", fix="use only one of them")
    if file is None and query is None and sys.stdin.isatty():
        return None
    piped = query is None or query == "-"
    content = file.read_bytes() if file else sys.stdin.buffer.read() if piped else os.fsencode(query or "")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        where = str(file) if file else "standard input" if piped else ""
        fix = "save it as UTF-8"
        raise DeclarationError(f"the query is not UTF-8 at byte {error.start}", where=where, fix=fix) from None


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def export(ctx: click.Context, shell: Shell) -> None:
    """Export an edition for tools that have no lake.

    \b
    lake export duckdb shop.duckdb
    """
    if ctx.invoked_subcommand is None:
        raise click.UsageError("nothing to export to: name a format")


@export.command("duckdb")
@click.argument("file", type=LocalPath(), metavar="FILE")
@click.argument("tables", nargs=-1)
@_edition_options
@common_options
def duckdb_(shell: Shell, file: str, tables: tuple[str, ...], choice: EditionChoice) -> None:
    """Export the published edition to FILE, a DuckDB database. All TABLES, or those named, with what columns mean.

    The file appears whole or not at all, and replaces one that is there. It is a copy: `lake forget` does not reach it.

    \b
    lake export duckdb shop.duckdb
    lake export duckdb january.duckdb carrier_daily carrier_league --edition 31
    """
    from lake.read.export import write_database
    from lake.read.sql import open_reader

    reader = open_reader(shell.settings, " ".join(tables) or None, choice)
    rows = write_database(reader, Path(file), tables, on_progress=shell.report)
    data = {"file": file, "edition": reader.edition.number, "cut": reader.edition.cut, "tables": rows}
    shell.emit(data, f"{file}: {len(rows)} tables of edition {reader.edition.number} at cut {reader.edition.cut}")


@click.command()
@click.option("--format", "kind", type=click.Choice(["text", "mermaid", "json", "dot"]), help="Default: text.")
@common_options
def graph(shell: Shell, kind: str | None) -> None:
    """Show how tables derive from streams and each other.

    \b
    lake graph
    lake graph --format dot | dot -Tsvg > graph.svg
    lake graph --json > graph.json && mv graph.json dags/graph.json
    """
    from lake.ops import graph as graphs

    form = _wanted_format(shell, kind)
    shell.json = form == "json"
    lineage = graphs.graph(shell.load_project())
    draw = {"mermaid": graphs.as_mermaid, "dot": graphs.as_dot}.get(form or "text", graphs.as_tree)
    shell.emit(lineage.data(), draw(lineage))


@click.command()
@common_options
def tables(shell: Shell) -> None:
    """List the tables: what a row is, kind and published version.

    \b
    lake tables
    """
    from lake.ops.catalog import catalogue

    rows = catalogue(shell.load_project())
    shown = [{**row, "key": ", ".join(row["key"])} for row in rows]
    columns = (*COLUMNS, "damage") if any(row["damage"] for row in rows) else COLUMNS
    shell.emit(rows, table(shown, *columns))


@click.command()
@click.option(
    "--fail-if",
    "fails",
    multiple=True,
    type=click.Choice(["stopped", "failed", "behind", "stale", "missing", "drift", "quarantine"]),
    help="Exit 1 if this holds; repeatable. Damage fails too.",
)
@common_options
def status(shell: Shell, fails: tuple[str, ...]) -> None:
    """Show the cut, the edition, stopped gates, failures and lag.

    \b
    --fail-if stopped     a gate holds the next edition back, a declaration is faulty, or a last run failed
    --fail-if failed      work on a stream, a table or the edition failed, and has not been done since
    --fail-if behind      files or events wait to be ingested, or a table is behind its logs
    --fail-if stale       readers see an older cut than the newest, or a definition has changed
    --fail-if missing     numbers of producers, or spans of time, that should be in a log are not
    --fail-if drift       records have fields that the contract does not know, or lack one that all had
    --fail-if quarantine  records wait in quarantine

    \b
    lake status
    lake status --json
    lake status --fail-if stopped --fail-if behind
    """
    from lake.ops.render import as_data, as_text, failed_conditions
    from lake.ops.status import status as look
    from lake.project.project import sound_project

    state = look(*sound_project(shell.settings))
    shell.emit(as_data(state), as_text(state))
    if fails and (reasons := failed_conditions(state, fails)):
        raise LakeError("\n".join(reasons), fix="correct that; lake status --json has the details")


LIMIT = click.option(
    "--limit",
    default=10,
    show_default=True,
    type=WholeNumber(1),
    metavar="N",
    help="Show at most N rows, and N events of each.",
)


@click.command()
@click.argument("table")
@click.argument("key", nargs=-1, metavar="COLUMN=VALUE...")
@click.option("--at-cut", type=WholeNumber(), metavar="N", help="Show the table as it was at cut N.")
@LIMIT
@common_options
def explain(shell: Shell, table: str, key: tuple[str, ...], at_cut: int | None, limit: int) -> None:
    """Show the events behind a row of TABLE (its lineage). Says what became of each event.

    Values are written as in SQL, without quotes: 7, 2013-01-31, UA; null is null. If a table has
    several rows per key (versions, matches), the key alone shows all of them. At a cut of which the table keeps
    nothing, the row is made of the logs, by definitions and contracts of now.

    \b
    lake explain aircraft_position tailnum=N10156
    lake explain carrier_daily carrier=UA day=2013-01-31 --at-cut 7
    """
    shell.load()
    from lake.engine.explain.explain import explain as run
    from lake.engine.explain.render import as_data, as_tree

    explanation = run(shell.load_project(), lambda: shell.spark, table, key, at_cut=at_cut, limit=limit)
    shell.draw(as_data(explanation), as_tree(explanation))


@click.command()
@click.argument("table")
@click.option(
    "--from-edition", "old", type=WholeNumber(), required=True, metavar="A", help="The edition to compare from."
)
@click.option("--to-edition", "new", type=WholeNumber(), required=True, metavar="B", help="The edition to compare to.")
@click.option("--no-events", is_flag=True, help="Show only the rows: immediate, without Spark.")
@LIMIT
@common_options
def diff(shell: Shell, table: str, old: int, new: int, limit: int, *, no_events: bool) -> None:
    """Show how rows of TABLE differ between two editions. Shows the events that caused the changes, too.

    \b
    lake diff --from-edition 1 --to-edition 2 carrier_daily
    """
    if not no_events:
        shell.load()
    from lake.engine.explain.edition_diff import diff_editions
    from lake.engine.explain.render import diff_data, diff_tree

    connect = None if no_events else lambda: shell.spark
    changes = diff_editions(shell.load_project(), connect, table, old=old, new=new, limit=limit)
    shell.draw(diff_data(changes), diff_tree(changes))
