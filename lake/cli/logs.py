"""Commands about events: contracts, landing files, logs, quarantine, voids."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lake.cli import Shell, shared, table
from lake.errors import ContractError, DeclarationError, LakeError
from lake.text import counted, moment

if TYPE_CHECKING:
    from lake.contracts.fields import Field
    from lake.ingest.append import BatchCounts
    from lake.ingest.fsck import LogReport

SHOWN = 20
COUNTS = ("read", "accepted", "duplicates", "quarantined")


@click.command()
@shared
def schemas(shell: Shell) -> None:
    """List the contracts: the schema of each stream. Also lists fields that the contract does not know.

    \b
    Example: lake schemas
    """
    from lake.report.schemas import declared

    contracts = declared(shell.settings)
    data: list[dict[str, Any]] = [
        {
            "stream": one.contract.name,
            "key": list(one.contract.key),
            "id": list(one.contract.id) or one.contract.identity,
            "time": one.contract.time,
            "buckets": one.contract.buckets,
            "version": one.version,
            "changed": one.changed,
            "changes": [asdict(change) for change in one.changes],
            "personal": list(one.contract.personal),
            "doc": one.contract.doc,
            "fields": [_field(field) for field in one.contract.fields],
            "unknown": [asdict(field) for field in one.unknown],
            "sealed": one.sealed,
        }
        for one in contracts
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
    """What has become of a field, and what follows."""
    from lake.contracts.evolution import keeps

    was, now, tables = change["was"], change["now"], ", ".join(change["tables"])
    if was is None:
        return f"{change['field']}: new, {now}; tables go on without it until lake deploy"
    became = f"{change['field']}: was {was}" if was != now else f"{change['field']}: has another name"
    after = "is dropped" if now is None else f"becomes {now}" if was != now else ""
    what = ", ".join(part for part in (became, after) if part) + " with the next batch; older events stay as they are"
    if not tables:
        return f"{what}, and no table reads it"
    deploy = "lake deploy" if now is None or keeps(was, now) else "lake deploy --yes"
    return f"{what}; {deploy} builds {tables} anew, and until then lake run ingests and publishes nothing"


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--give-up",
    is_flag=True,
    help="Replace lost batches that cannot be read again by empty ones; let a source resume after a gap or a loss.",
)
@click.option(
    "--again",
    multiple=True,
    metavar="STREAM",
    help="Have the source copy the table behind STREAM anew, too. Repeatable.",
)
@shared
def ingest(shell: Shell, names: tuple[str, ...], give_up: bool, again: tuple[str, ...]) -> int:
    """Ingest what is new. NAMES are those of streams and sources (default: all).

    New is what has landed and what sources have. Prints the token of the newest batch of each stream.

    \b
    Example: lake ingest flights weather
    """
    shell.load()
    from lake.ingest.ingest import ingest_named
    from lake.ingest.replay import parts_missing, waiting

    if give_up and not names:
        raise click.UsageError("--give-up needs the names of the streams or sources")
    if again and (len(names) != 1 or give_up):
        raise click.UsageError("--again needs the name of exactly one source: lake ingest SOURCE --again STREAM")
    failures: list[LakeError] = []

    def failed(stream: str, error: LakeError) -> None:
        shell.tell(stream, error)
        failures.append(error)

    done = ingest_named(
        shell.settings,
        lambda: shell.spark,
        names,
        give_up=give_up,
        again=again,
        tell=shell.say,
        on_failure=failed,
    )
    _emit_counts(shell, done)
    refused = [stream for stream, counts in done.items() if counts.quarantined]
    _say_all(shell, parts_missing(shell.settings, waiting(shell.settings, refused)) if refused else ())
    return max((error.exit_code for error in failures), default=0)


@click.command()
@click.argument("stream")
@click.argument("files", nargs=-1, required=True)
@click.option("--decide", is_flag=True, help="Append them if the Fold that decides on STREAM accepts them all.")
@click.option("--expect", metavar="VERSION", help="With --decide: only if their key is at this version; * for any.")
@click.option("--new", is_flag=True, help="With --decide: only if their key has no event yet.")
@click.option("--id", metavar="ID", help="With --decide: idempotency key (default: by content).")
@shared
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
    from lake.ingest.append import append_files, keep_stdin, must_exist

    contract = load_contract(shell.settings, stream)
    given = [keep_stdin(shell.settings, sys.stdin.buffer) if name == "-" else Path(name).absolute() for name in files]
    must_exist(given)
    counts = append_files(shell.settings, shell.spark, contract, given)
    if counts.quarantined:
        shell.say(f"{counts.quarantined} of {counts.read} records are in quarantine: lake quarantine list {stream}")
    token = f"{stream}@{counts.batch}"
    shell.emit({"token": token, **asdict(counts)}, token)


def _decide(shell: Shell, stream: str, files: tuple[str, ...], expect: str, new: bool, id: str) -> None:
    from lake.http.command import Events, append_decided
    from lake.ingest.append import must_exist

    if len(files) > 1:
        raise click.UsageError("--decide takes one file")
    if expect and new:
        raise click.UsageError("--expect and --new cannot be combined")
    [name] = files
    if name != "-":
        must_exist([Path(name).absolute()])
    body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    answer = append_decided(shell.settings, Events(tuple(stream.split(",")), body, id, expect, new))
    tokens = list(answer["tokens"].values()) if "tokens" in answer else [answer["token"]]
    shell.emit(answer, [*tokens, *([f"version {answer['version']}"] if "version" in answer else [])])


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("stream")
@click.argument("command", nargs=-1, required=True)
@shared
def tap(shell: Shell, stream: str, command: tuple[str, ...]) -> None:
    """Append the rows of a Singer tap to the log of STREAM.

    COMMAND runs the tap; it goes on where its last run ended: its STATE is in the log's commit with the rows up to it.
    A tap of several streams, or one that is run with `lake ingest`, is declared in sources/NAME.toml.

    \b
    Example: lake tap orders -- tap-shop --config shop.json
    """
    shell.load()
    from lake.ingest.from_tap import append_tapped

    counts = append_tapped(shell.settings, lambda: shell.spark, stream, command)
    token = f"{stream}@{counts.batch}"
    shell.emit({"token": token, **asdict(counts)}, token)


@click.command("log")
@click.argument("stream")
@click.option("--check", is_flag=True, help="Verify gap-free offsets, unique ids, watermarks, counts and content.")
@click.option("--head", is_flag=True, help="Print the digest of the whole log, to store elsewhere.")
@click.option("--since", metavar="DIGEST", help="With --check: also verify that the log continues the one with DIGEST.")
@click.option("--missing", is_flag=True, help="List what is missing, by the contract's `complete`.")
@shared
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

    if missing:
        if check or head or since:
            raise DeclarationError("--missing cannot be combined", fix="lake log STREAM --missing")
        return _missing(shell, stream)
    if (check and head) or (since and not check):
        raise DeclarationError(
            "--head and --check cannot be combined" if head else "--since needs --check",
            fix="lake log STREAM --head, or lake log STREAM --check --since DIGEST",
        )
    if head:
        digest = head_of(shell.settings, stream)
        return shell.emit({"stream": stream, "head": digest}, digest)
    if check:
        return _check_log(shell, stream, since or "")
    contents = report(shell.settings, stream)
    shell.emit(_log_data(contents), _log_text(contents))


def _missing(shell: Shell, stream: str) -> None:
    from lake.contracts.contract import Complete, load_contract
    from lake.ingest.completeness import missing

    contract = load_contract(shell.settings, stream)
    if contract.complete == Complete():
        raise DeclarationError(
            f"the contract of {stream} does not say what would be missing",
            where=contract.where,
            fix='"lake": {…, "complete": {"producer": "device", "number": "seq", "every": "1 day"}}, or part of it',
        )
    absences = missing(shell.settings, contract)
    numbers = [asdict(gap) | {"numbers": gap.count} for gap in absences.numbers]
    spans = [asdict(span) for span in absences.spans]
    lines = [*table(numbers, "producer", "first", "last", "numbers"), *table(spans, "begin", "end")]
    shell.emit({"stream": stream, "numbers": numbers, "spans": spans}, lines or f"{stream}: nothing is missing")


def _check_log(shell: Shell, stream: str, since: str) -> None:
    from lake.ingest.fsck import checked

    verdict = checked(shell.settings, stream, since=since)
    unproved = verdict.batches - verdict.proved
    summary = f"{stream}: the log is consistent"
    if verdict.since:
        summary += f", and continues the log as it was at batch {verdict.since}"
    if unproved:
        shell.say(
            f"{unproved} of {verdict.batches} batches have no recorded fingerprint: their content is not verified"
        )
    shell.emit({"stream": stream, **asdict(verdict)}, verdict.faults or summary)
    if verdict.faults:
        raise ContractError(
            f"{stream}: {counted(len(verdict.faults), 'fault')} in the log",
            where=f"log {stream}",
            fix=f"restore the files named above from a backup; if a batch is missing, run lake ingest {stream};"
            " do not rebuild any table until the log is complete",
        )


@click.group(invoke_without_command=True)
@shared
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
@shared
def list_(shell: Shell, streams: tuple[str, ...]) -> None:
    """List the records in quarantine, with reason, source and raw text.

    \b
    Example: lake quarantine list flights --json > repair.json
    """
    from lake.ingest.replay import parts_missing, waiting

    refused = waiting(shell.settings, streams)
    rows = [asdict(row) for row in refused]
    shown = [row | {"raw": _short(row["raw"])} for row in rows]
    shell.emit(rows, table(shown, "stream", "batch", "number", "reason", "detail", "source", "raw"))
    _say_all(shell, parts_missing(shell.settings, refused))


@quarantine.command()
@click.argument("streams", nargs=-1)
@shared
def counts(shell: Shell, streams: tuple[str, ...]) -> None:
    """Count the records in quarantine by stream and reason.

    \b
    Example: lake quarantine counts flights
    """
    _counts(shell, streams)


@quarantine.command()
@click.argument("stream", required=False)
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@shared
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
        shell.settings, shell.spark, stream=stream, repairs=repairs, failed=lambda row: failed.append(asdict(row))
    )
    for row in failed[:SHOWN]:
        place = f"record {row['number']} of batch {row['batch']} of {row['stream']}"
        shell.say(f"still refused: {place}: {row['reason']}: {row['detail']} ({row['source']})")
    if len(failed) > SHOWN:
        shell.say(f"still refused: {len(failed) - SHOWN} more; --json lists all")
    _emit_counts(shell, done, failed=failed)


@quarantine.command()
@click.argument("stream")
@click.option("--reason", required=True, help="Why these records may be left out.")
@shared
def accept(shell: Shell, stream: str, reason: str) -> None:
    """Accept the loss of the refused records of STREAM. They no longer hold back editions or full-dump deletes.

    The records stay in quarantine, and can still be replayed.

    \b
    Example: lake quarantine accept flights --reason "cancelled flights of another airport"
    """
    shell.load()
    from lake.ingest.replay import accept as run

    counts = run(shell.settings, shell.spark, stream, reason=reason)
    token = f"{stream}@{counts.batch}"
    shell.emit({"token": token, **asdict(counts)}, token)


@click.command()
@click.argument("stream")
@click.argument("events", nargs=-1, metavar="[BATCH:BUCKET:OFFSET]...")
@click.option("--batch", "batches", type=int, multiple=True, metavar="N", help="All events of batch N.")
@click.option("--source", "sources", multiple=True, metavar="FILE", help="All events from FILE so far.")
@click.option("--reason", required=True, help="Why these events do not count.")
@shared
def void(
    shell: Shell, stream: str, events: tuple[str, ...], batches: tuple[int, ...], sources: tuple[str, ...], reason: str
) -> None:
    """Exclude EVENTS of STREAM, or whole deliveries. They leave every table from the next cut on; the log keeps them.

    \b
    Example: lake void flights 12:3:4711 --reason "test record of the producer"
    Example: lake void flights --batch 12 --reason "last year's file"
    Example: lake void flights --source flights/2024-03-30.jsonl --reason "last year's file"
    """
    from lake.ingest.void import void as run

    if not (events or batches or sources):
        raise click.UsageError("nothing to void: name events, a --batch or a --source")
    voids = run(shell.settings, stream, events, batches=batches, sources=sources, reason=reason)
    shell.emit([asdict(one) for one in voids], [f"void {one.number}: {one.stream} {one.place}" for one in voids])


def _emit_counts(shell: Shell, done: Mapping[str, BatchCounts], **more: Any) -> None:
    data = {stream: {"token": f"{stream}@{counts.batch}", **asdict(counts)} for stream, counts in done.items()}
    rows = list(data.values())
    shell.emit({"streams": data, **more}, table(rows, "token", *_counts_of(rows)) if rows else "nothing to do")


def _counts_of(rows: list[dict[str, Any]]) -> list[str]:
    """The columns of the counts; `control` only where there are control messages."""
    return [*COUNTS, "control"] if any(row["control"] for row in rows) else [*COUNTS]


def _counts(shell: Shell, streams: tuple[str, ...]) -> None:
    from lake.ingest.replay import by_reason, parts_missing, waiting

    refused = waiting(shell.settings, streams)
    rows = by_reason(refused)
    shell.emit(rows, table(rows, "stream", "reason", "records", "example") if rows else "the quarantine is empty")
    for reason, fix in {row["reason"]: row["fix"] for row in rows}.items():
        shell.say(f"fix: {reason}: {fix}")
    _say_all(shell, parts_missing(shell.settings, refused))


def _say_all(shell: Shell, lines: Iterable[str]) -> None:
    for line in lines:
        shell.say(line)


def _field(field: Field) -> dict[str, Any]:
    shown = field.type + ("" if field.nullable else " not null")
    return {"name": field.name, "type": shown, "unit": field.unit, "doc": field.doc, "personal": field.personal}


def _unknown(row: Mapping[str, Any]) -> Iterator[str]:
    """What events carry beside the fields of their contract, and what to add to it."""
    for field in row["unknown"]:
        yield f"  unknown field {field['name']!r} in {_events(field['events'])}; the log keeps its values"
        if field["like"]:
            yield f'    add to the field {field["like"]!r}, if it is that one: "aliases": [{json.dumps(field["name"])}]'
        if field["line"]:
            yield f"    add to the fields of {row['stream']}: {field['line']}"
        elif not field["like"]:
            yield f"    add to the fields of {row['stream']}: one with its type; it is nested, or its name is taken"
    if row["sealed"]:
        yield f"  {_events(row['sealed'])} carry unknown fields that are sealed with what is personal"


def _events(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"


def _log_data(log: LogReport) -> dict[str, Any]:
    head = log.head
    return {
        "stream": log.stream,
        "batch": head.batch if head else 0,
        "watermark": head.watermark if head else None,
        "producers": log.producers,
        "offsets": dict(head.offsets) if head else {},
        "batches": [
            {"batch": one.batch, "at": one.at, **one.counts, "contract": one.contract, "files": list(one.files)}
            | ({"closed": one.horizon["closed"]} if "closed" in one.horizon else {})
            | ({"delivery": {"source": one.delivery.source, **one.delivery.as_json}} if one.delivery else {})
            for one in log.batches
        ],
        "voids": [asdict(one) for one in log.voids],
    }


def _log_text(log: LogReport) -> list[str]:
    from lake.ingest.fsck import read_from

    head = log.head
    if head is None:
        return [f"{log.stream}: no batch yet"]
    rows = [
        {"batch": one.batch, "at": moment(datetime.fromisoformat(one.at)), "control": 0}
        | {**one.counts, "contract": one.contract, "sources": read_from(one)}
        for one in log.batches
    ]
    offsets = [{"bucket": _bucket(bucket), "next offset": offset} for bucket, offset in sorted(head.offsets.items())]
    voids = [{"void": one.number, "event": one.place, "at": moment(one.at), "reason": one.reason} for one in log.voids]
    lines = table(rows, "batch", "at", *_counts_of(rows), "contract", "sources")
    lines += [
        "",
        f"watermark {moment(head.watermark) if head.watermark else 'none yet'}",
        "",
        *_producers(log.producers),
        *table(offsets, "bucket", "next offset"),
    ]
    return lines + (["", *table(voids, "void", "event", "at", "reason")] if voids else [])


def _bucket(number: int) -> str:
    return str(number) if number >= 0 else "without a key"


def _producers(producers: list[dict[str, Any]]) -> list[str]:
    """Those that are furthest behind, where the log waits for any."""
    if not producers:
        return []
    left = len(producers) - SHOWN
    more = [f"and {left} more: --json lists all"] if left > 0 else []
    return [*table(producers[:SHOWN], "producer", "latest", "heard"), *more, ""]


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
