"""Aggregate in plain Python: the rows of each window, and the measures of them. Times are whole minutes; a window is
(start, end), and a group the rows of one key in one window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import groupby
from math import floor, sqrt
from typing import Any

Groups = dict[tuple[Any, ...], list["Row"]]


@dataclass(frozen=True)
class Row:
    """Event: its key, identity, minute, value and place in the log, and the watermark before it."""

    key: int
    id: int
    at: int
    value: int | None
    place: int
    watermark: int | None = None


def whole(rows: list[Row]) -> Groups:
    return {(): rows}


def tumbling(length: int) -> Callable[[list[Row]], Groups]:
    return hopping(length, length)


def hopping(length: int, every: int) -> Callable[[list[Row]], Groups]:
    def starts(row: Row) -> Iterable[tuple[int, int]]:
        return [(s, s + length) for s in range(row.at - length + 1, row.at + 1) if s % every == 0]

    return _by(starts)


def cumulative(length: int, step: int) -> Callable[[list[Row]], Groups]:
    def growing(row: Row) -> Iterable[tuple[int, int]]:
        start = row.at - row.at % length
        return [(start, start + n) for n in range(step, length + 1, step) if start + n > row.at]

    return _by(growing)


def session(gap: int) -> Callable[[list[Row]], Groups]:
    def runs(rows: list[Row]) -> Groups:
        groups: list[list[Row]] = []
        for row in sorted(rows, key=lambda r: r.at):
            if groups and row.at < groups[-1][-1].at + gap:
                groups[-1].append(row)
            else:
                groups.append([row])
        return {(group[0].at, group[-1].at + gap): group for group in groups}

    return runs


def sliding(length: int) -> Callable[[list[Row]], Groups]:
    def look_back(rows: list[Row]) -> Groups:
        return {(e.id, e.at): [r for r in rows if e.at - length < r.at <= e.at] for e in rows}

    return look_back


def aggregate(
    rows: list[Row], windows: Callable[[list[Row]], Groups], measures: Callable[[list[Row]], Any]
) -> dict[Any, Any]:
    """{(key, window…): measures of the rows in it}"""
    ordered = sorted(rows, key=lambda r: r.key)
    return {
        (key, *window): measures(group)
        for key, of_key in groupby(ordered, key=lambda r: r.key)
        for window, group in windows(list(of_key)).items()
        if group
    }


def on_time(rows: list[Row], lateness: int) -> list[Row]:
    return [r for r in rows if r.watermark is None or r.at >= r.watermark - lateness]


def exact(rows: list[Row]) -> tuple[Any, ...]:
    """Return every exact measure, in the order of the declaration in `test_aggregate`."""
    known = [r.value for r in rows if r.value is not None]
    by_time = [r.value for r in sorted(rows, key=lambda r: (r.at, r.place)) if r.value is not None]
    return (
        len(rows),
        sum(v > 0 for v in known),
        sum(known) if known else None,
        _places(Fraction(sum(known), len(known)), 3) if known else None,
        min(known, default=None),
        max(known, default=None),
        len(set(known)),
        len({v for v in known if v > 0}),
        by_time[0] if known else None,
        by_time[-1] if known else None,
        _places(variance(known, len(known) - 1), 6) if len(known) > 1 else None,
        _places(Fraction(sqrt(variance(known, len(known)))), 6) if known else None,
    )


def quantile(values: list[int], q: float) -> int:
    return sorted(values)[floor(Fraction(str(q)) * (len(values) - 1))]


def variance(values: list[int], freedom: int) -> Fraction:
    mean = Fraction(sum(values), len(values))
    return sum(((v - mean) ** 2 for v in values), Fraction()) / freedom


def _by(windows: Callable[[Row], Iterable[tuple[int, int]]]) -> Callable[[list[Row]], Groups]:
    def grouped(rows: list[Row]) -> Groups:
        groups: Groups = defaultdict(list)
        for row in rows:
            for window in windows(row):
                groups[window].append(row)
        return groups

    return grouped


def _places(value: Fraction, places: int) -> Decimal:
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    return exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
