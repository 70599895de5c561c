"""Voiding of events: from the next cut on no table counts them. They stay in their log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

import pyarrow as pa

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError
from lake.ingest.events import PLACE
from lake.sources.declared import decided_by, decider
from lake.store import delta, duckdb_tables, voids
from lake.store.ledger import runs
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.voids import LINE, Place, Target, Void


def void(  # noqa: PLR0913  events are named in three ways
    settings: Settings,
    stream: str,
    places: Sequence[str] = (),
    *,
    batches: Sequence[int] = (),
    sources: Sequence[str] = (),
    reason: str,
) -> list[Void]:
    """Void events of `stream`, all or none: at `places`, of `batches`, and from ingested files `sources`.

    A place is `BATCH:BUCKET:OFFSET`. If a batch is of a source's delivery, all its streams' batches are voided. Raises
    DeclarationError if a place is malformed, empty or void already, or a batch or file unknown. Raises Unavailable
    while a server decides on the stream: its answers depend on these events.
    """
    load_contract(settings, stream)
    if not reason.strip():
        raise DeclarationError("a void needs a reason", fix='--reason "why these events do not count"')
    named = [_parse_place(text) for text in places]
    _check_events_exist(settings, stream, named)
    upto = Log(settings, stream).head().batch
    targets: list[tuple[str, Target]] = [(stream, (*place, None)) for place in named]
    for batch in batches:
        whole = {stream: _existing_batch(stream, batch, upto)} | _batches_of_delivery(settings, stream, batch)
        targets += [(other, (number, None, None, None)) for other, number in whole.items()]
    targets += [(stream, (upto, None, None, _find_source(settings, stream, source))) for source in sources]
    heads = {name: Log(settings, name).head().batch for name, _ in targets}
    with runs.recording(settings, "void", stream, but=DeclarationError), ExitStack() as undecided:
        for name in sorted({decided_by(settings, name) or "" for name in heads} - {""}):
            undecided.enter_context(decider(settings).pause(settings, name))
        return voids.record(settings, targets, reason=reason, at=datetime.now(UTC), heads=heads)


def _batches_of_delivery(settings: Settings, stream: str, batch: int) -> dict[str, int]:
    delivery = Log(settings, stream).head_at(batch).delivery
    if delivery is None:
        return {}
    return {
        other: head.batch
        for other in delivery.streams
        if other != stream
        for head in Log(settings, other).heads()
        if (its := head.delivery) and (its.source, its.number) == (delivery.source, delivery.number)
    }


def _parse_place(text: str) -> Place:
    parts = re.fullmatch(r"(\d{1,18}):(-?\d{1,18}):(\d{1,18})", text)
    if parts is None:
        raise DeclarationError(f"{text!r} is not a valid event place", fix="write BATCH:BUCKET:OFFSET, e.g. 12:3:4711")
    batch, bucket, offset = map(int, parts.groups())
    return batch, bucket, offset


def _check_events_exist(settings: Settings, stream: str, places: Sequence[Place]) -> None:
    stored: set[Place] = set()
    if places and delta.exists(Log(settings, stream).path):
        columns = [pa.array(values, field.type) for values, field in zip(zip(*places, strict=True), PLACE, strict=True)]
        bounds = {"_batch": (min(p[0] for p in places), max(p[0] for p in places))}
        rows = Scan(Log(settings, stream).path, bounds=bounds).arrow(PLACE.names, keys=pa.table(columns, schema=PLACE))
        stored = {(row["_batch"], row["_bucket"], row["_offset"]) for row in rows.to_pylist()}
    for place in places:
        if place not in stored:
            raise DeclarationError(
                f"{stream} has no event at {':'.join(map(str, place))}",
                fix="`lake explain TABLE COLUMN=VALUE` shows the place of each event: BATCH:BUCKET:OFFSET",
            )


def _existing_batch(stream: str, batch: int, upto: int) -> int:
    if not 1 <= batch <= upto:
        raise DeclarationError(f"{stream} has no batch {batch}, only 1 to {upto}", fix=f"lake log {stream}")
    return batch


def _find_source(settings: Settings, stream: str, source: str) -> str:
    query = f"SELECT count(*) AS events FROM t WHERE regexp_replace(_source, '{LINE}', '') = $1"
    for name in (source, f"{stream}/{source}"):
        if any(row["events"] for row in duckdb_tables.rows(Log(settings, stream).path, query, name)):
            return name
    raise DeclarationError(
        f"no event of {stream} came from {source!r}", fix=f"lake log {stream} names the files of each batch"
    )
