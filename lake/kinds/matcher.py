"""The matcher of a Pattern: which rows of a key are matches, leftmost first.

Every step of a pattern takes consecutive rows, so a match is a number of rows for each step, none for those of
alternatives that were not taken. Where conditions look at rows alone, the earliest end that the rest of the pattern
can have is found for every row from right to left; then each step, from left to right, takes as many rows (greedy) or
as few (reluctant) as leave the rest possible, and of alternatives the first that does: what a backtracking matcher
finds first, in time linear in rows times steps. Conditions over the running match do backtrack.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lake.kinds.grouped_map import WorkerFault, key_starts, records, written
from lake.kinds.python_values import many_digits
from lake.kinds.steps import PLACE, STEP, Condition, Either, Part, Step, every_step

HOLDS: Final = "_holds"  # bit i: whether the row satisfies step i
CLOCK: Final = "_clock"  # microseconds, for `within`
MATCH: Final = "_match"  # the number in its key of a match's first row

Find = Callable[[int], list[int] | None]


@dataclass(frozen=True)
class Link:
    """A step in a chain: `runs`, how many rows it can take from each row on; `after`, the ends of what comes after."""

    step: Step
    number: int
    runs: list[int]
    after: list[int]


@dataclass(frozen=True)
class Fork:
    """An Either in a chain."""

    chains: list[Chain]


@dataclass(frozen=True)
class Chain:
    """What comes one after the other, and for each row the earliest end of it and of all that comes after it."""

    links: list[Link | Fork]
    ends: list[int]


@dataclass(frozen=True)
class Matching:
    """What a worker does with a batch of whole keys: the rows of their matches, with MATCH, PLACE and STEP."""

    key: tuple[str, ...]
    events: tuple[str, ...]
    steps: tuple[Part, ...]
    within_us: int | None
    past_last: bool
    out: pa.Schema

    @property
    def functions(self) -> tuple[Condition, ...]:
        return tuple(step.condition for step in every_step(self.steps) if callable(step.condition))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the matches in `batch`, match by match; a row is there once for each match it is in."""
        holds = batch.column(HOLDS).to_pylist()
        seen = records(batch, self.events) if self.functions else []
        stops = self._stops(batch)
        starts = key_starts(batch, self.key)
        called = [step.name for step in every_step(self.steps)]
        taken: list[tuple[int, int, int, str]] = []
        for begin, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            find: Find
            if self.functions:
                find = Backtracking(self.steps, holds[begin:end], stops(begin, end), seen[begin:end]).find
            else:
                find = Reaching(self.steps, holds[begin:end], stops(begin, end)).find
            with many_digits():
                matched = list(matches(find, end - begin, past_last=self.past_last))
            for first, counts in matched:
                names = [name for name, count in zip(called, counts, strict=True) for _ in range(count)]
                taken += [(begin + first + i, first, i, name) for i, name in enumerate(names)]
        rows, first_rows, places, steps = zip(*taken, strict=True) if taken else ((), (), (), ())
        new = {MATCH: first_rows, PLACE: places, STEP: steps}
        events = batch.take(pa.array(rows, pa.int64()))
        columns = [
            pa.array(new[field.name], field.type) if field.name in new else events.column(field.name)
            for field in self.out
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.out)

    def _stops(self, batch: pa.RecordBatch) -> Callable[[int, int], list[int]]:
        """For rows begin to end of a key: for each the row before which a match from it must end."""
        within = self.within_us
        if within is None:
            return lambda begin, end: [end - begin] * (end - begin)
        # Rows without a time come first, and are together in a time of their own.
        times = [-(1 << 63) if time is None else time for time in batch.column(CLOCK).to_pylist()]

        def stops(begin: int, end: int) -> list[int]:
            return [bisect_left(times, time + within, begin, end) - begin for time in times[begin:end]]

        return stops


def matches(find: Find, rows: int, *, past_last: bool) -> Iterator[tuple[int, list[int]]]:
    """The first row of each match, and the number of rows of each step."""
    row = 0
    while row < rows:
        counts = find(row)
        if counts is not None:
            yield row, counts
        row += sum(counts) if counts is not None and past_last else 1


class Reaching:
    """Finds matches by the earliest end that each row allows. `holds` has a bit for each step, `stops` is exclusive."""

    def __init__(self, parts: Sequence[Part], holds: Sequence[int], stops: Sequence[int]) -> None:
        self.stops = stops
        self.never = len(holds) + 1
        self.numbers = {step.name: number for number, step in enumerate(every_step(parts))}
        self.whole = self._chain(parts, holds, list(range(self.never)))

    def find(self, row: int) -> list[int] | None:
        """The match that begins at `row`: rows a step; None if there is none."""
        if self.whole.ends[row] > self.stops[row]:
            return None
        counts = [0] * len(self.numbers)
        self._take(self.whole, row, self.stops[row], counts)
        return counts

    def _take(self, chain: Chain, row: int, stop: int, counts: list[int]) -> int:
        """Puts into `counts` what the links of `chain` take from `row` on; returns the row after that."""
        for link in chain.links:
            if isinstance(link, Fork):
                row = self._take(next(each for each in link.chains if each.ends[row] <= stop), row, stop, counts)
                continue
            step, after = link.step, link.after
            most = link.runs[row] if step.most is None else min(step.most, link.runs[row])
            choices = range(most, step.least - 1, -1) if step.greedy else range(step.least, most + 1)
            count = next(count for count in choices if after[row + count] <= stop)
            counts[link.number] = count
            row += count
        return row

    def _chain(self, parts: Sequence[Part], holds: Sequence[int], after: list[int]) -> Chain:
        """`parts` with the earliest ends that they allow, where `after` are those of what comes after them."""
        links: list[Link | Fork] = []
        for part in reversed(parts):
            if isinstance(part, Step):
                number = self.numbers[part.name]
                runs = _runs(holds, 1 << number)
                links.append(Link(part, number, runs, after))
                after = self._earliest(part, runs, after)
            else:
                chains = [self._chain(each, holds, after) for each in part.alternatives]
                links.append(Fork(chains))
                after = [min(ends) for ends in zip(*(chain.ends for chain in chains), strict=True)]
        return Chain(links[::-1], after)

    def _earliest(self, step: Step, runs: list[int], after: list[int]) -> list[int]:
        """For each row the earliest end of `step` and what comes after it, whose ends are `after`."""
        least, most, never = step.least, step.most, self.never
        if most is not None:
            return [
                min((after[row + count] for count in range(least, min(most, run) + 1)), default=never)
                for row, run in enumerate(runs)
            ]
        star = list(after)  # of any number of rows
        for row in range(len(runs) - 2, -1, -1):
            if runs[row] and star[row + 1] < star[row]:
                star[row] = star[row + 1]
        return [star[row + least] if run >= least else never for row, run in enumerate(runs)]


def _runs(holds: Sequence[int], bit: int) -> list[int]:
    """For each row, and the end, how many rows from it on have `bit`."""
    runs = [0]
    for held in reversed(holds):
        runs.append(runs[-1] + 1 if held & bit else 0)
    return runs[::-1]


class Backtracking:
    """Finds matches where conditions look at the rows matched so far."""

    def __init__(
        self, parts: Sequence[Part], holds: Sequence[int], stops: Sequence[int], events: list[dict[str, Any]]
    ) -> None:
        self.parts, self.holds, self.stops, self.events = tuple(parts), holds, stops, events
        self.numbers = {step.name: number for number, step in enumerate(every_step(parts))}
        self.matched: dict[str, list[dict[str, Any]]] = {name: [] for name in self.numbers}

    def find(self, row: int) -> list[int] | None:
        """The match that begins at `row`: rows a step; None if there is none."""
        for rows in self.matched.values():
            rows.clear()
        found = self._rest(self.parts, row, self.stops[row])
        return [len(rows) for rows in self.matched.values()] if found else None

    def _rest(self, parts: tuple[Part, ...], row: int, stop: int) -> bool:
        """Whether `parts` can take rows from `row` on, which are matched then; where not, nothing is left matched."""
        if not parts:
            return True
        step, later = parts[0], parts[1:]
        if isinstance(step, Either):
            return any(self._rest((*each, *later), row, stop) for each in step.alternatives)
        rows = self.matched[step.name]
        if step.greedy:
            while self._takes(step, row + len(rows), stop):
                rows.append(self.events[row + len(rows)])
        while True:
            if len(rows) >= step.least and self._rest(later, row + len(rows), stop):
                return True
            if step.greedy and len(rows) > step.least:
                rows.pop()
            elif not step.greedy and self._takes(step, row + len(rows), stop):
                rows.append(self.events[row + len(rows)])
            else:
                rows.clear()
                return False

    def _takes(self, step: Step, row: int, stop: int) -> bool:
        """Whether the step takes one more row."""
        if row >= stop or len(self.matched[step.name]) == step.most:
            return False
        if not self.holds[row] >> self.numbers[step.name] & 1:
            return False
        if not callable(step.condition):
            return True
        try:
            return bool(step.condition(self.events[row], self.matched))
        except Exception as error:
            raise WorkerFault(
                f"step {step.name}: {type(error).__name__}: {error} at {self.events[row]!r}",
                where=written(step.condition),
                fix="return whether the row belongs to the step",
            ) from error
