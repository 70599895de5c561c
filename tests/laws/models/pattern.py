"""A pattern in plain Python: the regular expressions of the standard library over one letter a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """Row of a history: a letter, at a second."""

    key: int
    at: int
    letter: str
    size: int
    place: int


def in_order(ticks: list[Tick]) -> list[Tick]:
    return sorted(ticks, key=lambda t: (t.at, t.place))


def matches(
    ticks: list[Tick],
    pattern: str,
    *,
    to_next: bool = False,
    within: int | None = None,
    absent: tuple[str, int] | None = None,
) -> Iterator[list[tuple[Tick, str]]]:
    """Return the rows of each match, each with the name of its group; the ticks are of one key, in order.

    `absent`: a letter, and the seconds after a match without it. Ticks without one are written as capitals, and a match
    must end with a capital.
    """
    text, start = "".join(tick.letter for tick in ticks), 0
    if absent is not None:
        letter, seconds = absent
        text = "".join(
            tick.letter
            if any(t.letter == letter and t.at < tick.at + seconds for t in ticks[i:])
            else tick.letter.upper()
            for i, tick in enumerate(ticks, start=1)
        )
        pattern = f"(?i:{pattern})(?<=[A-Z])"
    while start < len(ticks):
        late = [i for i, tick in enumerate(ticks) if within is not None and tick.at >= ticks[start].at + within]
        found = re.compile(pattern).match(text, start, min(late, default=len(ticks)))
        if found:
            steps = [(name, i) for name, part in found.groupdict().items() if part for i in range(*found.span(name))]
            yield [(ticks[i], name) for name, i in sorted(steps, key=lambda step: step[1])]
        start += found.end() - start if found and not to_next else 1
