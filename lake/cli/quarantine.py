"""Commands about rejected records and voided events."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lake.cli import EXISTING_FILE, Shell, common_options, table
from lake.cli.ingest import emit_batch, emit_counts
from lake.text import shortened

SHOWN = 20


@click.group(invoke_without_command=True)
@common_options
@click.pass_context
def quarantine(ctx: click.Context, shell: Shell) -> None:
    """List, replay or accept rejected records (dead letters). They break the contract of their stream.

    \b
    Example: lake quarantine counts
    """
    if ctx.invoked_subcommand is None:
        _counts(shell, ())


@quarantine.command("list")
@click.argument("streams", nargs=-1)
@common_options
def list_(shell: Shell, streams: tuple[str, ...]) -> None:
    """List the records in quarantine, with reason, source and raw text.

    \b
    Example: lake quarantine list flights --json > repair.json
    """
    from lake.ingest.replay import incomplete_transactions, quarantined_records

    refused = list(quarantined_records(shell.settings, streams))
    rows = [asdict(row) for row in refused]
    shown = [row | {"raw": shortened(row["raw"], 60)} for row in rows]
    shell.emit(rows, table(shown, "stream", "batch", "number", "reason", "detail", "source", "raw"))
    for line in incomplete_transactions(shell.settings, refused):
        shell.report(line)


@quarantine.command()
@click.argument("streams", nargs=-1)
@common_options
def counts(shell: Shell, streams: tuple[str, ...]) -> None:
    """Count the records in quarantine by stream and reason.

    \b
    Example: lake quarantine counts flights
    """
    _counts(shell, streams)


@quarantine.command()
@click.argument("stream", required=False)
@click.argument("file", required=False, type=EXISTING_FILE)
@common_options
def replay(shell: Shell, stream: str | None, file: Path | None) -> None:
    """Replay quarantined records into their log. All of them, those of STREAM, or those of FILE with `raw` corrected.

    Records that still break their contract stay in quarantine, and are listed with the current reason.

    \b
    Example: lake quarantine replay flights repair.json
    """
    shell.load()
    from lake.ingest.replay import read_repairs
    from lake.ingest.replay import replay as run

    failed: list[dict[str, Any]] = []
    repairs = read_repairs(file) if file else None
    done = run(
        shell.settings,
        lambda: shell.spark,
        stream=stream,
        repairs=repairs,
        on_failure=lambda row: failed.append(asdict(row)),
    )
    for row in failed[:SHOWN]:
        place = f"record {row['number']} of batch {row['batch']} of {row['stream']}"
        shell.report(f"still refused: {place}: {row['reason']}: {row['detail']} ({row['source']})")
    if len(failed) > SHOWN:
        shell.report(f"still refused: {len(failed) - SHOWN} more; --json lists all")
    emit_counts(shell, done, failed=failed)


@quarantine.command()
@click.argument("stream")
@click.option("--reason", required=True, help="Why these records may be left out.")
@common_options
def accept(shell: Shell, stream: str, reason: str) -> None:
    """Accept the loss of the refused records of STREAM. They no longer hold back editions or full-dump deletes.

    The records stay in quarantine, and can still be replayed.

    \b
    Example: lake quarantine accept flights --reason "cancelled flights of another airport"
    """
    shell.load()
    from lake.ingest.replay import accept as run

    emit_batch(shell, stream, run(shell.settings, lambda: shell.spark, stream, reason=reason))


@click.command()
@click.argument("stream")
@click.argument("events", nargs=-1, metavar="[BATCH:BUCKET:OFFSET]...")
@click.option("--batch", "batches", type=int, multiple=True, metavar="N", help="All events of batch N.")
@click.option("--source", "sources", multiple=True, metavar="FILE", help="All events from FILE so far.")
@click.option("--reason", required=True, help="Why these events do not count.")
@common_options
def void(
    shell: Shell, stream: str, events: tuple[str, ...], batches: tuple[int, ...], sources: tuple[str, ...], reason: str
) -> None:
    """Exclude EVENTS of STREAM, or whole deliveries. They leave every table from the next cut on; the log keeps them.

    \b
    Example: lake void flights 12:3:4711 --reason "test record of the producer"
    Example: lake void flights --batch 12 --reason "last year's file"
    Example: lake void flights --source flights/2024-03-30.jsonl --reason "last year's file"
    """
    from lake.ingest.events import void as run

    if not (events or batches or sources):
        raise click.UsageError("nothing to void: name events, a --batch or a --source")
    voids = run(shell.settings, stream, events, batches=batches, sources=sources, reason=reason)
    shell.emit([asdict(void) for void in voids], [f"void {v.number}: {v.stream} {v.place}" for v in voids])


def _counts(shell: Shell, streams: tuple[str, ...]) -> None:
    from lake.ingest.replay import by_reason, quarantined_records

    rows = by_reason(quarantined_records(shell.settings, streams, texts=False))
    shell.emit(rows, table(rows, "stream", "reason", "records", "example") if rows else "the quarantine is empty")
    for reason, fix in {row["reason"]: row["fix"] for row in rows}.items():
        shell.report(f"fix: {reason}: {fix}")
