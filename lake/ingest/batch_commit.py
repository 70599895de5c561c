"""Reading of a delivery as a batch, and its commit: rejected records, re-deliveries, then events and the new head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from lake import cost
from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, LakeError
from lake.ingest import gap_detection
from lake.ingest.batch import Batch
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.delivery import Acceptance, Delivery, ReplayDelivery, SourceDelivery
from lake.ingest.delivery_reader import read_batch
from lake.ingest.field_encryption import key_store_state
from lake.ingest.files import mark_as_json
from lake.lazy import DataFrame, SparkSession, pa
from lake.session.in_process.mode import by_duckdb, in_process, reason
from lake.session.warm_server import uses_server
from lake.sources.declared import decided_by
from lake.store import delta, quarantine
from lake.store.duckdb_tables import in_process_session
from lake.store.log import Log
from lake.store.log_head import CommittedDelivery, LogHead
from lake.store.proof import chain
from lake.store.recovery import clear_above
from lake.store.rows import Rows
from lake.store.table_head import DUCKDB, SPARK
from lake.store.table_logs import invalidate
from lake.store.upkeep import compaction
from lake.store.warehouse import Warehouse


def read_and_commit(  # noqa: PLR0913, PLR0917 all that a batch consists of
    settings: Settings,
    spark: Callable[[], SparkSession],
    contracts: Sequence[Contract],
    head: LogHead,
    delivery: Delivery,
    now: datetime,
) -> BatchCounts:
    """Commit the batch as DuckDB reads it if the delivery is small; if that fails before the commit, by Spark."""
    not_by_duckdb: str | None = None
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
            not_by_duckdb = reason(error)
    with read_batch(spark(), settings, contracts, head, delivery, now=now) as batch:
        return replace(_commit_batch(batch), engine=SPARK, not_by_duckdb=not_by_duckdb)


def check_decided(settings: Settings, contract: Contract, delivery: Delivery) -> None:
    """Raise DeclarationError if a source decides events of the stream and `delivery` is of another."""
    source = decided_by(settings, contract.name)
    if source is None or isinstance(delivery, Acceptance):
        return
    if not isinstance(delivery, SourceDelivery) or delivery.spooled.source != source:
        raise DeclarationError(
            f"events of {contract.name} are decided before they are taken, and these were not",
            where=f"{settings.sources}/{source}.toml",
            fix=f"lake append {contract.name} FILE --decide; or post them to lake serve http, with ?decide",
        )


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
    events, content = _events_and_content(batch)
    position = batch.head.next(
        offsets={str(bucket): offset for bucket, offset in batch.offsets.items()},
        **_source_state(batch),
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


def _source_state(batch: Batch) -> dict[str, Any]:
    accepted = batch.head.accepted
    if isinstance(batch.delivery, Acceptance):
        accepted = {"batch": batch.number, "reason": batch.delivery.reason}
    sources = batch.head.sources
    if isinstance(batch.delivery, SourceDelivery):
        spooled = batch.delivery.spooled
        sources[spooled.source] = CommittedDelivery(
            spooled.source, spooled.number, spooled.streams, spooled.progress, batch.number
        )
    state = {
        "refusals": batch.num_markers,
        "accepted": accepted,
        "sources": {name: delivery.as_json for name, delivery in sources.items()},
        "horizon": batch.horizon.as_json if batch.horizon else None,
        "drift": batch.drift.as_json,
    }
    return {name: value for name, value in state.items() if value}


def _events_and_content(batch: Batch) -> tuple[pa.Table | DataFrame, dict[str, Any]]:
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
