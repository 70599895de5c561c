"""Small runs that need no session of Spark."""

from __future__ import annotations

from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine.plan import plan
from lake.engine.verify import verify_all
from lake.ingest.ingest import ingest
from lake.ingest.replay import accept
from lake.ops import pipeline
from lake.publish.deploy import deploy
from lake.store.table_head import DUCKDB
from lake.testing import Lakehouse
from tests.checks import spark_forbidden
from tests.shop import contract, declare, job

FIELDS: Final[dict[str, Any]] = {"id": "int", "name": "string", "size": "int", "weight": "int", "place": (["null", {
    "type": "record", "name": "p", "fields": [{"name": "city", "type": "string"}]}], {"default": None})}  # fmt: skip
GROWN: Final = (["null", {"type": "record", "name": "p", "fields": [
    {"name": "city", "type": "string"}, {"name": "zip", "type": ["null", "int"], "default": None},
    {"name": "streets", "type": ["null", {"type": "array", "items": "string"}], "default": None},
]}], {"default": None})  # fmt: skip
ADDED: Final = ("boolean", "int", "long", "double", "string", "decimal(9, 2)", "date", "timestamp")
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "a field of each type": {"fields": {f"added{n}": f"{kind}?" for n, kind in enumerate(ADDED)}},
    "a field with a default": {"fields": {"added": ("string", {"default": "shop"})}},
    "a field of a record": {"fields": {"place": GROWN}},
    "a wider type": {"fields": {"weight": "long"}},
    "another name": {"fields": {"title": ("string", {"aliases": ["name"]})}, "without": "name"},
    "an upcast": {"fields": {}, "about": {"upcast": {"1": {"name": "upper(name)"}}}},
}
RECORD: Final = {"name": "a", "size": 1, "weight": 9, "place": {"city": "Graz", "zip": 8010, "streets": ["x", "y"]}}
VALUES: Final = (True, 1, 2, 2.5, "x", "1.25", "2024-02-29", "2024-02-29T12:00:00Z")
TABLES: Final = {
    "newest": job("newest", 'Latest("id")', 'log("things")'),
    "counted": job("counted", 'Aggregate("city", {"n": Count()})', "newest", returns='rows.selectExpr("place.city")'),
}

pytestmark = pytest.mark.slow


def run(lakehouse: Lakehouse) -> None:
    done = pipeline.run(lakehouse.settings, spark_forbidden, lambda _: None)
    assert {table.engine for table in done.tables} == {DUCKDB}


def run_before_and_after(project: Settings, change: str) -> Lakehouse:
    """Return the tables after runs with both versions of the contract. The second log has an event of each, again."""
    about, changed = {"id": ["id", "size"]}, CHANGES[change]
    lakehouse = declare(project, contract("things", FIELDS, **about), jobs=TABLES)
    added = {f"added{n}": value for n, value in enumerate(VALUES)}
    lakehouse.land("things", {"id": 1, **RECORD, **added}, {"id": 2, **RECORD})
    run(lakehouse)
    fields = {name: kind for name, kind in (FIELDS | changed["fields"]).items() if name != changed.get("without")}
    declare(project, contract("things", fields, **about, **changed.get("about", {})))
    lakehouse = Lakehouse(project.project, lakehouse.home)
    lakehouse.land("things", {"id": 3, **RECORD, **added}, {"id": 1, **RECORD, **added, "size": 7})
    lakehouse.land("things", {"id": 2, **RECORD})
    counts = ingest(lakehouse.settings, spark_forbidden, lakehouse.project.contracts)["things"]
    assert (counts.accepted, counts.duplicates) == (2, 1)
    plan(lakehouse.project, (), spark_forbidden)
    deploy(lakehouse.project, spark_forbidden, lambda _: None, lambda _: None, yes=True)
    run(lakehouse)
    return lakehouse


@pytest.mark.parametrize("change", CHANGES)
def test_small_run_after_a_change_of_a_contract_needs_no_spark(project: Settings, change: str) -> None:
    rows = run_before_and_after(project, change).table("newest")
    assert [row["id"] for row in rows] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
def test_spark_proves_small_runs_after_a_change_of_a_contract(
    spark: SparkSession, project: Settings, change: str
) -> None:
    tables = run_before_and_after(project, change).project
    verdicts = verify_all(lambda: spark, tables, on_progress=lambda _: None)
    assert {each.verdict for each in verdicts} == {"identical"}


LOCAL: Final = contract(
    "local", {"id": "int", "price": "decimal(18, 3)", "at": {"type": "long", "logicalType": "local-timestamp-micros"}},
    time="to_utc_timestamp(at, 'Europe/Vienna')",
)  # fmt: skip
BY_DAY: Final = job(
    "by_day",
    """Aggregate((), {"sum": Sum("price")}, window=Calendar(unit="day", on="at", zone="UTC"))""",
    'log("local")',
    returns="""rows.selectExpr("price", "to_utc_timestamp(at, 'Europe/Vienna') as at")""",
)


def test_small_run_over_local_times_with_a_sum_of_decimals_needs_no_spark(project: Settings) -> None:
    lakehouse = declare(project, LOCAL, jobs={"by_day": BY_DAY})
    for price, at in (("1.250", "2024-07-01T01:30:00"), ("999999999999999.999", "2024-07-01T23:30:00")):
        lakehouse.land("local", {"id": 1, "price": price, "at": at}, {"id": 2, "price": price, "at": at}, {"id": 3})
        run(lakehouse)
    assert accept(lakehouse.settings, spark_forbidden, "local", reason="without a price")
    days = [(row["day"].isoformat(), str(row["sum"])) for row in lakehouse.table("by_day")]
    assert days == [("2024-06-30", "2.500"), ("2024-07-01", "1999999999999999.998")]
