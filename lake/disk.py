"""Flushes of files and folders to the disk, so that they survive a power cut."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

THREADS: Final = 16
"""Files flushed in parallel: a disk does several in the time of one."""


def flush(paths: Iterable[Path]) -> None:
    """Flush the content of files, and the names in folders, whichever process changed them."""
    paths = list(paths)
    if len(paths) < 3:
        for path in paths:
            _flush(path)
    else:
        with ThreadPoolExecutor(min(THREADS, len(paths))) as pool:
            list(pool.map(_flush, paths))


def flush_above(path: Path) -> None:
    """Flush the names of new folders above `path`, as far as this user may read them."""
    for folder in path.parents:
        with suppress(PermissionError):
            _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
