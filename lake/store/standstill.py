"""When tables in a store stand still for this process, so that it looks for each once: while it reads or does one step
of its work, and while it holds a table's lease. A table to which it commits itself, and one whose lease it takes, is
looked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from lake.store.storage import Address


@dataclass
class _Still:
    """What was looked at since tables stand still: their URLs, and the names in folders of tables."""

    seen: set[str] = field(default_factory=set)
    names: dict[str, frozenset[str]] = field(default_factory=dict)


_still: Final[ContextVar[_Still | None]] = ContextVar("_still", default=None)


@contextmanager
def still() -> Iterator[None]:
    """Within the block, tables in a store stand still: each is looked for once, and again where this process has
    committed to it or takes its lease.

    All that is read of a table is of one state, and what is written is written on the newest. Threads have part in it
    that are given a copy of the context.
    """
    if _still.get() is not None:
        yield
        return
    token = _still.set(_Still())
    try:
        yield
    finally:
        _still.reset(token)


_held: Final[dict[str, int]] = {}
"""How often the lease of a table is held by this process, by the table's URL."""
_looked: Final[set[str]] = set()
"""Those of them that were looked for since, and to which this process has not committed since it looked."""
_moves: Final[dict[str, int]] = {}
"""How often a table was to be looked for again, by its URL: a look that began before does not count."""
_lock: Final = Lock()


@contextmanager
def held(paths: Iterable[Address]) -> Iterator[None]:
    """Within the block this process holds the lease of the tables: nobody else commits to them, so they stand still.

    Who has been overtaken all the same finds the number of its commit taken.
    """
    paths = list(paths)
    for path in paths:
        if path.url not in _held:
            moved(path)
        _held[path.url] = _held.get(path.url, 0) + 1
    try:
        yield
    finally:
        for path in paths:
            _held[path.url] -= 1
            if not _held[path.url]:
                del _held[path.url]


def names_in(folders: Sequence[Address]) -> list[frozenset[str]]:
    """What is in each of some folders of tables, which may be missing; those in a store are listed side by side."""
    if len(folders) < 2 or folders[0].storage.may_tear:
        return [*map(_names_in, folders)]
    with ThreadPoolExecutor(len(folders)) as pool:
        asked = [pool.submit(copy_context().run, _names_in, folder) for folder in folders]
    return [one.result() for one in asked]


def _names_in(folder: Address) -> frozenset[str]:
    still = _still.get()
    known = still.names.get(folder.url) if still else None
    if known is None:
        with suppress(FileNotFoundError):
            known = frozenset(entry.name.removesuffix("/") for entry in folder.list())
        known = known or frozenset()
        if still and not folder.storage.may_tear:
            still.names[folder.url] = known
    return known


def moved(path: Address) -> None:
    """Notes that this process may have committed to the table at `path`: it is looked for again."""
    with _lock:
        _moves[path.url] = moves(path) + 1
        if still := _still.get():
            still.seen.discard(path.url)
            still.names.pop(path.parent.url, None)
        _looked.discard(path.url)


def committed(path: Address) -> None:
    """Notes that this process has committed to the table at `path`, and knows what it is now."""
    moved(path)
    looked(path, moves(path))


def moves(path: Address) -> int:
    """How often it was noted that the table at `path` is to be looked for again."""
    return _moves.get(path.url, 0)


def is_known(path: Address) -> bool:
    """Whether the table at `path` stands still, and was looked for since."""
    still = _still.get()
    return bool(still and path.url in still.seen) or (path.url in _held and path.url in _looked)


def is_missing(path: Address) -> bool:
    """Whether the table at `path` is not in its folder, which was listed while tables stand still."""
    still = _still.get()
    return still is not None and path.name not in still.names.get(path.parent.url, {path.name})


def looked(path: Address, since: int) -> None:
    """Notes that the table at `path` has been looked for, when there had been so many of its `moves`."""
    with _lock:
        if since == moves(path):
            if still := _still.get():
                still.seen.add(path.url)
            _looked.add(path.url)
