"""The re-deliveries of a stream: records that its log has already, each with the event's id and where it came again.

They are counted in the log's head and dropped; this record of them is for people. It stands beside the log.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from lake.config import Settings
from lake.store import delta, side_tables
from lake.store.storage import Address
from lake.store.warehouse import Warehouse


@dataclass(frozen=True)
class Redelivery:
    """The event `id`, delivered again by batch `batch` at `source`."""

    id: str
    batch: int
    source: str


def put(settings: Settings, stream: str, batch: int, verdict: pa.Table) -> None:
    """Appends the duplicates of a `verdict` (see lake.ingest.deduplication) under the number of their batch."""
    again = verdict.filter(pa.compute.invert(verdict.column("conflict"))).select(["_id", "source"])
    if again.num_rows:
        number = pa.array([batch] * again.num_rows, pa.int64())
        rows = again.add_column(0, "_batch", number)
        delta.write(_path(settings, stream), rows, configuration=delta.KEEP_LOGS)


def counts(settings: Settings, stream: str, *, upto: int) -> dict[int, int]:
    """How many re-deliveries each batch had."""
    return side_tables.counts(_path(settings, stream), upto=upto)


def of_events(settings: Settings, stream: str, ids: Collection[str], *, upto: int) -> list[Redelivery]:
    """The re-deliveries of the events `ids` up to batch `upto`, in order."""
    query = """SELECT _id, _batch, source FROM t WHERE _batch <= $1 AND list_contains($2, _id)
               ORDER BY _batch, source"""
    found = delta.rows(_path(settings, stream), query, upto, list(ids)) if ids else []
    return [Redelivery(*row.values()) for row in found]


def _path(settings: Settings, stream: str) -> Address:
    return Warehouse(settings).redeliveries(stream).path
