"""Permissions of files for tests that may run as root, to whom they do not apply."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

OVERRIDES: Final = 1 << 1 | 1 << 2 | 1 << 3
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER, see capabilities(7)."""
VERSION: Final = 0x20080522


@contextmanager
def forbidden(*paths: Path) -> Iterator[None]:
    """Run the block with no permission for `paths`, in this thread and those that it starts."""
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(0)
    try:
        with modes_applied():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@contextmanager
def modes_applied() -> Iterator[None]:
    """Run the block with the modes of files applied also to root, in this thread and those that it starts."""
    if os.geteuid():
        yield
        return
    header, before = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
    _call("capget", header, before)
    without = (ctypes.c_uint32 * 6)(*before)
    without[0] &= ~OVERRIDES
    _call("capset", header, without)
    try:
        yield
    finally:
        _call("capset", header, before)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name} failed")
