"""A log of a year of readings in the log's own format, written without Spark: as many events as are asked for.

Each day is a batch, `lake.store.log` commits it, and its commit says what it says of any: counts, offsets, watermark,
fingerprints, and the digest that chains it to the batch before. Small files are packed as ingestion does. Bucket and id
of an event are those that ingestion gives it: DuckDB and this module work them out as Spark does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from infra.bench.meters import contract
from lake.config import Settings
from lake.store import duckdb_tables
from lake.store.delta import Position
from lake.store.ledger import contract_versions
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.proof import chain
from lake.store.rows import Rows
from lake.store.upkeep import compaction

STREAM: Final = "readings"
START: Final = datetime(2024, 1, 1, tzinfo=UTC)
DAYS: Final = 365
DAY: Final = timedelta(days=1) // timedelta(microseconds=1)
SEED: Final = 42
"""Of Spark's xxhash64."""
P1, P2, P3, P4, P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
WORD: Final = (1 << 64) - 1

EVENTS: Final = """
    SELECT $batch::BIGINT AS _batch, number AS _arrival, _bucket,
        before + row_number() OVER (PARTITION BY _bucket ORDER BY number) - 1 AS _offset,
        sha256(concat(length(meter), ':', meter, length(stamp), ':', stamp, length(digits), ':', digits)) AS _id,
        "at" AS _time, $watermark::TIMESTAMPTZ AS _watermark, $start::TIMESTAMPTZ AS _ingested_at, 'made' AS _source,
        1::INTEGER AS _version, {extra} AS _extra, number, meter, "at",
        (hash(number, 'value') % 1000)::INTEGER AS value, if(hash(number, 'mode') % 4 = 0, 'off', 'on') AS mode,
        hash(number, 'removed') % 50 = 0 AS removed
    FROM (
        SELECT number, number::VARCHAR AS digits, meter, _bucket, before, "at",
            rtrim(rtrim(strftime("at", '%Y-%m-%d %H:%M:%S.%f'), '0'), '.') AS stamp
        FROM (
            SELECT number, hash(number, 'meter') % $meters AS m,
                make_timestamptz(epoch_us($start::TIMESTAMPTZ) + {us}::BIGINT) AS "at"
            FROM range($first::BIGINT, $first + $rows) t(number)
        ) JOIN meters USING (m) JOIN offsets USING (_bucket)
    ) ORDER BY number"""
EXTRA: Final = "'{{\"note\":\"' || {parts} || '\"}}'"
"""A field that no contract names, of so many texts of 32 characters."""
IN_ORDER: Final = "(number * $day // $rows)"
SHUFFLED: Final = "(hash(number, 'at') % ($day * $days))"


@dataclass(frozen=True)
class Written:
    """Writes the log of a project: `rows` events a day, of `meters` meters.

    Each event has `notes` texts of 32 characters in a field that no contract names.

    Events come in the order of their times or, `shuffled`, each batch has events of every day of the year.
    """

    settings: Settings
    rows: int
    meters: int = 100_000
    shuffled: bool = False
    notes: int = 0

    def days(self, days: int = DAYS) -> LogHead:
        """Append the batches of `days`; return the log's last batch."""
        of, log = contract(STREAM), Log(self.settings, STREAM)
        contract_versions.register(self.settings, of)
        head, names = log.head(), [f"M{number}" for number in range(self.meters)]
        with duckdb_tables.connection() as con:
            con.register("known", pa.table({"meter": names, "_bucket": [bucket(name, of.buckets) for name in names]}))
            con.execute("CREATE TEMP TABLE meters AS SELECT substr(meter, 2)::UBIGINT AS m, * FROM known")
            for _ in range(days):
                rows = self._events(con, head, range(of.buckets))
                head = log.commit(of, Rows(rows), _position(head, rows))
                compaction.pack_table(log.path, head.position)
        return head

    def _events(self, con: duckdb.DuckDBPyConnection, head: LogHead, buckets: Sequence[int]) -> pa.Table:
        before = {"_bucket": list(buckets), "before": [head.offsets.get(number, 0) for number in buckets]}
        con.register("offsets", pa.table(before, pa.schema([("_bucket", pa.int32()), ("before", pa.int64())])))
        times = {"days": DAYS} if self.shuffled else {}
        values = {"batch": head.batch + 1, "first": head.batch * self.rows, "rows": self.rows, "meters": self.meters}
        parts = " || ".join(f"md5('{part}' || number)" for part in range(self.notes))
        extra = EXTRA.format(parts=parts) if parts else "NULL::VARCHAR"
        query = EVENTS.format(us=SHUFFLED if self.shuffled else IN_ORDER, extra=extra)
        told = values | times | {"day": DAY, "start": START, "watermark": head.watermark}
        return con.sql(query, params=told).to_arrow_table()


def _position(head: LogHead, rows: pa.Table) -> Position:
    counted = {row["values"]: row["counts"] for row in pc.value_counts(rows.column("_bucket")).to_pylist()}
    offsets = {b: head.offsets.get(b, 0) + counted.get(b, 0) for b in sorted({*head.offsets, *counted})}
    latest = [pc.max(rows.column("_time")).as_py(), *([head.watermark] if head.watermark else [])]
    return head.next(
        beside={"quarantined": 0, "duplicates": 0},
        offsets={str(b): offset for b, offset in offsets.items()},
        watermark=max(latest).isoformat(),
        counts={"read": rows.num_rows, "accepted": rows.num_rows, "duplicates": 0, "quarantined": 0, "control": 0},
        files=[],
        contract=1,
        at=START.isoformat(),
        ordered=True,
        content=chain.entry(head.content, head.batch + 1, chain.of_batch(rows), []),
    )


def bucket(text: str, buckets: int) -> int:
    """The bucket of a key, a text of less than 32 bytes: Spark's pmod(xxhash64(text), buckets)."""
    unsigned = xxhash64(text.encode())
    return (unsigned - (1 << 64) if unsigned >> 63 else unsigned) % buckets


def xxhash64(data: bytes) -> int:
    """The 64-bit xxHash (github.com/Cyan4973/xxHash, doc/xxhash_spec.md) of less than 32 bytes, with Spark's seed."""
    h = (SEED + P5 + len(data)) & WORD
    at = 0
    while at + 8 <= len(data):
        (word,) = struct.unpack_from("<Q", data, at)
        h = (_rotated(h ^ (_rotated(word * P2 & WORD, 31) * P1 & WORD), 27) * P1 + P4) & WORD
        at += 8
    if at + 4 <= len(data):
        (half,) = struct.unpack_from("<I", data, at)
        h = (_rotated(h ^ (half * P1 & WORD), 23) * P2 + P3) & WORD
        at += 4
    for byte in data[at:]:
        h = _rotated(h ^ (byte * P5 & WORD), 11) * P1 & WORD
    h = (h ^ (h >> 33)) * P2 & WORD
    h = (h ^ (h >> 29)) * P3 & WORD
    return h ^ (h >> 32)


def _rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & WORD
