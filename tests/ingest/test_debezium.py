"""Debezium messages from a landing folder to current tables, compared with a plain replay.

The samples are test data of other projects (paimon, flink-cdc, seatunnel; Apache-2.0). They are read from the folder
in the environment variable SHARED_DATA, by default `shared/data` beside the repository.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.ingest.fsck import check_log
from lake.ingest.ingest import ingest
from lake.store import quarantine
from lake.store.log import Log
from lake.testing import Lakehouse
from tests.checks import present

SAMPLES = Path(os.environ.get("SHARED_DATA", Path(__file__).parents[3] / "shared/data")) / "debezium_samples"
samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason=f"no sample messages in {SAMPLES}")

CURRENT = '''
from lake import Latest, log, table


@table(Latest(key="id", {options}), log("rows"))
def current(rows):
    """A row of the source's table as it stands."""
    return rows.selectExpr({columns})
'''
VERSIONS = '''
from lake import History, log, table


@table(History(key="id", {options}), log("rows"))
def versions(rows):
    """A version of a row of the source's table."""
    return rows.selectExpr({columns})
'''
PLACED = ["lsn AS _lsn", "op AS _op"]
BY_PLACE = """sequence="_lsn", deletes="_op = 'd'" """
GUIDE = Path(__file__).parents[2] / "docs/how-to/debezium.md"
Make = Callable[..., Lakehouse]
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}


def field(name: str, kind: Any, origin: str | None = None) -> dict[str, Any]:
    """Return a field that may be null."""
    return {"name": name, "type": ["null", kind]} | ({"from": origin} if origin else {})


def job(template: str, options: str, columns: Iterable[str]) -> str:
    return template.format(options=options, columns=", ".join(f'"{column}"' for column in columns))


@pytest.fixture
def lakehouse(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Factory `lakehouse(fields, facts, jobs…)` of projects whose stream `rows` is in Debezium's envelope.

    The log counts as large, so that rows of a few keys are looked up in its files.
    """
    monkeypatch.setattr(cost, "PRUNED_LOG_ROWS", 0)

    def make(fields: Sequence[dict[str, Any]], facts: dict[str, Any], *jobs: str) -> Lakehouse:
        project = tmp_path / "project"
        for folder in ("schemas", "jobs/silver", "quality"):
            (project / folder).mkdir(parents=True, exist_ok=True)
        (project / "pyproject.toml").write_text("[tool.lake]\n")
        about: dict[str, Any] = {"key": ["id"], "envelope": "debezium", "buckets": 2} | facts
        whole = [{"name": about["key"][0], "type": "int"}, {"name": "op", "type": "string", "from": "op"}, *fields]
        contract = {"type": "record", "name": "rows", "doc": "A change of a row.", "lake": about, "fields": whole}
        (project / "schemas/rows.avsc").write_text(json.dumps(contract, indent=1))
        for text in jobs:
            name = present(re.search(r"def (\w+)", text))[1]
            (project / f"jobs/silver/{name}.py").write_text(text)
        return Lakehouse(project, tmp_path)

    return make


def messages(name: str) -> list[str]:
    """Return the messages of a sample, one per line, without its licence."""
    text = re.sub(r"^\s*/\*.*?\*/", "", (SAMPLES / name).read_text(), flags=re.DOTALL)
    return [line for line in text.splitlines() if line.strip()]


def replayed(lines: Iterable[str], columns: Sequence[str], table: str | None = None) -> list[dict[str, Any]]:
    """Return the table after all messages, applied one by one."""
    rows: dict[int, dict[str, Any]] = {}
    for line in lines:
        message = json.loads(line)
        change = message.get("payload", message)
        if table in (None, change["source"]["table"]):
            if change["before"] and "id" in change["before"]:
                rows.pop(change["before"]["id"], None)
            if change["op"] != "d":
                rows[change["after"]["id"]] = {name: change["after"].get(name) for name in columns}
    return sorted(rows.values(), key=lambda row: str(row["id"]))


def in_slices(lakehouse: Lakehouse, lines: Sequence[str], size: int) -> None:
    """Run one cycle per `size` messages, and check every table against a recomputation."""
    for start in range(0, len(lines), size):
        lakehouse.land("rows", *lines[start : start + size]).run()
    lakehouse.check_laws()
    assert check_log(lakehouse.settings, "rows").faults == []


# Source: debezium.io, documentation of the PostgreSQL connector (a subset of the fields).
ANNE = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
CREATE = {"op": "c", "ts_ms": 1559033904863, "before": None, "after": ANNE} | {
    "source": {"snapshot": True, "txId": 555, "lsn": 24023128}
}
UPDATE = {"op": "u", "ts_ms": 1465584025523, "before": {"id": 1}, "after": ANNE | {"first_name": "Anne Marie"}} | {
    "source": {"snapshot": False, "txId": 556, "lsn": 24023128, "ts_ms": 1559033904863}
}
DELETE = {"op": "d", "ts_ms": 1465581902461, "before": {"id": 1}, "after": None} | {
    "source": {"snapshot": False, "txId": 556, "lsn": 46523128, "ts_ms": 1559033904863}
}
TRUNCATE = {"op": "t", "ts_ms": 1465581902461, "source": {"snapshot": False, "txId": 557, "lsn": 46523200}}
CUSTOMER = [
    field("first_name", "string"),
    field("email", "string"),
    field("lsn", "long", "source.lsn"),
    field("former_id", "int", "before.id"),
]
CUSTOMER_FACTS = {"id": ["lsn", "op"], "broadcast": "op = 't'"}


def first_names(lakehouse: Lakehouse) -> dict[int, str]:
    return {row["id"]: row["first_name"] for row in lakehouse.table("current")}


def change(op: str, key: int, name: str, lsn: int, before: Any = None) -> dict[str, Any]:
    return {"op": op, "before": before, "after": {"id": key, "first_name": name}, "source": {"lsn": lsn}}


@pytest.mark.long
def test_documented_messages_give_the_current_table(lakehouse: Make) -> None:
    """Create and update have the same lsn, and ts_ms decreases: log order decides."""
    columns = ["id", "first_name", "email", *PLACED]
    shop = lakehouse(CUSTOMER, CUSTOMER_FACTS, job(CURRENT, BY_PLACE, columns))
    assert first_names(shop.land("rows", CREATE).run()) == {1: "Anne"}
    assert first_names(shop.land("rows", UPDATE, CREATE).run()) == {1: "Anne Marie"}
    assert first_names(shop.land("rows", DELETE, "null").run()) == {}
    shop.check_laws()
    counts = [dict(head.counts) for head in Log(shop.settings, "rows").heads()]
    assert [(count["duplicates"], count["control"]) for count in counts] == [(0, 1), (1, 0), (0, 0)]


@pytest.mark.long
def test_truncate_empties_the_table_before_it(lakehouse: Make) -> None:
    columns = ["id", "first_name", *PLACED]
    options = """sequence="_lsn", deletes="_op = 'd'", truncate="_op = 't'" """
    shop = lakehouse(CUSTOMER, CUSTOMER_FACTS, job(CURRENT, options, columns))
    shop.land("rows", CREATE, change("c", 2, "Bob", 24023200)).run()
    assert first_names(shop.land("rows", TRUNCATE).run()) == {}
    shop.land("rows", change("c", 3, "Cy", 46523201), change("u", 2, "Bo", 24023201)).run().check_laws(slices=0)
    assert first_names(shop) == {3: "Cy"}


def recipe() -> list[str]:
    """Return the jobs of the guide for the stream `rows`."""
    [shown] = re.findall(r"```python\n(@table\(Latest\(.+?)```", GUIDE.read_text("utf-8"), flags=re.DOTALL)
    heads = "from pyspark.sql import DataFrame\n\nfrom lake import History, Latest, log, table\n\n\n"
    jobs = (
        shown.replace("customers: ", "rows: ").replace("customers.", "rows.").replace('log("customers")', 'log("rows")')
    )
    return [f"{heads}@table({job}" for job in jobs.split("@table(") if job]


def at_place(op: str, key: int, name: str, lsn: int | None, second: int | None) -> dict[str, Any]:
    """Return a change or a read with the source's time in seconds of a day of 2019, or 0 if None."""
    moment = 0 if second is None else 1559033904000 + second * 1000
    whole = {"op": op, "before": None, "after": {"id": key, "name": name}, "source": {"lsn": lsn, "ts_ms": moment}}
    return whole | ({"before": {"id": key}, "after": None} if op == "d" else {})


@pytest.mark.long
def test_recipe_orders_by_log_place_and_begins_no_version_in_1970(lakehouse: Make) -> None:
    """A late snapshot of place 5 does not win. One of place 20 brings changes that the connector missed."""
    facts = [field("name", "string"), field("lsn", "long", "source.lsn"), field("committed_at", MILLIS, "source.ts_ms")]
    shop = lakehouse(facts, {"id": ["lsn", "op"]}, *recipe())
    shop.land("rows", at_place("r", 1, "old", 5, 5), at_place("u", 1, "510", 10, 10), at_place("c", 4, "four", 11, 11))
    shop.run().land("rows", at_place("d", 4, "", 12, 12), at_place("r", 2, "two", 5, 5), at_place("r", 4, "none", 5, 5))
    shop.land("rows", at_place("r", 1, "late", 7, 7), at_place("r", 5, "no time", 8, None)).run()
    assert {row["id"]: row["name"] for row in shop.table("customer")} == {1: "510", 2: "two", 5: "no time"}
    again = [at_place("r", key, name, 20, 20) for key, name in ((1, "520"), (3, "three"), (2, "two"))]
    shop.land("rows", *again).run().land("rows", at_place("u", 3, "3", 21, 7200)).run().check_laws()
    assert {row["id"]: row["name"] for row in shop.table("customer")} == {1: "520", 2: "two", 3: "3", 5: "no time"}
    versions = [(row["id"], row["name"], row["valid_from"].year) for row in shop.table("customer_version")]
    assert [name for key, name, _ in versions if key == 1] == ["old", "late", "510", "520"]
    assert [name for key, name, _ in versions if key == 2] == ["two"], "a read that says nothing new opens no version"
    assert {(key, year) for key, _, year in versions} == {(1, 2019), (2, 2019), (3, 2019), (4, 2019)}


@pytest.mark.long
def test_changed_primary_key_is_a_delete_and_a_create(lakehouse: Make) -> None:
    columns = ["id", "first_name", *PLACED]
    shop = lakehouse(CUSTOMER, CUSTOMER_FACTS, job(CURRENT, BY_PLACE, columns))
    shop.land("rows", CREATE).run()
    moved: list[dict[str, Any] | str] = [
        {**DELETE, "source": {"lsn": 24023200}},
        "null",
        change("c", 7, "Anne", 24023200),
    ]
    shop.land("rows", *moved).run().check_laws(slices=0)
    assert first_names(shop) == {7: "Anne"}


@pytest.mark.long
def test_update_that_names_the_former_key_deletes_it(lakehouse: Make) -> None:
    """Some writers of Debezium's format send one update with both keys."""
    columns = ["id", "first_name", "former_id AS _former_id", *PLACED]
    options = BY_PLACE + """, former={"id": "_former_id"}"""
    shop = lakehouse(CUSTOMER, CUSTOMER_FACTS, job(CURRENT, options, columns))
    shop.land("rows", CREATE).run()
    shop.land("rows", change("u", 7, "Anne", 24023200, before={"id": 1})).run().check_laws(slices=0)
    assert first_names(shop) == {7: "Anne"}


PRODUCT = [field("name", "string"), field("description", "string"), field("weight", "double")]
COLUMNS = ["id", "name", "description", "weight"]
AT = [field("file", "string", "source.file"), field("pos", "long", "source.pos"), field("row", "int", "source.row")]


@pytest.mark.long
@samples
def test_products_of_mysql_are_ordered_by_their_place_in_its_log(lakehouse: Make) -> None:
    """Messages without schema wrapper. Versions begin at the source's commit, those of the snapshot at its 0."""
    lines = messages("seatunnel/debezium-data.txt")
    current = """sequence=("_file", "_pos", "_row"), deletes="_op = 'd'" """
    placed = ["file AS _file", "pos AS _pos", "row AS _row", "op AS _op"]
    since = """sequence=("at", "_file", "_pos", "_row"), deletes="_op = 'd'", track=["description", "weight"]"""
    shop = lakehouse(
        [*PRODUCT, *AT, field("at", MILLIS, "source.ts_ms")],
        {"table": "inventory.products", "id": ["file", "pos", "row"], "time": "at"},
        job(CURRENT, current, [*COLUMNS, *placed]),
        job(VERSIONS, since, [*COLUMNS, "at", *placed]),
    )
    in_slices(shop, lines, 6)
    shop.land("rows", *lines).run()
    assert shop.table("current") == replayed(lines, COLUMNS)
    versions = shop.table("versions")
    weights = {key: [row["weight"] for row in versions if row["id"] == key] for key in (107, 111)}
    assert weights == {107: [5.300000190734863, 5.099999904632568], 111: [5.179999828338623, 5.170000076293945]}
    open_rows = [{name: row[name] for name in COLUMNS} for row in versions if row["is_current"]]
    assert open_rows == replayed(lines, COLUMNS)
    assert sum(head.counts["duplicates"] for head in Log(shop.settings, "rows").heads()) == len(lines)


@pytest.mark.long
@samples
@pytest.mark.parametrize("name", ["debezium-json.txt", "debezium-json-with-schema.txt"])
def test_column_added_in_mid_stream_is_read_and_another_table_quarantined(lakehouse: Make, name: str) -> None:
    """One topic has two tables and no log position: log order decides, and the other table is quarantined."""
    lines = messages(f"flink-cdc/{name}")
    columns = [*COLUMNS, "enum_c", "json_c", "new_col"]
    fields = [*PRODUCT, field("enum_c", "string"), field("json_c", "string"), field("new_col", "int")]
    options = """deletes="_op = 'd'" """
    shop = lakehouse(fields, {"table": "products"}, job(CURRENT, options, [*columns, "op AS _op"]))
    in_slices(shop, lines, 7)
    assert shop.table("current") == replayed(lines, columns, "products")
    kept = [*quarantine.rejected(shop.settings, "rows", upto=100)]
    assert [(row.reason, row.detail) for row in kept] == [("other table", "$databaseName.customers")] * 4
    assert [row.raw for row in kept] == [line for line in lines if "customers" in line]


@pytest.mark.long
@samples
def test_contract_that_declares_a_column_later_reads_older_values(lakehouse: Make) -> None:
    """Messages with schema wrapper. `age` was in messages before it was in the contract, and becomes text."""
    folder = "paimon/debezium__table__schema__schemaevolution__debezium-data-"
    parts = [messages(f"{folder}{part}.txt") for part in ("1", "2", "3", "4", "5", "with-delete")]
    known = job(CURRENT, """deletes="_op = 'd'" """, [*COLUMNS, "op AS _op"])
    shop = lakehouse(PRODUCT, {"table": "test.product"}, known)
    for lines in parts[:3]:
        shop.land("rows", *lines).run()
    assert shop.table("current") == replayed(chain(*parts[:3]), COLUMNS)
    age = field("age", "string") | {"default": None}
    shop = lakehouse([*PRODUCT, age], {"table": "test.product"}, known)
    for lines in parts[3:]:
        shop.land("rows", *lines).run()
    shop.check_laws()
    ages = {row["id"]: row["age"] for row in rows_of(shop) if row["op"] != "d"}
    expected = {row["id"]: row["age"] for row in replayed(chain(*parts[:5]), ["id", "age"])}
    assert ages == {key: None if found is None else str(found) for key, found in expected.items()}


def rows_of(shop: Lakehouse) -> list[dict[str, Any]]:
    """Return the events of the log in log order."""
    contract = shop.project.contracts["rows"]
    events = Log(shop.settings, contract.name).read(shop.spark, contract, upto=Log(shop.settings, "rows").head().batch)
    return [row.asDict(recursive=True) for row in events.orderBy("_batch", "_bucket", "_offset").collect()]


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


DECIMALS = {"decimal_c": (8, 4), "numeric_c": (6, 0), "decimal_un_c": (8, 4), "big_decimal_c": (38, 1)}
MOMENTS = [
    field("date_c", {"type": "int", "logicalType": "date"}),
    field("datetime3_c", MILLIS),
    field("datetime6_c", {"type": "long", "logicalType": "timestamp-micros"}),
    field("timestamp_c", MILLIS),
]
OTHERS = [field("blob_c", "bytes"), field("bit1_c", "boolean"), field("point_c", "string"), field("time_c", "long")]
EXPECTED_MOMENTS = [
    "2020-07-17",
    "2020-07-17 18:00:22.123000",
    "2020-07-17 18:00:22.123456",
    "2020-07-17 18:00:22",
]


@pytest.mark.long
@samples
@pytest.mark.parametrize(
    ("name", "declared"),
    [("exclude", DECIMALS), ("exclude-with-numeric-decimal", DECIMALS), ("include", ["decimal_un_c", "big_decimal_c"])],
)
def test_values_of_every_mysql_type_are_decoded(lakehouse: Make, name: str, declared: Any) -> None:
    """Encodings come from the contract unless the message's schema has them.

    The sample's schema exchanges scale and precision of big_decimal_c, which is removed, as are other types.
    """
    document = json.loads((SAMPLES / f"flink-cdc/debezium-data-schema-{name}.json").read_text())["expected_snapshot"]
    row = document.get("payload", document)["after"]
    for image in document.get("schema", {"fields": []})["fields"]:
        image["fields"] = [c for c in image.get("fields", []) if c["field"] != "big_decimal_c"]
    fields = [
        field(c, decimal(*size)) | ({"encoding": "base64"} if c in declared else {}) for c, size in DECIMALS.items()
    ]
    shop = lakehouse([*fields, *MOMENTS, *OTHERS], {"key": ["int_c"]})
    shop.land("rows", json.dumps(document))
    ingest(shop.settings, lambda: shop.spark, shop.project.contracts)
    assert [*quarantine.rejected(shop.settings, "rows", upto=1)] == []
    [event] = rows_of(shop)
    assert [event[c] for c in DECIMALS] == [plain_decimal(row[c], scale) for c, (_, scale) in DECIMALS.items()]
    assert [str(event[moment["name"]]) for moment in MOMENTS] == EXPECTED_MOMENTS
    assert [event[c] for c in ("blob_c", "bit1_c", "time_c")] == [b"\x10", False, 64822000000]
    assert json.loads(event["point_c"]) == row["point_c"]
    assert json.loads(event["_extra"])["enum_c"] == "red"


def plain_decimal(found: Any, scale: int) -> Decimal:
    """Decode without this project's code: a JSON number, or base64 of the unscaled bytes."""
    if isinstance(found, str):
        return Decimal(int.from_bytes(base64.b64decode(found), "big", signed=True)).scaleb(-scale)
    return Decimal(str(found))


@pytest.mark.long
@samples
def test_schema_change_over_many_lines_is_no_event(lakehouse: Make) -> None:
    shop = lakehouse(PRODUCT, {})
    file = shop.settings.path(shop.settings.landing) / "rows/change.json"
    file.parent.mkdir(parents=True)
    file.write_text("\n".join(messages("paimon/mysql__debezium-event-change.json")))
    ingest(shop.settings, lambda: shop.spark, shop.project.contracts)
    counts = Log(shop.settings, "rows").head().counts
    assert (counts["read"], counts["control"], counts["quarantined"]) == (1, 1, 0)
