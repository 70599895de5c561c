"""Quoting: names and texts from users stay names and texts, with any content."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake import Latest
from lake.cli.recompute import _instant
from lake.config import Settings, load_settings
from lake.engine.analysis import analyse
from lake.engine.compare import compare, compare_local
from lake.engine.explain.selector import parse_key
from lake.engine.inputs import Inputs
from lake.errors import DeclarationError
from lake.ingest.events import void
from lake.project.declaration import Declaration
from lake.project.project import load
from lake.publish.cut import cut
from lake.read.wait import wait
from lake.store import delta
from lake.store.commit import commit
from lake.store.ledger.cuts import Cut
from lake.store.rows import Rows
from lake.store.scan import Scan, to_frame
from lake.store.table_head import Counts
from lake.store.tables import Table
from lake.text import DUCKDB, SPARK, check_column_names, literal, quoted
from tests import shop
from tests.checks import present
from tests.store.events import declare, events, fields, reading, take
from tests.warehouse import publish, write

NASTY = [
    "a`b",
    'a"b',
    "a'b",
    "a\\",
    "a\\'; --",
    "a; DROP TABLE t",
    "a -- b",
    "a /* b",
    "${env:HOME}",
    "${spark.app.name}",
    "{diff}",
    "{0}",
    "a.b",
    "a b\nc",
    "%s",
    "$1",
    "?",
    "select",
    "ünï 🙂",
]


@pytest.mark.parametrize("name", NASTY)
def test_duckdb_quotes_names_and_texts(name: str) -> None:
    answer = duckdb.sql(f"SELECT {literal(name)} AS {quoted(name)}")
    assert (present(answer).columns, present(answer).fetchall()) == ([name], [(name,)])


def test_spark_quotes_names_and_texts(spark: SparkSession) -> None:
    one = spark.range(1).selectExpr(*(f"{literal(n, SPARK)} AS {quoted(n, SPARK)}" for n in NASTY))
    assert one.columns == NASTY
    again = one.selectExpr(*(quoted(name, SPARK) for name in NASTY))
    assert list(again.first() or ()) == NASTY
    assert os.environ["HOME"] not in str(again.first())


def test_rows_are_compared_for_any_column_names(spark: SparkSession) -> None:
    old = pa.table({name: ["1", "2"] for name in NASTY})
    new = old.set_column(len(NASTY) - 1, NASTY[-1], [["1", "3"]])
    changed = compare_local(new, old, NASTY[:2])
    assert changed.column("_change").to_pylist() == ["update"]
    by_spark = compare(spark.createDataFrame(new), spark.createDataFrame(old), NASTY[:2])
    assert [row["_change"] for row in by_spark.collect()] == ["update"]


@pytest.mark.long
@pytest.mark.parametrize("writer", ["delta-rs", "spark"])
def test_project_folder_may_have_any_name(tmp_path: Path, spark: SparkSession, writer: str) -> None:
    home = tmp_path / "Ann's `lake`; {diff} --"
    settings = Settings(project=home)
    table = Table(settings, "gold", "sums", "sums")
    table.create(pa.schema([("k", pa.string()), ("n", pa.int64())]), description="Sums.")
    position = table.position()
    for number, change in enumerate(["insert", "update"]):
        diff = pa.table({"k": ["a"], "n": [number], "_change": [change]})
        start = position.next(cut=1) if position else _first(table)
        rows = to_frame(spark, diff) if writer == "spark" else diff
        position = commit(table, Rows(rows), Counts.of(Rows(diff)), ["k"], start)
    assert Scan(table.path).arrow().to_pylist() == [{"k": "a", "n": 1}]


def _first(table: Table) -> delta.Position:
    return delta.start(table.app).next(cut=1)


def test_column_name_consists_of_letters_digits_and_underscores() -> None:
    check_column_names(["a", "_b", "c9", "größe"])
    for name in set(NASTY) - {"select"}:
        with pytest.raises(DeclarationError, match="not a valid column name"):
            check_column_names(["a", name])


@pytest.mark.parametrize("name", [*(text for text in NASTY if text != "select"), "", "9a", "größe"])
def test_contract_name_consists_of_letters_digits_and_underscores(project: Settings, name: str) -> None:
    odd = {"name": name, "type": ["null", "string"], "default": None}
    inside = {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [odd]}}
    for changes in ({"name": name}, {"fields": fields(odd)}, {"fields": fields(inside)}):
        with pytest.raises(DeclarationError, match=r"an invalid name|not a valid|the record is named"):
            declare(project, **changes)


def test_invalid_key_name_is_rejected_when_loading(project: Settings) -> None:
    declare(project)
    job(project, "Latest('me`ter', sequence='at')", "rows")
    with pytest.raises(DeclarationError, match=r"newest: 'me`ter' is not a valid column name \(jobs/silver/newest"):
        load(project)


@pytest.mark.parametrize("returned", ["value as `a``b`", "value as `${env:HOME}`", "value as `x; drop`"])
def test_invalid_column_name_is_rejected_before_reading_data(
    project: Settings, spark: SparkSession, returned: str
) -> None:
    declare(project)
    job(project, "Latest('meter', sequence='at')", f"rows.selectExpr('meter', 'at', '{returned}')")
    loaded = load(project)
    inputs = Inputs(lambda: spark, loaded, Cut(1, {"readings": 0}, 0, None))  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match=r"newest: .* is not a valid column name"):
        analyse(inputs, loaded.tables["newest"])


def job(project: Settings, kind: str, body: str) -> None:
    shop.declare(project, jobs={"newest": shop.job("newest", kind, 'log("readings")', returns=body)})


def test_step_of_a_pattern_may_have_any_name(project: Settings) -> None:
    names = [name for name in NASTY if "${" not in name]  # which DuckDB leaves to Spark
    steps = ", ".join(f"Step({name!r})" for name in names)
    measures = {f"m{n}": f"In({name!r}, Min('value'))" for n, name in enumerate(names)}
    measures |= {f"n{n}": f"In({name!r}, Count())" for n, name in enumerate(names)}
    listed = ", ".join(f"{name!r}: {measure}" for name, measure in measures.items())
    kind = f"Pattern('meter', sequence='at', steps=[{steps}], measures={{{listed}}})"
    here = shop.declare(
        project,
        shop.contract("readings", {"meter": "string", "at": "timestamp", "value": "int"}),
        jobs={"matches": shop.job("matches", kind, 'log("readings")')},
    )
    hours = range(len(names))
    here.land("readings", *({"meter": "m", "at": f"2024-03-01T{n:02}:00:00Z", "value": n} for n in hours)).run()
    [match] = here.table("matches")
    assert [(match[f"m{n}"], match[f"n{n}"]) for n in hours] == [(n, 1) for n in hours]
    assert present(here.project.table(here.project.tables["matches"]).head()).engine == "duckdb"


def test_names_in_records_are_data(project: Settings, spark: SparkSession, land: Callable[..., Path]) -> None:
    """Former names of a field, keys of JSON and headings of CSV may be any text."""
    odd = [name for name in NASTY if "\n" not in name]
    declare(project, fields=fields({"name": "note", "type": ["null", "string"], "default": None, "aliases": odd[:6]}))
    land("readings", "a.jsonl", reading("json", **dict[str, Any](dict.fromkeys(odd[6:], "x")) | {"note": "n"}))
    land("readings", "b.jsonl", reading("alias", **dict[str, Any]({odd[0]: "by its former name"})))
    csv = [["meter", "at", "value", *odd[5:]], ["csv", "2024-03-01T00:00:00Z", "1.5", *odd[5:]]]
    lines = (",".join('"' + cell.replace('"', '""') + '"' for cell in line) for line in csv)
    land("readings", "c.csv", *lines)
    assert take(project, spark).quarantined == 0
    taken = {event["meter"]: event for event in events(project, spark)}
    assert taken["json"]["note"] == "n"
    assert taken["alias"]["note"] == "by its former name"
    assert taken["csv"]["note"] == odd[5]
    assert {name: json.loads(taken["csv"]["_extra"])[name] for name in odd[6:]} == {name: name for name in odd[6:]}


def test_defaults_and_symbols_are_data(project: Settings, spark: SparkSession, land: Callable[..., Path]) -> None:
    plain = {"type": ["string"], "doc": "x"}
    declare(project, fields=fields(*({"name": f"d{i}", "default": text, **plain} for i, text in enumerate(NASTY))))
    land("readings", "a.jsonl", reading("a"))
    [event] = (take(project, spark), events(project, spark))[1]
    assert [event[f"d{i}"] for i in range(len(NASTY))] == NASTY


@pytest.mark.turns(6)
@pytest.mark.parametrize("value", NASTY)
def test_key_argument_is_a_value(project: Settings, value: str) -> None:
    write(project, "gold", "t", f"SELECT {literal(value)} AS k, 1::BIGINT AS n UNION ALL SELECT 'other', 2")
    publish(project, t=("gold", 0))
    declaration = Declaration("t", Latest("k", sequence="n"), (), lambda: None)  # type: ignore[arg-type,return-value]
    table = Table(project, "gold", "t", "t")
    keys = parse_key(declaration, table.schema(0), [f"k={value}"])
    assert table.rows_of(keys, 0).to_pylist() == [{"k": value, "n": 1}]


@pytest.mark.parametrize("column", ['k"', "k`", "k) FROM t; --", "k -- ", "n"])
def test_key_argument_names_a_key_column(project: Settings, column: str) -> None:
    write(project, "gold", "t", "SELECT 'a' AS k, 1::BIGINT AS n")
    declaration = Declaration("t", Latest("k", sequence="n"), (), lambda: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(DeclarationError, match="among its key columns"):
        parse_key(declaration, Table(project, "gold", "t", "t").schema(0), [f"{column}=a"])


@pytest.mark.parametrize("place", ["1:0:0 OR true", "1:0:0; DROP TABLE t", "1:0", "1:0:'0'", "1:0:0\n--"])
def test_event_place_consists_of_three_numbers(project: Settings, place: str) -> None:
    declare(project)
    with pytest.raises(DeclarationError, match="not a valid event place"):
        void(project, "readings", [place], reason="; --")


@pytest.mark.turns(6)
@pytest.mark.parametrize("label", NASTY)
def test_cut_label_is_a_text(project: Settings, label: str) -> None:
    declare(project)
    loaded = load(project)
    assert cut(loaded, label=label).number == cut(loaded, label=label).number
    assert cut(loaded, label="other").number == cut(loaded, label="other").number


@pytest.mark.parametrize("text", ["2013-01-01' OR true --", "now()", "date '2013-01-01'", "2013-01-01; DROP t", ""])
def test_time_argument_is_a_valid_time(text: str) -> None:
    with pytest.raises(DeclarationError, match="is not a valid time"):
        _instant("--from", text)


@pytest.mark.parametrize("token", ["readings@1 OR true", "readings@1;--", "readings@'1'", "@1", "readings"])
def test_token_consists_of_a_stream_and_a_number(project: Settings, token: str) -> None:
    declare(project)
    with pytest.raises(DeclarationError):
        wait(project, [token], timeout=0)


@pytest.mark.parametrize("name", ["../readings", "readings; --", "readings/../../x", "`readings`", ""])
def test_stream_or_table_argument_is_declared(project: Settings, name: str) -> None:
    declare(project)
    with pytest.raises(DeclarationError, match="no stream"):
        void(project, name, ["1:0:0"], reason="x")
    with pytest.raises(DeclarationError, match="unknown table"):
        load(load_settings(project.project)).pick([name])


def test_quoting_differs_between_duckdb_and_spark() -> None:
    assert (quoted('a"`'), quoted('a"`', SPARK)) == ('"a""`"', '`a"```')
    assert (literal("a'\\"), literal("a'\\", SPARK), DUCKDB) == ("'a''\\'", "'a\\'\\\\'", '"')
