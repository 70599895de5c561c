"""Steps of a Pattern: their conditions, and the numbers of rows that they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar, Final

from lake.errors import DeclarationError
from lake.kinds.measures.measure import Count, CountIf, Measure, OfValues, StateColumn
from lake.text import SPARK, literal

Condition = Callable[[dict[str, Any], Mapping[str, list[dict[str, Any]]]], bool]

STEP: Final = "_step"  # the step that a row of a match belongs to
PLACE: Final = "_place"  # a row's number in its match, from 0

_TIMES: Final = re.compile(r"(?:([?+*])|\{(\d+)(,?)(\d*)\})(\??)")
_BOUNDS: Final[dict[str, tuple[int, int | None]]] = {"?": (0, 1), "+": (1, None), "*": (0, None)}


@dataclass(frozen=True)
class Step:
    """Consecutive rows of a match that satisfy `condition`, in the number that `times` allows.

    condition: SQL over the row's columns and `prev.<column>` of the key's row before it; or a Python function
        (event, matched) -> bool, in which `matched` has each step's rows so far; by default any row
    times: as in a regular expression: 1, n, (n, m), "?", "+", "*", "{n}", "{n,}" or "{n,m}". Greedy; reluctant with "?"
        after it ("+?", "{2,4}?")
    """

    name: str
    condition: str | Condition = ""
    times: int | tuple[int, int] | str = field(default=1, kw_only=True)
    least: int = field(init=False)
    most: int | None = field(init=False)
    greedy: bool = field(init=False)

    def __post_init__(self) -> None:
        least, most, greedy = _parse_times(self.name, self.times)
        if most is not None and not 0 <= least <= most > 0:
            raise DeclarationError(
                f"step {self.name!r} matches from {least} to {most} rows",
                fix="the least must be 0 or more, the most at least 1 and the least",
            )
        for name, value in (("least", least), ("most", most), ("greedy", greedy)):
            object.__setattr__(self, name, value)


def _parse_times(name: str, times: int | tuple[int, int] | str) -> tuple[int, int | None, bool]:
    if isinstance(times, int):
        return times, times, True
    if not isinstance(times, str):
        return (*times, True)
    match = _TIMES.fullmatch(times)
    if not match:
        raise DeclarationError(
            f"step {name!r} has invalid times={times!r}", fix='use 1, (2, 4), "?", "+", "*", "{2,}" or "+?"'
        )
    sign, least, comma, most, reluctant = match.groups()
    if sign:
        return (*_BOUNDS[sign], not reluctant)
    return int(least), int(most) if most else None if comma else int(least), not reluctant


@dataclass(frozen=True, init=False)
class Either:
    """Choice of alternatives, each a step or a list of steps, as `a | b c` in MATCH_RECOGNIZE.

    The first alternative that leaves the rest of the pattern possible is taken (ISO/IEC 19075-5, 7.2). Steps of the
    others have no rows.
    """

    alternatives: tuple[tuple[Step | Either, ...], ...]

    def __init__(self, *alternatives: Step | Either | Sequence[Step | Either]) -> None:
        steps = tuple((part,) if isinstance(part, Step | Either) else tuple(part) for part in alternatives)
        if len(steps) < 2:
            raise DeclarationError("Either needs alternatives", fix='name two or more: Either(Step("a"), Step("b"))')
        if not all(steps) or not all(isinstance(part, Step | Either) for parts in steps for part in parts):
            raise DeclarationError(
                "an alternative of Either is neither a step nor a list of steps",
                fix='write Either(Step("a"), [Step("b"), Step("c")])',
            )
        object.__setattr__(self, "alternatives", steps)


Part = Step | Either


@dataclass(frozen=True)
class Absent:
    """Last step of a pattern: no row that satisfies `condition` comes less than `within` after the match's last row.

    It takes no rows. `condition` is SQL over such a row's columns; by default any row.
    """

    condition: str = ""
    within: timedelta = field(kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.condition, str):
            raise DeclarationError("the condition of Absent is not SQL", fix="write it as text")
        if re.search(r"\bprev\.", self.condition):
            raise DeclarationError(
                "the condition of Absent asks for prev",
                fix="let it go by the row alone, which later rows do not change",
            )
        if self.within <= timedelta(0):
            raise DeclarationError(f"invalid within of Absent: {self.within}", fix="use a positive timedelta")


def every_step(parts: Sequence[Part]) -> Iterator[Step]:
    """Yield the steps of a pattern and of all alternatives, in written order."""
    for part in parts:
        if isinstance(part, Step):
            yield part
        else:
            for alternative in part.alternatives:
                yield from every_step(alternative)


def least_rows(parts: Sequence[Part]) -> int:
    return sum(part.least if isinstance(part, Step) else min(map(least_rows, part.alternatives)) for part in parts)


@dataclass(frozen=True)
class OfMatch(OfValues):
    """Value of `of`, null or not, in the row at one end of the match, among rows for which `where` is true."""

    retracts: ClassVar[bool] = False
    of_match: ClassVar[bool] = True
    pick: ClassVar[str]

    def state(self, name: str) -> Mapping[str, StateColumn]:
        return {name: StateColumn(f"{self.pick}({self.of}, if({self.where or True}, struct({PLACE}), null))", "")}


@dataclass(frozen=True)
class FirstOf(OfMatch):
    """Value of `of` in the first row of the match, null or not; FirstValue has an order of its own and skips nulls."""

    pick: ClassVar[str] = "min_by"


@dataclass(frozen=True)
class LastOf(OfMatch):
    """Value of `of` in the last row of the match, null or not; LastValue has an order of its own and skips nulls."""

    pick: ClassVar[str] = "max_by"


@dataclass(frozen=True)
class In:
    """Measure over the rows of one step only: In("down", Min("price"))."""

    step: str
    measure: Measure

    def narrowed(self) -> Measure:
        mine = f"{STEP} = {literal(self.step, SPARK)}"
        if isinstance(self.measure, Count):
            return CountIf(mine)
        if isinstance(self.measure, CountIf):
            return CountIf(f"{mine} and ({self.measure.condition})")
        if isinstance(self.measure, OfValues):
            return replace(self.measure, where=f"{mine} and ({self.measure.where or True})")
        raise DeclarationError(f"{type(self.measure).__name__} cannot be limited to a step")
