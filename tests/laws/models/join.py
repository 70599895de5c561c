"""Join in a few lines of plain Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Side:
    key: int | None
    id: int
    at: int


def final(
    left_at: int | None, right_at: int | None, *, within: int | None, lateness: int, horizons: tuple[int, int]
) -> bool:
    """Return whether an unmatched row of a non-null key can have no timely partner; a pair has its partner."""
    if left_at is not None and right_at is not None:
        return True
    alone, others = (left_at, horizons[1]) if left_at is not None else (right_at, horizons[0])
    return within is not None and alone is not None and alone + within < others - lateness


def join(left: list[Side], right: list[Side], *, how: str, within: int | None) -> set[tuple[int | None, ...]]:
    """{(key, left id, right id)}"""
    pairs = {
        (one.key, one.id, other.id)
        for one in left
        for other in right
        if one.key == other.key and one.key is not None and (within is None or abs(one.at - other.at) <= within)
    }
    ours = {(one.key, one.id, None) for one in left} - {(key, id, None) for key, id, _ in pairs}
    theirs = {(other.key, None, other.id) for other in right} - {(key, None, id) for key, _, id in pairs}
    return pairs | (ours if how in ("left", "full") else set()) | (theirs if how in ("right", "full") else set())
