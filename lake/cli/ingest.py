"""Commands that ingest events: ingest, append."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lake.cli import LocalPath, Shell, common_options, table

if TYPE_CHECKING:
    from lake.errors import LakeError
    from lake.ingest.batch_counts import BatchCounts

COUNTS = ("read", "accepted", "duplicates", "quarantined")


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--give-up",
    is_flag=True,
    help="Continue a source after a gap, or without the lost half of a delivery.",
)
@click.option(
    "--again",
    multiple=True,
    metavar="STREAM",
    help="Also copy the table of STREAM from the source again. Repeatable.",
)
@common_options
def ingest(shell: Shell, names: tuple[str, ...], give_up: bool, again: tuple[str, ...]) -> int:
    """Ingest what is new. NAMES are those of streams and sources (default: all).

    Reads landing files and sources. Prints the token of the newest batch of each stream.

    \b
    Example: lake ingest flights weather
    """
    shell.load()
    from lake.ingest.ingest import ingest_named
    from lake.ingest.source_ingestion import restart_sources

    if give_up and not names:
        raise click.UsageError("--give-up needs the names of the sources")
    if again and (len(names) != 1 or give_up):
        raise click.UsageError("--again needs the name of exactly one source: lake ingest SOURCE --again STREAM")
    failures: list[LakeError] = []

    def failed(stream: str, error: LakeError) -> None:
        shell.report_fault(stream, error)
        failures.append(error)

    if give_up or again:
        restart_sources(shell.settings, names, give_up=give_up, again=again, on_progress=shell.report)
    done = ingest_named(shell.settings, lambda: shell.spark, names, on_failure=failed)
    emit_counts(shell, done, idle="" if failures else "nothing to do")
    return max((error.exit_code for error in failures), default=0)


@click.command()
@click.argument("stream")
@click.argument("files", nargs=-1, required=True, type=LocalPath())
@click.option("--decide", is_flag=True, help="Append them if the Fold that decides on STREAM accepts them all.")
@click.option("--expect", metavar="VERSION", help="With --decide: only if their key is at this version; * for any.")
@click.option("--new", is_flag=True, help="With --decide: only if their key has no event yet.")
@click.option("--id", metavar="ID", help="With --decide: idempotency key (default: by content).")
@common_options
def append(
    shell: Shell,
    stream: str,
    files: tuple[str, ...],
    decide: bool,
    expect: str | None,
    new: bool,
    id: str | None,
) -> None:
    """Append FILES to the log of STREAM. - is standard input, as JSON Lines.

    Prints a token, stream@batch, for `lake wait` and `lake sql --after`.

    With --decide, one file of JSON Lines is accepted as a whole, or refused: exit code 1, with the reason of the Fold.
    The next ingest takes what was accepted. Spark is not started. For several streams at once, STREAM is their names
    with commas, and the file is {"stream": [event, ...], ...}: all of it is accepted, and no reader sees a part.

    \b
    Example: echo '{"carrier": "UA", ...}' | lake append flights -
    Example: echo '{"order_id": 1, "what": "paid"}' | lake append orders - --decide --expect web:42:0
    Example: lake append orders,payments both.json --decide
    """
    if decide:
        return _decide(shell, stream, files, expect or "", new, id or "")
    if expect or new or id:
        raise click.UsageError("--expect, --new and --id need --decide")
    shell.load()
    from lake.contracts.contract import load_contract
    from lake.ingest.append import append_files, check_files_exist, keep_stdin

    contract = load_contract(shell.settings, stream)
    paths = [keep_stdin(shell.settings, sys.stdin.buffer) if name == "-" else Path(name).absolute() for name in files]
    check_files_exist(paths)
    counts = append_files(shell.settings, lambda: shell.spark, contract, paths)
    if counts.quarantined:
        shell.report(f"{counts.quarantined} of {counts.read} records are in quarantine: lake quarantine list {stream}")
    emit_batch(shell, stream, counts)


def _decide(shell: Shell, stream: str, files: tuple[str, ...], expect: str, new: bool, id: str) -> None:
    from lake.ingest.append import check_files_exist
    from lake.sources.declared import decider
    from lake.sources.source import DecisionRequest

    if len(files) > 1:
        raise click.UsageError("--decide takes one file")
    if expect and new:
        raise click.UsageError("--expect and --new cannot be combined")
    [name] = files
    if name != "-":
        check_files_exist([Path(name).absolute()])
    body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    answer = decider(shell.settings).append(
        shell.settings, DecisionRequest(tuple(stream.split(",")), body, id, expect, new)
    )
    tokens = list(answer["tokens"].values()) if "tokens" in answer else [answer["token"]]
    shell.emit(answer, [*tokens, *([f"version {answer['version']}"] if "version" in answer else [])])


def emit_batch(shell: Shell, stream: str, counts: BatchCounts) -> None:
    row = _row(stream, counts)
    shell.emit(row, row["token"])


def emit_counts(shell: Shell, done: Mapping[str, BatchCounts], idle: str = "nothing to do", **more: Any) -> None:
    data = {stream: _row(stream, counts) for stream, counts in done.items()}
    rows = list(data.values())
    shell.emit({"streams": data, **more}, table(rows, "token", *counts_of(rows)) if rows else idle or ())


def _row(stream: str, counts: BatchCounts) -> dict[str, Any]:
    return {"token": f"{stream}@{counts.batch}", **asdict(counts)}


def counts_of(rows: list[dict[str, Any]]) -> list[str]:
    return [*COUNTS, "control"] if any(row["control"] for row in rows) else [*COUNTS]
