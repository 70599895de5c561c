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
    """Return in how many of `rounds` the store acknowledged the same file to both of two writers, or to none.

    Deletes the files. Raises Unavailable if the store does not respond.
    """
    folder = root / f".doctor-{token_hex(8)}"
    files = [folder / f"{number}.json" for number in range(rounds)]
    barrier = Barrier(WRITERS)
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            acknowledged = list(pool.map(_write_all, [files] * WRITERS, [barrier] * WRITERS, range(WRITERS)))
        return sum(not _has_one_winner(file, won) for file, *won in zip(files, *acknowledged, strict=True))
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


def _has_one_winner(file: Address, won: list[bool]) -> bool:
    return won.count(True) == 1 and file.read() == f"{won.index(True)}".encode()
