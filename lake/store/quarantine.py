"""Tables beside the log of a stream: rejected records, with reason, raw text and source position; and re-deliveries.

A re-delivery is an event that the log has already, with its id and the place where it came again. The log counts and
drops them. Both tables are for people, and are written before the log's commit.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lake.config import Settings
from lake.contracts.reasons import Reason
from lake.lazy import DataFrame, pa
from lake.session.in_process.mode import in_process
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.warehouse import Location, Warehouse

COLUMNS: Final = {
    "_batch": "BIGINT",
    "_number": "INTEGER",
    "reason": "VARCHAR",
    "detail": "VARCHAR",
    "raw": "VARCHAR",
    "source": "VARCHAR",
    "_ingested_at": "TIMESTAMPTZ",
}
FACTS: Final = "facts"
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
PART_ROWS: Final = 10_000
PART_BYTES: Final = 64 << 20
ROW_BYTES: Final = 500
"""Size of a row without its text. Rows are written in parts of PART_BYTES and read in parts of PART_ROWS."""


@dataclass(frozen=True)
class Rejected:
    stream: str
    batch: int
    number: int
    reason: str
    detail: str
    raw: str
    source: str
    ingested_at: datetime
    facts: str | None = None

    @property
    def place(self) -> tuple[int, int]:
        return self.batch, self.number

    @property
    def mark(self) -> str:
        return mark(self.batch, self.number)

    @property
    def fingerprint(self) -> tuple[str, int, int]:
        """The mark, with the length and the CRC-32 of the record's text."""
        return self.mark, len(self.raw), zlib.crc32(self.raw.encode("utf-8", "surrogatepass"))


def mark(batch: int, number: int) -> str:
    return f"quarantine:{batch}/{number}"


def is_mark(name: str) -> bool:
    return name.startswith("quarantine:")


def rejected(
    settings: Settings, stream: str, *, upto: int, after: tuple[int, int] = (0, 0), texts: bool = True
) -> Iterator[Rejected]:
    """Yield the rows up to batch `upto`, in order, after the batch and number `after`.

    They are read in parts of PART_ROWS. Without `texts`, `raw` is empty and not read.
    """
    path = _path(settings, stream)
    facts = [FACTS] if delta.exists(path) and FACTS in Scan(path).schema().names else []
    columns = ", ".join([*(name if texts or name != "raw" else "'' AS raw" for name in COLUMNS), *facts])
    query = (
        f"SELECT {columns} FROM t WHERE _batch BETWEEN $1 AND $3 AND (_batch > $1 OR _number > $2)"
        f" ORDER BY _batch, _number LIMIT {PART_ROWS}"
    )
    while True:
        some = [Rejected(stream, *row.values()) for row in duckdb_tables.rows(path, query, *after, upto)]
        yield from some
        if len(some) < PART_ROWS:
            return
        after = some[-1].place


def files(settings: Settings, stream: str, *, upto: int) -> dict[str, str]:
    query = "SELECT _batch, _number, source FROM t WHERE _batch <= $1 AND reason = $2 ORDER BY ALL"
    rows = duckdb_tables.rows(_path(settings, stream), query, upto, str(Reason.FILE))
    return {mark(row["_batch"], row["_number"]): row["source"] for row in rows}


def put_files(settings: Settings, stream: str, batch: int, faults: Iterable[tuple[str, str]], *, at: datetime) -> int:
    rows = [(batch, number, Reason.FILE, detail, "", source, at) for number, (source, detail) in enumerate(faults, 1)]
    if rows:
        duckdb_tables.append(_path(settings, stream), SCHEMA, rows)
    return len(rows)


def put(settings: Settings, stream: str, rows: DataFrame, *, count: int) -> None:
    """Append `rows` (the columns of a quarantine, and FACTS if there are any), `count` in all.

    Many rows are written part by part; never by Spark, which may commit after its client has died.
    """
    path = _path(settings, stream)
    if not delta.exists(path):
        duckdb_tables.append(path, SCHEMA, [])
    columns = [*COLUMNS, *(name for name in rows.columns if name == FACTS)]
    if in_process(rows.sparkSession):
        delta_writer.add(path, rows.select(*columns).toArrow(), schema_mode="merge")
        return
    size = f"octet_length(raw) + {ROW_BYTES}"
    before = f"sum({size}) OVER (ORDER BY _number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    parts = rows.selectExpr(*columns, f"coalesce({before}, 0L) div {PART_BYTES} AS _part")
    last = number = 0
    while number <= last:
        part = parts.where(f"_part = {number}").drop("_part").toArrow()
        if part.num_rows:
            delta_writer.add(path, part, schema_mode="merge")
        if number == 0 and part.num_rows < count:
            last = parts.selectExpr("max(_part) AS last").collect()[0]["last"] or 0
        number += 1


def _path(settings: Settings, stream: str) -> Address:
    return Warehouse(settings).quarantine(stream).path


LAST_BATCH: Final = 2**62


@dataclass(frozen=True)
class Redelivery:
    id: str
    batch: int
    source: str


def put_redeliveries(settings: Settings, stream: str, batch: int, again: pa.Table) -> None:
    if again.num_rows:
        number = pa.array([batch] * again.num_rows, pa.int64())
        path = Warehouse(settings).redeliveries(stream).path
        delta_writer.add(path, again.add_column(0, "_batch", number), configuration=delta_writer.KEEP_LOGS)


def redeliveries_of(settings: Settings, stream: str, ids: Collection[str], *, upto: int) -> list[Redelivery]:
    if not ids:
        return []
    query = """SELECT _id, _batch, source FROM t WHERE _batch <= $1 AND list_contains($2, _id)
               ORDER BY _batch, source"""
    rows = duckdb_tables.rows(Warehouse(settings).redeliveries(stream).path, query, upto, list(ids))
    return [Redelivery(*row.values()) for row in rows]


def counts_by_batch(at: Location, *, upto: int) -> dict[int, int]:
    query = "SELECT _batch, count(*)::INTEGER AS n FROM t WHERE _batch <= $1 GROUP BY _batch"
    return {row["_batch"]: row["n"] for row in duckdb_tables.rows(at.path, query, upto)}
