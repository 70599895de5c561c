"""The kinds as a few lines of plain Python each: short enough to be seen to be right."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row of a function's result: its key, sequence and value, and its place in the log."""

    key: int
    at: int | None
    value: int | None
    place: int


def latest(rows: list[Row]) -> dict[int, tuple[Any, ...]]:
    order = sorted(rows, key=lambda r: (r.at is not None, r.at or 0, r.place))
    return {r.key: (r.at, r.value) for r in order}


def first(rows: list[Row]) -> dict[int, tuple[Any, ...]]:
    order = sorted(rows, key=lambda r: (r.at is not None, r.at or 0, r.place), reverse=True)
    return {r.key: (r.at, r.value) for r in order}


def aggregate(rows: list[Row]) -> dict[tuple[int, int], tuple[Any, ...]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row.key, (row.at or 0) // 3].append(row.value)
    return {group: _measures(values) for group, values in groups.items()}


def _measures(values: list[int | None]) -> tuple[Any, ...]:
    known = [v for v in values if v is not None]
    mean = Decimal(sum(known)) / len(known) if known else None
    return (
        len(values),
        sum(v > 0 for v in known),
        sum(known) if known else None,
        mean.quantize(Decimal("0.001"), ROUND_HALF_UP) if mean is not None else None,
        min(known, default=None),
        max(known, default=None),
    )
