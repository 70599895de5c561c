"""Recovery: repair what a dead writer left behind, and detect lost commits.

1. A process that takes a lease removes a truncated commit: `delta_writer.set_truncated_aside`.
2. Rows beside a log above its head, left by a crash, are deleted before the next batch: `clear_above`.
3. Cuts, voids and editions get numbers above all earlier ones: if one ledger table has lost some, another remembers
   (`cuts.last_cut`, `voids.last_void`, `editions.record_edition`).
4. Readers of a lost batch or version detect the loss: nothing is derived or counted as if it existed.

docs/failure-model.md has the promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Final

from lake.config import Settings
from lake.errors import LakeError
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.damage import Damage, skip_unreadable
from lake.store.ledger.cuts import latest_cut, prefetched_tables
from lake.store.quarantine import LAST_BATCH
from lake.store.scan import Scan
from lake.store.table_head import TableHead
from lake.store.table_logs import invalidate
from lake.store.view import view
from lake.store.warehouse import Location, Warehouse

RESTORE: Final = (
    "restore a backup of the warehouse: what came after it is read again where its source can resend"
    " (docs/how-to/recover.md)"
)


def clear_above(settings: Settings, stream: str, batch: int) -> None:
    """Delete rows beside the log of `stream` of batches after `batch`, its last one.

    The batches of a file are known from its statistics: none is read.
    """
    for location in Warehouse(settings).beside(stream):
        above = Scan(location.path, bounds={"_batch": (batch + 1, LAST_BATCH)})
        if delta.exists(location.path) and above.rows():
            with delta_writer.changing(location.path) as (table, properties):
                table.delete(f"_batch > {batch}", commit_properties=properties)


def lost_batches(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> list[Damage]:
    log = Warehouse(settings).log(stream)
    reached, witness = last_batch(settings, stream, read)
    batch = _newest_batch(log)
    if batch < reached:  # the log may have been looked up before later batches were appended
        invalidate(log.path)
        batch = _newest_batch(log)
    if batch >= reached:
        return []
    ends = f"it ends at batch {batch}" if batch else "it is missing"
    return [Damage(log.path, log.path.url, f"{ends}, but {witness} goes up to batch {reached}", RESTORE)]


def _newest_batch(log: Location) -> int:
    batch: int = delta.head_or_start(log.path, log.app).data.get("batch", 0)
    return batch


def check_complete(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> None:
    """Raise StorageError if a log has lost batches."""
    for lost in lost_batches(settings, stream, read):
        raise lost.fault


def last_batch(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> tuple[int, str]:
    tables = read_by_tables(settings) if read is None else read
    last = 0
    with suppress(LakeError), skip_unreadable():  # a damaged ledger table is reported elsewhere
        last = duckdb_tables.greatest(Warehouse(settings).book("landed").path, "batch", "stream = $1", stream)
    return max(tables.get(stream, (0, "")), counted_by_cut(settings, stream), (last, "the list of ingested files"))


def counted_by_cut(settings: Settings, stream: str) -> tuple[int, str]:
    with suppress(LakeError), skip_unreadable():  # as above
        if cut := latest_cut(settings):
            return cut.batches.get(stream, 0), f"cut {cut.number}"
    return 0, ""


@view()
def read_by_tables(settings: Settings) -> dict[str, tuple[int, str]]:
    read: dict[str, tuple[int, str]] = {}
    for table in prefetched_tables(settings):
        with skip_unreadable():  # an unreadable table is reported elsewhere
            newest = delta.head(table.path, table.app)
            for name, number in (TableHead.of(newest).streams if newest else {}).items():
                read[name] = max(read.get(name, (0, "")), (number, table.name))
    return read


def has_commit(heads: Iterable[TableHead], version: int, cut: int) -> bool:
    """Return whether the `heads` of a table, newest first, still have the commit of `cut` as `version`.

    The number of a truncated commit is given to the next one, even if another table was derived from it.
    """
    later = takewhile(lambda head: head.origin >= version, heads)
    return any((head.origin, head.cut) == (version, cut) for head in later)
