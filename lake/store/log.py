"""The log of a stream: append-only, partitioned by `_bucket`, never updated. Where it stands, reading, one commit.

Its own columns: `_batch` (1, 2, 3 … without gaps), `_arrival` (an ordinal over all buckets and broadcasts of the batch,
in the order in which its source gave the events; unique there, with gaps; null in batches written before there was
one), `_bucket`, `_offset` (gap-free and increasing within a bucket, in the order of batch and arrival), `_id`, `_time`
(event time), `_watermark` (the greatest `_time` of earlier batches), `_ingested_at` (for people; no derivation may read
it), `_source`, `_version` (of the contract), `_extra` (what the contract does not know, as JSON).

A log also has, as broadcasts, what its stream refused: a row with REFUSAL for each record that went to quarantine, one
for each that was taken in after all, one for each time that somebody accepted all that had been refused. They are no
events: `read` gives either these or those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from lake.config import Settings
from lake.contracts import encryption, evolution
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.quoting import SPARK, quoted
from lake.store import chain, contract_versions, delta, erasures
from lake.store.delta import Position
from lake.store.fence import commit_nothing
from lake.store.keys import COPY, KeyStore, open_store
from lake.store.voids import kept, voided, voids_head

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "BROADCAST",
    "LogHead",
    "app",
    "commit",
    "contracts",
    "head",
    "head_at",
    "heads",
    "must_reach",
    "read",
    "skip",
    "voided",
    "voids_head",
]

BROADCAST: Final = -1  # the bucket of events without a key
REFUSAL: Final = "_refusal"  # REFUSED, REPAIRED or ACCEPTED; null of events, absent where nothing was ever refused
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
PROPERTIES: Final = {
    "delta.appendOnly": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableExpiredLogCleanup": "false",
    "delta.enableDeletionVectors": "false",
    "delta.logRetentionDuration": "interval 3650 days",
}


@dataclass(frozen=True)
class LogHead:
    """Where a log stands after its newest batch; all zero before the first.

    `offsets` is the next offset per bucket, `watermark` the greatest event time so far (that of the next batch),
    `counts` what the batch read, accepted, dropped as duplicates and put to quarantine, `files` what it read,
    `version` the Delta version of its commit, `contract` the version of the contract it was written under.
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
        """How many events the log has; what it says of refusals is none."""
        return sum(self.offsets.values()) - int(self.position.data.get("refusals", 0))

    @property
    def accepted(self) -> dict[str, Any]:
        """The batch up to which all that was refused is accepted, with the reason; empty where nothing is."""
        said: dict[str, Any] = self.position.data.get("accepted", {})
        return said

    @property
    def accepted_upto(self) -> int:
        return int(self.accepted.get("batch", 0))

    @property
    def keys(self) -> dict[str, Any]:
        """What the newest batch says of the key store; empty where nothing is sealed."""
        said: dict[str, Any] = self.position.data.get("keys", {})
        return said

    @property
    def content(self) -> dict[str, Any]:
        """The fingerprints and the digest of the newest batch; empty where none were recorded. See lake.store.chain."""
        said: dict[str, Any] = self.position.data.get("content", {})
        return said

    def next(self, **data: Any) -> Position:
        """The position of the commit that appends the next batch."""
        return self.position.next(batch=self.batch + 1, **data)


def app(stream: str) -> str:
    """The app id under which a log's commits are numbered."""
    return f"log:{stream}"


def head(settings: Settings, stream: str) -> LogHead:
    """Where the log of `stream` stands."""
    position = delta.standing(settings.log_path(stream), app(stream))
    return _head(stream, position) if position.data else LogHead(stream, position)


def heads(settings: Settings, stream: str) -> list[LogHead]:
    """Where the log stood after each of its batches, newest first."""
    found = delta.positions(settings.log_path(stream), app(stream))
    return [_head(stream, position) for position in found if not position.data.get("repeated")]


def heads_after(settings: Settings, stream: str, batch: int) -> list[LogHead]:
    """As `heads`, of the batches after number `batch`."""
    found = delta.positions(settings.log_path(stream), app(stream))
    later = takewhile(lambda position: position.data["batch"] > batch, found)
    return [_head(stream, position) for position in later if not position.data.get("repeated")]


def head_at(settings: Settings, stream: str, batch: int) -> LogHead:
    """Where the log stood after its batch number `batch`."""
    found = delta.positions(settings.log_path(stream), app(stream))
    there = next((p for p in found if p.data["batch"] <= batch), None)
    return LogHead(stream, delta.start(app(stream))) if there is None else _head(stream, there)


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


def must_reach(settings: Settings, stream: str, batch: int) -> LogHead:
    """Where the log of `stream` stands.

    Raises Unavailable where it ends before `batch`, which it had: its newest commit was lost.
    """
    newest = head(settings, stream)
    if newest.batch < batch:
        raise Unavailable(
            f"the log of {stream} has lost batch {newest.batch + 1}: it was counted up to batch {batch}",
            where=str(settings.log_path(stream)),
            fix=f"lake ingest {stream} reads it again from the same files, or says which of them are missing",
        )
    return newest


def contracts(settings: Settings, head: LogHead) -> tuple[Contract, ...]:
    """The contracts that a log was written with, version 1 first. Raises LakeError where damage has taken some."""
    known = contract_versions.versions(settings, head.stream)
    if len(known) < head.contract:
        raise LakeError(
            f"of the {head.contract} versions of the contract of {head.stream} that its log was written with,"
            f" {len(known)} are left",
            where=str(settings.meta_path("contracts")),
            fix="restore that folder from a backup: without it older events cannot be interpreted",
        )
    return known


def read(  # noqa: PLR0913  which part of which log, said by name
    spark: SparkSession,
    settings: Settings,
    contract: Contract,
    *,
    upto: int,
    after: int = 0,
    bucket: int | None = None,
    keys: pa.Table | None = None,
    voids: int = 0,
    refusals: bool = False,
) -> DataFrame:
    """The events of the batches after < number <= upto, or what they refused, but those that the voids 1..`voids` name.

    Of all buckets, or of one. With `keys`, at least those that equal one of them in columns that files have as they
    are. The contract's fields, older events upcast to them, then the log's own columns; and REFUSAL, where `refusals`
    are asked for. Raises Unavailable where the log does not go as far.
    """
    from lake.store.scan import Scan

    path = settings.log_path(contract.name)
    known = evolution.with_current(contracts(settings, must_reach(settings, contract.name, upto)), contract)
    if not delta.exists(path) or upto <= after:
        return empty(spark, contract)
    bounds = {"_batch": (after + 1, upto)} | ({} if bucket is None else {"_bucket": (bucket, bucket)})
    scan = Scan(path, bounds=bounds)
    rows = scan.frame(spark) if keys is None else scan.near(spark, keys)
    rows = kept(rows, voided(settings, contract.name, 0, voids))
    if REFUSAL in rows.columns:
        rows = rows.where(f"{REFUSAL} IS {'NOT ' if refusals else ''}NULL")
    return current(rows, known, keys_of(settings, contract), [REFUSAL] if refusals else [])


def has_refusals(settings: Settings, stream: str, *, upto: int) -> bool:
    """Whether the log says of any record up to batch `upto` that it was refused."""
    from lake.store.scan import Scan

    path = settings.log_path(stream)
    if not upto or not delta.exists(path):
        return False
    scan = Scan(path, bounds={"_batch": (1, upto), "_bucket": (BROADCAST, BROADCAST)})
    return REFUSAL in scan.schema().names and scan.rows() > 0


def current(
    rows: DataFrame, known: Sequence[Contract], keys: pa.Table | None = None, more: Sequence[str] = ()
) -> DataFrame:
    """`rows` as they are stored, read as the newest of the contracts `known`, followed by the log's own columns.

    `more` of their columns come last. What is personal is opened by `keys`, and null for people without one.
    """
    if keys is not None:
        from lake.store.scan import to_frame

        rows = encryption.with_keys(rows, to_frame(rows.sparkSession, keys))
        extra = encryption.opened(encryption.EXTRA, encryption.place(known[-1], encryption.EXTRA))
        rows = rows.selectExpr("* EXCEPT (_extra)", f"{extra} AS {encryption.EXTRA}")
    there = set(rows.columns)
    kinds = {column: kind for (_, kind), column in evolution.columns(known).items()} | OWN
    missing = [
        f"cast(NULL AS {kind}) AS {quoted(column, SPARK)}" for column, kind in kinds.items() if column not in there
    ]
    return rows.selectExpr("*", *missing).selectExpr(*evolution.upcast(known), *OWN, *more)


def key_store(settings: Settings, contract: Contract) -> KeyStore:
    """The key store that the log was sealed with; made where nothing has been sealed yet.

    Raises DeclarationError where it is another one, or an older copy, that lacks keys.
    """
    said = head(settings, contract.name).keys
    store = open_store(settings, make=not said)
    other = said and (store.id != said["store"] or store.count(contract.name) < said["subjects"])
    if other and (missing := keyless(settings, contract.name, store)):
        raise DeclarationError(
            f"the keys of {len(missing)} people of {contract.name} are not in the key store",
            where=str(store.file),
            fix=COPY,
        )
    return store


def keys_of(settings: Settings, contract: Contract) -> pa.Table | None:
    """The keys of the people in a log who were not forgotten; None where nothing in it is sealed.

    Raises as `key_store` does.
    """
    if not contract.sealed:
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    living, gone = key_store(settings, contract).living(contract.name), erasures.subjects(settings, contract.name)
    return living.filter(pc.invert(pc.is_in(living.column(encryption.SUBJECT), pa.array(sorted(gone), pa.string()))))


def keyless(settings: Settings, stream: str, store: KeyStore) -> set[str]:
    """The tokens of the people in a log of whom `store` has never heard, but those who were erased."""
    query = f"SELECT DISTINCT {encryption.SUBJECT} AS token FROM t WHERE {encryption.SUBJECT} IS NOT NULL"
    there = {row["token"] for row in delta.rows(settings.log_path(stream), query)}
    return there - store.known(stream) - erasures.subjects(settings, stream)


def empty(spark: SparkSession, contract: Contract) -> DataFrame:
    """What `read` gives where there are no events."""
    return spark.createDataFrame(
        [], ", ".join(f"{quoted(name, SPARK)} {kind}" for name, kind in types(contract).items())
    )


def types(contract: Contract) -> dict[str, str]:
    """The columns that `read` gives, each with its type."""
    return {field.name: field.type for field in contract.fields} | OWN


def commit(settings: Settings, contract: Contract, rows: DataFrame, position: Position) -> LogHead:
    """Appends a batch and its position in one Delta commit, and proves by reading it back that it is there.

    `rows` have the log's own columns and the physical ones of `contract`.
    Raises Unavailable where another writer was first.
    """
    path = settings.log_path(contract.name)
    own = [column for column in (*OWN, REFUSAL) if column in rows.columns]
    ordered = rows.select(*own, *(column for column in rows.columns if column not in own))
    writer = ordered.write.format("delta").mode("append").partitionBy("_bucket").option("mergeSchema", "true")
    if not delta.exists(path):  # before its first batch, so that who comes after a dead writer finds a log to fence off
        properties = PROPERTIES | {"delta.dataSkippingStatsColumns": _counted(contract)}
        made = ordered.limit(0).write.format("delta").mode("ignore").partitionBy("_bucket")
        made.options(**properties).save(str(path))
    try:
        writer.options(**position.writer_options).save(str(path))
    except Exception as error:
        if "ConcurrentTransactionException" in str(error) or "DELTA_CONCURRENT" in str(error):
            raise _beaten(contract.name, position) from None
        raise
    found = delta.head(path, position.app)
    if found is None or (found.txn, found.data) != (position.txn, position.data):
        raise _beaten(contract.name, position)
    return _head(contract.name, found)


def skip(settings: Settings, head: LogHead, *, at: datetime) -> None:
    """Commits the batch after `head` without any event. Raises Unavailable where another writer was first."""
    path, repeated = settings.log_path(head.stream), {"repeated", "origin"}
    same = {name: value for name, value in head.position.data.items() if name not in repeated}
    counts = dict.fromkeys(("read", "accepted", "duplicates", "quarantined", "control"), 0)
    empty = {"offsets": {}, "watermark": None, "contract": 0} | same
    empty["content"] = chain.entry(head.content, head.batch + 1, {}, [])
    empty |= {"batch": head.batch + 1, "counts": counts, "files": [], "at": at.isoformat()}
    position = head.position.next(**empty)
    if not commit_nothing(path, next(delta.commits(path)), position):
        raise _beaten(head.stream, position)


def _counted(contract: Contract) -> str:
    """The columns that Delta keeps each file's range of: those by which a log is searched."""
    return ",".join(["_batch", "_offset", "_time", *(quoted(name, SPARK) for name in ranged(contract))])


def ranged(contract: Contract) -> list[str]:
    """The columns of the key of which Delta keeps each file's range."""
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
