"""Pattern: sequences of conditions over a key's ordered rows, as SQL's MATCH_RECOGNIZE."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce
from typing import ClassVar, Final, Literal

from attrs import field, frozen

from lake.errors import DeclarationError, did_you_mean
from lake.kinds.columns import AT, CARRIED, ORDER, SIGN, as_sql, digest, in_log_order, names, partition_by, place
from lake.kinds.finality import FINAL, TIMES, WithFinality, instant, until
from lake.kinds.grouped_map import SIDE, arrow_schema, by_key, with_keys_together
from lake.kinds.kind import INTO, ROLE
from lake.kinds.kind import STEP as ROLE_STEP
from lake.kinds.matcher import CLOCK, HOLDS, MATCH, MatchWork
from lake.kinds.measures.measure import Measure, StateColumn, Totals
from lake.kinds.sql import rounding
from lake.kinds.steps import PLACE, STEP, Absent, Either, In, Part, Step, every_step, least_rows
from lake.lazy import DataFrame, F, Window
from lake.text import MICROSECOND

MATCH_ID: Final = "match_id"
TIE: Final = "_tie"  # a row's number among those of its key with the same sequence

_PREV: Final = re.compile(r"\bprev\.`?(\w+)")


@frozen(kw_only=True)
class Pattern(WithFinality):
    """One row per match of `steps` over a key's consecutive rows, in the order of (`sequence`, log order).

    Over two logs the function returns a frame of each, with the columns of `key` and `sequence`; the input orders rows
    of equal `sequence`. The leftmost match wins; of matches from one row, the one that greedy and reluctant steps and
    the order of alternatives prefer. `match_id` follows from the key and the place of the match's first row.

    steps: Step or Either; the last may be an Absent
    measures: FirstOf, LastOf, or measures of an Aggregate but CountDistinct, ApproxDistinct and Quantile; In(step, …)
        measures one step
    skip: the next match may begin "past last" row of this one, or "to next", at its second row
    within: the last row is less than this after the first, by the first column of `sequence`, a timestamp
    is_final: adds a column, true if no row within `lateness` can change the match. `sequence` must begin with the event
        time. A match with an Absent has a row before it is final, and may lose it

    Example:
        Pattern(
            "tailnum",
            sequence="departed_at",
            steps=[Step("late", "arrival_delay > 30", times="{3,}"), Step("on_time", "arrival_delay <= 0")],
            measures={"started_at": FirstOf("departed_at"), "worst": In("late", Max("arrival_delay"))},
            skip="to next",
            within=timedelta(days=2),
            lateness=timedelta(hours=1),
            is_final=True,
        )
    """

    name: ClassVar[str] = "Pattern"
    version: ClassVar[int] = 1
    inputs: ClassVar[tuple[int, int]] = (1, 2)
    absorbs: ClassVar[bool] = False  # a late row may undo a match and a new one complete one

    key: tuple[str, ...] = field(converter=names, kw_only=False)
    sequence: tuple[str, ...] = field(converter=names)
    _steps: Sequence[Step | Either | Absent]
    _measures: Mapping[str, Measure | In]
    skip: Literal["past last", "to next"] = "past last"
    within: timedelta | None = None

    def __attrs_post_init__(self) -> None:
        self._check_steps()
        if self.absent is not None and not self.is_final:
            raise DeclarationError(
                "that a row is absent is only known once no more can come", fix="declare is_final=True"
            )
        conflicts = {*self.key, MATCH_ID, *([FINAL] if self.is_final else [])} & set(self._measures)
        if conflicts:
            raise DeclarationError(f"measure {min(conflicts)!r} is already a column", fix="rename it")
        if self.skip not in ("past last", "to next"):
            raise DeclarationError(f"unknown skip={self.skip!r}", fix='use skip="past last" or skip="to next"')
        if self.within is not None and (self.within <= timedelta(0) or not self.sequence):
            raise DeclarationError(
                f"invalid within: {self.within}", fix="use a positive timedelta, and a sequence that begins with a time"
            )
        if self.is_final and not self.sequence:
            raise DeclarationError("is_final needs a sequence", fix="name one that begins with the event time")
        self._check_measures()

    @property
    def steps(self) -> tuple[Part, ...]:
        return tuple(step for step in self._steps if not isinstance(step, Absent))

    @property
    def absent(self) -> Absent | None:
        return next((step for step in self._steps if isinstance(step, Absent)), None)

    @property
    def measures(self) -> Mapping[str, Measure]:
        return {name: given.narrowed() if isinstance(given, In) else given for name, given in self._measures.items()}

    @property
    def revision(self) -> int:
        return self.version + max((measure.revised for measure in self.measures.values()), default=0)

    @property
    def digested(self) -> tuple[str, ...]:
        return (*self.key, *self.sequence)

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, MATCH_ID)

    @property
    def meanings(self) -> Mapping[str, str]:
        return {MATCH_ID: "identifies the match, by its key and its first row", **super().meanings}

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        return [as_sql(*self.key, *self.sequence)]

    def requires(self, side: int = 0, /) -> dict[str, str]:
        return dict.fromkeys(self.sequence, "sequence") | dict.fromkeys(self.key, "key")

    def compared_times(self, side: int = 0, /) -> tuple[str, ...]:
        return self.sequence[:1] if self.within or self.is_final else ()

    def _is_final_sql(self, horizons: Sequence[datetime | None]) -> str:
        return super()._is_final_sql([_least_horizon(horizons)])

    def evaluate(self, *sides: DataFrame) -> DataFrame:
        rows = _unite(sides)
        self._check(rows)
        matched = self._match(rows).withColumn(SIGN, F.lit(1))
        totals, first = Totals(self.measures, matched, self.identity), self._first_row
        states = [item for name, measure in self.measures.items() for item in measure.state(name).items()]
        state = {column: each.fill for column, each in states if isinstance(each, StateColumn)} | totals.fills
        if self.is_final:
            state[until(0)] = f"min(`{until(0)}`)"
        grouped = matched.groupBy(*self.key, MATCH).agg(
            *[F.expr(sql).alias(column) for column, sql in {**first, **state}.items()]
        )
        grouped = grouped.withColumn(MATCH_ID, F.expr(digest(grouped, [*self.key, *first])))
        closed, value_texts = totals.close(grouped)
        values = [F.expr(sql).alias(name) for name, sql in value_texts.items()]
        if self.is_final:
            values += [F.lit(False).alias(FINAL), F.col(until(0))]
        return closed.select(*self.key, MATCH_ID, *values)

    def faults(self, *sides: DataFrame) -> Iterator[DeclarationError]:
        rows = _unite(sides)
        for side in sides:
            for column in side.schema:
                held = rows.schema[column.name].dataType
                if lost := rounding.storage_loss(column.dataType, held):
                    yield DeclarationError(
                        f"{column.name} would lose {lost}: of all inputs together it is a {held.simpleString()}",
                        fix="cast it to one type in the function",
                    )
        matched = rows.withColumn(STEP, F.lit(""))
        for name, measure in self.measures.items():
            yield from measure.faults(name, matched)

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        by = partition_by((*self.key, MATCH))
        firsts = {name: F.expr(f"{sql} over ({by})") for name, sql in self._first_row.items()}
        matched = self._match(rows).withColumns({SIGN: F.lit(1), AT: F.expr(place(*self.sequence)), **firsts})
        into = F.struct(*self.key, F.expr(digest(matched, [*self.key, *firsts])).alias(MATCH_ID))
        return matched.withColumns({INTO: into, ROLE: F.expr(f"concat('{ROLE_STEP} ', {STEP})")})

    def traced_among(self, sides: Sequence[DataFrame], side: int, /) -> DataFrame:
        if len(sides) == 1:
            return self.traced(sides[0])
        traced = self.traced(_unite(sides)).where(f"{ORDER}.{SIDE} = {side}")
        return traced.withColumn(ORDER, F.col(ORDER).dropFields(SIDE))

    @property
    def _first_row(self) -> dict[str, str]:
        return {f"_first_{i}": f"min_by(`{column}`, struct({PLACE}))" for i, column in enumerate((*self.sequence, TIE))}

    def _match(self, rows: DataFrame) -> DataFrame:
        events = [column for column in rows.columns if column not in CARRIED]
        judged = self._with_conditions(with_keys_together(rows.select(*events, ORDER), self.key))
        types = {MATCH: "long", PLACE: "int", STEP: "string", **({until(0): "long"} if self.is_final else {})}
        new = [F.lit(None).cast(kind).alias(name) for name, kind in types.items()]
        out = judged.select(*events, ORDER, TIE, *new).schema
        within, absent = (
            None if length is None else length // MICROSECOND
            for length in (self.within, None if self.absent is None else self.absent.within)
        )
        past_last, last = self.skip == "past last", until(0) if self.is_final else ""
        work = MatchWork(self.key, tuple(events), self.steps, within, absent, past_last, last, arrow_schema(out))
        return by_key(judged, self.key, [*self.sequence, ORDER], work, out)

    def _with_conditions(self, rows: DataFrame) -> DataFrame:
        in_order = Window.partitionBy(*self.key).orderBy(*self.sequence, ORDER)
        equals = Window.partitionBy(*self.key, *self.sequence).orderBy(ORDER)
        conditions = [step.condition if isinstance(step.condition, str) else "" for step in every_step(self.steps)]
        if self.absent is not None:
            conditions.append(self.absent.condition)
        before = sorted({name for sql in conditions for name in _PREV.findall(sql)})
        if before:
            rows = rows.withColumn("prev", F.lag(F.struct(*before)).over(in_order))
        holds = " | ".join(f"if({sql or True}, {1 << i}L, 0L)" for i, sql in enumerate(conditions))
        clock = instant(rows, self.sequence[0]) if self.within or self.is_final else "0L"
        return rows.withColumns({HOLDS: F.expr(holds), CLOCK: F.expr(clock), TIE: F.row_number().over(equals)}).drop(
            "prev"
        )

    def _check(self, rows: DataFrame) -> None:
        types = dict(rows.dtypes)
        if "prev" in types:
            raise DeclarationError(
                "the function returns a column 'prev'", fix="rename it: conditions refer to the previous row as prev"
            )
        if self.within and types[self.sequence[0]] not in TIMES:
            raise DeclarationError(
                f"within needs a time, but {self.sequence[0]!r} is of type {types[self.sequence[0]]}",
                fix="begin the sequence with a time",
            )

    def _check_steps(self) -> None:
        if self.absent is not None and (len(self._steps) > len(self.steps) + 1 or self._steps[-1] is not self.absent):
            raise DeclarationError(
                "only the last step may be an Absent", fix="what may not come in between, leave out of the steps"
            )
        step_names = [step.name for step in every_step(self.steps)]
        twice = {name for name in step_names if step_names.count(name) > 1}
        if twice:
            raise DeclarationError(f"two steps are named {min(twice)!r}", fix="give each a name of its own")
        if not least_rows(self.steps):
            fix = "make at least one step require a row, of an Either one in each alternative"
            raise DeclarationError("the pattern can match no rows at all", fix=fix)
        if len(step_names) > 60:
            raise DeclarationError(f"{len(step_names)} steps are too many", fix="use at most 60")

    def _check_measures(self) -> None:
        step_names = [step.name for step in every_step(self.steps)]
        for name, given in self._measures.items():
            if isinstance(given, In) and given.step not in step_names:
                what = f"measure {name!r} is over the unknown step {given.step!r}"
                raise DeclarationError(what, fix=did_you_mean(given.step, step_names))
        for name, measure in self.measures.items():
            if any(isinstance(state, StateColumn) and state.per for state in measure.state(name).values()):
                raise DeclarationError(
                    f"{type(measure).__name__} cannot be a measure of a match",
                    fix="aggregate the table of matches instead",
                )


def _unite(sides: Sequence[DataFrame]) -> DataFrame:
    """Unite the rows of all inputs; those of several are ordered by input, then by log order.

    Raises DeclarationError for several inputs that are not all logs: rows of tables share no order with others.
    """
    if len(sides) == 1:
        return sides[0]
    if not all(in_log_order(rows) for rows in sides):
        raise DeclarationError(
            "a Pattern over two inputs needs two logs", fix="name logs, or bring the rows together in a View first"
        )
    placed = []
    for side, rows in enumerate(sides):
        parts = [F.col(f"{ORDER}.{part}").alias(part) for part in rows.select(f"{ORDER}.*").columns]
        placed.append(rows.withColumn(ORDER, F.struct(F.lit(side).alias(SIDE), *parts)))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), placed)


def _least_horizon(horizons: Sequence[datetime | None]) -> datetime | None:
    """Return the least horizon; None if a log has no events, or none is given."""
    known = [horizon for horizon in horizons if horizon is not None]
    return min(known) if known and len(known) == len(horizons) else None
