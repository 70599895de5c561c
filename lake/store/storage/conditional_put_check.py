"""Whether a store keeps the promise that commits rest on: of several who put a file where none is, one is told so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from secrets import token_hex
from threading import Barrier
from typing import Final

from lake.store.storage import Address

WRITERS: Final = 2
ROUNDS: Final = 50


def lost_races(root: Address, rounds: int = ROUNDS) -> int:
    """In how many of `rounds` not exactly one of two writers was told that its file is there, or another's is.

    What was put is deleted again. Raises Unavailable where the store does not answer.
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
    """What a writer is told of each file."""
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
