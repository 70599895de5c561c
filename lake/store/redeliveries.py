"""Re-deliveries of a stream: events that its log has already, each with its id and the place where it came again.

The log counts and drops them; this table beside it is for people. It is written before the log's commit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lake.config import Settings
from lake.store import delta_writer, duckdb_tables
from lake.store.warehouse import Location, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa

LAST_BATCH: Final = 2**62


@dataclass(frozen=True)
class Redelivery:
    id: str
    batch: int
    source: str


def put(settings: Settings, stream: str, batch: int, again: pa.Table) -> None:
    import pyarrow as pa

    if again.num_rows:
        number = pa.array([batch] * again.num_rows, pa.int64())
        path = Warehouse(settings).redeliveries(stream).path
        delta_writer.add(path, again.add_column(0, "_batch", number), configuration=delta_writer.KEEP_LOGS)


def of_events(settings: Settings, stream: str, ids: Collection[str], *, upto: int) -> list[Redelivery]:
    if not ids:
        return []
    query = """SELECT _id, _batch, source FROM t WHERE _batch <= $1 AND list_contains($2, _id)
               ORDER BY _batch, source"""
    rows = duckdb_tables.rows(Warehouse(settings).redeliveries(stream).path, query, upto, list(ids))
    return [Redelivery(*row.values()) for row in rows]


def counts(at: Location, *, upto: int) -> dict[int, int]:
    query = "SELECT _batch, count(*)::INTEGER AS n FROM t WHERE _batch <= $1 GROUP BY _batch"
    return {row["_batch"]: row["n"] for row in duckdb_tables.rows(at.path, query, upto)}
