"""Deduplication: events of a batch that the log, or an earlier record of the batch, already has.

An event and its re-delivery have the same `_id`, bucket and, unless clocks are corrected, event time. So only files
that share buckets and times with the batch are searched. The same id with other content is a conflict, unless the
logged event is voided: then the record is new (see lake.store.voids).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final
from urllib.parse import unquote

from lake import cost
from lake.config import Settings
from lake.contracts import encryption
from lake.contracts.contract import Contract
from lake.contracts.expressions import content, literal
from lake.kinds.columns import with_one_zero
from lake.lazy import DataFrame, SparkSession, pa, pc
from lake.session.in_process.mode import in_process
from lake.store import archive_tier, delta, duckdb_tables, log_rows
from lake.store.duckdb_tables import TableFiles
from lake.store.log import Log
from lake.store.rows import Rows
from lake.store.scan import Scan, arrow_schema, to_arrow, to_frame
from lake.store.spark_upcast import with_undeclared
from lake.store.storage import Address
from lake.store.voids import Void, all_voids, not_voided_sql, without_voided
from lake.text import SPARK
from lake.text import literal as duckdb_literal

REPEATED_IDS: Final = "SELECT _bucket, _id FROM narrow GROUP BY _bucket, _id HAVING count(*) > 1"
BUCKETS: Final = "SELECT DISTINCT _bucket, NULL::TIMESTAMPTZ AS hour FROM narrow"
HOURS: Final = "SELECT DISTINCT _bucket, date_trunc('hour', _time) AS hour FROM narrow"

# Delta truncates the times in a file's statistics to milliseconds.
SEARCHED_FILES: Final = """
    SELECT {folder} || '/' || path AS path, "partition._bucket" AS bucket,
        {least} AS least, {greatest} AS greatest, num_records, size_bytes
    FROM files
    WHERE EXISTS (
        SELECT 1 FROM hours WHERE hours._bucket = "partition._bucket"
        AND coalesce(hours.hour <= {greatest} AND hours.hour + INTERVAL 1 HOUR >= {least}, true)
    )"""
# DuckDB and Spark both run it. `again` are records that repeat a voided event with the same content.
REPEATED_EVENTS: Final = """
    WITH again AS (
        SELECT _position, min(k.place) AS place
        FROM {batch} b JOIN {known} k ON void AND k._bucket = b._bucket AND k._id = b._id AND k.content = b.content
        GROUP BY _position
    )
    SELECT _position, b._bucket, coalesce(k.content, first) <> b.content AS conflict,
        coalesce(k.place, origin) AS original, b._id, source
    FROM (
        SELECT *, row_number() OVER same AS nth,
            first_value(content) OVER same AS first, first_value(source) OVER same AS origin
        FROM {batch} ANTI JOIN again USING (_position) WINDOW same AS (PARTITION BY _bucket, _id ORDER BY _position)
    ) b LEFT JOIN {known} k ON NOT void AND k._bucket = b._bucket AND k._id = b._id
    WHERE nth > 1 OR k._id IS NOT NULL
    UNION ALL SELECT _position, _bucket, false, place, _id, source FROM {batch} JOIN again USING (_position)"""
REPEATED_SCHEMA: Final = pa.schema(
    [
        ("_position", pa.int64()),
        ("_bucket", pa.int32()),
        ("conflict", pa.bool_()),
        ("original", pa.string()),
        ("_id", pa.string()),
        ("source", pa.string()),
    ]
)


@dataclass(frozen=True)
class RepeatedEvents:
    """Events not to append. `rows` has the columns of REPEATED_SCHEMA; `original` is the place of the first event."""

    rows: Rows

    @cached_property
    def counts(self) -> pa.Table:
        return self.rows.counts("_bucket", "conflict")

    @property
    def num_rows(self) -> int:
        return sum(self.counts["count"].to_pylist())

    @property
    def conflicts(self) -> int:
        return sum(self.counts.filter(self.counts["conflict"])["count"].to_pylist())

    @property
    def buckets(self) -> Iterator[tuple[int, int]]:
        """Yield (bucket, number of events); a bucket may occur twice."""
        return zip(self.counts["_bucket"].to_pylist(), self.counts["count"].to_pylist(), strict=True)

    def redeliveries(self) -> Iterator[pa.Table]:
        columns = ["_id", "source"]
        if self.rows.in_memory is not None:
            yield self.rows.where("conflict", False).select(columns).arrow()
            return
        parts = math.ceil((self.num_rows - self.conflicts) / cost.APPENDED_ROWS)
        for part in range(parts):
            yield to_arrow(
                self.rows.held.where(f"NOT conflict AND pmod(hash(_position), {parts}) = {part}").select(*columns)
            )


@cache
def no_repeats() -> RepeatedEvents:
    return RepeatedEvents(Rows(REPEATED_SCHEMA.empty_table()))  # pyarrow imports Pandas for it


@dataclass(frozen=True)
class RedeliverySearch:
    spark: SparkSession
    settings: Settings
    contracts: Sequence[Contract]
    events: DataFrame
    num_events: int
    before: int

    @property
    def contract(self) -> Contract:
        return self.contracts[-1]

    @cached_property
    def _path(self) -> Address:
        return Log(self.settings, self.contract.name).path

    @property
    def is_small(self) -> bool:
        return self.num_events <= self._limit or in_process(self.spark) is not None

    def find(self) -> Rows:
        repeated, stored = self._repeated_ids(), self._stored_events()
        if stored is None and repeated.is_empty:
            return no_repeats().rows
        suspects = repeated.frame(self.spark)
        if stored is not None:
            suspects = suspects.union(stored.select("_bucket", "_id")).distinct()
        digest = f"{content(self.contract)} AS content"
        repeats = with_undeclared(self.events.join(suspects, ["_bucket", "_id"], "left_semi"), self.contracts)
        batch = with_one_zero(repeats).selectExpr("_position", "_bucket", "_id", "_source AS source", digest)
        place = f"concat({literal(self.contract.name)}, ' ', _batch, ':', _bucket, ':', _offset) AS place"
        not_voided = not_voided_sql((void for void in self._voids if not void.is_whole), SPARK)
        origins = with_one_zero(stored if stored is not None else log_rows.empty(self.spark, self.contract)).selectExpr(
            "_bucket", "_id", place, digest, f"NOT ({not_voided}) AS void"
        )
        local_batch, local_origins = self._local(batch).in_memory, self._local(origins).in_memory
        if local_batch is None or local_origins is None:
            return Rows(self.spark.sql(REPEATED_EVENTS, batch=batch, known=origins))
        with duckdb_tables.connection() as con:
            con.register("batch", local_batch)
            con.register("known", local_origins)
            found = con.sql(REPEATED_EVENTS.format(batch="batch", known="known"))
            return Rows(found.to_arrow_table().cast(REPEATED_SCHEMA))

    def _local(self, rows: DataFrame) -> Rows:
        return Rows(rows.toArrow()) if self.is_small else Rows(rows).within(self._limit)

    @property
    def _limit(self) -> int:
        return min(cost.APPENDED_ROWS, self.settings.collected_rows)

    @cached_property
    def _voids(self) -> list[Void]:
        return [void for void in all_voids(self.settings, self.contract.name) if void.frees(self.before)]

    @cached_property
    def _narrow(self) -> pa.Table:
        return self.events.select("_bucket", "_id", "_time").toArrow()

    def _repeated_ids(self) -> Rows:
        if self.is_small:
            return Rows(self._query(REPEATED_IDS))
        return self._local(self.events.groupBy("_bucket", "_id").count().where("count > 1").drop("count"))

    def _hours(self) -> pa.Table:
        """`hour` is null if hours are many, or clocks are corrected: a re-delivery may then have another time."""
        if self.is_small:
            return self._query(BUCKETS if self.contract.clock else HOURS)
        hour = "cast(NULL AS timestamp)" if self.contract.clock else "date_trunc('hour', _time)"
        hours = self._local(self.events.selectExpr("_bucket", f"{hour} AS hour").distinct())
        if hours.in_memory is not None:
            return hours.in_memory
        return self.events.selectExpr("_bucket", "cast(NULL AS timestamp) AS hour").distinct().toArrow()

    def _query(self, query: str) -> pa.Table:
        with duckdb_tables.connection() as con:
            con.register("narrow", self._narrow)
            return con.sql(query).to_arrow_table()

    def _stored_events(self) -> DataFrame | None:
        path = self._path
        if not delta.exists(path):
            return None
        hours = self._hours()
        with delta.opened(path) as table, archive_tier.opened_parts(path, table) as parts:
            stored = arrow_schema(table)
            files = pa.concat_tables([files_to_search(at, delta.file_actions(part), hours) for at, part in parts])
        if not files.num_rows:
            return None
        events: pa.Table | None = None
        if self.is_small and sum(files["num_records"].to_pylist()) <= cost.DEDUPLICATED_LOG_ROWS:
            events = self._events_in(files)
            if events is not None and not events.num_rows:
                return None
        if events is not None:
            fields = [field for field in stored if field.name in events.column_names]
            rows = to_frame(self.spark, events.select([f.name for f in fields]).cast(pa.schema(fields)))
        else:
            rows = self._scan(files).join(self.events.select("_bucket", "_id"), ["_bucket", "_id"], "left_semi")
        rows = without_voided(rows, [void for void in self._voids if void.is_whole])
        is_sealed = events is not None and encryption.SUBJECT in events.column_names
        among = log_rows.people(events) if is_sealed else None
        keys = Log(self.settings, self.contract.name).keys_of(self.spark, self.contract, among)
        return with_undeclared(log_rows.current(rows, self.contracts, keys, upcast=False), self.contracts)

    def _events_in(self, files: pa.Table) -> pa.Table | None:
        path, paths = self._path, list(map(unquote, files["path"].to_pylist()))
        same = f"""_batch < {self.before}
            AND EXISTS (SELECT 1 FROM narrow b WHERE b._bucket = t._bucket AND b._id = t._id)"""
        with delta.opened(path) as table, duckdb_tables.open_files(TableFiles(path, table, paths)) as (con, _):
            con.register("narrow", self._narrow)
            [[count]] = con.sql(f"SELECT count(*) FROM t WHERE {same}").fetchall()
            share = count / (sum(files["num_records"].to_pylist()) or 1)
            if share * sum(files["size_bytes"].to_pylist()) > cost.LOADED_BYTES:
                return None
            return con.sql(f"SELECT * FROM t WHERE {same} {'' if count else 'LIMIT 0'}").to_arrow_table()

    def _scan(self, files: pa.Table) -> DataFrame:
        least, greatest, buckets = pc.min(files["least"]), pc.max(files["greatest"]), files["bucket"].to_pylist()
        bounds = {"_batch": (1, self.before - 1), "_bucket": (min(buckets), max(buckets))}
        times = (least.value, greatest.value) if least.is_valid else None
        return Scan(self._path, bounds=bounds, times=times).frame(self.spark)


def files_to_search(path: Address, files: pa.Table, hours: pa.Table) -> pa.Table:
    """Return those of `files` with events in `hours`: path, bucket, least, greatest, num_records, size_bytes."""
    timed = "min._time" in files.column_names
    with duckdb_tables.connection() as con:
        con.register("files", files)
        con.register("hours", hours)
        least, greatest = (
            ('"min._time"', '"max._time" + INTERVAL 1 MILLISECOND') if timed else ("NULL::TIMESTAMPTZ",) * 2
        )
        query = SEARCHED_FILES.format(folder=duckdb_literal(path.url), least=least, greatest=greatest)
        return con.sql(query).to_arrow_table()
