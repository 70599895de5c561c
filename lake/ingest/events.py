"""Events of a log by place: their details (origin, delay, re-deliveries, void), and voiding.

From the next cut on no table counts a voided event. It stays in its log.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError
from lake.sources.declared import decided_by, decider
from lake.store import delta, duckdb_tables, quarantine, voids
from lake.store.ledger import runs
from lake.store.ledger.cuts import Cut
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.voids import Place, Target, Void, of_file_sql
from lake.text import DUCKDB

PLACE = ("_batch", "_bucket", "_offset")
ENVELOPE = ("_batch", "_bucket", "_offset", "_id", "_source", "_time", "_watermark", "_ingested_at", "_version")


@dataclass(frozen=True)
class Event:
    """An accepted event. `late` is its delay behind the greatest time of earlier batches, or zero.

    `contract` is a version; `again` are sources of re-deliveries; `void` is a void's reason.
    """

    batch: int
    bucket: int
    offset: int
    source: str
    time: datetime | None
    arrived: datetime
    late: timedelta
    contract: int
    again: tuple[str, ...]
    void: str | None

    @property
    def place(self) -> str:
        return f"{self.batch}:{self.bucket}:{self.offset}"


def events_at(settings: Settings, stream: str, places: Collection[Place], cut: Cut) -> dict[Place, Event]:
    if not places:
        return {}
    rows = _rows_at(Log(settings, stream), places, ENVELOPE)
    again: dict[str, list[str]] = {}
    ids = [row["_id"] for row in rows]
    for event in quarantine.redeliveries_of(settings, stream, ids, upto=cut.batches.get(stream, 0)):
        again.setdefault(event.id, []).append(event.source)
    voided = voids.voids_between(settings, stream, 0, cut.voids)
    events = {}
    for row in rows:
        place = row["_batch"], row["_bucket"], row["_offset"]
        timed = row["_time"] is not None and row["_watermark"] is not None
        events[place] = Event(
            *place,
            source=row["_source"],
            time=row["_time"],
            arrived=row["_ingested_at"],
            late=max(row["_watermark"] - row["_time"], timedelta(0)) if timed else timedelta(0),
            contract=row["_version"],
            again=tuple(again.get(row["_id"], ())),
            void=next((void.reason for void in voided if void.covers(place, row["_source"])), None),
        )
    return events


def _rows_at(log: Log, places: Collection[Place], columns: Sequence[str]) -> list[dict[str, Any]]:
    numbers = dict(zip(PLACE, zip(*places, strict=True), strict=True))
    bounds = {name: (min(values), max(values)) for name, values in numbers.items()}
    scan = Scan(log.path, bounds=bounds)
    keys = scan.keys([dict(zip(PLACE, place, strict=True)) for place in places])
    rows: list[dict[str, Any]] = scan.arrow(columns, keys=keys).to_pylist()
    return rows


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
    events = [_parse_place(text) for text in places]
    _check_events_exist(settings, stream, events)
    upto = Log(settings, stream).head().batch
    targets: list[tuple[str, Target]] = [(stream, (*place, None)) for place in events]
    for batch in batches:
        if not 1 <= batch <= upto:
            raise DeclarationError(f"{stream} has no batch {batch}, only 1 to {upto}", fix=f"lake log {stream}")
        delivered = {stream: batch} | _batches_of_delivery(settings, stream, batch)
        targets += [(name, (number, None, None, None)) for name, number in delivered.items()]
    targets += [(stream, (upto, None, None, _find_source(settings, stream, source))) for source in sources]
    heads = {name: Log(settings, name).head().batch for name, _ in targets}
    with runs.recording(settings, "void", stream, but=DeclarationError), ExitStack() as paused:
        for name in sorted({decided_by(settings, name) or "" for name in heads} - {""}):
            paused.enter_context(decider(settings).pause(settings, name))
        return voids.record(settings, targets, reason=reason, at=datetime.now(UTC), heads=heads)


def _batches_of_delivery(settings: Settings, stream: str, batch: int) -> dict[str, int]:
    """Return the batches of the same delivery in other streams."""
    delivery = Log(settings, stream).head_at(batch).delivery
    if delivery is None:
        return {}
    return {
        other: head.batch
        for other in delivery.streams
        if other != stream
        for head in Log(settings, other).heads()
        if (part := head.delivery) and (part.source, part.number) == (delivery.source, delivery.number)
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
        rows = _rows_at(Log(settings, stream), places, PLACE)
        stored = {(row["_batch"], row["_bucket"], row["_offset"]) for row in rows}
    for place in places:
        if place not in stored:
            raise DeclarationError(
                f"{stream} has no event at {':'.join(map(str, place))}",
                fix="`lake explain TABLE COLUMN=VALUE` shows the place of each event: BATCH:BUCKET:OFFSET",
            )


def _find_source(settings: Settings, stream: str, source: str) -> str:
    for name in (source, f"{stream}/{source}"):
        query = f"SELECT count(*) AS events FROM t WHERE {of_file_sql(name, DUCKDB)}"
        if any(row["events"] for row in duckdb_tables.rows(Log(settings, stream).path, query)):
            return name
    raise DeclarationError(
        f"no event of {stream} came from {source!r}", fix=f"lake log {stream} names the files of each batch"
    )
