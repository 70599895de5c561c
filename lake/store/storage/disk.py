"""What only a local folder has beside the verbs of lake.store.storage: folders to rename, a disk to settle on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress

from lake.store.storage import LOCAL, Address


def settle(files: Iterable[Address]) -> None:
    """Has the disk hold `files`, folders among them, before what they replace is gone; a store holds what it has."""
    for file in files:
        if file.storage is not LOCAL:
            continue
        descriptor = os.open(file.local, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def remove_table(path: Address) -> None:
    """Removes the Delta table at `path`; a crash leaves the whole table, or what no one takes for one.

    A store renames nothing: there the checkpoints go first, then the commits, without which no one reads the rest.
    """
    if path.storage is not LOCAL:
        return _remove_objects(path)
    folder = path.local
    gone = folder.with_name(f".{folder.name}.gone")
    if gone.exists():  # an earlier removal was cut short, and the table built again
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
