"""The matcher without Spark: matches that later rows can change, tried with all possible later rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise, product
from typing import Any

import pyarrow as pa
import pytest

from lake.kinds.matcher import BacktrackingMatcher, Find, KeyRows, LinearMatcher, matches
from lake.kinds.steps import Either, Part, Step, every_step

HISTORIES = 25
LATER = 2  # Number of later rows that decides every open match of these patterns

PATTERNS: dict[str, list[Part]] = {
    "greedy": [Step("a"), Step("b", times="+")],
    "reluctant": [Step("a", times="+?"), Step("b", times="{1,2}?")],
    "in the middle": [Step("a"), Step("b", times="*"), Step("c")],
    "optional": [Step("a"), Step("b", times="{0,2}"), Step("c", times="?")],
    "alternatives": [Step("a", times="?"), Either([Step("b"), Step("c")], Step("d"))],
    "absent after many": [Step("a", times="+")],
    "absent after few": [Step("a", times="+?"), Step("b", times="?")],
}
ABSENT: dict[str, int] = {"absent after many": 2, "absent after few": 3}
"""Where a row of one more kind must not come for so long after a match."""

History = list[tuple[int, int]]
"""Rows of a key in order: the time, and the steps that it satisfies as bits."""


def find_matches(
    parts: list[Part], history: History, *, in_python: bool, within: int | None, past_last: bool, absent: int | None
) -> list[tuple[tuple[int, ...], int]]:
    """Return the rows of each step of each match, and the last time of a row that could change the match."""
    times, holds = [time for time, _ in history], [bits for _, bits in history]
    rows = KeyRows.of(holds, times, within, absent, 1 << len(list(every_step(parts))))
    events: list[dict[str, Any]] = [{} for _ in history]
    find: Find = (
        BacktrackingMatcher(parts, rows, events, pa.nulls(len(events))).find
        if in_python
        else LinearMatcher(parts, rows).find
    )
    return [((first, *counts), until) for first, counts, until in matches(find, rows, past_last=past_last)]


def later(rows: History, before: int, steps: int, fixed: int) -> Iterator[tuple[History, list[int]]]:
    """Yield `rows` with a few later ones, not late before `before`, at any place among ties; and the former number of
    each row, -1 for a new one. The row after the new ones may satisfy other steps, because conditions read `prev`,
    except the absent step: its bit is `fixed`.
    """
    every = range(1, 1 << steps)
    settled = sum(time < before for time, _ in rows)
    for place in range(settled, len(rows) + 1):
        at = max([before, *(time for time, _ in rows[place - 1 : place])])
        for number in range(1, LATER + 1):
            numbers = [*range(place), *[-1] * number, *range(place, len(rows))]
            for bits in product(every, repeat=number):
                yield [*rows[:place], *((at, each) for each in bits), *rows[place:]], numbers
                if place < len(rows) and number == 1:
                    for other in every:
                        changed = (rows[place][0], (other & ~fixed) | (rows[place][1] & fixed))
                        yield [*rows[:place], (at, bits[0]), changed, *rows[place + 1 :]], numbers


@pytest.mark.turns
@pytest.mark.slow
@pytest.mark.parametrize("in_python", [False, True], ids=["in SQL", "in Python"])
@pytest.mark.parametrize(("past_last", "within"), [(True, None), (False, None), (True, 3), (False, 3)])
@pytest.mark.parametrize("name", PATTERNS)
def test_matcher_marks_a_match_final_when_no_timely_row_can_change_it(
    name: str, past_last: bool, within: int | None, in_python: bool
) -> None:
    parts, chance = PATTERNS[name], random.Random(name)
    steps, fixed = len(list(every_step(parts))), 0
    if name in ABSENT:
        steps, fixed = steps + 1, 1 << steps
    told = set()
    for _ in range(HISTORIES):
        times = sorted(chance.choices(range(6), k=chance.randrange(1, 6)))
        rows = [(time, chance.randrange(1 << steps)) for time in times]
        before = chance.randrange(9)
        options: dict[str, Any] = {"in_python": in_python, "within": within, "past_last": past_last}
        options["absent"] = ABSENT.get(name)
        matched = find_matches(parts, rows, **options)
        shown = {rows_of(match, range(len(rows))): until for match, until in matched}
        lasting = dict.fromkeys(shown, True)
        for more, numbers in later(rows, before, steps, fixed):
            if not any(lasting.values()):
                break
            there = {rows_of(match, numbers) for match, _ in find_matches(parts, more, **options)}
            lasting = {match: lasts and match in there for match, lasts in lasting.items()}
        final = {match: until < before for match, until in shown.items()}
        assert final == lasting, (rows, before, matched)
        told |= set(final.values())
    assert told == {False, True}


def rows_of(match: tuple[int, ...], numbers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the rows of each step of a match."""
    first, *counts = match
    ends = list(accumulate(counts, initial=first))
    return tuple(tuple(numbers[begin:end]) for begin, end in pairwise(ends))
