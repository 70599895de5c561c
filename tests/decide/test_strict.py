"""What is read strictly is read by Spark too, to the same values: on generated records, canonical and odd ones."""

from __future__ import annotations

import dataclasses
import json
import random
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from lake.contracts.contract import Contract, read_contract
from lake.contracts.reasons import Reason
from lake.contracts.strict import NotTaken, StrictReader, unreadable
from lake.ingest.records import file_facts
from lake.ingest.records.parse import parse
from lake.ingest.records.quick_parse import LEFT, quick
from tests.contracts.odd import FIELDS, record
from tests.shop import contract

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS: Final = 3000
BYTES: Final = 700


def meant() -> Contract:
    return read_contract(json.dumps(contract("things", FIELDS, id=["request"])), file="things.avsc")


def test_nothing_that_a_contract_says_of_records_is_passed_over() -> None:
    """What a record has to be to get into the log is read strictly, or no stream that says so can be decided."""
    strictly = {"fields", "key", "id", "identity", "time", "max_ahead", "unknown", "missing"}
    refused = {"envelope", "broadcast", "dump", "clock", "horizon", "subject"}
    of_files, of_batches = {"csv", "table"}, {"buckets", "max_refused", "complete"}
    named = {"name", "doc", "file", "text"}
    assert {each.name for each in dataclasses.fields(Contract)} == strictly | refused | of_files | of_batches | named


@pytest.mark.long
@pytest.mark.turns
@pytest.mark.parametrize("count", [RECORDS // 4, RECORDS])
def test_what_is_read_strictly_spark_reads_to_the_same_values(spark: SparkSession, count: int) -> None:
    things, chance = meant(), random.Random(18)
    assert not [*unreadable(things)]
    reader, facts = StrictReader(things), {"http.id": "é 1", "http.received": "2024-03-01T12:00:00.123456+00:00"}
    texts = [record(chance) for _ in range(count)]
    rows = [("f", 0, number, f"1:{number}", facts, text) for number, text in enumerate(texts)]
    columns = "_file string, _block bigint, _seq bigint, _at string, _facts map<string,string>, _raw string"
    records = file_facts.with_facts(spark, spark.createDataFrame(rows, columns), things, [])
    parsed = parse(records, things, now=NOW, record_bytes=BYTES).orderBy("_seq").toArrow()
    schema = pa.schema([parsed.schema.field(field.name) for field in things.fields])
    taken, wrong = 0, list[str]()
    for text, row in zip(texts, parsed.to_pylist(), strict=True):
        try:
            values = reader.values(text, facts, record_bytes=BYTES, now=NOW)
        except NotTaken as error:
            if error.reason is Reason.OVERSIZED and row["_reason"] != Reason.OVERSIZED:
                wrong.append(f"{text}: {error}, by Spark {row['_reason']}")
            continue
        taken += 1
        [mine] = pa.Table.from_pylist([values], schema).to_pylist()
        spark_has = {field.name: row[field.name] for field in things.fields}
        if row["_reason"] is not None or mine != spark_has:
            differing = [(name, mine[name], spark_has[name]) for name in mine if mine[name] != spark_has[name]]
            wrong.append(f"{text}: by Spark {row['_reason']}: {row['_detail']} {differing}")
    assert not wrong, f"{len(wrong)} of {taken}:\n" + "\n".join(wrong[:20])
    assert count / 5 < taken < count


@pytest.mark.long
@pytest.mark.turns
@pytest.mark.parametrize("count", [RECORDS // 4, RECORDS])
def test_what_is_read_quickly_is_read_alike_with_care(spark: SparkSession, count: int) -> None:
    things, chance = meant(), random.Random(27)
    facts = {"http.id": "é 1", "http.received": "2024-03-01T12:00:00.123456+00:00"}
    rows = [("f", 0, number, f"1:{number}", facts, record(chance)) for number in range(count)]
    columns = "_file string, _block bigint, _seq bigint, _at string, _facts map<string,string>, _raw string"
    records = file_facts.with_facts(spark, spark.createDataFrame(rows, columns), things, [])
    carefully = parse(records, things, now=NOW, record_bytes=BYTES).orderBy("_seq").toArrow()
    tried = quick(records, things, now=NOW, record_bytes=BYTES).selectExpr("*", f"{LEFT} AS is_left")
    quickly = tried.orderBy("_seq").toArrow()
    is_left = pc.fill_null(quickly["is_left"], False)
    read = quickly.filter(pc.invert(is_left)).select(carefully.column_names)
    assert read.to_pylist() == carefully.filter(pc.is_in(carefully["_seq"], read["_seq"])).to_pylist()
    assert count / 5 < read.num_rows < count
    left = quickly.filter(is_left).select(records.columns).to_pylist()
    given = {number: text for _, _, number, _, _, text in rows}
    assert [row["_raw"] for row in left] == [given[row["_seq"]] for row in left]
    assert all(dict(row["_facts"]) == facts for row in left)


def test_each_kind_of_value_is_taken_and_refused_by_one_reading_or_the_other() -> None:
    """What the test above compares is something."""
    reader, chance = StrictReader(meant()), random.Random(18)
    reasons, named = set[str](), set[str]()
    for _ in range(RECORDS):
        try:
            values = reader.values(record(chance), {"http.id": "k"}, record_bytes=BYTES, now=NOW)
            named |= {name for name, value in values.items() if value is not None}
        except NotTaken as error:
            reasons.add(error.reason)
    assert named == {*FIELDS} - {"received"}
    assert reasons >= {
        Reason.UNPARSEABLE,
        Reason.MISSING,
        Reason.WRONG_TYPE,
        Reason.NOT_IN_ENUM,
        Reason.OUT_OF_BOUNDS,
    }
