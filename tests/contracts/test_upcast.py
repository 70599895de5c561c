"""Upcasts: events of older versions become those of the newest, for every reader."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import Contract, load_contract, read_contract
from lake.contracts.evolution import steps_of_log, with_current
from lake.contracts.upcast import definition, upcast_sql
from lake.errors import DeclarationError
from lake.project.project import load
from lake.store import duckdb_tables, spark_upcast
from lake.store.log import Log
from lake.store.scan import to_frame
from lake.testing import Commands, Lakehouse
from tests import shop

FIELDS: Final = {
    "id": "long",
    "energy": "long",
    "price": "decimal(9, 2)",
    "who": (["null", "string"], {"default": None, "personal": True}),
    "city": "string?",
    "day": "date",
}


def contract(upcast: Any = None, **about: Any) -> Contract:
    said = about if upcast is None else about | {"upcast": upcast}
    return read_contract(json.dumps(shop.contract("meters", FIELDS, subject="id", **said)), file="schemas/meters.avsc")


def declared(project: Settings, upcast: Any, **about: Any) -> Contract:
    shop.declare(project, shop.contract("meters", FIELDS, subject="id", upcast=upcast, **about))
    return load_contract(project, "meters")


@pytest.mark.parametrize(
    ("upcast", "what", "fix"),
    [
        ([], "invalid upcast: []", '{"1": {"energy": "energy * 1000"}}'),
        ({"1": {}}, "upcast of version 1 names no field", '{"1": {"energy": "energy * 1000"}}'),
        ({"1": "energy"}, "invalid upcast", '{"1": {"energy": "energy * 1000"}}'),
        ({"1": {"energy": 1000}}, "invalid upcast of 'energy': 1000", '{"1": {"energy": "energy * 1000"}}'),
        ({"0": {"energy": "1"}}, "upcast names '0', which is not a version", "beginning with 1"),
        ({"one": {"energy": "1"}}, "upcast names 'one', which is not a version", "beginning with 1"),
        ({"1": {"enrgy": "1"}}, "upcast names 'enrgy', which is not a field", "did you mean 'energy'?"),
        ({"1": {"id": "id + 1"}}, "upcast changes 'id', which is of the key", "publish a new stream"),
        ({"1": {"day": "day + 1"}}, "upcast changes 'day', which is of the event time", "publish a new stream"),
        ({"1": {"energy": "enrgy * 2"}}, 'cannot be evaluated: Referenced column "enrgy" not found', "over the fields"),
        ({"1": {"energy": "_version"}}, "cannot be evaluated", "over the fields"),
        ({"1": {"energy": "energy *"}}, "cannot be evaluated: syntax error", "over the fields"),
        ({"1": {"energy": "energy), (1"}}, "cannot be evaluated: syntax error", "over the fields"),
        ({"1": {"energy": "energy e"}}, "cannot be evaluated: syntax error", "over the fields"),
        ({"1": {"energy": "1; SELECT 2"}}, "cannot be evaluated", "over the fields"),
        ({"1": {"energy": "(SELECT 1)"}}, "cannot be evaluated: it has a subquery", "over the fields"),
        ({"1": {"energy": "row_number() OVER ()"}}, "cannot be evaluated: it has a window", "over the fields"),
        ({"1": {"energy": "sum(energy)"}}, "calls sum, which is a function of several rows", "of one event"),
        ({"1": {"energy": "unnest([energy])"}}, "calls unnest, which is a function of several rows", "of one event"),
        ({"1": {"energy": "random()"}}, "is not deterministic: random", "derive it from the event"),
        ({"1": {"city": "current_date"}}, "is not deterministic: current_date", "derive it from the event"),
        ({"1": {"city": "ago(INTERVAL 1 DAY)"}}, "is not deterministic: current_timestamp", "derive it from the event"),
        ({"1": {"city": "nosuch(city)"}}, "cannot be evaluated: Scalar Function with name nosuch", "over the fields"),
        ({"1": {"city": "upper(who)"}}, "uses 'who', which is personal", "make 'city' personal"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict | list) else "",
)
def test_invalid_upcast_is_rejected_with_its_line(project: Settings, upcast: Any, what: str, fix: str) -> None:
    with pytest.raises(DeclarationError) as fault:
        declared(project, upcast, time="day")
    assert what in str(fault.value)
    assert fix in str(fault.value.fix)
    assert str(fault.value).count("schemas/meters.avsc:") == 1


@pytest.mark.parametrize(
    "expression",
    ["energy * 1000", "if(energy > 1, 1, 2)", "Energy + length(city)", "CASE WHEN city = 'x' THEN 1 ELSE energy END",
     "list_sum(list_transform([energy], lambda x: x + 1))", "energy /* kWh */", "CAST(round(price * 3, 1) AS bigint)"],
)  # fmt: skip
def test_upcast_accepts_an_expression_over_the_fields(project: Settings, expression: str) -> None:
    [step] = declared(project, {"1": {"energy": expression}}).upcast
    assert (step.version, step.expressions) == (1, (("energy", expression),))


@pytest.mark.parametrize(
    ("fact", "used"),
    [
        ({"complete": {"number": "energy", "every": "1 day"}}, "energy"),
        ({"horizon": {"producer": "city", "idle": "1 day"}}, "city"),
        ({"horizon": {"producer": "id", "punctuation": "energy > 1", "idle": "2 day"}}, "energy"),
    ],
)
def test_upcast_may_change_a_field_named_like_a_unit_of_time(
    project: Settings, fact: dict[str, Any], used: str
) -> None:
    about = fact | {"time": "timestamp_micros(id)"}
    assert declared(project, {"1": {"day": "day + 1"}}, **about).upcast
    with pytest.raises(DeclarationError, match=f"upcast changes '{used}', which is of the {next(iter(fact))}"):
        declared(project, {"1": {used: "NULL"}}, **about)


def test_upcast_from_a_version_that_is_not_older_is_rejected() -> None:
    first = contract()
    stored = with_current((), first)
    with pytest.raises(DeclarationError, match="upcast names version 2, and its log has versions 1 to 1"):
        with_current(stored, contract({"2": {"energy": "1"}}))
    assert len(with_current(stored, contract({"1": {"energy": "1"}}))) == 2


def test_upcast_skips_events_of_a_version_that_declares_it() -> None:
    plain, once, again = contract(), contract({"1": {"energy": "1"}}), contract({"1": {"energy": "3"}})
    twice = contract({"1": {"energy": "1"}, "2": {"energy": "2"}})
    for contracts, expected in (
        ((once,), []),
        ((once, again), []),
        ((plain, once), [(1, (1,))]),
        ((plain, once, twice), [(1, (1,)), (2, (1, 2))]),
    ):
        steps = [(step.version, step.versions) for step in steps_of_log(contracts)]
        assert steps == expected


def test_record_rejected_under_an_upcast_version_is_replayed_only_if_corrected(
    tmp_path: Path, commands: Commands
) -> None:
    def declared(version: int, **about: Any) -> Lakehouse:
        energy = "long" if version > 1 else ("long", {"maximum": 100})
        return shop.declare(
            project, shop.contract("meters", FIELDS | {"energy": energy}, time="day", subject="id", **about)
        )

    project = shop.empty(tmp_path)
    lakehouse = declared(1)
    records = [{"id": n, "energy": n, "price": 1, "day": "2024-01-01"} for n in (2, 300)]
    lakehouse.land("meters", *records)
    assert commands.lake("ingest", at=lakehouse).code == 0
    declared(2, upcast={"1": {"energy": "energy * 1000"}})
    replayed = commands.lake("quarantine", "replay", "--json", at=lakehouse)
    [failed] = json.loads(replayed.out)["failed"]
    why = "it came under version 1 of the contract, whose events are upcast"
    assert (replayed.code, failed["reason"], failed["detail"]) == (0, "older version", why)
    lakehouse.land("meters", {"id": 4, "energy": 4000, "price": 1, "day": "2024-01-01"})
    assert commands.lake("ingest", at=lakehouse).code == 0
    repairs = json.loads(commands.lake("quarantine", "list", "--json", at=lakehouse).out)
    file = tmp_path / "repair.json"
    file.write_text(json.dumps([row | {"raw": json.dumps(records[1] | {"energy": 300_000})} for row in repairs]))
    assert commands.lake("quarantine", "replay", "meters", str(file), at=lakehouse).code == 0
    path = Log(lakehouse.settings, "meters").path
    rows = duckdb_tables.rows(path, "SELECT energy, _version FROM t WHERE energy IS NOT NULL ORDER BY energy")
    assert [(row["energy"], row["_version"]) for row in rows] == [(2, 1), (4000, 2), (300_000, 2)]


STEPS: Final = {
    "1": {"energy": "energy * 1000", "city": "upper(city)"},
    "2": {"price": "price / 2", "energy": "energy + length(city)", "who": "who || '!'"},
    "3": {"price": "CAST(energy AS DECIMAL(9, 2))", "energy": "CAST(price AS BIGINT)"},
}
Row = Mapping[str, Any]


def first_step(row: Row) -> Row:
    return {**row, "energy": row["energy"] * 1000, "city": row["city"] and row["city"].upper()}


def second_step(row: Row) -> Row:
    longer = row["energy"] + len(row["city"]) if row["city"] is not None else None
    return {**row, "price": row["price"] / 2, "energy": longer, "who": row["who"] and row["who"] + "!"}


def third_step(row: Row) -> Row:
    energy = None if row["energy"] is None else Decimal(row["energy"])
    return {**row, "price": energy, "energy": int(row["price"])}


def events() -> list[Row]:
    values = [
        {"energy": 2, "price": Decimal("8.00"), "who": "ada", "city": "graz"},
        {"energy": -1, "price": Decimal("4.00"), "who": None, "city": None},
        {"energy": 0, "price": Decimal("-2.00"), "who": "joan", "city": ""},
    ]
    return [{"_version": version, **row} for version in (1, 2, 3, 4) for row in values]


def wanted() -> list[Row]:
    """Return each event after the steps that follow its version."""
    rows = []
    for row in events():
        rows.append(
            reduce(lambda before, step: step(before), (first_step, second_step, third_step)[row["_version"] - 1 :], row)
        )
    return rows


def table() -> pa.Table:
    kinds = {"energy": pa.int64(), "price": pa.decimal128(9, 2), "who": pa.string(), "city": pa.string()}
    return pa.Table.from_pylist([*events()], pa.schema({"_version": pa.int32(), **kinds}))


def test_sql_applies_the_upcast_steps_after_the_version_of_an_event() -> None:
    newest = contract(STEPS)
    with duckdb.connect() as con:
        con.register("events", table())
        rows = upcast_sql(newest.upcast, newest.fields, "events", opened=False)
        found = con.sql(f"FROM {rows}").to_arrow_table().to_pylist()
    assert found == [{**row, "who": None if row["_version"] < 3 else row["who"]} for row in wanted()]


def test_tables_apply_the_upcast_steps_after_the_version_of_an_event(spark: SparkSession) -> None:
    rows = spark_upcast.upcast(to_frame(spark, table()), contract(STEPS), contract(STEPS).upcast)
    assert rows.toArrow().to_pylist() == wanted()
    failing = contract({"1": {"energy": "energy + CAST(city AS BIGINT)"}})
    with pytest.raises(Exception, match="meters: energy of version 1 cannot be upcast"):
        spark_upcast.upcast(to_frame(spark, table()), failing, failing.upcast).toArrow()


def test_upcast_changes_the_definition_of_tables_that_read_the_field(project: Settings) -> None:
    plain, now = (load_texts(project, upcast) for upcast in ({}, {"1": {"energy": "energy * length(city)"}}))
    assert {name for name in plain if plain[name] != now[name]} == {"energy"}
    assert now["energy"] == "bigint None upcast 1: energy = energy * length(city); city string None"
    later = load_texts(project, {"1": {"energy": "energy * length(city) "}})
    assert later["energy"] != now["energy"]


def load_texts(project: Settings, upcast: Mapping[str, Any]) -> dict[str, str]:
    declared(project, upcast)
    return load(project).fields("meters")


@pytest.mark.parametrize("change", [lambda texts: texts | {"city": "string 'x'"}, lambda texts: texts])
def test_definition_includes_the_fields_used_by_upcasts(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    newest = contract({"1": {"energy": "length(CITY)"}})
    texts = {field.name: field.type for field in newest.fields}
    before, after = (definition(newest.upcast, newest.fields, each) for each in (texts, change(texts)))
    assert (before["energy"] != after["energy"]) == (texts != change(texts))
