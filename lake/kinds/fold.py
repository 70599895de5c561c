"""Fold: event sourcing, one row per key with the state that its ordered events make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Literal

from attrs import evolve, field, frozen

from lake.errors import DeclarationError, did_you_mean
from lake.kinds.columns import (
    AGAIN,
    AT,
    CARRIED,
    ORDER,
    SIGN,
    as_sql,
    check_not_returned,
    names,
    place,
    same,
    visible,
    with_stored_order,
)
from lake.kinds.grouped_map import arrow_schema
from lake.kinds.kind import APPLIED, ROLE, Kind
from lake.kinds.kind import REFUSED as REFUSED_AS
from lake.kinds.python_values import too_long
from lake.kinds.reducer import HELD, REASON, REFUSED, PythonReducer, Reducer, SqlReducer, Step, state_struct
from lake.lazy import DataFrame, F, Window
from lake.text import field_type, split_fields

_DIGITS: Final = re.compile(r"\b(?:decimal|dec|numeric)\s*\(\s*(\d+)", re.IGNORECASE)


@frozen(kw_only=True)
class Fold(Kind):
    """One row per `key`: the state after its events, in the order of (`sequence`, log order).

    state: the fields with their SQL types, "legs int, airports array<string>"; names that begin with `_` are hidden
    start: {field: plain Python value before the first event}; by default null
    step: {field: SQL over `state.x` and `event.y`}, or a pure Python function (state, event) -> state
    refuse: SQL over both, the reason why an event must not change the state; null if it may. A Python step returns
        Refusal(reason) instead. The state's column `refused` counts a key's refused events
    version: the reducer's version; a changed number is a changed definition

    Example:
        Fold("account", state="balance decimal(18, 2)", step={"balance": "coalesce(state.balance, 0) + event.amount"})
        Fold(
            "order_id",
            sequence="at",
            state="status string, steps int",
            start={"steps": 0},
            step={"status": "event.what", "steps": "state.steps + 1"},
            refuse="if(event.what = 'shipped' and not (state.status <=> 'paid'), 'not paid', null)",
            version=2,
        ).refusals(id="event_id")
    """

    name: ClassVar[str] = "Fold"
    version: ClassVar[int] = 1

    key: tuple[str, ...] = field(converter=names, kw_only=False)
    state: str
    step: Mapping[str, str] | Step = field(eq=False)
    sequence: tuple[str, ...] = field(converter=names, default=())
    start: Mapping[str, Any] | None = None
    refuse: str | None = None
    reducer_version: int = field(default=1, alias="version")
    rows: Literal["state", "refusals"] = "state"
    id: tuple[str, ...] = field(converter=names, default=())
    reducer: Reducer = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "reducer", self._build_reducer())
        conflicts = {*self.key, REFUSED, AT, AGAIN, *CARRIED} & set(self.reducer.fields)
        if conflicts:
            raise DeclarationError(f"state field {min(conflicts)!r} is already a column", fix="rename it")
        if self.rows not in ("state", "refusals"):
            raise DeclarationError(f"unknown rows={self.rows!r}", fix='use rows="state" or rows="refusals"')
        if self.rows == "refusals" and not self.reducer.refuses:
            raise DeclarationError('rows="refusals" needs refuse=…', fix="add refuse=…")
        if (self.rows == "refusals") != bool(self.id):
            raise DeclarationError(
                "refused events are identified by id columns, states by their key",
                fix='rows="refusals", id="event_id"',
            )

    def refusals(self, *, id: str | Sequence[str]) -> Fold:
        """Return the kind of the table of refused events: the function's columns and `reason`.

        `id` names the columns that identify an event of a key.
        """
        return evolve(self, rows="refusals", id=id)

    def _build_reducer(self) -> Reducer:
        fields, start = _parse_state(self.state), dict(self.start or {})
        _check_fields("start", start, fields)
        if not callable(self.step):
            _check_fields("step", self.step, fields)
            return SqlReducer(fields, start, dict(self.step), self.refuse)
        if self.refuse is not None:
            fix = "return Refusal(reason) from it instead"
            raise DeclarationError("refuse is SQL, but step is a Python function", fix=fix)
        return PythonReducer(fields, start, self.step)

    @property
    def revision(self) -> int:
        """One more for a Python step with decimals above 28 digits, which earlier revisions rounded."""
        wide = any(int(digits) > 28 for kind in self.reducer.fields.values() for digits in _DIGITS.findall(kind))
        return self.version + (wide and isinstance(self.reducer, PythonReducer))

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, *(column for column in self.id if column not in self.key))

    @property
    def meanings(self) -> Mapping[str, str]:
        return {REASON: "why the event was refused"} if self.rows == "refusals" else {}

    @property
    def absorbs(self) -> bool:
        return self.rows == "state"

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        return [as_sql(*self.key, *self.sequence)]

    def requires(self, side: int = 0, /) -> dict[str, str]:
        used = {"sequence": self.sequence, "id of an event": self.id, "key": self.key}
        return {column: use for use, columns in used.items() for column in columns}

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        check_not_returned((AT, HELD, "_seen"), rows, self.name)
        return rows

    def evaluate(self, rows: DataFrame) -> DataFrame:
        events = _event_columns(rows)
        placed = with_stored_order(rows).select(*events, F.expr(place(*self.sequence)).alias(AT))
        if self.rows == "state":
            return self.reducer.states(placed, self.key, events)
        return self.reducer.refusals(placed, self.key, events).select(*visible(events), REASON)

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        """Continue from a key's state if all its changes are newer."""
        events = _event_columns(changes)
        placed = with_stored_order(changes).select(*events, SIGN, F.expr(place(*self.sequence)).alias(AT))
        states = old.select(*self.key, state_struct(self.reducer).alias(HELD), F.col(AT).alias("_seen"))
        joined = placed.join(states, same(placed, states, self.key), "left").drop(*[states[name] for name in self.key])
        key = Window.partitionBy(*self.key)
        again = (F.min(SIGN).over(key) < 0) | F.coalesce(F.min(AT).over(key) <= F.col("_seen"), F.lit(False))
        marked = joined.withColumn(AGAIN, again)
        fresh = marked.where(f"not {AGAIN}").select(*events, AT, HELD)
        folded = self.reducer.states(fresh, self.key, events).withColumn(AGAIN, F.lit(False))
        others = marked.where(AGAIN).groupBy(*self.key).agg(F.max(AT).alias(AT), F.lit(True).alias(AGAIN))
        return folded.unionByName(others, allowMissingColumns=True)

    def faults(self, *sides: DataFrame) -> Iterator[DeclarationError]:
        [rows] = sides
        yield from self.reducer.faults(rows)
        typed = [F.lit(None).cast(type_).alias(name) for name, type_ in self.reducer.fields.items()]
        types = {field.name: field.type for field in arrow_schema(rows.select(*typed).schema)}
        for name, value in self.reducer.start.items():
            if (number := too_long(value, types[name])) is not None:
                yield DeclarationError(
                    f"start has {number} for {name}, a {self.reducer.fields[name]}",
                    fix="write it with fewer decimal places",
                )

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        traced = super().traced(rows).withColumn(AT, F.expr(place(*self.sequence)))
        if not self.reducer.refuses:
            return traced.withColumn(ROLE, F.lit(APPLIED))
        events = [*_event_columns(rows), ORDER]
        refused = self.reducer.refusals(traced.select(*events, AT), self.key, events)
        why = refused.select(F.col(ORDER).alias("_refused"), F.col(REASON).alias("_why"))
        answered = traced.join(why, F.expr(f"{ORDER} = _refused"), "left")
        return answered.withColumn(ROLE, F.expr(f"coalesce(concat('{REFUSED_AS}: ', _why), '{APPLIED}')"))


def _event_columns(rows: DataFrame) -> list[str]:
    return [column for column in rows.columns if column not in CARRIED]


def _parse_state(state: str) -> dict[str, str]:
    if re.search(r"\bmap\s*<|\svariant\b", state, re.IGNORECASE):
        raise DeclarationError("a state of maps cannot be compared", fix="use an array of structs")
    with suppress(ValueError):
        fields = dict(map(field_type, parts := split_fields(state)))
        if len(fields) == len(parts) and sum(map(state.count, "<(")) == sum(map(state.count, ")>")):
            return fields
    fix = 'name each field once, with its type: "legs int, at date"'
    raise DeclarationError(f"not a valid state: {state!r}", fix=fix)


def _check_fields(option: str, given: Mapping[str, Any], fields: Mapping[str, str]) -> None:
    for name in given:
        if name not in fields:
            raise DeclarationError(f"{option} has {name!r}, which is not in the state", fix=did_you_mean(name, fields))
