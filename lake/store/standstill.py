"""When tables in a store stand still for this process, so that it looks for each once: while it only reads, and while
it holds a table's lease. A table to which it commits itself is looked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
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
    """Within the block, tables in a store stand still: each is looked for once, and after each commit of this process.

    For who only reads: all that it reads of a table is of one state.
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


@contextmanager
def held(paths: Iterable[Address]) -> Iterator[None]:
    """Within the block this process holds the lease of the tables: nobody else commits to them, so they stand still.

    Who has been overtaken all the same finds the number of its commit taken.
    """
    urls = [path.url for path in paths]
    for url in urls:
        if url not in _held:
            _looked.discard(url)
        _held[url] = _held.get(url, 0) + 1
    try:
        yield
    finally:
        for url in urls:
            _held[url] -= 1
            if not _held[url]:
                del _held[url]


def names_in(folder: Address) -> frozenset[str]:
    """What is in a folder of tables, which may be missing."""
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
    """Notes that this process has committed to the table at `path`, or tried to."""
    if still := _still.get():
        still.seen.discard(path.url)
        still.names.pop(path.parent.url, None)
    _looked.discard(path.url)


def is_known(path: Address) -> bool:
    """Whether the table at `path` stands still, and was looked for since."""
    still = _still.get()
    return bool(still and path.url in still.seen) or (path.url in _held and path.url in _looked)


def is_missing(path: Address) -> bool:
    """Whether the table at `path` is not in its folder, which was listed while tables stand still."""
    still = _still.get()
    return still is not None and path.name not in still.names.get(path.parent.url, {path.name})


def looked(path: Address) -> None:
    """Notes that the table at `path` has been looked for now."""
    if still := _still.get():
        still.seen.add(path.url)
    _looked.add(path.url)
