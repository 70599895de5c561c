"""Voids: facts that should not have been accepted, left out of every table from the next cut on, and never deleted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError
from lake.store import delta
from lake.store.lease import lease
from lake.store.meta import counted_voids

BOOKS: Final = ("voids", "erasures")
"""They share their numbers."""
SCHEMA = """
    number BIGINT, stream VARCHAR, batch BIGINT, bucket INTEGER, "offset" BIGINT, reason VARCHAR, "at" TIMESTAMPTZ"""
Place = tuple[int, int, int]


@dataclass(frozen=True)
class Void:
    """Void `number` (1, 2, 3 … over all streams): the event at (batch, bucket, offset) of `stream` does not count."""

    number: int
    stream: str
    batch: int
    bucket: int
    offset: int
    reason: str
    at: datetime

    @property
    def place(self) -> str:
        return f"{self.batch}:{self.bucket}:{self.offset}"


def all_voids(settings: Settings, stream: str | None = None) -> list[Void]:
    """Every void, or those of one stream, by number."""
    where = "" if stream is None else "WHERE stream = $1"
    query = f"SELECT * FROM t {where} ORDER BY number"
    found = delta.rows(settings.meta_path("voids"), query, *([] if stream is None else [stream]))
    return [Void(**row) for row in found]


def voids_head(settings: Settings) -> int:
    """The greatest number of a void or an erasure over all streams, 0 if there is none."""
    found = (delta.rows(settings.meta_path(book), "SELECT max(number) AS n FROM t") for book in BOOKS)
    return max((row["n"] or 0 for rows in found for row in rows), default=0)


def next_number(settings: Settings) -> int:
    """The number that the next void or erasure takes: one that none has had, whatever damage has taken since."""
    return max(voids_head(settings), counted_voids(settings)) + 1


def is_there(settings: Settings, number: int) -> bool:
    """Whether a void or an erasure has `number`: not where damage has taken it."""
    query = "SELECT 1 FROM t WHERE number = $1 LIMIT 1"
    return any(delta.rows(settings.meta_path(book), query, number) for book in BOOKS)


def voided(settings: Settings, stream: str, after: int, upto: int) -> list[Place]:
    """(batch, bucket, offset) of the events of `stream` voided by the voids after < number <= upto."""
    return [(v.batch, v.bucket, v.offset) for v in all_voids(settings, stream) if after < v.number <= upto]


def record(settings: Settings, stream: str, places: Iterable[Place], *, reason: str, at: datetime) -> list[Void]:
    """Appends a void for each of `places`, all in one commit. Raises DeclarationError where one is void already."""
    with lease(settings, "meta.voids"):
        known = {(v.batch, v.bucket, v.offset): v for v in all_voids(settings, stream)}
        number = next_number(settings)
        new: list[Void] = []
        for place in places:
            if place in known:
                void = known[place]
                raise DeclarationError(
                    f"event {void.place} of {stream} is void already: {void.reason!r} (void {void.number})",
                    fix="nothing to do",
                )
            known[place] = Void(number + len(new), stream, *place, reason, at)
            new.append(known[place])
        delta.append(
            settings.meta_path("voids"),
            SCHEMA,
            [(v.number, v.stream, v.batch, v.bucket, v.offset, v.reason, v.at) for v in new],
        )
    return new
