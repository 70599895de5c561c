"""NaN in tables and logs: no reader loses its rows, although statistics of Parquet files leave it out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.engine.verify import verify_all
from lake.ops import pipeline
from lake.project.project import load
from tests.checks import answer
from tests.shop import contract, declare, empty, job

MEMBERS: Final = {"type": "record", "name": "Part", "fields": [{"name": "x", "type": "double"}]}
FIELDS: Final = {
    "id": "int",
    "v": "int",
    "d": "double",
    "f": "float",
    "s": MEMBERS,
    "l": {"type": "array", "items": "double"},
}
TESTS: Final[Mapping[str, Callable[[float], bool]]] = {
    "isnan({})": math.isnan,
    "{} > 5": lambda x: math.isnan(x) or x > 5,
    "{} <> 1": lambda x: x != 1,
    "not ({} <= 2)": lambda x: math.isnan(x) or x > 2,
    "{} * 2 >= 4": lambda x: math.isnan(x) or x * 2 >= 4,
    "{} between 2 and 3": lambda x: 2 <= x <= 3,
}
PLACES: Final = {"d": "d", "f": "f", "s": "s.x", "l": "l[0]"}
"""Columns with the value of an event, in Spark's SQL. DuckDB counts items of a list from 1."""
MADE: Final = {"d": "isnan({})", "f": "{} > 5", "s": "not ({} <= 2)", "l": "{} <> 1"}
"""The condition of the table that is made of the rows of `newest` by a column."""
JOBS: Final = {
    "newest": job("newest", 'Latest("id", sequence="v")', 'log("events")'),
    **{
        f"by_{column}": job(
            f"by_{column}", 'View("id")', "newest", returns=f'rows.select("id").where("{test.format(PLACES[column])}")'
        )
        for column, test in MADE.items()
    },
}


def event(number: int, version: int, value: float) -> dict[str, Any]:
    told = "NaN" if math.isnan(value) else value
    return {"id": number, "v": version, "d": told, "f": told, "s": {"x": told}, "l": [told]}


def run(settings: Settings, spark: SparkSession, name: str, values: Mapping[int, float], rows: int) -> None:
    landing = settings.path(settings.landing) / "events"
    landing.mkdir(exist_ok=True)
    events = [event(number, len(name), value) for number, value in values.items()]
    (landing / f"{name}.jsonl").write_text("\n".join(map(json.dumps, events)))
    pipeline.run(replace(settings, in_process_rows=rows), lambda: spark, print)


@pytest.mark.parametrize("engines", [(1000, 0), pytest.param((0, 1000), marks=pytest.mark.long)], ids=str)
def test_readers_keep_rows_with_nan(tmp_path: Path, spark: SparkSession, engines: tuple[int, int]) -> None:
    """Tables are made by one engine and advanced by the other."""
    settings = empty(tmp_path / "project")
    declare(settings, contract("events", FIELDS, buckets=1), jobs=JOBS)
    first = {1: 1.0, 2: math.nan, 3: 2.0, 4: math.nan, 5: 1.0}
    second = {1: math.nan, 2: 1.0, 6: math.nan, 7: 3.0}
    run(settings, spark, "a", first, engines[0])
    run(settings, spark, "bb", second, engines[1])
    newest, events = first | second, [*first.values(), *second.values()]
    for test, is_met in TESTS.items():
        for column, place in PLACES.items():
            value = place.replace("[0]", "[1]")
            where = test.format(value)
            query = f"""SELECT max({value}) AS most, (SELECT count(*) FROM newest WHERE {where}) AS newest,
                (SELECT count(*) FROM log.events WHERE {where}) AS events, (SELECT count(*) FROM by_{column}) AS made
                FROM newest"""
            [found] = answer(settings.project, "sql", query)
            wanted = sum(map(is_met, newest.values()))
            assert (found["newest"], found["events"]) == (wanted, sum(map(is_met, events))), where
            assert str(found["most"]).lower() == "nan"
            assert MADE[column] != test or found["made"] == wanted, where
    verdicts = verify_all(lambda: spark, load(settings), on_progress=print)
    assert {each.verdict for each in verdicts} == {"identical"}
