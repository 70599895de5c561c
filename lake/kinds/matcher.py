"""Matcher of a Pattern: finds the matches among the rows of a key, leftmost first.

Every step takes consecutive rows, so a match is a number of rows for each step. If conditions read rows alone, the
earliest end of the rest of the pattern is computed for every row from right to left. Then each step, from left to
right, takes as many rows (greedy) or as few (reluctant) as leave the rest possible, and the first possible alternative.
This is the first match of a backtracking matcher, in time linear in rows times steps. Conditions over the running match
do backtrack.

Only rows up to the last examined one can change a match: rows behind it leave the search as it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from lake.kinds.columns import ORDER
from lake.kinds.grouped_map import WorkerFault, key_starts, records, source_of
from lake.kinds.python_values import many_digits
from lake.kinds.steps import PLACE, STEP, Condition, Either, Part, Step, every_step

HOLDS: Final = "_holds"  # bit i: the row satisfies step i
CLOCK: Final = "_clock"  # microseconds, for `within`
MATCH: Final = "_match"  # the number of a match's first row in its key

NOTHING: Final = -(1 << 63)  # time before all rows, and of rows without one, which come first
LATEST: Final = (1 << 63) - 1  # time behind the last row


class SearchResult(NamedTuple):
    """Rows of each step from a row on, None without a match, and the time of the last examined row."""

    counts: list[int] | None
    seen: int


Find = Callable[[int], SearchResult]


class RestOfPattern(NamedTuple):
    """Rest of a pattern, from each row and from the end.

    ends: the earliest end
    seen: the time of the last row that a failing search examines; empty without times
    """

    ends: list[int]
    seen: list[int]


@dataclass(frozen=True)
class StepLink:
    """Step in a chain: `runs`, the rows that it can take from each row on; `after`, the rest of the pattern."""

    step: Step
    number: int
    runs: list[int]
    after: RestOfPattern


@dataclass(frozen=True)
class Fork:
    chains: list[Chain]


@dataclass(frozen=True)
class Chain:
    """Consecutive links; `ahead` covers them and the rest of the pattern."""

    links: list[StepLink | Fork]
    ahead: RestOfPattern


@dataclass(frozen=True)
class MatchWork:
    """Work on whole keys: return the rows of their matches, with MATCH, PLACE and STEP.

    until: the column for the last time of a row that could change the match; "" if none is wanted
    absent_us: time after a match in which no row may satisfy the Absent, whose bit follows those of the steps
    """

    key: tuple[str, ...]
    events: tuple[str, ...]
    steps: tuple[Part, ...]
    within_us: int | None
    absent_us: int | None
    past_last: bool
    until: str
    out: pa.Schema

    @property
    def functions(self) -> tuple[Condition, ...]:
        return tuple(step.condition for step in every_step(self.steps) if callable(step.condition))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        holds = batch.column(HOLDS).to_pylist()
        events = records(batch, self.events) if self.functions else []
        times = [NOTHING if time is None else time for time in batch.column(CLOCK).to_pylist()]
        starts = key_starts(batch, self.key)
        called = [step.name for step in every_step(self.steps)]
        output: list[tuple[int, int, int, str, int]] = []
        for begin, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            rows = KeyRows.of(holds[begin:end], times[begin:end], self.within_us, self.absent_us, 1 << len(called))
            find: Find
            if self.functions:
                orders = batch.column(ORDER).slice(begin, end - begin)
                find = BacktrackingMatcher(self.steps, rows, events[begin:end], orders).find
            else:
                find = LinearMatcher(self.steps, rows, records_seen=bool(self.until)).find
            with many_digits():
                matched = list(matches(find, rows, past_last=self.past_last))
            for first, counts, until in matched:
                names = [name for name, count in zip(called, counts, strict=True) for _ in range(count)]
                output += [(begin + first + i, first, i, name, until) for i, name in enumerate(names)]
        numbers, first_rows, places, steps, untils = zip(*output, strict=True) if output else ((), (), (), (), ())
        new = {MATCH: first_rows, PLACE: places, STEP: steps, self.until: untils}
        events = batch.take(pa.array(numbers, pa.int64()))
        columns = [
            pa.array(new[field.name], field.type) if field.name in new else events.column(field.name)
            for field in self.out
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.out)


@dataclass(frozen=True)
class KeyRows:
    """Rows of a key, in order. `times` has one more, for the end; `stops` and `ends` are exclusive.

    holds: the steps that a row satisfies, as bits
    stops: the row before which a match from a row must end; `bounds`: its last possible time
    quiet: the time until which no Absent row may come after a match that ends with a row
    ends: the row itself if a match may end before it, else a number above all rows
    """

    holds: Sequence[int]
    times: Sequence[int]
    stops: Sequence[int]
    bounds: Sequence[int]
    quiet: Sequence[int]
    ends: list[int]

    @classmethod
    def of(
        cls,
        holds: Sequence[int],
        times: Sequence[int],
        within: int | None = None,
        absent: int | None = None,
        bit: int = 0,
    ) -> KeyRows:
        """Limit matches to the time `within`; no row with `bit` may come in the time `absent` after their last row."""
        number, shown = len(holds), [*times, LATEST]
        stops, bounds = [number] * number, [LATEST] * number
        if within is not None:
            stops = [bisect_left(times, time + within) for time in times]
            bounds = [time + within - 1 for time in times]
        if absent is None:
            return cls(holds, shown, stops, bounds, [NOTHING] * number, list(range(number + 1)))
        quiet = [time + absent - 1 for time in times]
        ends, following = [number + 1] * (number + 1), number
        for row in range(number, 0, -1):
            if row < number and holds[row] & bit:
                following = row
            # A row without a time may be followed by any row.
            if times[row - 1] != NOTHING and shown[following] > quiet[row - 1]:
                ends[row] = row
        return cls(holds, shown, stops, bounds, quiet, ends)


def matches(find: Find, rows: KeyRows, *, past_last: bool) -> Iterator[tuple[int, list[int], int]]:
    """Yield the first row of each match, the rows of each step, and the last time of a row that could change it.

    With `past_last`, rows examined by earlier searches may change it too.
    """
    row, before = 0, NOTHING
    while row < len(rows.holds):
        counts, seen = find(row)
        until = max(before, min(seen, rows.bounds[row]))
        if counts is not None:
            until = max(until, rows.quiet[row + sum(counts) - 1])
            yield row, counts, until
        if past_last:
            before = until
        row += sum(counts) if counts is not None and past_last else 1


class LinearMatcher:
    """Finder of matches by the earliest end that each row allows; records the examined rows only if `records_seen`."""

    def __init__(self, parts: Sequence[Part], rows: KeyRows, *, records_seen: bool = True) -> None:
        self.stops, self.times = rows.stops, rows.times if records_seen else ()
        self.never = len(rows.holds) + 1
        self.numbers = {step.name: number for number, step in enumerate(every_step(parts))}
        self.whole = self._chain(parts, rows.holds, RestOfPattern(rows.ends, [NOTHING] * len(self.times)))
        self.seen = NOTHING

    def find(self, row: int) -> SearchResult:
        ahead, stop = self.whole.ahead, self.stops[row]
        if ahead.ends[row] > stop:
            return SearchResult(None, ahead.seen[row] if ahead.seen else LATEST)
        counts, self.seen = [0] * len(self.numbers), NOTHING
        self._take(self.whole, row, stop, counts)
        return SearchResult(counts, self.seen if self.times else LATEST)

    def _take(self, chain: Chain, row: int, stop: int, counts: list[int]) -> int:
        """Store in `counts` how many rows each link takes from `row` on; return the row after them."""
        for link in chain.links:
            if isinstance(link, Fork):
                number = next(number for number, branch in enumerate(link.chains) if branch.ahead.ends[row] <= stop)
                if self.times:
                    self._record_seen(branch.ahead.seen[row] for branch in link.chains[:number])
                row = self._take(link.chains[number], row, stop, counts)
                continue
            step, after = link.step, link.after
            most = link.runs[row] if step.most is None else min(step.most, link.runs[row])
            choices = range(most, step.least - 1, -1) if step.greedy else range(step.least, most + 1)
            count = next(count for count in choices if after.ends[row + count] <= stop)
            if self.times:
                self._record_seen(after.seen[row + other] for other in choices[: choices.index(count)])
                last = self._last_examined(step, row, link.runs[row]) if step.greedy else row + count - 1
                self._record_seen([self.times[last]] if last >= row else [])
            counts[link.number] = count
            row += count
        return row

    def _record_seen(self, seen: Iterable[int]) -> None:
        self.seen = max(self.seen, *seen, NOTHING)

    def _last_examined(self, step: Step, row: int, run: int) -> int:
        return row + (run if step.most is None else min(run, step.most - 1))

    def _chain(self, parts: Sequence[Part], holds: Sequence[int], after: RestOfPattern) -> Chain:
        links: list[StepLink | Fork] = []
        for part in reversed(parts):
            if isinstance(part, Step):
                number = self.numbers[part.name]
                runs = _runs(holds, 1 << number)
                links.append(StepLink(part, number, runs, after))
                seen = self._furthest(part, runs, after.seen) if self.times else []
                after = RestOfPattern(self._earliest(part, runs, after.ends), seen)
            else:
                chains = [self._chain(steps, holds, after) for steps in part.alternatives]
                links.append(Fork(chains))
                ends = [min(ends) for ends in zip(*(chain.ahead.ends for chain in chains), strict=True)]
                after = RestOfPattern(
                    ends, [max(seen) for seen in zip(*(chain.ahead.seen for chain in chains), strict=True)]
                )
        return Chain(links[::-1], after)

    def _earliest(self, step: Step, runs: list[int], after: list[int]) -> list[int]:
        """Return for each row the earliest end of `step` and the rest, whose ends are `after`."""
        least, most, never = step.least, step.most, self.never
        if most is not None:
            return [
                min((after[row + count] for count in range(least, min(most, run) + 1)), default=never)
                for row, run in enumerate(runs)
            ]
        star = list(after)  # any number of rows
        for row in range(len(runs) - 2, -1, -1):
            if runs[row] and star[row + 1] < star[row]:
                star[row] = star[row + 1]
        return [star[row + least] if run >= least else never for row, run in enumerate(runs)]

    def _furthest(self, step: Step, runs: list[int], after: list[int]) -> list[int]:
        """Return for each row how far a failing search for `step` and the rest looks."""
        least, most = step.least, step.most
        own = [self.times[self._last_examined(step, row, run)] for row, run in enumerate(runs)]
        if most is not None:
            return [
                max(own[row], *(after[row + count] for count in range(least, min(most, run) + 1)), NOTHING)
                for row, run in enumerate(runs)
            ]
        star = list(after)
        for row in range(len(runs) - 2, -1, -1):
            if runs[row] and star[row + 1] > star[row]:
                star[row] = star[row + 1]
        return [max(own[row], star[row + least]) if run >= least else own[row] for row, run in enumerate(runs)]


def _runs(holds: Sequence[int], bit: int) -> list[int]:
    runs = [0]
    for held in reversed(holds):
        runs.append(runs[-1] + 1 if held & bit else 0)
    return runs[::-1]


class BacktrackingMatcher:
    """Finder of matches whose conditions read the rows matched so far."""

    def __init__(self, parts: Sequence[Part], rows: KeyRows, events: list[dict[str, Any]], orders: pa.Array) -> None:
        self.parts, self.rows, self.events, self.orders = tuple(parts), rows, events, orders
        self.numbers = {step.name: number for number, step in enumerate(every_step(parts))}
        self.matched: dict[str, list[dict[str, Any]]] = {name: [] for name in self.numbers}
        self.last_examined = 0

    def find(self, row: int) -> SearchResult:
        for rows in self.matched.values():
            rows.clear()
        self.last_examined = row
        path = self._match(self.parts, row, self.rows.stops[row])
        counts = [len(rows) for rows in self.matched.values()] if path else None
        return SearchResult(counts, self.rows.times[self.last_examined])

    def _match(self, parts: tuple[Part, ...], row: int, stop: int) -> bool:
        """Match `parts` from `row` on; leave nothing matched if that is impossible."""
        if not parts:
            return self.rows.ends[row] == row
        step, later = parts[0], parts[1:]
        if isinstance(step, Either):
            return any(self._match((*steps, *later), row, stop) for steps in step.alternatives)
        rows = self.matched[step.name]
        if step.greedy:
            while self._accepts(step, row + len(rows), stop):
                rows.append(self.events[row + len(rows)])
        while True:
            if len(rows) >= step.least and self._match(later, row + len(rows), stop):
                return True
            if step.greedy and len(rows) > step.least:
                rows.pop()
            elif not step.greedy and self._accepts(step, row + len(rows), stop):
                rows.append(self.events[row + len(rows)])
            else:
                rows.clear()
                return False

    def _accepts(self, step: Step, row: int, stop: int) -> bool:
        if len(self.matched[step.name]) == step.most:
            return False
        self.last_examined = max(self.last_examined, row)
        if row >= stop or not self.rows.holds[row] >> self.numbers[step.name] & 1:
            return False
        if not callable(step.condition):
            return True
        try:
            return bool(step.condition(self.events[row], self.matched))
        except (Exception, SystemExit) as error:
            raise WorkerFault(
                f"step {step.name}: {type(error).__name__}: {error} at {self.events[row]!r}",
                where=source_of(step.condition),
                fix="return whether the row belongs to the step",
                order=self.orders[row].as_py(),
            ) from error
