"""Events of a log in detail: origin, delay, re-deliveries, void."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from lake.config import Settings
from lake.store import redeliveries, voids
from lake.store.ledger.cuts import Cut
from lake.store.log import Log
from lake.store.scan import Scan

Place = tuple[int, int, int]

PLACE = pa.schema([("_batch", pa.int64()), ("_bucket", pa.int32()), ("_offset", pa.int64())])
ENVELOPE = ("_batch", "_bucket", "_offset", "_id", "_source", "_time", "_watermark", "_ingested_at", "_version")


@dataclass(frozen=True)
class Event:
    """An accepted event. `late` is its delay behind the greatest time of earlier batches, or zero.

    `contract` is a version; `again` are sources of re-deliveries; `void` is a void's reason.
    """

    stream: str
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
    """Return events at `places` as of `cut`. Needs no JVM."""
    if not places:
        return {}
    columns = list(zip(*places, strict=True))
    bounds = {field.name: (min(values), max(values)) for field, values in zip(PLACE, columns, strict=True)}
    keys = pa.table([pa.array(values, field.type) for field, values in zip(PLACE, columns, strict=True)], schema=PLACE)
    rows = Scan(Log(settings, stream).path, bounds=bounds).arrow(ENVELOPE, keys=keys).to_pylist()
    again: dict[str, list[str]] = {}
    for event in redeliveries.of_events(settings, stream, [r["_id"] for r in rows], upto=cut.batches.get(stream, 0)):
        again.setdefault(event.id, []).append(event.source)
    voided = voids.voids_between(settings, stream, 0, cut.voids)
    events = {}
    for row in rows:
        place = row["_batch"], row["_bucket"], row["_offset"]
        timed = row["_time"] is not None and row["_watermark"] is not None
        events[place] = Event(
            stream,
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
