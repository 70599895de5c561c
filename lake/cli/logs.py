"""Commands about streams: `log` shows and checks a log, `schemas` shows the contracts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from lake.cli import Shell, check_alone, common_options, table
from lake.cli.ingest import counts_of
from lake.errors import ContractError, DeclarationError
from lake.text import counted, moment

if TYPE_CHECKING:
    from lake.contracts.fields import Field
    from lake.ingest.fsck import LogReport

SHOWN = 20


@click.command("log")
@click.argument("stream")
@click.option("--check", is_flag=True, help="Verify gap-free offsets, unique ids, watermarks, counts and content.")
@click.option("--head", is_flag=True, help="Print the digest of the whole log, to store elsewhere.")
@click.option("--since", metavar="DIGEST", help="With --check: also verify that the log continues the one with DIGEST.")
@click.option("--missing", is_flag=True, help="List what is missing, by the contract's `complete`.")
@common_options
def log(shell: Shell, stream: str, check: bool, head: bool, since: str | None, missing: bool) -> None:
    """Show the log of STREAM. Lists its batches, offsets, sources, counts and voids.

    --check finds damage: each batch records a fingerprint of its rows. Anyone who can write to the warehouse could
    forge that too; a digest that was stored elsewhere (--head, --since) reveals it.

    \b
    lake log flights --check
    lake log flights --head > /elsewhere/flights.digest
    lake log flights --check --since "$(cat /elsewhere/flights.digest)"
    """
    from lake.ingest.fsck import head_of, report

    fix = "lake log STREAM --head, or lake log STREAM --check --since DIGEST"
    if missing:
        check_alone("--missing", {"--check": check, "--head": head, "--since": since}, fix="lake log STREAM --missing")
        return _missing(shell, stream)
    if since is not None and not check:
        raise DeclarationError("--since needs --check", fix=fix)
    if head:
        check_alone("--head", {"--check": check}, fix)
        digest = head_of(shell.settings, stream)
        return shell.emit({"stream": stream, "head": digest}, digest)
    if check:
        return _check_log(shell, stream, since or "")
    contents = report(shell.settings, stream)
    shell.emit(_log_data(contents), _log_text(contents))


def _missing(shell: Shell, stream: str) -> None:
    from lake.contracts.contract import Completeness, load_contract
    from lake.ingest.gap_detection import find_gaps

    contract = load_contract(shell.settings, stream)
    if contract.complete == Completeness():
        raise DeclarationError(
            f"the contract of {stream} does not say what would be missing",
            where=contract.where,
            fix='"lake": {…, "complete": {"producer": "device", "number": "seq", "every": "1 day"}}, or part of it',
        )
    gaps = find_gaps(shell.settings, contract)
    numbers = [asdict(gap) | {"numbers": gap.count} for gap in gaps.numbers]
    spans = [asdict(span) for span in gaps.spans]
    lines = [*table(numbers, "producer", "first", "last", "numbers"), *table(spans, "begin", "end")]
    shell.emit({"stream": stream, "numbers": numbers, "spans": spans}, lines or f"{stream}: nothing is missing")


def _check_log(shell: Shell, stream: str, since: str) -> None:
    from lake.ingest.fsck import check_log

    verdict = check_log(shell.settings, stream, since=since)
    summary = f"{stream}: the log is consistent"
    if verdict.since:
        summary += f", and continues the log as it was at batch {verdict.since}"
    shell.emit({"stream": stream, **asdict(verdict)}, verdict.faults or summary)
    if verdict.faults:
        raise ContractError(
            f"{stream}: {counted(len(verdict.faults), 'fault')} in the log",
            where=f"log {stream}",
            fix="restore the files named above, or the log, from a backup; if a batch is missing, run"
            f" lake ingest {stream}; do not rebuild any table until the log is complete",
        )


def _log_data(log: LogReport) -> dict[str, Any]:
    head = log.head
    return {
        "stream": log.stream,
        "batch": head.batch if head else 0,
        "watermark": head.watermark if head else None,
        "producers": log.producers,
        "offsets": dict(head.offsets) if head else {},
        "batches": [
            {"batch": b.batch, "at": b.at, **b.counts, "contract": b.contract, "files": list(b.files)}
            | ({"closed": b.horizon["closed"]} if "closed" in b.horizon else {})
            | ({"delivery": {"source": b.delivery.source, **b.delivery.as_json}} if b.delivery else {})
            for b in log.batches
        ],
        "voids": [asdict(void) for void in log.voids],
        "archived": [asdict(part) for part in log.archived],
    }


def _log_text(log: LogReport) -> list[str]:
    from lake.ingest.fsck import input_text

    head = log.head
    if head is None:
        return [f"{log.stream}: no batch yet"]
    rows = [
        {"batch": batch.batch, "at": moment(datetime.fromisoformat(batch.at)), "control": 0}
        | {**batch.counts, "contract": batch.contract, "sources": input_text(batch)}
        for batch in log.batches
    ]
    offsets = [
        {"bucket": str(bucket) if bucket >= 0 else "without a key", "next offset": offset}
        for bucket, offset in sorted(head.offsets.items())
    ]
    voids = [{"void": v.number, "event": v.place, "at": moment(v.at), "reason": v.reason} for v in log.voids]
    lines = table(rows, "batch", "at", *counts_of(rows), "contract", "sources")
    lines += [
        "",
        f"watermark {moment(head.watermark) if head.watermark else 'none yet'}",
        "",
        *_producers(log.producers),
        *table(offsets, "bucket", "next offset"),
    ]
    archived = [
        {"archived": f"batches {part.first} to {part.through}", "rows": part.rows, "place": part.place}
        for part in log.archived
    ]
    lines += ["", *table(voids, "void", "event", "at", "reason")] if voids else []
    return lines + (["", *table(archived, "archived", "rows", "place")] if archived else [])


def _producers(producers: list[dict[str, Any]]) -> list[str]:
    if not producers:
        return []
    left = len(producers) - SHOWN
    more = [f"and {left} more: --json lists all"] if left > 0 else []
    return [*table(producers[:SHOWN], "producer", "latest", "heard"), *more, ""]


@click.command()
@common_options
def schemas(shell: Shell) -> None:
    """List the contracts: the schema of each stream. Also lists fields that the contract does not know.

    \b
    Example: lake schemas
    """
    from lake.ops.catalog import contract_statuses

    contracts = contract_statuses(shell.settings)
    data: list[dict[str, Any]] = [
        {
            "stream": status.contract.name,
            "key": list(status.contract.key),
            "id": list(status.contract.id) or status.contract.identity,
            "time": status.contract.time,
            "buckets": status.contract.buckets,
            "version": status.version,
            "changed": status.changed,
            "changes": [asdict(change) for change in status.changes],
            "personal": list(status.contract.personal),
            "doc": status.contract.doc,
            "fields": [_field(field) for field in status.contract.fields],
            "unknown": [asdict(field) for field in status.unknown],
            "sealed": status.sealed,
        }
        for status in contracts
    ]
    lines: list[str] = []
    for row in data:
        state = f"version {row['version']}{', changed' if row['changed'] else ''}" if row["version"] else "not written"
        key, event_time = ", ".join(row["key"]), row["time"] or "none"
        lines += [f"{row['stream']}  ({state})  key: {key}  event time: {event_time}", f"  {row['doc']}"]
        lines += [f"  {line}" for line in table(row["fields"], "name", "type", "unit", "doc")]
        lines += [*(f"  {_change(change)}" for change in row["changes"]), *_unknown(row), ""]
    shell.emit(data, lines or ["no contracts: schemas/ has no .avsc file"])


def _change(change: Mapping[str, Any]) -> str:
    from lake.contracts.evolution import is_lossless

    was, now, tables = change["was"], change["now"], ", ".join(change["tables"])
    if was is None:
        return f"{change['field']}: new, {now}; tables go on without it until lake deploy"
    became = f"{change['field']}: was {was}" if was != now else f"{change['field']}: has another name"
    after = "is dropped" if now is None else f"becomes {now}" if was != now else ""
    what = ", ".join(part for part in (became, after) if part) + " with the next batch; older events stay as they are"
    if not tables:
        return f"{what}, and no table reads it"
    deploy = "lake deploy" if now is None or is_lossless(was, now) else "lake deploy --yes"
    return f"{what}; {deploy} builds {tables} anew, and until then lake run ingests and publishes nothing"


def _field(field: Field) -> dict[str, Any]:
    shown = field.type + ("" if field.nullable else " not null")
    return {"name": field.name, "type": shown, "unit": field.unit, "doc": field.doc, "personal": field.personal}


def _unknown(row: Mapping[str, Any]) -> Iterator[str]:
    for field in row["unknown"]:
        yield f"  unknown field {field['name']!r} in {counted(field['events'], 'event')}; the log keeps its values"
        if field["like"]:
            yield f'    add to the field {field["like"]!r}, if it is that one: "aliases": [{json.dumps(field["name"])}]'
        place = (
            f"the record {field['record']} of {row['stream']}" if field["record"] else f"the fields of {row['stream']}"
        )
        if field["line"]:
            yield f"    add to {place}: {field['line']}"
        elif not field["like"]:
            yield f"    add to {place}: one with its type; it is nested, or its name is taken"
    if row["sealed"]:
        yield f"  {counted(row['sealed'], 'event')} carry unknown fields that are sealed with what is personal"
