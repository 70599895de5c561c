"""Cleanup of temporary files on this machine that crashes left beside the tables."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from lake.config import Settings
from lake.store.warehouse import Warehouse


def leftover_files(settings: Settings, before: datetime) -> list[Path]:
    """Return half-removed tables, and files staged or spilled `before` that instant."""
    scratch = [file for name in ("staging", "sql", "copies") for file in settings.path(f".lake/{name}").glob("*")]
    old = [file for file in scratch if file.lstat().st_mtime < before.timestamp()]
    gone = [] if settings.store else sorted(Warehouse(settings).root.local.glob("*/.*.gone"))
    return [*gone, *old]


def delete(files: Iterable[Path], *, as_far_as_possible: bool = False) -> None:
    """Delete files and folders; another process may do so at the same time."""
    for file in files:
        if file.is_dir() and not file.is_symlink():
            with suppress(FileNotFoundError):
                shutil.rmtree(file, ignore_errors=as_far_as_possible)
        else:
            file.unlink(missing_ok=True)
