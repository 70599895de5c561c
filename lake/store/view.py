"""View: cache of the newest versions of tables in a warehouse during one step of work.

A table is looked up once, and again after `invalidate`: if this process has committed to it or takes its lease. A table
whose lease is held is looked up once for the lease. A commit is validated against the storage, never against a view: if
another writer was first, its number is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from lake.store.storage import Address


@dataclass
class KnownTables:
    tables: set[str] = field(default_factory=set)
    folders: dict[str, frozenset[str]] = field(default_factory=dict)


_current: Final[ContextVar[KnownTables | None]] = ContextVar("_current", default=None)
leased: Final[dict[str, int]] = {}
"""Number of leases of a table that this process holds, by the table's URL."""
_leased_view: Final = KnownTables()
"""Cache of leased tables, also outside of a view."""


@contextmanager
def view() -> Iterator[None]:
    """Run the block, one step of work, with one view; within another view, with that one.

    Threads share it if they are given a copy of the context.
    """
    if _current.get() is not None:
        yield
        return
    token = _current.set(KnownTables())
    try:
        yield
    finally:
        _current.reset(token)


def is_known(path: Address) -> bool:
    view = _current.get()
    return bool(view and path.url in view.tables) or (path.url in leased and path.url in _leased_view.tables)


def is_missing(path: Address) -> bool:
    view, (folder, _, name) = _current.get(), path.url.rpartition("/")
    return view is not None and name not in view.folders.get(folder, {name})


def mark_known(path: Address) -> None:
    for view in (_current.get(), _leased_view):
        if view:
            view.tables.add(path.url)


def forget(path: Address) -> None:
    for view in (_current.get(), _leased_view):
        if view:
            view.tables.discard(path.url)
            view.folders.pop(path.url.rpartition("/")[0], None)


def names_in(folders: Sequence[Address]) -> list[frozenset[str]]:
    """Return the names in each of `folders`, which may not exist."""
    begun = folders[0].storage.begin(_names_in, folders) if len(folders) > 1 else {}
    return [begun[folder].result() if folder in begun else _names_in(folder) for folder in folders]


def _names_in(folder: Address) -> frozenset[str]:
    view = _current.get()
    known = view.folders.get(folder.url) if view else None
    if known is None:
        with suppress(FileNotFoundError):
            known = frozenset(entry.name.removesuffix("/") for entry in folder.list())
        known = known or frozenset()
        if view and folder.storage.is_remote:  # a local folder is listed each time, to find tables of other processes
            view.folders[folder.url] = known
    return known
