"""Removal of a table from a local folder, which can be renamed first, or from an object store."""

from __future__ import annotations

import shutil
from contextlib import suppress

from lake.store.storage import LOCAL, Address


def remove_table(path: Address) -> None:
    """Delete the Delta table at `path`; a crash leaves the whole table, or no table.

    A store cannot rename: there the checkpoints go first, then the commits, without which the rest is not read.
    """
    if path.storage is not LOCAL:
        return _remove_objects(path)
    folder = path.local
    gone = folder.with_name(f".{folder.name}.gone")
    if gone.exists():  # an earlier removal was interrupted, and the table built again
        shutil.rmtree(gone)
    folder.rename(gone)
    shutil.rmtree(gone)


def _remove_objects(path: Address) -> None:
    with suppress(FileNotFoundError):
        names = [entry.name for entry in path.list(deep=True)]
        log = [name for name in names if name.startswith("_delta_log/")]
        commits = [name for name in log if name.endswith(".json")]
        for part in (sorted(set(log) - set(commits)), commits, sorted(set(names) - set(log))):
            path.storage.delete_all([f"{path}/{name}" for name in part])
