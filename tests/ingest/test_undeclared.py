"""Undeclared members in identities, conflicts and upcasts."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.testing import Lakehouse
from tests import shop
from tests.ingest.test_renames import lake

CITY: Final = {"name": "city", "type": ["null", "string"]}


def address(*members: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return an optional record with these members."""
    return ["null", {"type": "record", "name": "addr_t", "fields": [*members]}], {"default": None}


def things(fields: dict[str, Any], **about: Any) -> dict[str, Any]:
    return shop.contract("things", {"id": "long", **fields}, **{"key": ["id"], "buckets": 1} | about)


def count_outcomes(lakehouse: Lakehouse) -> tuple[int, int, int]:
    """Return the numbers of events, redeliveries and rejected records in the commits of the log."""
    counts = [head.counts for head in Log(lakehouse.settings, "things").backwards()]
    return tuple(sum(each[name] for each in counts) for name in ("accepted", "duplicates", "quarantined"))  # type: ignore[return-value]


def ids(lakehouse: Lakehouse) -> list[str]:
    query = "SELECT _id FROM t ORDER BY _batch, _arrival"
    return [row["_id"] for row in duckdb_tables.rows(Log(lakehouse.settings, "things").path, query)]


def test_records_that_differ_in_undeclared_members_are_several_events(spark: SparkSession, project: Settings) -> None:
    fields: dict[str, Any] = {"name": "string", "addr": address(CITY)}
    lakehouse = shop.declare(project, things(fields, id="content"))
    lakehouse.land("things", {"id": 1, "name": "a"}, {"id": 2, "name": "b", "addr": {"city": "Graz"}})
    lakehouse.land(
        "things",
        '{"id":1,"name":"a","x":1.50,"more":{"b":[1,{"d":1,"c":2}],"a":"é"}}',
        '{"more":{"a":"\\u00e9","b":[1,{"c":2,"d":1}]},"x":1.50,"name":"a","id":1}',  # equal members in another order
        '{"id":1,"name":"a","x":1.5,"more":{"b":[1,{"d":1,"c":2}],"a":"é"}}',
        '{"id":2,"name":"b","addr":{"city":"Graz","zip":"8010"}}',
        '{"id":2,"name":"b","addr":{"zip":"8010","city":"Graz"}}',
        '{"id":2,"name":"b","addr":{"city":"Graz","zip":"8020"}}',
    )
    lake(lakehouse.settings, "ingest")
    plain = [sha256(text.encode()).hexdigest() for text in ("1:1-1:11:a-", '1:2-1:21:b15:{"city":"Graz"}')]
    more = '{"more":{"a":"é","b":[1,{"c":2,"d":1}]},"x":1.50}'
    found = ids(lakehouse)
    assert found[:2] == plain  # ids of records without undeclared members
    assert found[2] == sha256(f"1:1-1:11:a-{len(more)}:{more}".encode()).hexdigest()
    assert len({*found}) == len(found) == 6
    assert count_outcomes(lakehouse) == (6, 2, 0)


@pytest.mark.long
def test_redelivery_is_compared_with_undeclared_members(spark: SparkSession, project: Settings) -> None:
    record: dict[str, Any] = {"id": 1, "name": "a", "note": "n", "status": "open", "addr": {"city": "Graz", "zip": "1"}}
    fields: dict[str, Any] = {"name": "string", "note": "string?", "addr": address(CITY)}
    lakehouse = shop.declare(project, things(fields, id=["id"]))
    lakehouse.land("things", record, record | {"status": "closed"}, {**record, "addr": {"city": "Graz", "zip": "2"}})
    lake(lakehouse.settings, "ingest")
    assert count_outcomes(lakehouse) == (1, 0, 2)

    grown = address(CITY, {"name": "zip", "type": ["null", "string"]})
    learnt: dict[str, Any] = {"name": "string", "status": "string?", "addr": grown}
    lakehouse = shop.declare(project, things(learnt, id=["id"]))  # without the note
    lakehouse.land("things", record, record | {"status": "closed"}, {**record, "addr": {"city": "Graz", "zip": "2"}})
    lakehouse.land("things", record | {"more": 1})
    lake(lakehouse.settings, "ingest")
    assert count_outcomes(lakehouse) == (1, 1, 5)
    contract = load_contract(lakehouse.settings, "things")
    [event] = Log(lakehouse.settings, "things").read(spark, contract, upto=2).collect()
    assert (event["status"], event["addr"].zip) == ("open", "1")


@pytest.mark.long
def test_upcast_is_applied_by_tables_and_by_lake_sql_alike(spark: SparkSession, project: Settings) -> None:
    job = {"meter": shop.job("meter", 'Latest("id")', 'log("things")', returns='rows.select("id", "energy")')}
    lakehouse = shop.declare(project, things({"energy": "long", "unit": "string?"}, id=["id"]), jobs=job)
    lakehouse.land("things", {"id": 1, "energy": 2}, {"id": 2, "energy": 3, "tariff": "night"}).run()

    fields: dict[str, Any] = {"energy": "long", "unit": "string?", "tariff": "string?"}
    upcast = {"1": {"energy": "energy * 1000", "tariff": "upper(tariff)"}}
    lakehouse = shop.declare(project, things(fields, id=["id"], upcast=upcast))
    lakehouse.land("things", {"id": 3, "energy": 2500, "tariff": "day"}, {"id": 1, "energy": 2})  # redelivers 1
    with pytest.raises(DeclarationError, match="meter: its definition has changed"):
        lake(lakehouse.settings, "run")
    lake(lakehouse.settings, "deploy")
    rows = [{"id": 1, "energy": 2000}, {"id": 2, "energy": 3000}, {"id": 3, "energy": 2500}]
    assert Lakehouse(project.project, lakehouse.home).table("meter") == rows
    lakehouse.land("things", {"id": 4, "energy": 1}).run()
    settings = lakehouse.settings
    assert json.loads(lake(settings, "sql", "select id, energy, tariff from log.things order by id", "--json")) == [
        {"id": 1, "energy": 2000, "tariff": None}, {"id": 2, "energy": 3000, "tariff": "NIGHT"},
        {"id": 3, "energy": 2500, "tariff": "day"}, {"id": 4, "energy": 1, "tariff": None},
    ]  # fmt: skip
    assert count_outcomes(lakehouse) == (4, 1, 0)
    lake(settings, "verify")
    assert Lakehouse(project.project, lakehouse.home).table("meter") == [*rows, {"id": 4, "energy": 1}]
