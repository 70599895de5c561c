"""Folds of events in SQL and in Python, small enough to follow by hand."""

from __future__ import annotations

import math
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import DeclarationError, Fold, Refusal
from lake.config import Settings
from lake.kinds.columns import AGAIN, ORDER, SIGN, visible
from lake.kinds.grouped_map import WorkerFault, fault_of, key_starts, whole_keys
from lake.kinds.python_values import normal
from lake.kinds.sql_errors import NO_ROOM, no_room
from lake.project.project import load
from tests.checks import present

LEGS = [
    # tailnum, departs, origin, dest, miles
    ("N1", 1, "JFK", "BOS", 187),
    ("N1", 2, "BOS", "JFK", 187),
    ("N2", 1, "LGA", "ATL", 762),
    ("N1", 3, "EWR", "SFO", 2565),  # N1 was at JFK
]
AIRCRAFT_LOG = Fold(
    "tailnum",
    sequence="departs",
    state="legs int, miles bigint, airports array<string>, last_airport string, displaced int",
    start={"legs": 0, "miles": 0, "airports": [], "displaced": 0},
    step={
        "legs": "state.legs + 1",
        "miles": "state.miles + event.miles",
        "airports": "array_union(state.airports, array(event.origin, event.dest))",
        "last_airport": "event.dest",
        "displaced": "state.displaced + if(event.origin <> state.last_airport, 1, 0)",
    },
)


def ship(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any] | Refusal:
    """Move an order from placed to paid to shipped; refuse any other step."""
    after = {"placed": None, "paid": "placed", "shipped": "paid"}
    if after[event["what"]] != state["status"]:
        return Refusal(f"{event['what']} after {state['status']}")
    return {**state, "status": event["what"], "history": [*state["history"], event["what"]]}


ORDERS = Fold("id", sequence="at", state="status string, history array<string>", start={"history": []}, step=ship)


def rows(spark: SparkSession, data: list[tuple[Any, ...]], schema: str, *, after: int = 0) -> DataFrame:
    placed = [(*row, after + number) for number, row in enumerate(data)]
    frame = spark.createDataFrame(placed, f"{schema}, place int")
    order = F.expr("struct(1L as _batch, 0 as _bucket, cast(place as bigint) as _offset)")
    return frame.withColumns({ORDER: order, SIGN: F.lit(1)}).drop("place")


def table_rows(table: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in table.select(*visible(table.columns)).collect())


def test_fold_counts_legs_of_an_aircraft_that_start_elsewhere(spark: SparkSession) -> None:
    legs = rows(spark, LEGS, "tailnum string, departs int, origin string, dest string, miles int")
    assert table_rows(AIRCRAFT_LOG.evaluate(legs)) == [
        ("N1", 3, 2939, ["JFK", "BOS", "EWR", "SFO"], "SFO", 1),
        ("N2", 1, 762, ["LGA", "ATL"], "ATL", 0),
    ]


def test_fold_continues_for_a_newer_event_and_refolds_for_a_late_event(spark: SparkSession) -> None:
    schema = "tailnum string, departs int, origin string, dest string, miles int"
    table = AIRCRAFT_LOG.evaluate(rows(spark, LEGS, schema))
    news = [("N1", 4, "SFO", "JFK", 2586), ("N2", 0, "JFK", "LGA", 11), ("N3", 1, "JFK", "BOS", 187)]
    found = AIRCRAFT_LOG.absorb(table, rows(spark, news, schema, after=9)).collect()
    assert {row.tailnum: (row[AGAIN], row.legs, row.displaced) for row in found} == {
        "N1": (False, 4, 1),
        "N2": (True, None, None),
        "N3": (False, 1, 0),
    }


HISTORY = [("a", 1, "placed"), ("a", 2, "shipped"), ("a", 3, "paid"), ("a", 4, "shipped"), ("b", 1, "paid")]


@pytest.mark.long
def test_fold_records_a_refused_event_and_keeps_the_state(spark: SparkSession) -> None:
    events = rows(
        spark, [(i, at, f"{i}{at}", what) for i, at, what in HISTORY], "id string, at int, eid string, what string"
    )
    assert table_rows(ORDERS.evaluate(events)) == [
        ("a", "shipped", ["placed", "paid", "shipped"], 1),
        ("b", None, [], 1),
    ]
    refusals = ORDERS.refusals(id="eid")
    assert refusals.identity == ("id", "eid")
    assert table_rows(refusals.evaluate(events)) == [
        ("a", 2, "a2", "shipped", "shipped after placed"),
        ("b", 1, "b1", "paid", "paid after None"),
    ]


STREAM = """{"type": "record", "name": "order_events", "doc": "What happens to orders.",
 "lake": {"key": ["id"], "id": "content", "buckets": 1}, "fields": [
  {"name": "id", "type": "string", "doc": "The order."}, {"name": "at", "type": "int", "doc": "Its events, counted."},
  {"name": "what", "type": "string", "doc": "placed, paid or shipped"}]}"""

PURCHASE = '''
from lake import Fold, Refusal, log, table

AFTER = {"placed": None, "paid": "placed", "shipped": "paid"}


def follows(what, status):
    return AFTER[what] == status


def ship(state, event):
    if not follows(event["what"], state["status"]):
        return Refusal(f"{event['what']} after {state['status']}")
    return {"status": event["what"]}


@table(Fold("id", sequence="at", state="status string", step=ship), log("order_events"))
def purchase(events):
    """How far an order is."""
    return events.selectExpr("id", "at", "what", "concat(id, at) as event_id")
'''

REFUSED_EVENT = '''
from jobs.silver.purchase import purchase
from lake import log, table


@table(purchase.kind.refusals(id="event_id"), log("order_events"))
def refused_event(events):
    """An event that its order did not allow."""
    return purchase(events)
'''


@pytest.mark.long
def test_fold_shares_a_reducer_of_two_job_files_that_workers_cannot_import(
    spark: SparkSession, project: Settings
) -> None:
    project.path("schemas/order_events.avsc").write_text(STREAM)
    project.path("jobs/silver/purchase.py").write_text(PURCHASE)
    project.path("jobs/silver/refused_event.py").write_text(REFUSED_EVENT)
    tables = load(project).tables
    events = rows(spark, HISTORY, "id string, at int, what string").selectExpr("*", "concat(id, at) as event_id")
    assert table_rows(tables["purchase"].kind.evaluate(events)) == [("a", "shipped", 1), ("b", None, 1)]
    refused = tables["refused_event"].kind.evaluate(events).select("event_id", "reason")
    assert table_rows(refused) == [("a2", "shipped after placed"), ("b1", "paid after None")]


@pytest.mark.long
def test_python_fold_keeps_values_of_any_type(spark: SparkSession) -> None:
    schema = (
        "key int, t timestamp, n timestamp_ntz, d date, m decimal(20, 4), a array<decimal(5, 2)>, "
        "s struct<x: int, y: array<string>>, b binary, f double"
    )
    values = (
        datetime(2024, 3, 10, 7, 30, 0, 123456, tzinfo=UTC),
        datetime(2024, 3, 10, 2, 30, 0, 1),  # This local time does not exist in New York
        date(1582, 10, 4),
        Decimal("1234567890123456.7890"),
        [Decimal("1.50"), None],
        (1, ["ü", None]),
        b"\x00\xff",
        0.1,
    )
    fields = schema.partition(", ")[2]
    echo = Fold("key", state=fields, step=lambda state, event: {name: event[name] for name in state})
    given = rows(spark, [(1, *values), (2, *([None] * 8))], schema)
    table = echo.evaluate(given)
    assert table.drop("_at", "refused").exceptAll(given.drop(ORDER, SIGN)).isEmpty()
    assert table.schema["s"].dataType == given.schema["s"].dataType
    more = rows(spark, [(3, *values)], schema, after=5)
    assert echo.absorb(table, more).drop("_at", "refused", AGAIN).exceptAll(more.drop(ORDER, SIGN)).isEmpty()


def test_fold_start_accepts_any_type_in_both_reducers(spark: SparkSession) -> None:
    state = "t timestamp, d date, m decimal(9, 3), a array<int>, s struct<x: int>, seen int"
    start = {
        "t": datetime(2024, 1, 1, tzinfo=UTC),
        "d": date(2024, 1, 2),
        "m": Decimal("1.5"),
        "a": [1, None],
        "s": {"x": 3},
        "seen": 0,
    }
    events = rows(spark, [(1,)], "key int")
    sql = Fold("key", state=state, start=start, step={"seen": "state.seen + 1"})
    python = Fold("key", state=state, start=start, step=lambda state, _: {**state, "seen": state["seen"] + 1})
    [in_sql], [in_python] = sql.evaluate(events).collect(), python.evaluate(events).drop("refused").collect()
    assert in_sql == in_python
    assert (in_sql.m, in_sql.a, in_sql.s.x, in_sql.seen) == (Decimal("1.500"), [1, None], 3, 1)


def by(state: dict[str, Any], event: dict[str, Any], *, step: int) -> dict[str, Any]:
    return {"n": state["n"] + step // event["n"]}


def test_step_may_be_a_function_with_given_arguments(spark: SparkSession) -> None:
    fold = Fold("key", state="n int", start={"n": 0}, step=partial(by, step=6))
    assert table_rows(fold.evaluate(rows(spark, [("x", 2), ("x", 3)], "key string, n int"))) == [("x", 5, 0)]
    with pytest.raises(PythonException) as caught:
        fold.evaluate(rows(spark, [("x", 0)], "key string, n int")).collect()
    assert present(fault_of(caught.value))[0].where.startswith("test_fold.py:")


def test_fold_accepts_the_whole_table_as_one_key(spark: SparkSession) -> None:
    total = Fold((), state="total bigint", start={"total": 0}, step={"total": "state.total + event.n"})
    events = rows(spark, [(1,), (2,)], "n int")
    assert table_rows(total.evaluate(events)) == [(3,)]
    assert table_rows(total.evaluate(events.where("false"))) == []
    last = Fold((), state="total bigint", start={"total": 0}, step=lambda s, e: {"total": s["total"] + e["n"]})
    assert table_rows(last.evaluate(events)) == [(3, 0)]


def test_whole_keys_keeps_keys_that_cross_batches() -> None:
    import pyarrow as pa

    keys = [1, 1, 2, None, None, None, None, 5, 6, 6, 6]
    batches = [pa.record_batch({"k": keys[i : i + 2]}, pa.schema([("k", pa.int32())])) for i in range(0, 11, 2)]
    parts = [batch.column("k").to_pylist() for batch in whole_keys(iter(batches), ["k"])]
    assert list(chain.from_iterable(parts)) == keys
    assert all(before[-1] != after[0] for before, after in pairwise(parts))


def test_key_starts_treats_nan_values_as_one_key() -> None:
    import pyarrow as pa

    nan = float("nan")
    numbers = [None, None, 0.0, -0.0, nan, nan]
    nested = [{"x": [number]} for number in numbers]
    for keys, kind in ((numbers, pa.float64()), (nested, pa.struct({"x": pa.list_(pa.float64())}))):
        batch = pa.record_batch({"k": pa.array(keys, kind), "l": [1, 1, 1, 1, 1, 1]})
        assert key_starts(batch, ["k", "l"]) == [0, 2, 4]


def test_python_fold_has_one_row_for_a_nan_key(spark: SparkSession) -> None:
    count = Fold("key", state="n int", start={"n": 0}, step=lambda state, _: {"n": state["n"] + 1})
    table = count.evaluate(rows(spark, [(float("nan"),), (1.5,), (float("nan"),)], "key double"))
    assert sorted((str(key), n) for key, n, _ in table_rows(table)) == [("1.5", 1), ("nan", 2)]


def fails(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    return {"n": 1 // event["n"]}


@pytest.mark.turns
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (fails, ["reducer fails", "ZeroDivisionError", "key='x'", "'n': 0"]),
        (lambda state, event: {"n": "one"}, ["'one' is not of type int at key='x'"]),
        (lambda state, event: {"n": 2**31}, ["n: 2147483648 is too large"]),
        (lambda state, event: {"m": 1}, ["returned fields m, not the state's n"]),
        (lambda state, event: None, ["returned None"]),
        (lambda state, event: sys.exit(0), ["SystemExit: 0"]),
    ],
    ids=["raises", "type", "size", "fields", "nothing", "exit"],
)
def test_python_reducer_error_is_reported_in_one_line(spark: SparkSession, step: Any, words: list[str]) -> None:
    fold = Fold("key", state="n int", step=step)
    with pytest.raises(PythonException) as caught:
        fold.evaluate(rows(spark, [("x", 0)], "key string, n int")).collect()
    fault, _, place = present(fault_of(caught.value))
    assert isinstance(fault, DeclarationError)
    assert all(word in fault.what for word in words)
    assert fault.where.startswith("test_fold.py:")
    assert "\n" not in fault.what
    assert str(place).startswith("1:0:")


@pytest.mark.parametrize(("kind", "value"), [(pa.float32(), 1e39), (pa.float32(), 10**400), (pa.float64(), -(10**400))])
def test_number_too_large_for_a_float_is_an_error(kind: pa.DataType, value: float) -> None:
    with pytest.raises(ValueError, match="it is too large"):
        normal(kind)(value)
    assert normal(kind)(math.inf) == math.inf


def test_python_fold_normalizes_values_that_its_step_changes_in_place(spark: SparkSession) -> None:
    """Each event sees the state as it is stored, and a refused one leaves it."""

    def step(state: dict[str, Any], event: dict[str, Any]) -> dict[str, Any] | Refusal:
        state["sums"][0] += event["v"]
        state["last"]["v"] = event["v"]
        return Refusal("negative") if event["v"] < 0 else state

    fold = Fold(
        "key", state="sums array<float>, last struct<v: float>", start={"sums": [0.0], "last": {"v": 0.0}}, step=step
    )
    events = [("x", 16777216.0), ("x", 1.0), ("x", -5.0), ("x", 1.0)]
    [row] = fold.evaluate(rows(spark, events, "key string, v double")).collect()
    assert (row["sums"], row["last"]["v"], row["refused"]) == ([16777216.0], 1.0, 1)


MESSAGES = (
    "{0}",
    "PythonException: Traceback:\n  WorkerFault: {0}\n  at task",
    "{0} (executor {{1}})",
    "stage {{2}}: {0} {{3}} }}",
)


@pytest.mark.parametrize("message", MESSAGES)
def test_fault_of_rows_is_read_whatever_surrounds_it(message: str) -> None:
    fault = WorkerFault("at {x} lake fault {", where="job.py:3", fix="correct it", order={"_batch": 1, "_arrival": 2})
    wrapped = RuntimeError("the stage failed")
    wrapped.__cause__ = RuntimeError(message.format(fault))
    found, side, place = present(fault_of(wrapped))
    assert (found.what, found.where, found.fix) == ("at {x} lake fault {", "job.py:3", "correct it")
    assert (side, place) == (0, "1::2")
    number = present(no_room(RuntimeError(message.format(NO_ROOM + '{"measure": "m", "type": "int"}{"k": null}'))))
    assert (number.measure, number.type, number.key) == ("m", "int", {"k": None})
    assert fault_of(RuntimeError(str(fault)[:-1])) is None
    assert no_room(RuntimeError(f"{NO_ROOM}{{")) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"state": "n"}, "not a valid state"),
        ({"state": "n int, n int"}, "not a valid state"),
        ({"step": {"m": "1"}}, "step has 'm'"),
        ({"start": {"nn": 1}}, "start has 'nn'"),
        ({"step": fails, "refuse": "'no'"}, "refuse is SQL"),
        ({"rows": "refusals", "id": "e"}, "needs refuse=…"),
        ({"rows": "refusals", "refuse": "null"}, "id columns"),
        ({"rows": "refused", "refuse": "null"}, "unknown rows"),
        ({"state": "n int, refused int"}, "'refused' is already a column"),
        ({"state": "n int, key int"}, "'key' is already a column"),
    ],
)
def test_fold_rejects_invalid_options_at_declaration(
    options: dict[str, Any] | dict[str, dict[str, int]] | dict[str, dict[str, str]] | dict[str, str], words: str
) -> None:
    with pytest.raises(DeclarationError, match=words):
        Fold("key", **{"state": "n int", "step": {"n": "1"}, **options})


@pytest.mark.parametrize(
    ("state", "step", "other"),
    [
        ("n decimal(38, 2)", fails, 1),
        ("n array<struct<x: DECIMAL(29,2)>>", fails, 1),
        ("n decimal(28, 2)", fails, 0),
        ("n decimal(38, 2)", {"n": "1"}, 0),
    ],
)
def test_python_fold_revision_changes_for_decimals_of_more_digits(state: str, step: Any, other: int) -> None:
    assert Fold("key", state=state, step=step).revision == Fold.version + other
