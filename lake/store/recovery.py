"""Recovery: repair what a dead writer left behind, and detect lost commits.

1. A process that takes a lease removes a truncated commit: `set_truncated_aside`.
2. Rows beside a log above its head, left by a crash, are deleted before the next batch: `clear_above`.
3. Cuts, voids and editions get numbers above all earlier ones: if one ledger table has lost some, another remembers.
4. Readers of a lost batch or version detect the loss: nothing is derived or counted as if it existed.

docs/failure-model.md has the promises.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Final

from lake.config import Settings
from lake.errors import LakeError, StorageError, full
from lake.store import delta, delta_writer, duckdb_tables, truncated_commit
from lake.store.damage import Damage
from lake.store.quarantine import LAST_BATCH
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.table_head import TableHead
from lake.store.view import view
from lake.store.warehouse import Location, Warehouse

RESTORE: Final = (
    "restore a backup of the warehouse: what came after it is read again where its source can resend"
    " (docs/how-to/recover.md)"
)

OF_PROCESS: Final = frozenset({None, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Numbers of an OSError that is not about the file: none if a library raises it, no descriptors, no memory."""


@contextmanager
def skip_unreadable() -> Iterator[None]:
    """Ignore the error of a table in the block that is damaged, denied, or of another format.

    Errors that concern all tables are raised: a storage that does not answer, a full disk, a lack of memory.
    """
    try:
        yield
    except (delta.Unreadable, StorageError):
        return
    except OSError as error:
        if error.errno in OF_PROCESS or isinstance(error, ConnectionError | TimeoutError) or full(error):
            raise


def set_truncated_aside(path: Address) -> None:
    version = truncated_commit.truncated_version(path)
    if version is not None:
        # If the table's past was deleted up to that version, only its checkpoint holds the state.
        is_first = bool(
            version > 0 and truncated_commit.checkpoints(path, version) and delta.open_table(path, version - 1) is None
        )
        truncated_commit.set_aside(path, version, empty=is_first)


def clear_above(settings: Settings, stream: str, batch: int) -> None:
    """Delete rows beside the log of `stream` of batches after `batch`, its last one.

    The batches of a file are known from its statistics: none is read.
    """
    for location in Warehouse(settings).beside(stream):
        above = Scan(location.path, bounds={"_batch": (batch + 1, LAST_BATCH)})
        if delta.exists(location.path) and above.rows():
            with delta_writer.changing(location.path) as (table, properties):
                table.delete(f"_batch > {batch}", commit_properties=properties)


@view()
def last_cut(settings: Settings) -> int:
    """Return the greatest number of a cut, also from editions and tables if the ledger has lost some."""
    tables = _tables(settings, Warehouse(settings).book("editions"))
    numbers: list[int] = [_entry(settings, "cuts", "cut").get("number", 0)]
    numbers += [_entry(settings, "editions", "edition").get("cut", 0)]
    for table in tables:
        with skip_unreadable():  # an unreadable table does not prevent counting others
            numbers.append(_data(table).get("cut", 0))
    return max(numbers)


def cut_at(settings: Settings, number: int) -> tuple[dict[str, int], int] | None:
    """Return the last batches and the last void of a lost cut, from tables that followed it; None if no table did.

    Streams that no table reads are missing.
    """
    if not 0 < number <= last_cut(settings):
        return None
    batches: dict[str, int] = {}
    voids = -1
    for table in Warehouse(settings).folders("table"):
        with skip_unreadable():  # as above
            heads = map(TableHead.of, delta.positions(table.path, table.app))
            if head := next((head for head in heads if head.cut <= number), None):
                voids = max(voids, head.voids)
                for name, batch in head.streams.items():
                    batches[name] = max(batch, batches.get(name, 0))
    return (batches, voids) if voids >= 0 else None


def last_void(settings: Settings) -> int:
    """Return the greatest number of a void or an erasure, also from cuts if damage took some."""
    columns = {"voids": "number", "erasures": "number", "cuts": "voids"}
    return max(duckdb_tables.greatest(Warehouse(settings).book(name).path, column) for name, column in columns.items())


def has_void(settings: Settings, number: int) -> bool:
    books = (Warehouse(settings).book(name) for name in ("voids", "erasures"))
    return any(duckdb_tables.rows(book.path, "SELECT 1 FROM t WHERE number = $1 LIMIT 1", number) for book in books)


def last_edition(settings: Settings) -> int:
    """Return the greatest number of an edition, also from the table `numbers`."""
    return max(_editions(settings))


def lost_editions(settings: Settings) -> list[Damage]:
    last, remembered = _editions(settings)
    if last >= remembered:
        return []
    path = Warehouse(settings).book("editions").path
    return [Damage(path, path.url, f"it ends at edition {last}, but edition {remembered} was published")]


def lost_batches(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> list[Damage]:
    log = Warehouse(settings).log(stream)
    batch = _data(log).get("batch", 0)
    reached, witness = last_batch(settings, stream, read)
    if batch >= reached:
        return []
    ends = f"it ends at batch {batch}" if batch else "it is missing"
    return [Damage(log.path, log.path.url, f"{ends}, but {witness} goes up to batch {reached}", RESTORE)]


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
        if cut := _entry(settings, "cuts", "cut"):
            return cut["batches"].get(stream, 0), f"cut {cut['number']}"
    return 0, ""


@view()
def read_by_tables(settings: Settings) -> dict[str, tuple[int, str]]:
    read: dict[str, tuple[int, str]] = {}
    for table in _tables(settings):
        with skip_unreadable():  # an unreadable table is reported elsewhere
            newest = delta.head(table.path, table.app)
            for name, number in (TableHead.of(newest).streams if newest else {}).items():
                read[name] = max(read.get(name, (0, "")), (number, table.name))
    return read


def _tables(settings: Settings, *books: Location) -> list[Location]:
    tables = [*Warehouse(settings).folders("table")]
    delta.prefetch(table.path for table in (*books, *tables))
    return tables


def has_commit(heads: Iterable[TableHead], version: int, cut: int) -> bool:
    """Return whether the `heads` of a table, newest first, still have the commit of `cut` as `version`.

    The number of a truncated commit is given to the next one, even if another table was derived from it.
    """
    later = takewhile(lambda head: head.origin >= version, heads)
    return any((head.origin, head.cut) == (version, cut) for head in later)


def _editions(settings: Settings) -> tuple[int, int]:
    remembered = _data(Warehouse(settings).book("numbers")).get("edition", 0)
    return _entry(settings, "editions", "edition").get("number", 0), remembered


def _entry(settings: Settings, book: str, part: str) -> Mapping[str, Any]:
    return _data(Warehouse(settings).book(book)).get(part) or {}


def _data(location: Location) -> Mapping[str, Any]:
    head = delta.head(location.path, location.app)
    return head.data if head else {}
