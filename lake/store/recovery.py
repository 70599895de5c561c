"""Recovery: what a writer that died left is repaired, and what was committed and is lost again is missed.

1. Whoever takes a lease removes a commit that was cut short: `put_aside`.
2. Rows that stand beside a log above its head, left by a crash, go before the next batch: `clear_above`.
3. Cuts, voids and editions are numbered above all that ever had a number: what one book has lost, another remembers.
4. A batch or a version that is gone is told by what has read it: nothing is derived or counted as if it were there.

docs/failure-model.md says what is promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final

from lake.config import Settings
from lake.errors import LakeError, StorageError
from lake.store import delta, duckdb_tables, truncated_commit
from lake.store.damage import Damage
from lake.store.rejected_and_duplicates import LAST_BATCH
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.table_head import TableHead
from lake.store.view import view
from lake.store.warehouse import Location, Warehouse

RESTORE: Final = (
    "restore a backup of the warehouse: what came after it is read again where its source can resend"
    " (docs/how-to/backup.md)"
)


def put_aside(path: Address) -> None:
    """Takes the newest commit of the table at `path` away if it was cut short: the next one takes its number."""
    version = truncated_commit.truncated_version(path)
    if version is not None:
        # Where the past was ended at that version, its checkpoint holds all that there is.
        begins = (
            version > 0
            and truncated_commit.has_checkpoint(path, version)
            and delta.open_table(path, version - 1) is None
        )
        truncated_commit.set_aside(path, version, empty=begins)


def clear_above(settings: Settings, stream: str, batch: int) -> None:
    """Deletes what stands beside the log of `stream` under the numbers of batches after `batch`, its last one.

    Files say which batches they hold: none is read.
    """
    for location in Warehouse(settings).beside(stream):
        above = Scan(location.path, bounds={"_batch": (batch + 1, LAST_BATCH)})
        if delta.exists(location.path) and above.rows():
            with delta.changing(location.path) as (table, properties):
                table.delete(f"_batch > {batch}", commit_properties=properties)


@view()
def last_cut(settings: Settings) -> int:
    """The greatest number that a cut has had: editions and tables know those that a damaged book has lost."""
    tables = _tables(settings, Warehouse(settings).book("editions"))
    numbers: list[int] = [_entry(settings, "cuts", "cut").get("number", 0)]
    numbers += [_entry(settings, "editions", "edition").get("cut", 0)]
    for table in tables:
        with suppress(delta.Unreadable, NotADirectoryError):  # what cannot be read keeps no other from being counted
            numbers.append(_data(table).get("cut", 0))
    return max(numbers)


def cut_at(settings: Settings, number: int) -> tuple[dict[str, int], int] | None:
    """What a cut that the book has lost counted, as tables say that followed it: the last batches and the last void.

    Of streams that no table reads nothing is known. None where there was no such cut, or no table tells of it.
    """
    if not 0 < number <= last_cut(settings):
        return None
    batches: dict[str, int] = {}
    voids = -1
    for table in Warehouse(settings).folders("table"):
        with suppress(delta.Unreadable, NotADirectoryError):  # as above
            heads = map(TableHead.of, delta.positions(table.path, table.app))
            if head := next((head for head in heads if head.cut <= number), None):
                voids = max(voids, head.voids)
                for name, batch in head.streams.items():
                    batches[name] = max(batch, batches.get(name, 0))
    return (batches, voids) if voids >= 0 else None


def last_void(settings: Settings) -> int:
    """The greatest number that a void or an erasure has had: cuts have counted those that damage took since."""
    columns = {"voids": "number", "erasures": "number", "cuts": "voids"}
    return max(_greatest(settings, book, column) for book, column in columns.items())


def has_void(settings: Settings, number: int) -> bool:
    """Whether a void or an erasure has `number`: not where damage has taken it."""
    books = (Warehouse(settings).book(name) for name in ("voids", "erasures"))
    return any(duckdb_tables.rows(book.path, "SELECT 1 FROM t WHERE number = $1 LIMIT 1", number) for book in books)


def last_edition(settings: Settings) -> int:
    """The greatest number that an edition has had, as it is remembered beside their book too."""
    return max(_editions(settings))


def lost_editions(settings: Settings) -> list[Damage]:
    """That there have been more editions than their book has."""
    last, remembered = _editions(settings)
    if last >= remembered:
        return []
    path = Warehouse(settings).book("editions").path
    return [Damage(path, path.url, f"it ends at edition {last}, but edition {remembered} was published")]


def lost_batches(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> list[Damage]:
    """That a log has had more batches than it has, and who knows; `read` is what `read_by_tables` gives."""
    log = Warehouse(settings).log(stream)
    batch = _data(log).get("batch", 0)
    reached, witness = last_batch(settings, stream, read)
    if batch >= reached:
        return []
    ends = f"it ends at batch {batch}" if batch else "it is missing"
    return [Damage(log.path, log.path.url, f"{ends}, but {witness} goes up to batch {reached}", RESTORE)]


def check_complete(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> None:
    """Raise StorageError if a log has lost batches that it had; `read` is as `lost_batches` has it."""
    for lost in lost_batches(settings, stream, read):
        raise lost.fault


def last_batch(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> tuple[int, str]:
    """The greatest number that a batch of a log has had, and who knows; `read` is what `read_by_tables` gives."""
    tables = read_by_tables(settings) if read is None else read
    last = 0
    with suppress(delta.Unreadable, LakeError):  # a damaged book is told elsewhere
        last = _greatest(settings, "landed", "batch", "stream = $1", stream)
    return max(tables.get(stream, (0, "")), counted_by_cut(settings, stream), (last, "the list of ingested files"))


def counted_by_cut(settings: Settings, stream: str) -> tuple[int, str]:
    """The last batch of a log that the newest cut has counted, and the cut; (0, "") where none can be read."""
    with suppress(delta.Unreadable, LakeError):  # as above
        if cut := _entry(settings, "cuts", "cut"):
            return cut["batches"].get(stream, 0), f"cut {cut['number']}"
    return 0, ""


@view()
def read_by_tables(settings: Settings) -> dict[str, tuple[int, str]]:
    """The last batch of each stream that a derived table has read, and which table."""
    read: dict[str, tuple[int, str]] = {}
    for table in _tables(settings):
        with suppress(delta.Unreadable, NotADirectoryError):  # a table that cannot be read is told elsewhere
            newest = delta.head(table.path, table.app)
            for name, number in (TableHead.of(newest).streams if newest else {}).items():
                read[name] = max(read.get(name, (0, "")), (number, table.name))
    return read


def _tables(settings: Settings, *books: Location) -> list[Location]:
    tables = [*Warehouse(settings).folders("table")]
    delta.prefetch(table.path for table in (*books, *tables))
    return tables


def must_reach(log: Location, last: int, counted: int) -> None:
    """Raise StorageError if a log ends at batch `last`, before one that was `counted`: its newest was lost."""
    if last < counted:
        raise StorageError(
            f"the log of {log.name} is damaged: it ends at batch {last}, but was counted up to batch {counted}",
            where=str(log.path),
            fix=RESTORE,
        )


def had(heads: Iterable[TableHead], version: int, cut: int) -> bool:
    """Whether a table of these `heads`, the newest first, still has the commit that brought it to `cut` as `version`.

    One that was cut short leaves its number to the next, even where another table has been derived from it.
    """
    later = takewhile(lambda head: head.origin >= version, heads)
    return any((head.origin, head.cut) == (version, cut) for head in later)


def _editions(settings: Settings) -> tuple[int, int]:
    """The numbers of the newest edition: the one that the book has, the one that is remembered; 0 for none."""
    remembered = _data(Warehouse(settings).book("numbers")).get("edition", 0)
    return _entry(settings, "editions", "edition").get("number", 0), remembered


def _entry(settings: Settings, book: str, part: str) -> Mapping[str, Any]:
    return _data(Warehouse(settings).book(book)).get(part) or {}


def _data(location: Location) -> Mapping[str, Any]:
    head = delta.head(location.path, location.app)
    return head.data if head else {}


def _greatest(settings: Settings, book: str, column: str, where: str = "true", *parameters: Any) -> int:
    query = f"SELECT max({column}) AS n FROM t WHERE {where}"
    rows = duckdb_tables.rows(Warehouse(settings).book(book).path, query, *parameters)
    return max((row["n"] or 0 for row in rows), default=0)
