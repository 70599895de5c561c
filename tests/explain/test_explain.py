"""Events of a row and of its changes: on a log with late, repeated, deleting and voided events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lake.engine.explain.edition_diff import diff_editions
from lake.engine.explain.explain import ExplainedRow, RowExplanation, explain
from lake.engine.explain.render import as_data, as_tree, diff_data, diff_tree
from lake.engine.inputs import Inputs
from lake.engine.pruning import handed_on
from lake.errors import DeclarationError
from lake.ingest.events import void
from lake.ingest.ingest import ingest
from lake.publish.cut import cut
from lake.testing import Lakehouse
from tests.checks import present
from tests.shop import contract, declare, empty

CONTRACT = contract(
    "orders",
    {"order_id": "int", "customer": "string", "status": "string", "amount": "int", "at": "timestamp"},
    id=["order_id", "at"],
    time="at",
)
JOBS = {
    "silver/current_order": '''
from lake import Latest, log, table


@table(Latest("order_id", sequence="at", deletes="_gone"), log("orders"))
def current_order(orders):
    """An order as it is."""
    return orders.selectExpr("order_id", "customer", "status", "amount", "at", "status = 'deleted' as _gone")
''',
    "silver/order_status": '''
from lake import History, log, table


@table(History("order_id", sequence="_at", track="status", deletes="status = 'deleted'"), log("orders"))
def order_status(orders):
    """A status of an order."""
    return orders.selectExpr("order_id", "status", "at as _at")
''',
    "gold/customer_total": '''
from jobs.silver.current_order import current_order
from lake import Aggregate, Count, Sum, table


@table(Aggregate("customer", {"orders": Count(), "amount": Sum("amount")}), current_order)
def customer_total(orders):
    """What a customer ordered."""
    return orders.select("customer", "amount")
''',
    "gold/daily": '''
from datetime import timedelta

from lake import Aggregate, Calendar, Count, log, table


@table(
    Aggregate(
        (), {"changes": Count()}, window=Calendar(unit="day", on="at", zone="UTC"), late="drop",
        lateness=timedelta(hours=1),
    ),
    log("orders"),
)
def daily(orders):
    """A day's changes."""
    return orders.select("at")
''',
}
CYCLES = [
    [
        (1, "ada", "placed", 10, 10),
        (2, "bob", "placed", 20, 10),
        (1, "ada", "paid", 12, 11),
        (1, "ada", "paid", 12, 11),
    ],
    [
        (1, "ada", "draft", 11, 9),
        (2, "bob", "deleted", 20, 12),
        (3, "bob", "placed", 5, 13),
        (1, "ada", "placed", 10, 10),
    ],
]


@pytest.fixture(scope="module")
def lakehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return a lakehouse after two cycles, a third one after a void of order 3, and a cut beyond all tables."""
    made = declare(empty(tmp_path_factory.mktemp("orders")), CONTRACT, jobs=JOBS)
    fields = ("order_id", "customer", "status", "amount", "at")
    for cycle in CYCLES:
        made.land("orders", *[dict(zip(fields, (*o[:4], f"2024-03-01T{o[4]:02}:00:00Z"), strict=True)) for o in cycle])
        made.run()
    [event] = _events(_explain(made, "current_order", "order_id=3").rows[0])
    void(made.settings, "orders", [event["place"]], reason="a test")
    made.run()
    made.land("orders", dict(zip(fields, (4, "eve", "placed", 1, "2024-03-02T09:00:00Z"), strict=True)))
    ingest(made.settings, lambda: made.spark, made.project.contracts)
    cut(made.project)
    return made


def _explain(lakehouse: Lakehouse, table: str, *key: str, **options: Any) -> RowExplanation:
    found = explain(lakehouse.project, lambda: lakehouse.spark, table, key, **options)
    assert as_data(found)["count"] == found.count
    assert as_tree(found).children
    return found


def _events(row: ExplainedRow) -> list[dict[str, Any]]:
    """Return the events of a row of a table over one log."""
    [side] = row.sides
    return [
        {
            "standing": cause.role,
            "place": event.place,
            "source": event.source,
            "hour": event.time.hour,
            "late": event.late.total_seconds() / 3600,
            "again": event.again,
            "void": event.void,
        }
        for cause in side.causes
        if (event := cause.event) is not None and event.time is not None
    ]


def _event_facts(row: ExplainedRow, *facts: str) -> list[tuple[Any, ...]]:
    return [tuple(event[fact] for fact in facts) for event in _events(row)]


def test_explain_lists_the_events_of_a_row_with_their_roles(lakehouse: Lakehouse) -> None:
    [row] = _explain(lakehouse, "current_order", "order_id=1").rows
    assert row.values is not None
    assert (row.values["status"], row.values["amount"]) == ("paid", 12)
    assert _event_facts(row, "standing", "hour", "late", "source", "again") == [
        ("superseded", 9, 2.0, "orders/000002.jsonl:1", ()),
        ("superseded", 10, 0.0, "orders/000001.jsonl:1", ("orders/000002.jsonl:4",)),
        ("decides", 11, 0.0, "orders/000001.jsonl:3", ("orders/000001.jsonl:4",)),
    ]


def test_explain_shortens_many_events_to_the_first_and_the_last(lakehouse: Lakehouse) -> None:
    [row] = _explain(lakehouse, "current_order", "order_id=1", limit=2).rows
    assert (row.sides[0].count, [cause.nth for cause in row.sides[0].causes]) == (3, [1, 3])


def test_explain_at_a_cut_shows_the_past(lakehouse: Lakehouse) -> None:
    [row] = _explain(lakehouse, "current_order", "order_id=2", at_cut=1).rows
    assert _event_facts(row, "standing", "hour") == [("decides", 10)]


@pytest.mark.long
def test_explain_lists_the_events_that_deleted_a_row(lakehouse: Lakehouse) -> None:
    found = _explain(lakehouse, "current_order", "order_id=2")
    assert (found.count, found.rows[0].values) == (0, None)
    assert _event_facts(found.rows[0], "standing", "hour") == [("deleted", 10), ("deletes", 12)]
    [gone] = _explain(lakehouse, "current_order", "order_id=3").rows
    assert _event_facts(gone, "standing", "void") == [("voided", "a test")]


@pytest.mark.long
def test_explain_lists_the_events_of_each_version(lakehouse: Lakehouse) -> None:
    found = _explain(lakehouse, "order_status", "order_id=1")
    assert [_event_facts(row, "standing", "hour") for row in found.rows] == [
        [("begins a version", 9)],
        [("begins a version", 10)],
        [("begins a version", 11)],
    ]
    [row] = _explain(lakehouse, "order_status", "order_id=2").rows
    assert _event_facts(row, "standing", "hour") == [("begins a version", 10), ("deletes", 12)]


def test_explain_lists_late_events_beside_counted_ones(lakehouse: Lakehouse) -> None:
    [row] = _explain(lakehouse, "daily", "day=2024-03-01").rows
    assert sorted(_event_facts(row, "hour", "standing")) == [
        (9, "dropped, too late"),
        (10, "counts"),
        (10, "counts"),
        (11, "counts"),
        (12, "counts"),
        (13, "voided"),
    ]


def test_explain_follows_a_derived_row_to_the_log(lakehouse: Lakehouse) -> None:
    [row] = _explain(lakehouse, "customer_total", "customer=ada").rows
    [cause] = row.sides[0].causes
    assert (cause.role, cause.row is not None and cause.row.identity) == ("counts", {"order_id": 1})
    assert cause.row is not None
    assert ("decides", 11) in _event_facts(cause.row, "standing", "hour")


def test_explain_narrows_an_input_by_columns_passed_through(lakehouse: Lakehouse) -> None:
    declared = lakehouse.project.tables["current_order"]
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, cut(lakehouse.project))

    def once(orders: DataFrame) -> DataFrame:
        return orders.selectExpr("order_id + 0 as order_id", "customer as status", "at", "false as _gone").where(
            "order_id > 0"
        )

    def twice(orders: DataFrame) -> DataFrame:
        return once(orders).unionByName(once(orders))

    assert handed_on(inputs, replace(declared, function=once)) == [{"status": "customer", "at": "at"}]
    assert handed_on(inputs, replace(declared, function=twice)) == [{}]


@pytest.mark.parametrize(
    ("words", "options", "told"),
    [
        (("curent_order", "order_id=1"), {}, "did you mean 'current_order'"),
        (("current_order", "order=1"), {}, "did you mean 'order_id'"),
        (("current_order", "status=paid"), {}, "identified by order_id"),
        (("current_order", "order_id"), {}, "lake explain current_order order_id=…"),
        (("current_order", "order_id=one"), {}, "order_id=one is not a valid integer"),
        (("current_order",), {}, "order_id is missing"),
        (("current_order", "order_id=9"), {}, "no event refers to that key"),
        (("current_order", "order_id=1"), {"at_cut": 9}, "cuts 1 to 4 exist"),
        (("current_order", "order_id=9"), {"at_cut": 4}, "no row with order_id=9 at cut 4"),
    ],
)
def test_explain_reports_a_missing_row_or_table_with_a_fix(
    lakehouse: Lakehouse, words: tuple[str, ...], options: Any, told: str
) -> None:
    with pytest.raises(DeclarationError) as fault:
        _explain(lakehouse, *words, **options)
    assert told in str(fault.value)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"at_cut": 4}], ids=["newest", "at its cut"])
def test_explain_shows_a_row_of_a_cut_beyond_its_tables(lakehouse: Lakehouse, options: Any) -> None:
    """Order 4 and its customer are only in the log."""
    found = _explain(lakehouse, "current_order", "order_id=4", **options)
    assert (found.cut, found.version, present(found.rows[0].values)["status"]) == (4, None, "placed")
    assert [event["void"] for event in _events(found.rows[0])] == [None]
    assert "not at cut 4" in found.notes[0]
    [row] = _explain(lakehouse, "customer_total", "customer=eve", **options).rows
    [cause] = row.sides[0].causes
    assert (present(row.values)["customer"], present(cause.row).identity) == ("eve", {"order_id": 4})
    event = present(present(cause.row).sides[0].causes[0].event)
    assert event.place.startswith("3:")


def _diff(lakehouse: Lakehouse, table: str, old: int, new: int) -> dict[str, Any]:
    found = diff_editions(lakehouse.project, lambda: lakehouse.spark, table, old=old, new=new)
    assert str(diff_tree(found).label)
    return diff_data(found)


def test_edition_diff_lists_the_events_of_changed_rows(lakehouse: Lakehouse) -> None:
    found = _diff(lakehouse, "customer_total", 1, 2)
    assert (found["inserted"], found["updated"], found["deleted"]) == (0, 1, 0)
    [row] = found["sample"]
    assert (row["key"], row["columns"], row["before"]["amount"], row["after"]["amount"]) == (
        {"customer": "bob"},
        ["amount"],
        20,
        5,
    )
    [side] = row["from"]
    assert {(each["standing"], each["row"]["order_id"]) for each in side["rows"]} == {("was", 2), ("is", 3)}
    assert sorted(event["time"] for each in side["rows"] for event in each["from"][0]["events"]) == [
        "2024-03-01T12:00:00Z",
        "2024-03-01T13:00:00Z",
    ]


def test_edition_diff_lists_a_void_as_cause(lakehouse: Lakehouse) -> None:
    [row] = _diff(lakehouse, "current_order", 2, 3)["sample"]
    assert (row["change"], row["key"]) == ("delete", {"order_id": 3})
    assert [(event["standing"], event["void"]) for event in row["from"][0]["events"]] == [("voided", "a test")]
