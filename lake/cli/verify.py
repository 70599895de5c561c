"""Command `verify`: compares tables, editions, sources and sinks with their recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from lake.cli import Shell, WholeNumber, check_alone, common_options, table
from lake.cli.recompute import ALL, TABLES, changed_rows, connect
from lake.errors import LawError

if TYPE_CHECKING:
    from lake.engine.verify import Verdict

RECOMPUTED: Final = ("cut", "rows", "fingerprint", "differing", "why")


@click.command()
@TABLES
@ALL
@click.option(
    "--shallow", is_flag=True, help="Trust the inputs of each table: recompute it from them, not from the logs."
)
@click.option(
    "--edition", type=WholeNumber(), metavar="N", help="Only verify that edition N still is what was published; no JVM."
)
@click.option("--source", metavar="STREAM", help="Compare tables over STREAM with what its source has at this moment.")
@click.option(
    "--sink", metavar="NAME", help="Compare what the target of a sink has with the edition that it has; no JVM."
)
@common_options
def verify(
    shell: Shell,
    tables: tuple[str, ...],
    *,
    everything: bool,
    shallow: bool,
    edition: int | None,
    source: str | None,
    sink: str | None,
) -> None:
    """Prove that tables (default: all) equal their recomputation. Tables are recomputed from the first event.

    A verdict is `identical`, with the fingerprint of the rows; `differs`, with the first rows that do; or, with the
    reason, `unknown`, or `unproven` of a sink. Exit code 1 if any is not identical. Logs and key store are checked
    first: while they are damaged, no verdict is given on tables.

    With --source, the rows of the stream's source at one place of its own log are compared with every Latest over the
    stream, at a cut that is exactly there. Others may write meanwhile.

    \b
    lake verify
    lake verify carrier_daily --shallow
    lake verify --edition 3
    lake verify --source orders
    lake verify --sink crm
    """
    others = {"tables": tables, "--all": everything, "--shallow": shallow, "--edition": edition}
    if sink is not None:
        check_alone("--sink", others | {"--source": source}, fix=f"lake verify --sink {sink}")
        return _verify_sink(shell, sink)
    shell.load()
    if source is not None:
        check_alone("--source", others, fix=f"lake verify --source {source}")
        return _verify_source(shell, source)
    if tables:
        check_alone("tables", {"--all": everything})
    if edition is not None:
        check_alone("--edition", {"--shallow": shallow}, fix="an edition is not recomputed")
        return _verify_edition(shell, edition, tables)
    return _verify_tables(shell, tables, shallow=shallow)


def _verify_tables(shell: Shell, tables: Sequence[str], *, shallow: bool) -> None:
    from lake.engine.verify import verify_all

    verdicts = verify_all(
        lambda: shell.spark,
        shell.load_project(),
        tables,
        shallow=shallow,
        on_progress=lambda verdict: shell.report(f"verify  {verdict.table}: {verdict.verdict}"),
    )
    if wrong := _emit_verdicts(shell, verdicts, RECOMPUTED):
        damage = dict.fromkeys(verdict.why for verdict in verdicts if verdict.fix)
        raise LawError(f"not proved: {', '.join(wrong)}", where="; ".join(damage), fix=_fix(verdicts))


def _verify_source(shell: Shell, stream: str) -> None:
    from lake.publish.verify_source import verify_source

    verdicts = verify_source(shell.load_project(), lambda: connect(shell), stream)
    if wrong := _emit_verdicts(shell, verdicts, RECOMPUTED, stream=stream):
        raise LawError(
            f"not what the source of {stream} has: {', '.join(wrong)}",
            fix="lake verify reports whether the tables follow from the logs; lake quarantine list, what was refused",
        )


def _verify_sink(shell: Shell, name: str) -> None:
    from lake.sinks.kind import declared_sinks
    from lake.sinks.verify import verify_sink

    [sink] = declared_sinks(shell.settings, [name])
    edition, verdicts = verify_sink(shell.settings, sink)
    _emit_verdicts(shell, verdicts, ("rows", "fingerprint", "differing", "why"), sink=name, edition=edition)
    unproven = [verdict for verdict in verdicts if verdict.verdict == "unproven"]
    differing = [verdict for verdict in verdicts if verdict.verdict == "differs"]
    if wrong := differing or unproven:
        found = f"not what edition {edition} has" if differing else "not proved"
        raise LawError(
            f"{found}: {', '.join(verdict.table for verdict in wrong)} of sink {name}",
            fix="; ".join(dict.fromkeys(verdict.fix for verdict in (*unproven, *differing))),
        )


def _verify_edition(shell: Shell, number: int, names: Sequence[str]) -> None:
    from lake.read.edition_check import verify_edition

    verdicts = verify_edition(shell.settings, number, names)
    if wrong := _emit_verdicts(shell, verdicts, ("version", "rows", "fingerprint", "why"), edition=number):
        raise LawError(
            f"not what was published as edition {number}: {', '.join(wrong)}",
            fix="lake verify TABLE checks the table as it is now; lake publish --edition N shows another edition",
        )


def _fix(verdicts: Sequence[Verdict]) -> str:
    fixes = dict.fromkeys(verdict.fix for verdict in verdicts if verdict.fix)
    if any(verdict.verdict == "differs" for verdict in verdicts):
        fixes["lake rebuild TABLE corrects a table that differs"] = None
    return "; ".join(fixes) or "see the reasons above"


def _emit_verdicts(shell: Shell, verdicts: Sequence[Any], columns: Sequence[str], **about: Any) -> list[str]:
    """Return the tables that are not identical."""
    rows = [asdict(verdict) for verdict in verdicts]
    lines = table(rows, "table", "verdict", *columns)
    for row in rows:
        lines += changed_rows(row["table"], row.get("differences", ()))
    shell.emit({**about, "tables": rows}, lines)
    return [row["table"] for row in rows if row["verdict"] != "identical"]
