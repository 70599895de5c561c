"""Append of a batch: the only write to a log. One commit holds the rows and the log's new head.

Rejected records go to quarantine, and re-deliveries to their table, before that commit. After a crash these tables may
have rows of a batch after the log's head; the next append deletes them. All tables are flushed before the source is
acknowledged, because the source may then delete the records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError
from lake.ingest import landing
from lake.ingest.batch_counts import BatchCounts
from lake.lazy import SparkSession
from lake.session import file_modes
from lake.store import delta, quarantine
from lake.store.ledger import contract_versions, runs
from lake.store.locks.lease import lease, must_hold
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.recovery import check_complete, clear_above
from lake.store.table_logs import invalidate
from lake.store.voids import NUMBERED
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from lake.ingest.delivery import Delivery, FileDelivery

STAGING: Final = ".lake/staging"
STDIN: Final = "stdin-"
CHUNK_BYTES: Final = 1 << 20


def append(
    settings: Settings,
    spark: Callable[[], SparkSession],
    contract: Contract,
    deliver: Callable[[LogHead], Delivery | None],
    *,
    now: datetime | None = None,
) -> BatchCounts:
    """Append the delivery that `deliver` returns for the log's head, at time `now`; nothing if it returns None.

    Raises Unavailable if another writer holds the log, StorageError if it lost batches.
    """
    log = Log(settings, contract.name)
    with lease(settings, log.lease):
        contracts_path = contract_versions.CONTRACTS.location(settings).path
        for path in (contracts_path, *(table.location(settings).path for table in NUMBERED)):
            invalidate(path)  # another process may have written before this one got the lease
        delta.prefetch([log.path, contracts_path, *(table.path for table in Warehouse(settings).beside(log.stream))])
        head = log.head()
        log.flush_beside()  # a writer that died may have flushed neither these tables nor the log
        log.flush()
        landing.record_ingested(log)
        check_complete(settings, log.stream, read={})
        must_hold(settings, log.lease)
        clear_above(settings, log.stream, head.batch)
        delivery = deliver(head)
        if delivery is None:
            return BatchCounts(head.batch)
        from lake.ingest.batch_commit import check_decided, read_and_commit  # PyArrow, not needed without a delivery

        if not head.batch:
            check_complete(settings, log.stream)  # slow: reads the heads of all tables
        check_decided(settings, contract, delivery)
        log.contracts(head)  # raises StorageError if a version is lost
        contracts = contract_versions.register(settings, contract)
        counts = read_and_commit(settings, spark, contracts, head, delivery, now or datetime.now(UTC))
        landing.record_ingested(log)
    return counts


def append_files(
    settings: Settings,
    spark: Callable[[], SparkSession],
    contract: Contract,
    files: Sequence[Path],
    *,
    now: datetime | None = None,
) -> BatchCounts:
    from lake.ingest.delivery import FileDelivery

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
    """Return names of the files that could not be read, by their mark in quarantine, without those ingested later."""
    unreadable = quarantine.files(settings, head.stream, upto=head.batch)
    if not unreadable:
        return {}
    ingested = {name for name, *_ in landing.ingested_marks(Log(settings, head.stream))}
    return {mark: name for mark, name in unreadable.items() if mark not in ingested}


def check_files_exist(files: Sequence[Path]) -> None:
    if missing := [str(file) for file in files if not file.is_file()]:
        raise DeclarationError("no such file", where=", ".join(missing), fix="name a file, or - for standard input")


def keep_stdin(settings: Settings, stream: BinaryIO) -> Path:
    """Copy standard input to a file named by a hash of its content: the same input is then a re-delivery."""
    folder, digest = file_modes.scratch(settings, "staging"), hashlib.sha256()
    with NamedTemporaryFile(dir=folder) as new:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            new.write(chunk)
        new.flush()
        file = folder / f"{STDIN}{digest.hexdigest()[:16]}.jsonl"
        file.unlink(missing_ok=True)
        os.link(new.name, file)
    return file
