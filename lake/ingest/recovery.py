"""What a log has lost by damage: its newest batch, read again from the same records or given up; what stands beside it.

It must be that batch, for cuts may have counted it: the same records, at the same time of arrival, under the same
contract. Of what came back from quarantine, the texts lie among the staged files for a while, as they may have been
mended by hand; unmended ones are in the quarantine itself.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lake import file_modes
from lake.config import Settings
from lake.contracts.contract import Contract, load_contract
from lake.errors import DeclarationError, LakeError, StorageError
from lake.ingest import file_facts, landing
from lake.ingest.delivery import FETCHES, GIVE_UP, Acceptance, Closing, Delivery, Fetched, Files, Replayed
from lake.ingest.files import File, Mark, mark_of
from lake.ingest.landing import Taken
from lake.store import quarantine, side_tables, torn
from lake.store.ledger import contract_versions
from lake.store.locks.epochs import must_hold
from lake.store.locks.lease import lease
from lake.store.log import Log, LogHead
from lake.store.quarantine import Rejected
from lake.store.recovery import clear_above, last_batch
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.ingest.batch import Batch

BESIDE: Final = ("quarantined", "duplicates")
"""The counts of rows beside the log, in the order of its two tables."""


@contextmanager
def reading_again(
    settings: Settings, spark: SparkSession, contract: Contract, before: LogHead, taken: Taken
) -> Iterator[Batch]:
    """The batch after `before` as it was read at first. Raises LakeError where some of it is gone."""
    from lake.ingest.reading import reading

    contracts = contract_versions.register(settings, contract)[: taken.contract]
    delivery = delivery_of(settings, contracts[-1], taken)
    with reading(spark, settings, contracts, before, delivery, now=taken.at) as batch:
        yield batch


def delivery_of(settings: Settings, contract: Contract, taken: Taken) -> Delivery:
    """What a batch was made of. Raises LakeError where some of it is gone.

    `contract` is the one under which it was made.
    """
    if quarantine.is_mark(taken.marks[0][0]):
        rows = _rejected(settings, contract.name, taken)
        return Replayed(contract, rows, whole=True, times=times_of(settings, contract, rows))
    if accepted := Acceptance.of(taken.marks[0]):
        return accepted
    if closing := Closing.of(taken.marks[0]):
        return closing
    if taken.marks[0][0].startswith(FETCHES):
        fetched = Fetched.of(settings, contract.name, taken.marks[0])
        if fetched is None:
            raise _gone(settings, contract.name, taken.batch, taken.marks[0], fix="restore .lake/spool from a backup")
        return fetched
    files = [mark for mark in taken.marks if not quarantine.is_mark(mark[0])]
    refused = quarantine.files(settings, contract.name, upto=taken.batch - 1)
    repaired = {name: refused[name] for name, *_ in taken.marks if name in refused}
    again = [_file(settings, contract.name, taken.batch, mark) for mark in files]
    return Files.checked(settings, again, contract, repaired=repaired)


def times_of(settings: Settings, contract: Contract, rows: Collection[Rejected]) -> dict[tuple[int, str], int]:
    """When the files of `rows` were changed, by batch and name, where that is a fact of records."""
    batches = {row.batch for row in rows} if file_facts.fields_of(contract) else set()
    return landing.times(settings, contract.name, batches) if batches else {}


def keep(settings: Settings, stream: str, batch: int, rows: Sequence[Rejected]) -> None:
    """Keeps the texts of `rows`, which are put to the log of `stream` as `batch`, on the disk before its commit."""
    with _kept(settings, stream, batch).open("w") as file:
        json.dump({row.mark: row.raw for row in rows}, file)
        file.flush()
        os.fsync(file.fileno())


def give_up(settings: Settings, stream: str) -> int:
    """Puts an empty batch in the place of the one that the log has lost, and returns its number.

    Where nothing says what it was made of, also in that of each after it of which that is so. Files of it that are
    there, or come back, are new; records that had come back from quarantine wait again. Tables that have its events
    are to be rebuilt. Raises DeclarationError where nothing is lost.
    """
    log, contract = Log(settings, stream), load_contract(settings, stream)
    with lease(settings, log.lease):
        head = log.head()
        if _is_remembered(settings, head):
            head = _skipped(log, contract, head)
        else:
            last, _ = last_batch(settings, stream)
            while head.batch < last and not _is_remembered(settings, head):
                head = _skipped(log, contract, head)
        if not head.batch or head.files:
            raise DeclarationError(
                f"the log of {stream} has no lost batch after batch {head.batch}",
                fix=f"lake ingest {stream} shows what is missing, if anything",
            )
        log.flush()
        disown(settings, head)
        return head.batch


def _is_remembered(settings: Settings, head: LogHead) -> bool:
    return landing.taken(settings, head.stream, head.batch + 1) is not None


def _skipped(log: Log, contract: Contract, head: LogHead) -> LogHead:
    must_hold(log.settings, log.lease)
    clear_above(log.settings, log.stream, head.batch)
    log.skip(contract, head, at=datetime.now(UTC))
    return log.head()


def must_be_last(settings: Settings, head: LogHead, last: int, who: str) -> None:
    """Raises StorageError where the log has had batches after its `head`, the `last` of which `who` knows.

    Their numbers are not given again.
    """
    if head.batch < last:
        stream = head.stream
        raise StorageError(
            f"the log of {stream} has lost what came after batch {head.batch}: {who} goes up to batch {last}, and no"
            " list says any more which files that was",
            where=str(Log(settings, stream).path),
            fix=f"restore it from a backup; or {GIVE_UP.format(stream=stream)}",
        )


def disown(settings: Settings, head: LogHead) -> None:
    """Has what the newest batch was made of be new again, where that was given up: the batch is empty."""
    if head.batch and not head.files and landing.taken(settings, head.stream, head.batch):
        landing.disown(settings, head.stream, head.batch)


def restore_beside(
    settings: Settings,
    spark: Callable[[], SparkSession],
    contract: Contract,
    head: LogHead,
    put: Callable[[Batch], object],
) -> None:
    """Makes again what stood beside the log and was lost by damage; `put` writes what stands beside a batch.

    What it was made of may be gone, which is told.
    """
    log, paths = Log(settings, contract.name), [at.path for at in Warehouse(settings).beside(contract.name)]
    counted = beside(settings, head)
    fits = [side_tables.size(path) for path in paths] == [counted[name] for name in BESIDE]
    if fits and not log.path.storage.may_tear:
        return
    damages = [file for path in paths for file in torn.damages(path)]
    if fits and not damages:
        return
    broken = {head.batch: head for head, _ in lacking(settings, log.stream, log.heads()) if head.files}
    for lost in broken.values():
        marks = tuple(map(mark_of, lost.files))
        taken = Taken(lost.batch, marks, datetime.fromisoformat(lost.at), lost.contract)
        session = spark()  # outside of what is taken for a loss: it may not start
        try:
            with reading_again(settings, session, contract, log.head_at(lost.batch - 1), taken) as batch:
                for path in paths:
                    side_tables.clear(path, lost.batch)
                put(batch)
        except LakeError as error:
            logging.getLogger("lake").warning(
                "the quarantined records of batch %s of %s were lost: %s", lost.batch, log.stream, error
            )
    for file in damages:
        file.delete()


def beside(settings: Settings, head: LogHead) -> dict[str, int]:
    """How many rows stand beside the log by its newest batch; none if all of its batches were given up."""
    counts: dict[str, int] = head.position.data.get("beside", dict.fromkeys(BESIDE, 0))
    return counts


def lacking(settings: Settings, stream: str, heads: Sequence[LogHead]) -> Iterator[tuple[LogHead, str]]:
    """The batches, oldest first, that do not have beside the log what they count, and what is wrong."""
    upto = heads[0].batch if heads else 0
    refused, again = (side_tables.counts(at, upto=upto) for at in Warehouse(settings).beside(stream))
    for head in reversed(heads):
        counted, stored = head.counts["quarantined"], refused.get(head.batch, 0)
        if counted != stored:
            yield head, f"batch {head.batch}: {counted} quarantined, {stored} in quarantine"
        counted, stored = head.counts["duplicates"], again.get(head.batch, 0)
        if counted != stored:
            yield head, f"batch {head.batch}: {counted} duplicates, {stored} among the re-deliveries"


def _file(settings: Settings, stream: str, batch: int, mark: Mark) -> File:
    file = landing.found_again(settings, stream, mark)
    if file is None:
        place = landing.home(settings, stream, mark)
        raise _gone(settings, stream, batch, mark, fix=f"restore the file, unchanged, at {place}")
    return file


def _rejected(settings: Settings, stream: str, taken: Taken) -> tuple[Rejected, ...]:
    kept = _kept(settings, stream, taken.batch)
    texts = json.loads(kept.read_text()) if kept.exists() else {}
    wanted = {name for name, *_ in taken.marks}
    rejected = quarantine.rejected(settings, stream, upto=taken.batch - 1)
    refused = {row.mark: row for row in rejected if row.mark in wanted}
    rows = []
    for mark in taken.marks:
        row = refused.get(mark[0])
        row = row and replace(row, raw=texts.get(row.mark, row.raw))
        if row is None or mark != row.fingerprint:
            raise _gone(settings, stream, taken.batch, mark, fix="repair the record again afterwards")
        rows.append(row)
    return tuple(rows)


def _kept(settings: Settings, stream: str, batch: int) -> Path:
    return file_modes.scratch(settings, "staging") / f"replay-{stream}-{batch}.json"


def _gone(settings: Settings, stream: str, batch: int, mark: Mark, *, fix: str) -> LakeError:
    return StorageError(
        f"the log of {stream} has lost batch {batch}, and {mark[0]}, from which it was read, is gone",
        where=str(Log(settings, stream).path),
        fix=f"{fix}; or {GIVE_UP.format(stream=stream)}",
    )
