"""Append of a batch: the only write to a log. One commit holds the rows and the log's new head.

Rejected records go to quarantine, and re-deliveries to their table, before that commit. After a crash these tables may
have rows above the log's head, which the next append deletes. All is flushed before the sender is acknowledged, because
it may then delete the records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from lake import cost
from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, LakeError
from lake.ingest import gap_detection, landing
from lake.ingest.batch import Batch
from lake.ingest.delivery import Acceptance, Delivery, FileDelivery, ReplayDelivery, SourceDelivery
from lake.ingest.delivery_reader import read_batch
from lake.ingest.field_encryption import key_store_state
from lake.ingest.files import mark_as_json
from lake.session import file_modes
from lake.session.in_process.mode import by_duckdb, in_process, reason
from lake.session.warm_server import uses_server
from lake.sources.declared import decided_by
from lake.store import delta, quarantine
from lake.store.duckdb_tables import in_process_session
from lake.store.ledger import contract_versions, runs
from lake.store.locks.lease import lease, must_hold
from lake.store.log import Log
from lake.store.log_head import CommittedDelivery, LogHead
from lake.store.proof import chain
from lake.store.recovery import check_complete, clear_above
from lake.store.rows import Rows
from lake.store.table_head import DUCKDB, SPARK
from lake.store.table_logs import invalidate
from lake.store.upkeep import compaction
from lake.store.voids import NUMBERED
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

STAGING: Final = ".lake/staging"
STDIN: Final = "stdin-"
CHUNK: Final = 1 << 20
RECORDS: Final = ("read", "accepted", "duplicates", "quarantined", "control")


@dataclass(frozen=True)
class BatchCounts:
    """Records by outcome; `read` is their sum. If nothing was new: zeros, and the number of the last batch.

    `not_by_duckdb`: why DuckDB did not read a small batch.
    """

    batch: int
    read: int = 0
    accepted: int = 0
    duplicates: int = 0
    quarantined: int = 0
    control: int = 0
    engine: str | None = field(default=None, compare=False)
    not_by_duckdb: str | None = field(default=None, compare=False)

    @property
    def records(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in RECORDS}

    def after(self, earlier: BatchCounts) -> BatchCounts:
        sums = {name: count + earlier.records[name] for name, count in self.records.items()}
        engine = max(self.engine or "", earlier.engine or "") or None  # SPARK, if any batch needed it
        return replace(self, **sums, engine=engine, not_by_duckdb=self.not_by_duckdb or earlier.not_by_duckdb)


def append(
    settings: Settings,
    spark: Callable[[], SparkSession],
    contract: Contract,
    deliver: Callable[[LogHead], Delivery | None],
    *,
    now: datetime | None = None,
) -> BatchCounts:
    """Append the delivery that `deliver` returns for the log's head. If it returns None, Spark is not started.

    Raises Unavailable if another writer holds the log, StorageError if it lost batches.
    """
    log = Log(settings, contract.name)
    with lease(settings, log.lease):
        contracts_path = contract_versions.CONTRACTS.location(settings).path
        for path in (contracts_path, *(table.location(settings).path for table in NUMBERED)):
            invalidate(path)  # another process may have written before this one got the lease
        delta.prefetch([log.path, contracts_path, *(place.path for place in Warehouse(settings).beside(log.stream))])
        head = log.head()
        log.flush_beside()  # a dead writer may have left both unflushed
        log.flush()
        landing.record_ingested(log)
        check_complete(settings, log.stream, read={})
        must_hold(settings, log.lease)
        clear_above(settings, log.stream, head.batch)
        delivery = deliver(head)
        if delivery is None:
            return BatchCounts(head.batch)
        if not head.batch:  # compares the heads of all tables: slow, hence only for the first batch
            check_complete(settings, log.stream)
        _check_decided(settings, contract, delivery)
        log.contracts(head)  # raises StorageError if a version is lost
        contracts = contract_versions.register(settings, contract)
        counts = _read_and_commit(settings, spark, contracts, head, delivery, now or datetime.now(UTC))
        landing.record_ingested(log)
    return counts


def _read_and_commit(  # noqa: PLR0913, PLR0917 what a batch is made of
    settings: Settings,
    spark: Callable[[], SparkSession],
    contracts: Sequence[Contract],
    head: LogHead,
    delivery: Delivery,
    now: datetime,
) -> BatchCounts:
    why: str | None = None
    if delivery.size <= cost.READ_BYTES and settings.in_process_rows > 0:
        try:
            with (
                by_duckdb(server=uses_server(settings)),
                read_batch(in_process_session(), settings, contracts, head, delivery, now=now) as batch,
            ):
                return replace(_commit_batch(batch), engine=DUCKDB)
        except Exception as error:
            log = Log(settings, contracts[-1].name)
            invalidate(log.path)
            if isinstance(error, LakeError) or log.head().batch > head.batch:
                raise
            clear_above(settings, log.stream, head.batch)
            why = reason(error)
    with read_batch(spark(), settings, contracts, head, delivery, now=now) as batch:
        return replace(_commit_batch(batch), engine=SPARK, not_by_duckdb=why)


def _check_decided(settings: Settings, contract: Contract, delivery: Delivery) -> None:
    source = decided_by(settings, contract.name)
    if source is None or isinstance(delivery, Acceptance):
        return
    if not isinstance(delivery, SourceDelivery) or delivery.spooled.source != source:
        raise DeclarationError(
            f"events of {contract.name} are decided before they are taken, and these were not",
            where=f"{settings.sources}/{source}.toml",
            fix=f"lake append {contract.name} FILE --decide; or post them to lake serve http, with ?decide",
        )


def append_files(
    settings: Settings,
    spark: Callable[[], SparkSession],
    contract: Contract,
    files: Sequence[Path],
    *,
    now: datetime | None = None,
) -> BatchCounts:
    check_files_exist(files)
    listed = [landing.local_file(settings, file) for file in files]
    began = datetime.now(UTC)

    def deliver(head: LogHead) -> FileDelivery:
        return FileDelivery.checked(settings, listed, contract, repaired=unreadable_files(settings, head))

    with runs.failing(settings, "append", contract.name):
        counts = append(settings, spark, contract, deliver, now=now)
    if counts.read:
        runs.record_outcome(settings, "append", contract.name, None, began, **asdict(counts))
    for file in files:
        if file.parent == settings.path(STAGING) and file.name.startswith(STDIN):
            file.unlink(missing_ok=True)
    return counts


def unreadable_files(settings: Settings, head: LogHead) -> dict[str, str]:
    unreadable = quarantine.files(settings, head.stream, upto=head.batch)
    if not unreadable:
        return {}
    landed = {name for name, *_ in landing.ingested_marks(Log(settings, head.stream))}
    return {mark: name for mark, name in unreadable.items() if mark not in landed}


def check_files_exist(files: Sequence[Path]) -> None:
    if missing := [str(file) for file in files if not file.is_file()]:
        raise DeclarationError("no such file", where=", ".join(missing), fix="name a file, or - for standard input")


def keep_stdin(settings: Settings, stream: BinaryIO) -> Path:
    """Copy standard input to a file named by its content, so that the same input again is a re-delivery."""
    folder, digest = file_modes.scratch(settings, "staging"), hashlib.sha256()
    with NamedTemporaryFile(dir=folder) as new:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            new.write(chunk)
        new.flush()
        file = folder / f"{STDIN}{digest.hexdigest()[:16]}.jsonl"
        file.unlink(missing_ok=True)
        os.link(new.name, file)
    return file


def _write_rejects_and_redeliveries(batch: Batch) -> BatchCounts:
    settings, stream, delivery = batch.settings, batch.contract.name, batch.delivery
    counts = _counts(batch)
    if delivery.keeps_rejects and counts.quarantined:
        files = quarantine.put_files(settings, stream, batch.number, batch.faults, at=batch.now)
        if counts.quarantined > files:
            quarantine.put(settings, stream, batch.rejects(), count=counts.quarantined - files)
    for duplicates in batch.repeated.redeliveries():
        quarantine.put_redeliveries(settings, stream, batch.number, duplicates)
    return counts


def _commit_batch(batch: Batch) -> BatchCounts:
    settings, contract, delivery = batch.settings, batch.contract, batch.delivery
    failures = {} if delivery.keeps_rejects else batch.failures
    if isinstance(delivery, ReplayDelivery):
        delivery.record_failures(failures)
    marks = delivery.marks(set(failures))
    if not marks:
        return BatchCounts(batch.head.batch)
    log = Log(settings, contract.name)
    counts = _write_rejects_and_redeliveries(batch)
    log.flush_beside()
    batch.warn_of_numbers()
    batch.warn_of_drift()
    events, content = _content(batch)
    position = batch.head.next(
        offsets={str(bucket): offset for bucket, offset in batch.offsets.items()},
        **_carried_state(batch),
        watermark=batch.watermark.isoformat() if batch.watermark else None,
        counts=counts.records,
        files=[*map(mark_as_json, marks)],
        contract=len(batch.contracts),
        at=batch.now.isoformat(),
        content=content,
        **key_store_state(settings, contract),
        **({gap_detection.RUNS: batch.punctuated_runs} if batch.punctuated_runs else {}),
    )
    committed = log.commit(contract, Rows(events), position)
    compaction.pack_table(log.path, committed.position)
    for location in Warehouse(settings).beside(contract.name):
        if delta.exists(location.path):
            compaction.pack_table(location.path)
    log.flush_beside()
    log.flush()
    return counts


def _carried_state(batch: Batch) -> dict[str, Any]:
    accepted = batch.head.accepted
    if isinstance(batch.delivery, Acceptance):
        accepted = {"batch": batch.number, "reason": batch.delivery.reason}
    sources = batch.head.sources
    if isinstance(batch.delivery, SourceDelivery):
        spooled = batch.delivery.spooled
        sources[spooled.source] = CommittedDelivery(
            spooled.source, spooled.number, spooled.streams, spooled.progress, batch.number
        )
    carried = {
        "refusals": batch.num_markers,
        "accepted": accepted,
        "sources": {name: delivery.as_json for name, delivery in sources.items()},
        "horizon": batch.horizon.as_json if batch.horizon else None,
        "drift": batch.drift.as_json,
    }
    return {name: value for name, value in carried.items() if value}


def _content(batch: Batch) -> tuple[pa.Table | DataFrame, dict[str, Any]]:
    rows = sum(batch.offsets.values()) - sum(batch.head.offsets.values())
    is_small = rows <= cost.APPENDED_ROWS and batch.delivery.size <= cost.APPENDED_BYTES
    fits_in_memory = is_small or in_process(batch.spark) is not None
    sealed = chain.sealed_columns(batch.contracts)
    events, fingerprints = chain.fingerprinted(batch.events(), sealed, few=fits_in_memory)
    return events, chain.entry(batch.head.content, batch.number, fingerprints, sealed)


def _counts(batch: Batch) -> BatchCounts:
    accepted = sum(batch.accepted.values())
    duplicates = batch.repeated.num_rows - batch.repeated.conflicts
    return BatchCounts(
        batch.number,
        read=accepted + duplicates + batch.rejected + batch.control,
        accepted=accepted,
        duplicates=duplicates,
        quarantined=batch.rejected,
        control=batch.control,
    )
