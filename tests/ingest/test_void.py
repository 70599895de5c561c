"""Wrong deliveries: voided, or held because too many of their records were rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import Shell
from lake.cli import lake as command_line
from lake.config import Settings
from lake.engine.inputs import Inputs
from lake.engine.verify import verify
from lake.errors import DeclarationError, LakeError, QualityError
from lake.ops import pipeline
from lake.publish.cut import pick_cut
from lake.read.sql import reader
from lake.store import duckdb_tables
from lake.store.ledger.editions import latest_edition
from lake.store.log import Log
from lake.store.table_head import DUCKDB
from lake.store.voids import Void, all_voids
from lake.testing import Lakehouse
from lake.text import DUCKDB as DIALECT
from tests.checks import answer, spark_forbidden
from tests.shop import contract, declare

CONTRACT = contract("sales", {"shop": "string", "pieces": "int"})
JOBS = {
    "last_sale": '''
from lake import Latest, log, table

@table(Latest("shop"), log("sales"))
def last_sale(sales):
    """What a shop sold last."""
    return sales.select("shop", "pieces")
''',
    "sold": '''
from lake import Aggregate, Sum, log, table

@table(Aggregate("shop", {"pieces": Sum("pieces")}), log("sales"))
def sold(sales):
    """What a shop sold in all."""
    return sales.select("shop", "pieces")
''',
}


Lake = Callable[..., Result]


@pytest.fixture
def lake(lakehouse: Lakehouse) -> Lake:
    """Runner of commands on the lakehouse in this process, with its session."""

    def command(*words: str) -> Result:
        shell = Shell(project=lakehouse.settings.project)
        shell.__dict__ |= {"settings": lakehouse.settings, "spark": lakehouse.spark}
        return CliRunner().invoke(command_line, list(words), obj=shell, standalone_mode=False)

    return command


@pytest.fixture
def lakehouse(spark: SparkSession, project: Settings) -> Lakehouse:
    return declare(project, CONTRACT, jobs=JOBS)


def sales(**pieces: int) -> list[dict[str, object]]:
    return [{"shop": shop, "pieces": count} for shop, count in pieces.items()]


@pytest.mark.long
def test_delivery_is_removed_by_one_void(lakehouse: Lakehouse, lake: Lake) -> None:
    def rows() -> list[dict[str, int]]:
        return [{row["shop"]: row["pieces"] for row in lakehouse.table(name)} for name in JOBS]

    lakehouse.land("sales", *sales(a=1, b=1)).run()
    lakehouse.land("sales", *sales(a=10, c=10), *sales(a=20)).land("sales", *sales(b=100, c=100)).run()
    assert rows() == [{"a": 20, "b": 100, "c": 100}, {"a": 31, "b": 101, "c": 110}]
    assert lake("void", "sales", "--source", "000002.jsonl", "--reason", "twice too much").exit_code == 0
    lakehouse.run()
    assert rows() == [{"a": 1, "b": 100, "c": 100}, {"a": 1, "b": 101, "c": 100}]
    lakehouse.land("sales", *sales(c=5))
    assert lake("void", "sales", "--batch", "2", "--reason", "the wrong year").stdout == "void 2: sales batch 2\n"
    lakehouse.run()
    assert rows() == [{"a": 1, "b": 1, "c": 5}, {"a": 1, "b": 1, "c": 5}]
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None), recompute=True)
    assert [verify(inputs, each).verdict for each in lakehouse.project.tables.values()] == ["identical", "identical"]
    told = json.loads(lake("explain", "last_sale", "shop=a", "--json").stdout)
    events = told["rows"][0]["from"][0]["events"]
    assert sorted(event["void"] or "" for event in events) == ["", "twice too much", "twice too much"]
    for given, said in (
        (["--batch", "2"], "batch 2 of sales is already void: 'the wrong year' (void 2)"),
        (["--batch", "9"], "sales has no batch 9, only 1 to 3"),
        (["--source", "other"], "no event of sales came from 'other'"),
        ([], "nothing to void"),
    ):
        assert said in str(lake("void", "sales", *given, "--reason", "again").exception)


@pytest.mark.parametrize(
    "target", [["PLACE"], ["--batch", "1"], ["--source", "1.jsonl"]], ids=["a place", "a batch", "a file"]
)
def test_void_of_a_target_named_twice_is_recorded_once(project: Settings, target: list[str]) -> None:
    declare(project, CONTRACT)
    project.path("landing/sales").mkdir()
    project.path("landing/sales/1.jsonl").write_text("\n".join(map(json.dumps, sales(a=1, b=1))))
    answer(project.project, "ingest")
    [event] = duckdb_tables.rows(Log(project, "sales").path, "FROM t ORDER BY _bucket, _offset LIMIT 1")
    place = f"{event['_batch']}:{event['_bucket']}:{event['_offset']}"
    words = [place if word == "PLACE" else word for word in target]
    answer(project.project, "void", "sales", *words, *words, "--reason", "wrong")
    assert [(void.number, void.reason) for void in all_voids(project)] == [(1, "wrong")]


def test_tables_of_a_log_with_voids_need_no_spark(lakehouse: Lakehouse, lake: Lake) -> None:
    def run() -> list[tuple[dict[str, object], ...]]:
        done = pipeline.run(lakehouse.settings, spark_forbidden, lambda _: None)
        assert {table.engine for table in done.tables} == {DUCKDB}
        return [tuple({"shop": row["shop"], "pieces": row["pieces"]} for row in lakehouse.table(name)) for name in JOBS]

    lakehouse.land("sales", *sales(a=1, b=1)).land("sales", *sales(a=10))
    lakehouse.land("sales", *sales(a=100, c=7))
    run()
    [[place]] = reader(lakehouse.settings).relation("select _place from log.sales where pieces = 100").fetchall()
    for given in (["--source", "000002.jsonl"], [place]):
        assert lake("void", "sales", *given, "--reason", "wrong").exit_code == 0
    left = tuple(sales(a=1, b=1, c=7))
    assert run() == [left, left]
    lakehouse.land("sales", *sales(b=2))
    assert run() == [tuple(sales(a=1, b=2, c=7)), tuple(sales(a=1, b=3, c=7))]


@pytest.mark.parametrize(
    "source", ["a.csv", "a.csv:", "a.csv:7", "a.csv:70", "a.csv:7:0", "a.csv:x7", "b", "", "a.csv7", "a.csv:٣"]
)
def test_void_of_a_file_covers_what_its_condition_selects(source: str) -> None:
    void = Void(1, "sales", 1, None, None, "a.csv", "wrong", datetime.now(UTC), 1)
    query = f"SELECT {void.delivery_sql(DIALECT)} FROM (SELECT 1 AS _batch, $1 AS _source)"
    with duckdb_tables.connection() as con:
        [[selected]] = con.execute(query, [source]).fetchall()
    assert void.covers((1, 0, 0), source) == selected


@pytest.mark.long
def test_voided_events_may_come_again_corrected(lakehouse: Lakehouse, lake: Lake) -> None:
    """A whole delivery may come again with unchanged lines; a single event only with other content."""

    def counts() -> dict[str, int]:
        lakehouse.run()
        inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None), recompute=True)
        assert {verify(inputs, each).verdict for each in lakehouse.project.tables.values()} == {"identical"}
        checked = lake("log", "sales", "--check")
        assert checked.exception is None, checked.output
        return {name: count for name, count in Log(lakehouse.settings, "sales").head().counts.items() if count}

    def pieces() -> dict[str, int]:
        return {row["shop"]: row["pieces"] for row in lakehouse.table("sold")}

    numbered = CONTRACT | {
        "lake": {"key": ["shop"], "id": ["sale"], "buckets": 2},
        "fields": [*CONTRACT["fields"], {"name": "sale", "type": "int", "doc": "Its number."}],
    }
    lakehouse.settings.path("schemas/sales.avsc").write_text(json.dumps(numbered))
    right, wrong = {"shop": "a", "pieces": 1, "sale": 1}, {"shop": "b", "pieces": 200, "sale": 2}
    corrected = wrong | {"pieces": 2}
    lakehouse.land("sales", right, wrong)
    assert counts() == {"read": 2, "accepted": 2}
    lakehouse.land("sales", corrected)
    assert counts() == {"read": 1, "quarantined": 1}, "another content under an id that counts is a conflict"
    assert lake("void", "sales", "--batch", "1", "--reason", "hundredfold").exit_code == 0
    lakehouse.land("sales", right, corrected, right)
    assert counts() == {"read": 3, "accepted": 2, "duplicates": 1}
    assert pieces() == {"a": 1, "b": 2}

    query = "SELECT concat_ws(':', _batch, _bucket, _offset) AS place FROM t WHERE shop = 'b' ORDER BY _batch DESC"
    place = duckdb_tables.rows(Log(lakehouse.settings, "sales").path, query)[0]["place"]
    assert lake("void", "sales", place, "--reason", "there was none").exit_code == 0
    lakehouse.land("sales", corrected, wrong, corrected)
    assert counts() == {"read": 3, "accepted": 1, "duplicates": 2}, "as it was it stays void, whatever its number"
    assert pieces() == {"a": 1, "b": 200}
    lakehouse.land("sales", wrong, corrected, corrected | {"pieces": 3})
    assert counts() == {"read": 3, "duplicates": 2, "quarantined": 1}
    assert pieces() == {"a": 1, "b": 200}


@pytest.mark.long
def test_delivery_with_too_many_rejections_is_not_published(lakehouse: Lakehouse, lake: Lake) -> None:
    """Batch by batch and together the same: three of five, then five of eight."""

    def edition() -> int:
        found = latest_edition(lakehouse.settings)
        return found.number if found else 0

    def status() -> str:
        return lake("status").stdout

    declare(lakehouse.source, CONTRACT | {"lake": CONTRACT["lake"] | {"max_refused": {"share": 0.5, "records": 2}}})
    bad = [{"shop": shop, "pieces": "many"} for shop in "xyz"]
    lakehouse.land("sales", *sales(a=1), *bad[:2]).run()
    assert edition() == 1, "two are a handful"
    lakehouse.land("sales", *sales(a=2, b=2), *bad[:2]).land("sales", bad[2]).land("sales", *sales(b=3), *bad[:2])
    with pytest.raises(QualityError) as held:
        lakehouse.run()
    assert "sales: 5 of 8 records of batch 2 were refused (wrong type 5)" in str(held.value)
    assert "held: last_sale, sold" in str(held.value)
    assert "lake quarantine accept sales" in str(held.value)
    assert (edition(), lakehouse.table("last_sale")[0]["pieces"]) == (1, 2)
    assert "held     sales: 5 of 8 records" in status()
    assert isinstance(lake("publish").exception, QualityError)
    assert isinstance(lake("check").exception, QualityError)

    repaired = [
        row | {"raw": row["raw"].replace('"many"', "7")}
        for row in json.loads(lake("quarantine", "list", "--json").stdout)
    ]
    file = lakehouse.home / "repaired.json"
    file.write_text(json.dumps([row for row in repaired if row["batch"] == 2][:1]))
    assert lake("quarantine", "replay", "sales", str(file)).exit_code == 0
    lakehouse.run()
    assert edition() == 2, "four of eight are not more than half"
    lakehouse.land("sales", *bad)
    with pytest.raises(QualityError, match="3 of 3 records of batch 4"):
        lakehouse.run()
    assert isinstance(lake("quarantine", "accept", "sales", "--reason", " ").exception, DeclarationError)
    assert lake("quarantine", "accept", "sales", "--reason", "there is no such shop").stdout == "sales@5\n"
    assert isinstance(lake("quarantine", "accept", "sales", "--reason", "again").exception, DeclarationError)
    for told in (str(lake("publish").exception), status()):
        assert "were refused" in told
        assert "they were accepted after the cut, and a new one counts that: lake run" in told
        assert "lake quarantine accept" not in told
    lakehouse.land("sales", *bad)
    with pytest.raises(QualityError, match="3 of 3 records of batch 6"):
        lakehouse.run()
    assert "accepted what sales refused up to batch 5: there is no such shop" in status()
    assert lake("void", "sales", "--batch", "6", "--reason", "no file for us").exit_code == 0
    lakehouse.run()
    assert (edition(), "held" in status()) == (3, False)
    assert lake("log", "sales", "--check").exit_code == 0


@pytest.mark.long
def test_stopped_gate_names_the_events_to_void(lakehouse: Lakehouse, lake: Lake) -> None:
    """Stop the gate before a table is built and before there is an edition, and later."""
    at_least = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "pieces", "min_value": 0}}
    for name in JOBS:
        lakehouse.settings.path(f"quality/{name}.json").write_text(json.dumps({"expectations": [at_least]}))
    for shop, others in (("a", {"b": 1}), ("c", {"a": 1})):
        lakehouse.land("sales", *sales(**others), *sales(**{shop: -5}))
        with pytest.raises(QualityError) as stop:
            lakehouse.run()
        told = re.search(rf"behind shop={shop}: sales (\d+:\d+:\d+) \(sales/.*\.jsonl:2\)", str(stop.value))
        assert told
        assert f"lake void sales {told[1]} --reason" in str(stop.value)
        explained = json.loads(lake("explain", "last_sale", f"shop={shop}", "--json").stdout)
        [side] = explained["rows"][0]["from"]
        assert ["{batch}:{bucket}:{offset}".format(**event) for event in side["events"]] == [told[1]]
        if shop == "a":
            assert "a gate stopped cut 1" in str(lake("sql", "select 1").exception)
        assert lake("void", "sales", told[1], "--reason", "a test").exit_code == 0
        lakehouse.run()
        assert shop not in {row["shop"] for row in lakehouse.table("last_sale")}


SHARE = '''
from lake import Fold, log, table

def shared(state, event):
    return {{"share": state["share"] + 100 // event["pieces"]}}

@table(
    Fold("shop", state="share bigint", start={{"share": 1}}, step={step}, sequence="pieces"),
    log("sales"),
)
def share(sales):
    """What is left of a shop's stock."""
    return sales.selectExpr("shop", "{pieces}")
'''


@pytest.mark.long
@pytest.mark.parametrize(
    ("step", "pieces"),
    [
        ("shared", "pieces"),
        pytest.param('{"share": "state.share + 100 div event.pieces"}', "pieces", marks=pytest.mark.long),
        pytest.param('{"share": "event.pieces"}', "100 div pieces as pieces", marks=pytest.mark.long),
    ],
    ids=["a reducer in Python", "a reducer in SQL", "the function"],
)
def test_event_without_a_row_is_named(lakehouse: Lakehouse, lake: Lake, step: str, pieces: str) -> None:
    text = SHARE.format(step=step, pieces=pieces)
    for name in JOBS:
        lakehouse.settings.path(f"jobs/silver/{name}.py").unlink()
    lakehouse.settings.path("jobs/silver/share.py").write_text(text)
    lakehouse.land("sales", *sales(a=4, b=5)).run()
    lakehouse.land("sales", *sales(c=1, d=2)).land("sales", *sales(e=5, a=0, f=1))
    with pytest.raises(LakeError) as fault:
        lakehouse.run()
    told = re.search(r"; the event is sales (2:\d+:\d+)", str(fault.value))
    assert told
    assert lake("void", "sales", told[1], "--reason", "none were sold").exit_code == 0
    lakehouse.run()
    assert [row["shop"] for row in lakehouse.table("share")] == ["a", "b", "c", "d", "e", "f"]


OVER_TABLES = {
    "a reducer in Python": (
        'Fold("shop", state="share int", start={"share": 0}, step=step, sequence="pieces")',
        'rows.select("shop", "pieces")',
        0,
    ),
    "a condition in Python": (
        'Pattern("shop", sequence="pieces", steps=[Step("any", holds)], measures={"n": Count()})',
        'rows.select("shop", "pieces")',
        0,
    ),
    "the function": ('Latest("shop")', 'rows.selectExpr("shop", "100 div pieces as share")', 0),
    "two rows of one identity": ('View("pieces")', 'rows.select("shop", "pieces")', 4),
}
OVER_TABLE = """
from jobs.silver.last_sale import last_sale
from lake import *

def step(state, event):
    return {{"share": 100 // event["pieces"]}}

def holds(event, matched):
    return 100 // event["pieces"] > 0

@table({kind}, last_sale)
def over(rows):
    '''A row.'''
    return {returns}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "declared",
    [
        "a reducer in Python",
        "two rows of one identity",
        pytest.param("a condition in Python", marks=pytest.mark.long),
        pytest.param("the function", marks=pytest.mark.long),
    ],
)
def test_event_behind_a_failing_row_of_a_table_is_named(lakehouse: Lakehouse, lake: Lake, declared: str) -> None:
    kind, returns, pieces = OVER_TABLES[declared]
    lakehouse.settings.path("jobs/silver/sold.py").unlink()
    lakehouse.settings.path("jobs/silver/over.py").write_text(OVER_TABLE.format(kind=kind, returns=returns))
    lakehouse.land("sales", *sales(a=4, b=5)).run()
    lakehouse.land("sales", *sales(c=1, f=9)).land("sales", *sales(e=6, f=pieces))
    with pytest.raises(LakeError) as fault:
        lakehouse.run()
    told = re.search(r"sales (2:\d+:\d+) \(sales/000003\.jsonl:2\)", str(fault.value))
    assert told, str(fault.value)
    assert "lake void sales " in str(fault.value)
    assert lake("void", "sales", told[1], "--reason", "none were sold").exit_code == 0
    lakehouse.run()
    assert len(lakehouse.table("over")) == 5


OVER_LOGS = """
from lake import *

def holds(event, matched):
    return 100 // event["pieces"] > 0

@table(
    Pattern("shop", sequence=(), steps=[Step("any", holds)], measures={"n": Count()}), log("returned"), log("sales")
)
def over(returned, sales):
    '''A row.'''
    return returned.select("shop", "pieces"), sales.select("shop", "pieces")
"""


@pytest.mark.long
@pytest.mark.parametrize("stream", ["returned", "sales"])
def test_event_is_named_in_the_right_one_of_several_logs(lakehouse: Lakehouse, lake: Lake, stream: str) -> None:
    for name in JOBS:
        lakehouse.settings.path(f"jobs/silver/{name}.py").unlink()
    kept = contract("returned", {"shop": "string", "pieces": "int"})
    declare(lakehouse.settings, kept, jobs={"over": OVER_LOGS})
    lakehouse.land("sales", *sales(a=4, b=5)).land("returned", *sales(a=4, b=5)).run()
    for each in ("sales", "returned"):
        lakehouse.land(each, *sales(c=1, d=2)).land(each, *sales(e=5, f=0 if each == stream else 6))
    with pytest.raises(LakeError) as fault:
        lakehouse.run()
    place = re.search(rf"; the event is {stream} (2:\d+:\d+)", str(fault.value))
    assert place, str(fault.value)
    assert lake("void", stream, place[1], "--reason", "none were sold").exit_code == 0
    lakehouse.run()
    assert len(lakehouse.table("over")) == 11
