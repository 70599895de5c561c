"""Check that a store honours put-if-absent, on which commits rest: exactly one of several writers succeeds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from threading import Barrier
from typing import Final

from lake.store.storage import Address

WRITERS: Final = 2
ROUNDS: Final = 50


def lost_races(root: Address, rounds: int = ROUNDS) -> int:
    """Return in how many of `rounds` not exactly one of two writers was told that its file is there.

    Deletes the files again. Raises Unavailable if the store does not respond.
    """
    folder = root / f".doctor-{token_hex(8)}"
    files = [folder / f"{number}.json" for number in range(rounds)]
    together = Barrier(WRITERS)
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            won = list(pool.map(_writes, [files] * WRITERS, [together] * WRITERS, range(WRITERS)))
        return sum(not _is_right(file, told) for file, *told in zip(files, *won, strict=True))
    finally:
        root.storage.delete_all([file.url for file in files])


def _writes(files: list[Address], together: Barrier, writer: int) -> list[bool]:
    told = []
    try:
        for file in files:
            together.wait()
            told.append(file.put_if_absent(f"{writer}".encode()))
    except BaseException:
        together.abort()
        raise
    return told


def _is_right(file: Address, told: list[bool]) -> bool:
    return told.count(True) == 1 and file.read() == f"{told.index(True)}".encode()
