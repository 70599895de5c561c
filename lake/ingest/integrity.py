"""What damage has taken, as far as something else remembers it: batches of logs, editions of the book.

What a log has had is known from the files it has taken in, from the newest cut, and from the tables that have read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import Final

from lake.config import Settings
from lake.declaration import Declaration
from lake.errors import LakeError, StorageError
from lake.ingest import sources
from lake.project import Project
from lake.store import delta
from lake.store.chain import breaks, changes
from lake.store.damage import Damage
from lake.store.ledger import editions
from lake.store.ledger.cuts import latest_cut
from lake.store.log import Log
from lake.store.warehouse import Location, Warehouse

BRING_BACK: Final = (
    "restore it from a backup; without one, lake ingest {stream} ingests the same files into new batches"
)


def lost_batches(settings: Settings, stream: str, read: Mapping[str, tuple[int, str]] | None = None) -> list[Damage]:
    """That a log has had more batches than it has, and who knows; `read` is what `read_by_tables` has found."""
    batch = Log(settings, stream).head().batch
    told = [(read_by_tables(settings) if read is None else read).get(stream, (0, ""))]
    with suppress(delta.Unreadable, LakeError):  # a damaged book is told elsewhere
        told += [(cut.batches.get(stream, 0), f"cut {cut.number}") for cut in [latest_cut(settings)] if cut]
    with suppress(delta.Unreadable, LakeError):
        told.append((sources.last_taken(settings, stream), "the list of ingested files"))
    reached, witness = max(told)
    if batch >= reached:
        return []
    path, ends = Log(settings, stream).path, f"it ends at batch {batch}" if batch else "it is missing"
    return [Damage(path, path.url, f"{ends}, but {witness} goes up to batch {reached}")]


def lost_editions(settings: Settings) -> list[Damage]:
    """That there have been more editions than their book has."""
    known, witness = editions.newest_number(settings), editions.witnessed(settings)
    if known >= witness:
        return []
    path = Warehouse(settings).book("editions").path
    return [Damage(path, path.url, f"it ends at edition {known}, but edition {witness} was published")]


def read_by_tables(settings: Settings) -> dict[str, tuple[int, str]]:
    """The last batch of each stream that a derived table has read, and which table."""
    found: dict[str, tuple[int, str]] = {}
    for table in Warehouse(settings).folders("table"):
        with suppress(delta.Unreadable, NotADirectoryError):  # a table that cannot be read is told elsewhere
            for name, number in _inputs(table).items():
                found[name] = max(found.get(name, (0, "")), (number, table.name))
    return found


def _inputs(table: Location) -> dict[str, int]:
    """How far a derived table has read each log; inputs that are tables have a home."""
    data = delta.standing(table.path, table.app).data
    tables = data.get("homes") or {}
    return {name: number for name, number in (data.get("inputs") or {}).items() if name not in tables}


def faults(project: Project, declarations: Iterable[Declaration]) -> dict[str, LakeError | None]:
    """What is damaged of each log that the declared tables are made of, see `of_inputs`; each is read once."""
    return dict(_faults(project, _streams(project, declarations)))


def of_inputs(project: Project, streams: Iterable[str]) -> LakeError | None:
    """What is damaged of the logs of `streams`, or of the key store that opens them; None where all is whole."""
    return next((fault for _, fault in _faults(project, streams) if fault), None)


def must_be_whole(project: Project, declarations: Iterable[Declaration]) -> None:
    """Raises LakeError where a log that tables are to be made of is damaged: nothing wrong is copied into them."""
    if fault := of_inputs(project, _streams(project, declarations)):
        raise fault


def _streams(project: Project, declarations: Iterable[Declaration]) -> list[str]:
    return list(dict.fromkeys(stream for each in declarations for stream in project.logs(each)))


def _faults(project: Project, streams: Iterable[str]) -> Iterator[tuple[str, LakeError | None]]:
    read = cache(lambda: read_by_tables(project.settings))
    return ((stream, _fault(project, stream, read)) for stream in streams)


def _fault(project: Project, stream: str, read: Callable[[], dict[str, tuple[int, str]]]) -> LakeError | None:
    contract = project.contracts[stream]
    try:
        head = Log(project.settings, stream).head()
        for found in lost_batches(project.settings, stream, read()):
            return StorageError(found.fault.what, where=found.fault.where, fix=BRING_BACK.format(stream=stream))
        Log(project.settings, head.stream).contracts(head)
        if fault := content_fault(project.settings, stream):
            return fault
        if contract.sealed and head.keys:
            Log(project.settings, contract.name).key_store().must_be_whole()
    except LakeError as error:
        return error
    return None


def content_fault(settings: Settings, stream: str) -> LakeError | None:
    """What is wrong with the rows of a log, by the fingerprints of its commits."""
    log = Log(settings, stream)
    path, heads = log.path, log.heads()[::-1]
    found = next(chain(breaks(heads), changes(path, heads)), None)
    if found is None:
        return None
    what, _, files = found.partition(": /")
    where = f"/{files}" if files else str(path)
    fix = f"restore it from a backup; lake log {stream} --check lists all damage"
    return StorageError(f"the log of {stream} is damaged: {what}", where=where, fix=fix)
