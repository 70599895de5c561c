"""Checks of folders for `lake doctor`: they can be read or written, and one of two writers that put a file succeeds."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Barrier
from typing import Final

from lake.errors import LakeError
from lake.session.file_modes import nearest
from lake.store.storage import Address, Use

WRITERS: Final = 2
ROUNDS: Final = 50


def check_folder(folder: Path, setting: str, use: Use) -> str:
    """Describe the use that a local folder allows. Raises LakeError if this user may not use it."""
    another = f"or set `{setting}` to another folder"
    user = os.environ.get("USER") or f"user {os.getuid()}"
    if use in {"read", "move"}:
        if folder.exists() and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
            raise LakeError(f"{folder} cannot be read", fix=f"allow {user} to read it, {another}")
        return f"{folder} can be read" if folder.exists() else f"{folder} does not exist yet"
    existing = nearest(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".doctor-"):
            pass
    except OSError as error:
        what = f"{existing} cannot be written: {error.strerror}"
        raise LakeError(what, fix=f"allow {user} to write {existing}, {another}") from None
    for inside in (*folder.glob("*"), *folder.glob("locks/*")):
        if not os.access(inside, os.W_OK):
            raise LakeError(f"{inside} cannot be written", fix=f"allow {user} to write {inside}, {another}")
    return f"{folder} can be written"


def check_objects(folder: Address, use: Use) -> str:
    """Describe the use that a folder of objects allows. Raises LakeError if the storage refuses the use."""
    try:
        with suppress(FileNotFoundError):
            next(folder.list(), None)
        if use == "commit":
            if lost := lost_races(folder):
                found = f"in {lost} of {ROUNDS} races not one of {WRITERS} writers won: this store may lose commits"
                raise LakeError(found, fix="use a store that keeps to put-if-absent, or a folder of this machine")
            return f"{folder} can be written: in {ROUNDS} races one of {WRITERS} writers won"
        probe = folder / f".doctor-{token_hex(8)}"
        if use == "write":
            probe.put_if_absent(b"")
        if use != "read":
            probe.delete()
    except LakeError as fault:
        raise LakeError(fault.what, where=folder.url, fix=fault.fix) from None
    done = {"read": "listed", "move": "listed and deleted", "write": "listed and written and deleted"}[use]
    return f"{folder} can be {done}"


def lost_races(root: Address, rounds: int = ROUNDS) -> int:
    """Return in how many of `rounds` the store acknowledged the same file to both of two writers, or to none.

    Deletes the files. Raises Unavailable if the store does not respond.
    """
    folder = root / f".doctor-{token_hex(8)}"
    files = [folder / f"{number}.json" for number in range(rounds)]
    barrier = Barrier(WRITERS)
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            acknowledged = list(pool.map(_write_all, [files] * WRITERS, [barrier] * WRITERS, range(WRITERS)))
        races = zip(files, *acknowledged, strict=True)
        return sum(won.count(True) != 1 or file.read() != f"{won.index(True)}".encode() for file, *won in races)
    finally:
        root.storage.delete_all([file.url for file in files])


def _write_all(files: list[Address], barrier: Barrier, writer: int) -> list[bool]:
    acknowledged = []
    try:
        for file in files:
            barrier.wait()
            acknowledged.append(file.put_if_absent(f"{writer}".encode()))
    except BaseException:
        barrier.abort()
        raise
    return acknowledged
