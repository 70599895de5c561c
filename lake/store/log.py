"""Log of a stream: an append-only Delta table, partitioned by `_bucket` and never updated. Its rows: see log_rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Final

from deltalake import Schema

from lake import cost
from lake.config import Settings
from lake.contracts import encryption, evolution
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, StorageError, Unavailable
from lake.lazy import DataFrame, SparkSession, pa, pc
from lake.store import delta, delta_writer, duckdb_tables, durable, erasures, log_rows
from lake.store.delta import Position
from lake.store.keys import COPY, KeyStore, open_store
from lake.store.ledger import contract_versions
from lake.store.log_head import LogHead
from lake.store.log_rows import BROADCAST, OWN, REFUSAL, ranged
from lake.store.positioned_commit import StagingTable, commit_staged, confirm, only_writer, stage
from lake.store.recovery import RESTORE
from lake.store.rows import Rows
from lake.store.scan import Scan, Span, spooled
from lake.store.table_logs import invalidate
from lake.store.voids import voids_between, without_voided
from lake.store.warehouse import Located, Location, Warehouse
from lake.text import SPARK, quoted

LOCAL_TIME: Final = "timestamp_ntz"
PROPERTIES: Final = {
    "delta.appendOnly": "true",
    "delta.enableDeletionVectors": "false",
}


@dataclass(frozen=True)
class EventFilter:
    """Events of a log to read: those after batch `after`, and of `bucket` and at `times` if given.

    With `keys`, at least the events that equal one of them in unchanged columns. Values that depend on columns not in
    `only` may be null.
    """

    after: int = 0
    bucket: int | None = None
    times: Span | None = None
    keys: pa.Table | None = None
    only: Collection[str] | None = None


EVERY: Final = EventFilter()


@dataclass(frozen=True)
class Log(Located):
    settings: Settings
    stream: str

    @cached_property
    def location(self) -> Location:
        return Warehouse(self.settings).log(self.stream)

    def head(self) -> LogHead:
        return LogHead.of(self.stream, delta.head_or_start(self.path, self.app))

    def heads(self) -> list[LogHead]:
        return [*self.backwards()]

    def backwards(self) -> Iterator[LogHead]:
        positions = delta.positions(self.path, self.app)
        return (LogHead.of(self.stream, position) for position in positions if not position.data.get("repeated"))

    def heads_after(self, batch: int) -> list[LogHead]:
        return [*takewhile(lambda head: head.batch > batch, self.backwards())]

    def head_at(self, batch: int) -> LogHead:
        positions = delta.positions(self.path, self.app)
        position = next((p for p in positions if p.data["batch"] <= batch), None)
        return LogHead.of(self.stream, position or delta.start(self.app))

    def must_reach(self, batch: int) -> LogHead:
        """Return the head. Raises StorageError if it is before `batch`: the newest commit was lost."""
        newest = self.head()
        if newest.batch < batch:  # another process may have committed it meanwhile
            invalidate(self.path)
            newest = self.head()
        if newest.batch < batch:
            raise StorageError(
                f"the log of {self.stream} is damaged: it ends at batch {newest.batch}, but was counted up to"
                f" batch {batch}",
                where=str(self.path),
                fix=RESTORE,
            )
        return newest

    def contracts(self, head: LogHead) -> tuple[Contract, ...]:
        """Return the contracts that the log was written with, version 1 first. Raises LakeError if damage took some."""
        contracts = contract_versions.versions(self.settings, self.stream)
        if len(contracts) < head.contract:
            raise StorageError(
                f"of the {head.contract} versions of the contract of {self.stream} that its log was written with,"
                f" {len(contracts)} are left",
                where=str(Warehouse(self.settings).book("contracts").path),
                fix="restore that folder from a backup: without it older events cannot be interpreted",
            )
        return contracts

    def read(
        self,
        spark: SparkSession,
        contract: Contract,
        *,
        upto: int,
        voids: int = 0,
        events: EventFilter = EVERY,
    ) -> DataFrame:
        """Return those `events` of the batches up to `upto` that none of the voids 1..`voids` covers.

        Columns: the contract's fields, with older events upcast, then the log's own. Raises StorageError if the log
        ends before `upto`.
        """
        contracts = evolution.with_current(self.contracts(self.must_reach(upto)), contract)
        if not delta.exists(self.path) or upto <= events.after:
            return log_rows.empty(spark, contract)
        bounds = {"_batch": (events.after + 1, upto)}
        if events.bucket is not None:
            bounds["_bucket"] = (events.bucket, events.bucket)
        scan = Scan(self.path, bounds=bounds, times=events.times)
        rows = scan.frame(spark) if events.keys is None else scan.near(spark, events.keys, events.only)
        people = self._keys_in(scan, spark, contract, events.keys)
        return self._interpreted(rows, contracts, people, voids=voids)

    def refusals(self, spark: SparkSession, contract: Contract, *, upto: int, voids: int) -> DataFrame:
        contracts = evolution.with_current(self.contracts(self.must_reach(upto)), contract)
        scan = self._broadcasts(upto)
        people = self._keys_in(scan, spark, contract, None)
        return self._interpreted(scan.frame(spark), contracts, people, voids=voids, refusals=True)

    def _broadcasts(self, upto: int) -> Scan:
        return Scan(self.path, bounds={"_batch": (1, upto), "_bucket": (BROADCAST, BROADCAST)})

    def _keys_in(self, scan: Scan, spark: SparkSession, contract: Contract, keys: pa.Table | None) -> DataFrame | None:
        return self.keys_of(spark, contract, self._people(scan, keys)) if contract.sealed else None

    def events_of(self, stored: DataFrame, contract: Contract, keys: DataFrame, *, voids: int = 0) -> DataFrame:
        contracts = evolution.with_current(self.contracts(self.head()), contract)
        return self._interpreted(stored, contracts, keys if contract.sealed else None, voids=voids)

    def _interpreted(
        self,
        rows: DataFrame,
        contracts: Sequence[Contract],
        keys: DataFrame | None,
        *,
        voids: int,
        refusals: bool = False,
    ) -> DataFrame:
        rows = without_voided(rows, voids_between(self.settings, self.stream, 0, voids))
        if REFUSAL in rows.columns:
            rows = rows.where(f"{REFUSAL} IS {'NOT ' if refusals else ''}NULL")
        return log_rows.current(rows, contracts, keys, [REFUSAL] if refusals else [])

    def _people(self, scan: Scan, keys: pa.Table | None) -> list[str] | None:
        if encryption.SUBJECT not in scan.schema().names:
            return []
        if keys is None and scan.rows() > cost.SCAN_ROWS:
            return None
        rows = scan.arrow([encryption.SUBJECT], keys=keys, limit=cost.SCAN_ROWS + 1)
        return log_rows.people(rows) if rows.num_rows <= cost.SCAN_ROWS else None

    def has_refusals(self, *, upto: int) -> bool:
        if not upto or not delta.exists(self.path):
            return False
        scan = self._broadcasts(upto)
        return REFUSAL in scan.schema().names and scan.rows() > 0

    def key_store(self) -> KeyStore:
        """Return the key store that the log was sealed with; create it if nothing has been sealed yet.

        Raises DeclarationError if keys are missing: it is another one, or an older copy.
        """
        recorded = self.head().keys
        store = open_store(self.settings, make=not recorded)
        other = recorded and (store.id != recorded["store"] or store.count(self.stream) < recorded["subjects"])
        if other and (missing := self.keyless(store)):
            raise DeclarationError(
                f"the keys of {len(missing)} people of {self.stream} are not in the key store",
                where=store.home.where,
                fix=COPY,
            )
        return store

    def keys_of(self, spark: SparkSession, contract: Contract, among: Iterable[str] | None = None) -> DataFrame | None:
        """Return the keys of the persons in the log, or of the tokens `among`, that were not forgotten.

        None if nothing is sealed. Raises as `key_store` does.
        """
        if not contract.sealed:
            return None
        store = self.key_store()
        parts = store.all_keys(self.stream) if among is None else iter([store.keys_of(self.stream, among)])
        gone = pa.array(sorted(erasures.subjects(self.settings, self.stream)), pa.string())
        return spooled(
            spark, (part.filter(pc.invert(pc.is_in(part.column(encryption.SUBJECT), gone))) for part in parts)
        )

    def keyless(self, store: KeyStore) -> set[str]:
        token = encryption.SUBJECT
        query = f"SELECT DISTINCT {token} FROM t ANTI JOIN known USING ({token}) WHERE {token} IS NOT NULL"
        missing = {row[token] for row in duckdb_tables.rows(self.path, query, known=store.tokens(self.stream))}
        return missing - erasures.subjects(self.settings, self.stream)

    def commit(self, contract: Contract, rows: Rows, position: Position) -> LogHead:
        """Append a batch and its position in one Delta commit, and verify it by reading it back.

        `rows` have the log's own columns and the physical ones of `contract`. Raises Unavailable if another writer was
        first.
        """
        own = [column for column in (*OWN, REFUSAL) if column in rows.columns]
        ordered = rows.select([*own, *(column for column in rows.columns if column not in own)])
        self._make(contract, _schema(ordered))
        conflict = _conflict(self.stream, position)
        with only_writer(self.location, position, conflict):
            if ordered.in_memory is not None:
                delta_writer.write(self.path, ordered.in_memory, position, schema_mode="merge")
            else:
                commit_staged(self._staged(ordered.held), position)
        return LogHead.of(self.stream, confirm(self.location, position, conflict))

    def flush(self) -> None:
        """Flush the newest batch to disk, before it is acknowledged outside.

        The tables beside the log are flushed by `flush_beside`. Raises StorageError if a file of the batch is missing
        or truncated.
        """
        durable.flush(self.path, lambda: next((head.version for head in islice(self.backwards(), 1, 2)), -1))

    def flush_beside(self) -> None:
        warehouse = Warehouse(self.settings)
        for location in (*warehouse.beside(self.stream), warehouse.book("contracts")):
            durable.flush(location.path)

    def _make(self, contract: Contract, schema: Schema) -> None:
        if not delta.exists(self.path):
            properties = {**PROPERTIES, "delta.dataSkippingStatsColumns": _counted(contract)}
            delta_writer.create(self.path, schema, properties, partition_by=["_bucket"])

    def _staged(self, rows: DataFrame) -> StagingTable:
        staging = stage(self.path)
        if LOCAL_TIME in rows.schema.simpleString() and "timestampNtz" not in staging.features:
            # Spark does not enable Delta's feature for times without a zone if an append adds the first ones.
            enabled = "SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
            rows.sparkSession.sql(f"ALTER TABLE {staging.sql} {enabled}").collect()
        writer = rows.write.format("delta").mode("append").partitionBy("_bucket")
        writer.option("mergeSchema", "true").save(staging.path.url)
        return staging


def _schema(rows: Rows) -> Schema:
    if rows.in_memory is not None:
        return Schema.from_arrow(rows.in_memory.schema)
    return Schema.from_json(rows.held.schema.toNullable().json())


def _counted(contract: Contract) -> str:
    return ",".join(["_batch", "_offset", "_time", *(quoted(name, SPARK) for name in ranged(contract))])


def _conflict(stream: str, position: Position) -> Unavailable:
    return Unavailable(
        f"batch {position.data['batch']} of {stream} was written by another writer at the same time",
        fix="try again: nothing of this batch was committed",
    )


@dataclass(frozen=True)
class SourcePosition:
    """Position after delivery `number` (0: none), which `streams` have and `lacking` lack.

    A log is not `lacking` if it was deleted, and the source is no longer declared for its stream.
    """

    number: int = 0
    progress: Mapping[str, Any] | None = None
    streams: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


def source_position(settings: Settings, name: str, streams: tuple[str, ...]) -> SourcePosition:
    positions = {stream: Log(settings, stream).head().sources.get(name) for stream in streams}
    newest = max(filter(None, positions.values()), key=lambda position: position.number, default=None)
    if newest is None:
        return SourcePosition()
    logs = {stream: Log(settings, stream) for stream in newest.streams}
    positions |= {stream: log.head().sources.get(name) for stream, log in logs.items() if stream not in positions}
    complete = {stream for stream, position in positions.items() if position and position.number == newest.number}
    gone = {stream for stream, log in logs.items() if stream not in streams and not delta.exists(log.path)}
    lacking = tuple(stream for stream in newest.streams if stream not in complete | gone)
    return SourcePosition(newest.number, newest.progress, newest.streams, lacking)
