"""Log of a stream: an append-only Delta table, partitioned by `_bucket` and never updated.

Its own columns: `_batch` (1, 2, 3 … without gaps), `_arrival` (an ordinal over all buckets and broadcasts of the batch,
in the order of the source; unique there, with gaps), `_bucket`, `_offset` (gap-free and increasing within a bucket, in
the order of batch and arrival), `_id`, `_time` (event time), `_watermark` (the greatest `_time` of earlier batches; if
the contract names producers, their horizon: see lake.ingest.horizon), `_ingested_at` (for people; no derivation may
read it), `_source`, `_version` (of the contract), `_extra` (members that the contract does not know, as JSON).

A log also has, as broadcasts, the rejections of its stream: a row with REFUSAL for each record that was quarantined,
for each that was accepted later, and for each acceptance of everything rejected. They are no events: `read` returns
either these or those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from deltalake import Schema

from lake import cost
from lake.config import Settings
from lake.contracts import encryption, evolution, origins
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, StorageError, Unavailable
from lake.quoting import SPARK, quoted
from lake.store import delta, delta_writer, duckdb_tables, durable, erasures, recovery
from lake.store.delta import Position
from lake.store.keys import COPY, KeyStore, open_store
from lake.store.ledger import contract_versions
from lake.store.positioned_commit import commit_staged, confirm, only_writer
from lake.store.scan import TIME, Scan, Span, spooled
from lake.store.source_offsets import CommittedDelivery, by_source
from lake.store.staging_table import StagingTable, stage
from lake.store.storage import Address
from lake.store.table_logs import invalidate
from lake.store.voids import voids_between, without_voided
from lake.store.warehouse import Location, Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BROADCAST: Final = -1  # the bucket of events without a key
REFUSAL: Final = "_refusal"  # REFUSED, REPAIRED or ACCEPTED; null for events, absent if nothing was ever rejected
REFUSED, REPAIRED, ACCEPTED = "refused", "repaired", "accepted"
OWN: Final = {
    "_batch": "bigint",
    "_arrival": "bigint",
    "_bucket": "int",
    "_offset": "bigint",
    "_id": "string",
    "_time": "timestamp",
    "_watermark": "timestamp",
    "_ingested_at": "timestamp",
    "_source": "string",
    "_version": "int",
    "_extra": "string",
}
LOCAL_TIME: Final = "timestamp_ntz"
PROPERTIES: Final = {
    "delta.appendOnly": "true",
    "delta.enableDeletionVectors": "false",
}


@dataclass(frozen=True)
class LogHead:
    """State of a log after its newest batch; all zero before the first.

    `offsets` is the next offset of each bucket. `watermark` is that of the next batch: the greatest event time so far,
    or the horizon of the producers. `counts` are the records of the batch read, accepted, dropped as duplicates and
    quarantined. `files` are the files it read, `version` the Delta version of its commit, `contract` the version of its
    contract.
    """

    stream: str
    position: Position
    batch: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)
    watermark: datetime | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    files: Sequence[Mapping[str, Any]] = ()
    contract: int = 0
    at: str = ""

    @property
    def version(self) -> int:
        return self.position.version

    @property
    def events(self) -> int:
        return sum(self.offsets.values()) - int(self.position.data.get("refusals", 0))

    @property
    def accepted(self) -> dict[str, Any]:
        """Return the acceptance of all rejected records up to a batch, with its reason; {} if there is none."""
        return self._recorded("accepted")

    @property
    def accepted_upto(self) -> int:
        return int(self.accepted.get("batch", 0))

    @property
    def sources(self) -> dict[str, CommittedDelivery]:
        return by_source(self.position.data)

    @property
    def delivery(self) -> CommittedDelivery | None:
        return next((one for one in self.sources.values() if one.batch == self.batch), None)

    @property
    def horizon(self) -> dict[str, Any]:
        """Return the state of producers, see lake.ingest.horizon; {} if the contract names none."""
        return self._recorded("horizon")

    @property
    def is_ended(self) -> bool:
        """Return whether the log waited for producers and all of them are closed."""
        return bool(self.horizon.get("ended"))

    @property
    def latest(self) -> datetime | None:
        """Return the greatest event time so far, also if the watermark is behind it."""
        latest = self.horizon.get("latest")
        return datetime.fromisoformat(latest) if latest else self.watermark

    @property
    def keys(self) -> dict[str, Any]:
        """Return the key store of the newest batch; {} if nothing is sealed."""
        return self._recorded("keys")

    @property
    def content(self) -> dict[str, Any]:
        """Return the fingerprints and the digest of the newest batch, see `chain.entry`; {} before the first."""
        return self._recorded("content")

    def _recorded(self, key: str) -> dict[str, Any]:
        value: dict[str, Any] = self.position.data.get(key, {})
        return value

    def next(self, **data: Any) -> Position:
        return self.position.next(batch=self.batch + 1, **data)


@dataclass(frozen=True)
class Log:
    """Log of one stream of a project; it may not exist yet."""

    settings: Settings
    stream: str

    @property
    def location(self) -> Location:
        return Warehouse(self.settings).log(self.stream)

    @property
    def path(self) -> Address:
        return self.location.path

    @property
    def app(self) -> str:
        return self.location.app

    @property
    def lease(self) -> str:
        """Name of the lease of its only writer."""
        return self.location.lease

    def head(self) -> LogHead:
        position = delta.head_or_start(self.path, self.app)
        return _head(self.stream, position) if position.data else LogHead(self.stream, position)

    def heads(self) -> list[LogHead]:
        """Return the head after each batch, newest first."""
        return [*self.backwards()]

    def backwards(self) -> Iterator[LogHead]:
        positions = delta.positions(self.path, self.app)
        return (_head(self.stream, position) for position in positions if not position.data.get("repeated"))

    def heads_after(self, batch: int) -> list[LogHead]:
        positions = delta.positions(self.path, self.app)
        later = takewhile(lambda position: position.data["batch"] > batch, positions)
        return [_head(self.stream, position) for position in later if not position.data.get("repeated")]

    def head_at(self, batch: int) -> LogHead:
        positions = delta.positions(self.path, self.app)
        position = next((p for p in positions if p.data["batch"] <= batch), None)
        return LogHead(self.stream, delta.start(self.app)) if position is None else _head(self.stream, position)

    def must_reach(self, batch: int) -> LogHead:
        """Return the head. Raises StorageError if it is before `batch`, which was committed: the newest commit was
        lost.
        """
        newest = self.head()
        if newest.batch < batch:  # another process may have committed it meanwhile
            invalidate(self.path)
            newest = self.head()
        recovery.must_reach(self.location, newest.batch, batch)
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

    def read(  # noqa: PLR0913  which part of which log, said by name
        self,
        spark: SparkSession,
        contract: Contract,
        *,
        upto: int,
        after: int = 0,
        bucket: int | None = None,
        keys: pa.Table | None = None,
        only: Collection[str] | None = None,
        times: Span | None = None,
        voids: int = 0,
        refusals: bool = False,
    ) -> DataFrame:
        """Return the events, or rejections, of the batches after < number <= upto, without those of the voids
        1..`voids`.

        Restricted to `bucket` and `times`, if given. With `keys`, at least the events that equal one of
        them in unchanged columns. Values that depend on columns not in `only` may be null. Columns: the contract's
        fields, with older events upcast, then the log's own; and REFUSAL if `refusals`. Raises StorageError if the log
        ends before `upto`.
        """
        contracts = evolution.with_current(self.contracts(self.must_reach(upto)), contract)
        if not delta.exists(self.path) or upto <= after:
            return empty(spark, contract)
        bounds = {"_batch": (after + 1, upto)} | ({} if bucket is None else {"_bucket": (bucket, bucket)})
        scan = Scan(self.path, bounds=bounds, times=times)
        rows = scan.frame(spark) if keys is None else scan.near(spark, keys, only)
        among = self._people(scan, keys) if contract.sealed else None
        people = self.keys_of(spark, contract, among)
        return self._interpreted(rows, contracts, people, voids=voids, refusals=refusals)

    def events_of(self, stored: DataFrame, contract: Contract, keys: DataFrame, *, voids: int = 0) -> DataFrame:
        """Return the result of `read` for the stored rows `stored`; `keys` are the keys of persons."""
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
        """Return the events, or rejections, of stored `rows`, without those of the voids 1..`voids`."""
        rows = without_voided(rows, voids_between(self.settings, self.stream, 0, voids))
        if REFUSAL in rows.columns:
            rows = rows.where(f"{REFUSAL} IS {'NOT ' if refusals else ''}NULL")
        return current(rows, contracts, keys, [REFUSAL] if refusals else [])

    def _people(self, scan: Scan, keys: pa.Table | None) -> list[str] | None:
        """Return the tokens of the persons in the rows that are read; None if there are many."""
        if encryption.SUBJECT not in scan.schema().names:
            return []
        if keys is None and scan.rows() > cost.SCAN_ROWS:
            return None
        rows = scan.arrow([encryption.SUBJECT], keys=keys, limit=cost.SCAN_ROWS + 1)
        return people(rows) if rows.num_rows <= cost.SCAN_ROWS else None

    def has_refusals(self, *, upto: int) -> bool:
        if not upto or not delta.exists(self.path):
            return False
        scan = Scan(self.path, bounds={"_batch": (1, upto), "_bucket": (BROADCAST, BROADCAST)})
        return REFUSAL in scan.schema().names and scan.rows() > 0

    def key_store(self) -> KeyStore:
        """Return the key store that the log was sealed with; create it if nothing has been sealed yet.

        Raises DeclarationError if it is another one, or an older copy, that lacks keys.
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
        """Return the keys of the persons in the log, or of the tokens `among`, that were not forgotten; None if nothing
        is sealed.

        Raises as `key_store` does.
        """
        if not contract.sealed:
            return None
        import pyarrow as pa
        import pyarrow.compute as pc

        store = self.key_store()
        parts = store.all_keys(self.stream) if among is None else iter([store.keys_of(self.stream, among)])
        gone = pa.array(sorted(erasures.subjects(self.settings, self.stream)), pa.string())
        return spooled(
            spark, (part.filter(pc.invert(pc.is_in(part.column(encryption.SUBJECT), gone))) for part in parts)
        )

    def keyless(self, store: KeyStore) -> set[str]:
        """Return the tokens in the log that `store` does not know and that were not erased."""
        token = encryption.SUBJECT
        query = f"SELECT DISTINCT {token} FROM t ANTI JOIN known USING ({token}) WHERE {token} IS NOT NULL"
        missing = {row[token] for row in duckdb_tables.rows(self.path, query, known=store.tokens(self.stream))}
        return missing - erasures.subjects(self.settings, self.stream)

    def commit(self, contract: Contract, rows: pa.Table | DataFrame, position: Position) -> LogHead:
        """Append a batch and its position in one Delta commit, and verify it by reading it back.

        `rows` have the log's own columns and the physical ones of `contract`; delta-rs commits Arrow rows. Raises
        Unavailable if another writer was first.
        """
        import pyarrow as pa

        names = rows.column_names if isinstance(rows, pa.Table) else rows.columns
        own = [column for column in (*OWN, REFUSAL) if column in names]
        ordered = rows.select([*own, *(column for column in names if column not in own)])
        self._make(contract, _schema(ordered))
        beaten = _beaten(self.stream, position)
        with only_writer(self.location, position, beaten):
            if isinstance(ordered, pa.Table):
                with delta_writer.committing(self.path) as table:
                    delta_writer.must_precede(table, position)
                    delta_writer.write(table, ordered, position, schema_mode="merge")
            else:
                commit_staged(self._staged(ordered), position)
        return _head(self.stream, confirm(self.location, position, beaten))

    def flush(self) -> None:
        """Flush the newest batch and its contracts to disk, before it is acknowledged outside.

        The tables beside the log are flushed before its commit. Raises StorageError if a file of the batch is missing
        or truncated.
        """
        if self.path.storage.may_tear:
            durable.flush(self.path, self._before_newest)

    def flush_beside(self) -> None:
        """Flush to disk what a batch needs beside its rows: quarantined records, re-deliveries, contracts."""
        warehouse = Warehouse(self.settings)
        for location in (*warehouse.beside(self.stream), warehouse.book("contracts")):
            durable.flush(location.path)

    def _before_newest(self) -> int:
        """Return the version of the batch before the newest, which its writer has flushed, else -1."""
        older = islice(self.backwards(), 1, 2)
        return next((head.version for head in older), -1)

    def _make(self, contract: Contract, schema: Schema) -> None:
        if not delta.exists(self.path):
            properties = {**PROPERTIES, "delta.dataSkippingStatsColumns": _counted(contract)}
            delta_writer.create(self.path, schema, properties, partition_by=["_bucket"])

    def _staged(self, rows: DataFrame) -> StagingTable:
        staging = stage(self.path)
        with delta.opened(self.path) as table:
            features = table.protocol().writer_features or ()
        if LOCAL_TIME in rows.schema.simpleString() and "timestampNtz" not in features:
            # Spark does not enable Delta's feature for times without a zone if an append adds the first ones.
            enabled = "SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
            rows.sparkSession.sql(f"ALTER TABLE {staging.sql} {enabled}").collect()
        writer = rows.write.format("delta").mode("append").partitionBy("_bucket")
        writer.option("mergeSchema", "true").save(staging.path.spark)
        return staging


def _schema(rows: pa.Table | DataFrame) -> Schema:
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return Schema.from_arrow(rows.schema)
    return Schema.from_json(rows.schema.toNullable().json())


def _head(stream: str, position: Position) -> LogHead:
    data = position.data
    return LogHead(
        stream=stream,
        position=position,
        batch=data["batch"],
        offsets={int(bucket): offset for bucket, offset in data["offsets"].items()},
        watermark=datetime.fromisoformat(data["watermark"]) if data["watermark"] else None,
        counts=data["counts"],
        files=data["files"],
        contract=data["contract"],
        at=data["at"],
    )


def current(
    rows: DataFrame,
    contracts: Sequence[Contract],
    keys: DataFrame | None = None,
    more: Sequence[str] = (),
    *,
    upcast: bool = True,
) -> DataFrame:
    """Read stored `rows` as the newest of its `contracts`, followed by the log's own columns and `more` columns.

    Personal values are decrypted by `keys`, and null for persons without a key. Without `upcast`, events of older
    versions keep their original values.
    """
    from lake.store import dialects, spark_upcast  # imports Arrow

    if keys is not None:
        rows = encryption.with_keys(rows, keys)
        extra = encryption.decrypted_sql(encryption.EXTRA, encryption.place(contracts[-1], encryption.EXTRA))
        rows = rows.selectExpr("* EXCEPT (_extra)", f"{extra} AS {encryption.EXTRA}")
    stored = set(rows.columns)
    kinds = {column: kind for (_, kind), column in origins.columns(contracts).items()} | OWN
    missing = [
        f"cast(NULL AS {kind}) AS {quoted(column, SPARK)}" for column, kind in kinds.items() if column not in stored
    ]
    read = spark_upcast.with_members(rows.selectExpr("*", *missing), contracts)
    read = read.selectExpr(*dialects.fields_sql(contracts), *OWN, *more)
    return spark_upcast.upcast(read, contracts[-1], evolution.steps_of_log(contracts)) if upcast else read


def people(rows: pa.Table) -> list[str]:
    """Return the tokens of the persons in sealed, stored rows."""
    tokens: list[str] = rows.column(encryption.SUBJECT).drop_null().unique().to_pylist()
    return tokens


def empty(spark: SparkSession, contract: Contract) -> DataFrame:
    """Return the result of `read` without events."""
    return spark.createDataFrame(
        [], ", ".join(f"{quoted(name, SPARK)} {kind}" for name, kind in types(contract).items())
    )


def types(contract: Contract) -> dict[str, str]:
    """Return the columns that `read` returns, with their types."""
    return {field.name: field.type for field in contract.fields} | OWN


def _counted(contract: Contract) -> str:
    return ",".join(["_batch", "_offset", "_time", *(quoted(name, SPARK) for name in ranged(contract))])


def clustered(contract: Contract) -> list[str]:
    """Return the columns by which compaction sorts a log: event time, which most queries ask for; else the key."""
    return [TIME] if contract.time else ranged(contract) or ["_offset"]


def ranged(contract: Contract) -> list[str]:
    """Return the key columns with statistics of each file."""
    return [
        name
        for name in contract.key
        if name not in contract.sealed and contract.field(name).type in {"string", "int", "bigint", "date", "timestamp"}
    ]


def _beaten(stream: str, position: Position) -> Unavailable:
    return Unavailable(
        f"batch {position.data['batch']} of {stream} was written by another writer at the same time",
        fix="try again: nothing of this batch was committed",
    )
