"""Reducers of a Fold, in Spark SQL or in Python: the state of a key after an event."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa

from lake.errors import DeclarationError
from lake.kinds.columns import AT, ORDER, one_zero
from lake.kinds.grouped_map import WorkerFault, arrow_schema, by_key, key_starts, records, source_of, with_keys_together
from lake.kinds.python_values import Normal, many_digits, normal
from lake.kinds.sql import rounding
from lake.lazy import Column, DataFrame, F, T
from lake.text import field_type, type_parts

REFUSED: Final = "refused"  # the number of a key's refused events
REASON: Final = "reason"
REFUSALS: Final = "_refusals"  # the refused events in the state of an SQL fold
HELD: Final = "_held"  # the state from which a key's fold continues; null at its start

# SQL types of a state's fields as Arrow types.
PLAIN: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

Forms = Mapping[str, Normal]
Step = Callable[[dict[str, Any], dict[str, Any]], "dict[str, Any] | Refusal"]


@dataclass(frozen=True)
class Refusal:
    """Result of a Python reducer for an event that must not change the state."""

    reason: str


@dataclass(frozen=True)
class SqlReducer:
    """Reducer in Spark SQL: {field: expression over `state.x` and `event.y`}; a field without one stays.

    fields: the SQL type of each field of the state
    start: the state before the first event, without nulls
    refuse: SQL over both, the reason why an event is refused, or null
    """

    fields: Mapping[str, str]
    start: Mapping[str, Any]
    step: Mapping[str, str]
    refuse: str | None = None

    @property
    def refuses(self) -> bool:
        return self.refuse is not None

    def faults(self, rows: DataFrame) -> Iterator[DeclarationError]:
        """Yield errors if the state would be rounded over the function's `rows`; reads types alone."""
        state = ", ".join(f"`{name}`: {type_}" for name, type_ in self.fields.items())
        both = rows.select(F.struct("*").alias("event"), F.lit(None).cast(f"struct<{state}>").alias("state"))
        for name, sql in (*self.step.items(), ("refuse", self.refuse or "")):
            yield from rounding.faults(name, sql, both)
        types = both.select("state.*").schema
        for name, sql in self.step.items():
            given, held = rounding.type_of(both, sql), types[name].dataType
            if given is not None and (lost := rounding.storage_loss(given, held)):
                yield DeclarationError(
                    f"{name} would lose {lost}: {sql} is a {given.simpleString()}, {name} a {held.simpleString()}",
                    fix="say how it is rounded: round(…, 2), cast(…), or give the state's field a wider type",
                )

    def states(self, rows: DataFrame, key: Sequence[str], events: Sequence[str]) -> DataFrame:
        """Return for each key of `rows` its state, REFUSED if it refuses, and AT.

        `rows` have the key, the columns `events` of the declared function, AT, and HELD if folds continue.
        """
        columns = [*self.fields, *([REFUSED] if self.refuses else [])]
        return self._fold(rows, key, events).select(*key, *[f"_state.`{name}`" for name in columns], AT)

    def refusals(self, rows: DataFrame, key: Sequence[str], events: Sequence[str]) -> DataFrame:
        """Return the refused events: columns `events` and REASON."""
        folded = self._fold(rows, key, events, keep=True).selectExpr(f"explode(_state.{REFUSALS}) as _refusal")
        return folded.selectExpr(*[f"_refusal.event.`{name}`" for name in events], f"_refusal.{REASON}")

    def _fold(self, rows: DataFrame, key: Sequence[str], events: Sequence[str], *, keep: bool = False) -> DataFrame:
        types, start = dict(self.fields), {name: self.start.get(name) for name in self.fields}
        if self.refuses:
            types[REFUSED], start[REFUSED] = "bigint", 0
        if keep:
            event = rows.select(*events).schema.simpleString()
            types[REFUSALS], start[REFUSALS] = f"array<struct<{REASON}: string, event: {event}>>", []
        # The cast makes every field nullable.
        state = "struct<" + ", ".join(f"`{name}`: {kind}" for name, kind in types.items()) + ">"
        begin = F.struct(*[literal(value).alias(name) for name, value in start.items()]).cast(state)
        resumed = [F.any_value(HELD).cast(state).alias(HELD)] if HELD in rows.columns else []
        placed = F.struct(F.col(AT).alias("at"), F.struct(*events).alias("event"))
        grouped = rows.groupBy(*key).agg(F.sort_array(F.collect_list(placed)).alias("_events"), *resumed)
        folds = grouped.where("size(_events) > 0").withColumn("_start", F.coalesce(HELD, begin) if resumed else begin)
        step = self._step(types, state)
        zeroed = one_zero("s", rows.select(begin.alias("s")).schema["s"].dataType)
        if zeroed != "s":
            step = f"transform(array({step}), s -> cast({zeroed} as {state}))[0]"
        fold = F.expr(f"aggregate(_events.event, _start, (state, event) -> {step})")
        return folds.select(*key, fold.alias("_state"), F.expr("element_at(_events, -1).at").alias(AT))

    def _step(self, types: Mapping[str, str], state: str) -> str:
        stay = {name: f"state.`{name}`" for name in types}
        applied = _struct({**stay, **self.step}, state)
        if self.refuse is None:
            return applied
        refused = {REFUSED: f"state.{REFUSED} + 1L"}
        if REFUSALS in types:
            refusal = f"named_struct('{REASON}', {self.refuse}, 'event', event)"
            refused[REFUSALS] = f"concat(state.{REFUSALS}, array({refusal}))"
        return f"if(({self.refuse}) is null, {applied}, {_struct({**stay, **refused}, state)})"


@dataclass(frozen=True)
class PythonReducer:
    """Reducer in Python: `step(state, event)` returns the new state, or a Refusal.

    Both are dictionaries of Arrow's values; a timestamp is aware, in UTC. The function must be pure. Decimals are
    calculated with a thousand digits; a result that does not fit its column is refused.
    """

    fields: Mapping[str, str]
    start: Mapping[str, Any]
    step: Step = field(compare=False)

    @property
    def refuses(self) -> bool:
        return True

    def faults(self, rows: DataFrame) -> Iterator[DeclarationError]:
        yield from ()

    def states(self, rows: DataFrame, key: Sequence[str], events: Sequence[str]) -> DataFrame:
        return self._fold(rows, key, events, rows.select(*key, *self._columns(), AT).schema)

    def refusals(self, rows: DataFrame, key: Sequence[str], events: Sequence[str]) -> DataFrame:
        return self._fold(rows, key, events, rows.select(*events, F.lit("").alias(REASON)).schema)

    def _fold(self, rows: DataFrame, key: Sequence[str], events: Sequence[str], out: T.StructType) -> DataFrame:
        types = arrow_schema(rows.select(*self._columns()).schema)
        work = FoldWork(tuple(key), tuple(events), self.start, self.step, types, arrow_schema(out))
        return by_key(with_keys_together(rows, key), key, [AT], work, out)

    def _columns(self) -> list[Column]:
        types = {**self.fields, REFUSED: "bigint"}
        return [F.lit(None).cast(kind).alias(name) for name, kind in types.items()]


Reducer: TypeAlias = SqlReducer | PythonReducer
"""Rule by which the events of a key become its state. Both have the same methods; SqlReducer describes them."""


def state_struct(reducer: Reducer) -> Column:
    return F.struct(*reducer.fields, *([REFUSED] if reducer.refuses else []))


@dataclass(frozen=True)
class FoldWork:
    key: tuple[str, ...]
    events: tuple[str, ...]
    start: Mapping[str, Any]
    step: Step
    types: pa.Schema  # of the state and REFUSED
    out: pa.Schema

    @property
    def functions(self) -> tuple[Step, ...]:
        return (self.step,)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        events, forms = records(batch, self.events), self.forms
        starts = key_starts(batch, self.key)
        bounds = list(zip(starts, [*starts[1:], batch.num_rows], strict=True))
        states: list[dict[str, Any]] = []
        refusals: list[tuple[int, str]] = []
        with many_digits():
            for begin, end in bounds:
                state = self._begin(batch.column(HELD)[begin].as_py() if HELD in batch.schema.names else None, forms)
                refused = state.pop(REFUSED)
                for i in range(begin, end):
                    try:
                        outcome = self._apply_step(state, events[i], forms)
                    except (Exception, SystemExit) as error:
                        raise self._fault(error, events[i], batch.column(AT)[i].as_py()) from error
                    if isinstance(outcome, Refusal):
                        refusals.append((i, outcome.reason))
                        refused += 1
                    else:
                        state = outcome
                states.append({**state, REFUSED: refused})
        if REASON in self.out.names:
            return self._output(batch, [i for i, _ in refusals], [{REASON: reason} for _, reason in refusals])
        return self._output(batch, [end - 1 for _, end in bounds], states)

    def next(
        self, before: Mapping[str, Any] | None, event: Mapping[str, Any], forms: Forms
    ) -> dict[str, Any] | Refusal:
        """Return a key's state after one event, with REFUSED; None is the state before the first event.

        `event` has Arrow's values; `forms` is the property of that name. Raises WorkerFault if the step fails.
        """
        state = self._begin(before, forms)
        refused = state.pop(REFUSED)
        with many_digits():
            try:
                outcome = self._apply_step(state, dict(event), forms)
            except (Exception, SystemExit) as error:
                raise self._fault(error, event, {ORDER: {}}) from error
        return outcome if isinstance(outcome, Refusal) else {**outcome, REFUSED: refused}

    @property
    def forms(self) -> Forms:
        return {field.name: normal(field.type) for field in self.types}

    def _begin(self, before: Mapping[str, Any] | None, forms: Forms) -> dict[str, Any]:
        state = {REFUSED: 0, **self.start} if before is None else before
        return {name: apply(state.get(name)) for name, apply in forms.items()}

    def _apply_step(self, state: dict[str, Any], event: dict[str, Any], forms: Forms) -> dict[str, Any] | Refusal:
        outcome = self.step(_copied(state), event)  # it may change lists and structs in place
        if isinstance(outcome, Refusal):
            return outcome
        if not isinstance(outcome, dict) or outcome.keys() != state.keys():
            returned = f"fields {', '.join(map(str, outcome))}" if isinstance(outcome, dict) else repr(outcome)
            raise TypeError(f"returned {returned}, not the state's {', '.join(state)}")
        for name, value in outcome.items():
            if value is not state[name]:
                outcome[name] = _normalized(name, value, forms[name])
        return outcome

    def _output(self, batch: pa.RecordBatch, rows: list[int], values: list[dict[str, Any]]) -> pa.RecordBatch:
        rest = batch.take(pa.array(rows, pa.int64()))
        new = {REASON} if REASON in self.out.names else set(self.types.names)
        columns = [
            pa.array([value[name] for value in values], type_) if name in new else rest.column(name)
            for name, type_ in zip(self.out.names, self.out.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.out)

    def _fault(self, error: BaseException, event: Mapping[str, Any], at: Mapping[str, Any]) -> WorkerFault:
        what = f"{type(error).__name__}: {error}"
        key = ", ".join(f"{name}={event[name]!r}" for name in self.key if name in event)
        return WorkerFault(
            f"reducer {getattr(self.step, '__name__', self.step)}: {what} at {key}, event {event!r}",
            where=source_of(self.step),
            fix="return Refusal(reason) for an event that the state does not allow",
            order=at[ORDER],
        )


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(part) for name, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


def _normalized(name: str, value: Any, form: Normal) -> Any:
    try:
        return form(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _struct(values: Mapping[str, str], kind: str) -> str:
    pairs = ", ".join(f"'{name}', {sql}" for name, sql in values.items())
    return f"cast(named_struct({pairs}) as {kind})"


def literal(value: Any) -> Column:
    """Return a plain value (also list, or dictionary for a struct) as a Column. A naive datetime is UTC."""
    if isinstance(value, Mapping):
        return F.struct(*[literal(part).alias(name) for name, part in value.items()])
    if isinstance(value, list | tuple):
        return F.array(*[literal(item) for item in value])
    if isinstance(value, datetime) and value.tzinfo is None:
        return F.lit(value.replace(tzinfo=UTC))
    return F.lit(value + 0.0 if isinstance(value, float) else value)


def arrow_type(sql: str) -> pa.DataType:
    """Return the Arrow type of "decimal(9, 2)" or "array<struct<x: int>>". Raises ValueError for others."""
    name, parts = type_parts(sql)
    if name.removesuffix("()") in {"decimal", "dec", "numeric"} and name.endswith("()") == bool(parts):
        return pa.decimal128(*map(int, parts), *(10, 0)[len(parts) :])
    if name == "array<>" and len(parts) == 1:
        return pa.list_(pa.field("element", arrow_type(parts[0])))
    if name == "struct<>":
        return pa.struct([pa.field(field, arrow_type(of)) for field, of in map(field_type, parts)])
    if name not in PLAIN:
        raise ValueError(f"{sql.strip()!r} is not a type that is known here")
    return PLAIN[name]
