"""Aggregate: measures per key, and per window if one is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, Final, Literal, Self

from attrs import evolve, field, frozen

from lake.errors import DeclarationError
from lake.kinds.columns import AGAIN, SIGN, as_sql, names, same, with_stored_order
from lake.kinds.finality import FINAL, TIMES, WithFinality, is_past
from lake.kinds.kind import COUNTS, DROPPED, INTO, ROLE, TimeBounds
from lake.kinds.measures.measure import ADD, COUNTED, GREATEST, Measure, Ranked, StateColumn, Total, Totals, not_null
from lake.kinds.windows.event_windows import Session, with_sessions
from lake.kinds.windows.window import END, START, Window, is_late
from lake.lazy import Column, DataFrame, F
from lake.lazy import Window as Over
from lake.text import SPARK, quoted

# The number of a group's rows; a group without rows is deleted.
ROWS: Final = "_rows"
RETRACTED: Final = "_retracted"
# End of a group's window: microseconds since 1970, which Spark and DuckDB compare alike.
ENDS: Final = "_ends_us"


@frozen(kw_only=True)
class Aggregate(WithFinality):
    """One row per `key` and window: the key's columns, the window's, and one column per measure.

    window: its `on` is the event time if `late` or `is_final` is used
    late: "drop" or "correct" a row whose event time is more than `lateness` behind the watermark of earlier batches, or
        behind the horizon. The row decides, not the time of processing
    lateness: zero or more
    is_final: adds a column, true if only late rows can still change the window. With late="drop" such a window changes
        only if a closed producer returns in time

    Example:
        Aggregate("carrier", {"flights": Count(), "delay": Avg("arrival_delay")})
        Aggregate("shop", {"amount": Sum("amount")}, window=Calendar(unit="day", on="placed_at", zone="Europe/London"))
        Aggregate(
            "origin",
            {"flights": Count()},
            window=Tumbling(length=timedelta(hours=1), on="departed_at"),
            late="drop",
            lateness=timedelta(hours=2),
            is_final=True,
        )
    """

    name: ClassVar[str] = "Aggregate"
    version: ClassVar[int] = 3

    by: tuple[str, ...] = field(converter=names, kw_only=False, alias="key")
    measures: Mapping[str, Measure] = field(kw_only=False)
    window: Window | None = None
    late: Literal["correct", "drop"] = "correct"

    @property
    def revision(self) -> int:
        measures = max((measure.revised for measure in self.measures.values()), default=0)
        return self.version + measures + (self.window.revised if self.window else 0)

    @property
    def key(self) -> tuple[str, ...]:
        """The declared columns, and the window's if a row alone decides them: then an event touches few groups."""
        return (*self.by, *(self.window.key if self.window else ()))

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.by, *(self.window.identity if self.window else ()))

    @property
    def time_bounds(self) -> Mapping[str, TimeBounds]:
        return {
            **{column: TimeBounds(column) for column in self.by},
            **(self.window.time_bounds if self.window else {}),
        }

    @property
    def meanings(self) -> Mapping[str, str]:
        final = {FINAL: "whether only late rows can change the window any more"} if self.is_final else {}
        return {**(self.window.meanings if self.window else {}), **final}

    @property
    def absorbs(self) -> bool:
        return self.window is None or self.window.absorbs

    @property
    def needs_time(self) -> bool:
        return self.late == "drop" or self.is_final

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        ranked = [measure for measure in self.measures.values() if isinstance(measure, Ranked)]
        return [(*as_sql(*self.by), *measure.by) for measure in ranked]

    def requires(self, side: int = 0, /) -> dict[str, str]:
        return dict.fromkeys(self.by, "key") | (self.window.requires if self.window else {})

    def compared_times(self, side: int = 0, /) -> tuple[str, ...]:
        return (self.window.on,) if self.window else ()

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        if self.late == "drop":
            rows = rows.where(f"not {is_late(self.lateness)}")
        if self.window is None:
            return rows
        column, type_ = self.window.on, dict(rows.dtypes)[self.window.on]
        if type_ not in TIMES:
            raise DeclarationError(f"its window is over {column!r}, a {type_}", fix="use a timestamp or date column")
        return self.window.prepare(rows.where(f"`{column}` is not null"))

    def evaluate(self, rows: DataFrame) -> DataFrame:
        rows = self._gather(rows)
        totals = self._totals(rows)
        return self._close(self._fill(rows, totals).drop(RETRACTED), totals)

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        """Mark a group as AGAIN if it lost a row and a measure cannot retract.

        New sessions merge with existing ones. If a key loses a row, all its sessions are marked: one may split.
        """
        rows = self._gather(changes)
        totals = self._totals(rows)
        new = self._fill(rows, totals)
        opened = {column: totals.adding[column].opened(quoted(column, SPARK)) for column in totals.adding}
        old = old.withColumns({column: F.expr(sql) for column, sql in opened.items()}) if opened else old
        merges = self.window is not None and self.window.merges
        return self._close((self._merge_sessions if merges else self._add_to)(old, new, totals), totals)

    def faults(self, *sides: DataFrame) -> Iterator[DeclarationError]:
        [rows] = sides
        for name, measure in self.measures.items():
            yield from measure.faults(name, rows)

    @property
    def zone(self) -> str | None:
        return getattr(self.window, "zone", None)

    @property
    def late_policy(self) -> tuple[str, timedelta] | None:
        return (self.late, self.lateness) if self.late == "drop" or self.window is not None else None

    @property
    def keeping_late(self) -> Self:
        return evolve(self, late="correct")

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        dropped = is_late(self.lateness) if self.late == "drop" else "false"
        if self.window is not None and self.window.identity != self.window.key:
            rows = rows.where(f"not {dropped}")
        if self.window is not None:
            rows = self.window.gather(rows, self.by)
        into = F.struct(*[F.col(self._groups[column]).alias(column) for column in self.identity])
        return rows.withColumns({INTO: into, ROLE: F.expr(f"if({dropped}, '{DROPPED}', '{COUNTS}')")})

    def _is_final_sql(self, horizons: Sequence[datetime | None]) -> str:
        """Return SQL, true if a row at the last instant of the window would be late."""
        last = ENDS if self.window is not None and self.window.closed else f"{ENDS} - 1"
        return is_past(last, horizons[0], self.lateness)

    def _gather(self, rows: DataFrame) -> DataFrame:
        if any(isinstance(measure, Ranked) for measure in self.measures.values()):
            rows = with_stored_order(rows)
        return rows if self.window is None else self.window.gather(rows, self.by)

    def _totals(self, rows: DataFrame) -> Totals:
        return Totals(self.measures, rows, self.identity)

    def _fill(self, rows: DataFrame, totals: Totals) -> DataFrame:
        """Return one row per group: the state of `rows` alone with open sums, and RETRACTED if it lost a row."""
        plain = {name: state.fill for name, state in self._state.items() if not state.per} | totals.fills
        columns = [F.expr(sql).alias(name) for name, sql in plain.items()]
        filled = rows.groupBy(*self._grouping()).agg(*columns, (F.min(SIGN) < 0).alias(RETRACTED))
        for name, state in self._state.items():
            if state.per:
                filled = self._add_entries(filled, rows, name, state)
        return filled

    def _add_entries(self, filled: DataFrame, rows: DataFrame, name: str, state: StateColumn) -> DataFrame:
        groups = {group: f"_in_{group}" for group in self._groups}
        values = [F.col(source).alias(groups[group]) for group, source in self._groups.items()]
        entries = rows.groupBy(*values, F.expr(state.per).alias("_key")).agg(F.expr(state.fill).alias("_value"))
        entry = "struct(_key as key, _value as value)"
        arrays = (
            entries.where("_key is not null and _value <> 0")
            .groupBy(*groups.values())
            .agg(F.expr(f"sort_array(collect_list({entry}))").alias(name))
        )
        meet = " and ".join(f"`{group}` <=> `{other}`" for group, other in groups.items()) or "true"
        return filled.join(arrays, F.expr(meet), "left").withColumn(name, F.expr(not_null(name))).drop(*groups.values())

    def _combiners(self, new: DataFrame, totals: Totals) -> Mapping[str, tuple[str, Callable[[str, str], str]]]:
        """Return {state column: (SQL type with open sums, SQL of two values combined)}."""
        merged = {name: (new.schema[name].dataType.simpleString(), state.merged) for name, state in self._state.items()}
        added = {name: (adding.open, adding.added) for name, adding in totals.adding.items()}
        return {**merged, **added}

    def _add_to(self, old: DataFrame, new: DataFrame, totals: Totals) -> DataFrame:
        new, known = new.alias("b"), old.alias("a")
        combined = []
        for name, (type_, merged) in self._combiners(new, totals).items():
            before, after = f"a.`{name}`", f"b.`{name}`"
            sql = merged(before, after)
            if name in totals.adding:  # a new group has no sum in `old`
                sql = f"if({before} is null, {after}, {sql})"
            combined.append(F.expr(sql).cast(type_).alias(name))
        again = F.lit(False) if all(m.retracts for m in self.measures.values()) else F.col(f"b.{RETRACTED}")
        groups = [new[name] for name in self._groups]
        return new.join(known, same(new, known, self.identity), "left").select(*groups, *combined, again.alias(AGAIN))

    def _merge_sessions(self, old: DataFrame, new: DataFrame, totals: Totals) -> DataFrame:
        combining = self._combiners(new, totals)
        known = old.select(*self._groups, *combining).withColumn(RETRACTED, F.lit(False))
        both = known.unionByName(new).withColumn(AGAIN, F.max(RETRACTED).over(Over.partitionBy(*self.by)))
        combined = []
        for name, (type_, merged) in combining.items():
            step = f"(a, b) -> cast(if(a is null, b, {merged('a', 'b')}) as {type_})"
            combined.append(F.expr(f"aggregate(collect_list(`{name}`), cast(null as {type_}), {step})").alias(name))
        joint = with_sessions(both, self.by, f"`{START}`", f"`{END}`")
        return joint.groupBy(*self._grouping()).agg(*combined, F.max(AGAIN).alias(AGAIN))

    def _close(self, groups: DataFrame, totals: Totals) -> DataFrame:
        """Return the table's columns, with closed sums, of the groups that have rows."""
        marks = [AGAIN] if AGAIN in groups.columns else []
        present = groups.where(f"{ROWS} > 0" + (f" or {AGAIN}" if marks else ""))
        frame, values = totals.close(present)
        measures = [F.expr(sql).alias(name) for name, sql in values.items()]
        window = self.window
        shown = [*self.by, *(window.names if window else ())]
        state = [name for name in self._columns if name not in self.measures and name not in shown]
        final = [F.lit(False).alias(FINAL)] if self.is_final else []
        ends = [F.expr(f"unix_micros(cast({window.end} as timestamp))").alias(ENDS)] if self.is_final and window else []
        return frame.select(*shown, *measures, *final, *state, *ends, *marks)

    @property
    def _columns(self) -> dict[str, StateColumn | Total]:
        state: dict[str, StateColumn | Total] = {}
        if isinstance(self.window, Session):
            state[END] = StateColumn(self.window.ends, GREATEST)
        state[ROWS] = StateColumn(COUNTED, ADD)
        for name, measure in self.measures.items():
            state |= measure.state(name)
        return state

    @property
    def _state(self) -> dict[str, StateColumn]:
        return {name: state for name, state in self._columns.items() if isinstance(state, StateColumn)}

    @property
    def _groups(self) -> dict[str, str]:
        """{column of the table: column of the gathered rows} for the columns that identify a group."""
        return {name: name for name in self.by} | (self.window.sources if self.window else {})

    def _grouping(self) -> list[Column]:
        return [F.col(source).alias(name) for name, source in self._groups.items()]

    def __attrs_post_init__(self) -> None:
        used_names = [*self.by, *(self.window.names if self.window else ()), *([FINAL] if self.is_final else [])]
        for name, measure in self.measures.items():
            if not isinstance(measure, Measure):
                fix = 'use Count(), Sum("a_column"), CountIf("a condition") and the like'
                raise DeclarationError(f"{name} is not a measure: {measure!r}", fix=fix)
            if measure.of_match:
                what = f"{name} is a measure of a match: {type(measure).__name__}"
                raise DeclarationError(what, fix='use FirstValue("a_column", by="…") or LastValue("a_column", by="…")')
            if name in used_names or name.startswith("_"):
                why = "which is already a column of the table" if name in used_names else "columns with _ are hidden"
                raise DeclarationError(f"invalid name of a measure: {name}, {why}", fix="give it a name of its own")
        if len(set(used_names)) < len(used_names):
            raise DeclarationError(f"column names occur twice: {', '.join(used_names)}", fix="use each name only once")
        if self.late not in ("correct", "drop"):
            raise DeclarationError(f"unknown late policy {self.late!r}", fix="use 'correct' or 'drop'")
        if self.is_final and self.window is None:
            raise DeclarationError("is_final needs a window", fix="declare a window")
