"""Registry of the table logs of this process, by address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from lake.store import view
from lake.store.bucket_log import BucketLog
from lake.store.folder_log import FolderLog
from lake.store.storage import Address
from lake.store.table_log import TableLog

_logs: Final[dict[str, TableLog]] = {}


def table_log(path: Address) -> TableLog:
    """Return the log of the table at `path`."""
    known = _logs.get(path.url)
    if known is None or known.path.storage != path.storage:
        known = _logs[path.url] = FolderLog(path) if path.storage.may_tear else BucketLog(path)
    return known


def invalidate(path: Address) -> None:
    """Have the table at `path` looked up again, because it may have changed."""
    table_log(path).invalidate()


def forget_all() -> None:
    """Drop everything cached of all tables."""
    _logs.clear()


@contextmanager
def holding(tables: Iterable[Address]) -> Iterator[None]:
    """Run the block while this process holds the lease of `tables`, so no other writer commits to them."""
    tables = list(tables)
    for path in tables:
        if path.url not in view.leased:
            invalidate(path)
        view.leased[path.url] = view.leased.get(path.url, 0) + 1
    try:
        yield
    finally:
        for path in tables:
            view.leased[path.url] -= 1
            if not view.leased[path.url]:
                del view.leased[path.url]
