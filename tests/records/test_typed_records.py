"""Records of Parquet and Avro by a contract: every file type for every field type, and undeclared columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest

from lake.contracts.contract import read_contract
from lake.contracts.csv_options import DEFAULT_CSV
from lake.records.raw_values import ColumnRecords
from lake.records.read_tasks import read_file
from lake.records.reader import RecordReader
from tests import shop
from tests.bad_input import hostile
from tests.contracts.odd import may
from tests.records import test_avro
from tests.records.test_parquet import ARRAYS, ID, NOON, parquet_bytes

INSTANT = NOON.replace(tzinfo=UTC)


def reader(fields: dict[str, Any]) -> RecordReader:
    contract = shop.contract("rows", {"key": shop.optional("long"), **fields})
    return RecordReader(read_contract(json.dumps(contract), file="rows.avsc"), 1 << 20)


def records(reader: RecordReader, data: bytes, name: str = "a.parquet") -> list[dict[str, Any]]:
    return [row for table in tables(reader, data, name) for row in table.to_pylist()]


def tables(reader: RecordReader, data: bytes, name: str) -> Iterator[pa.Table]:
    for part in read_file(BytesIO(data), name, DEFAULT_CSV, record_bytes=1 << 20, declared=reader.names):
        assert isinstance(part, ColumnRecords)
        yield reader.read(part, {})


@pytest.mark.parametrize("kind", hostile.TYPES)
def test_reader_accepts_or_rejects_every_type_of_parquet(kind: str) -> None:
    of = reader({"v": shop.optional(hostile.TYPES[kind])})
    for what, (array, _) in ARRAYS.items():
        [row, null] = records(of, parquet_bytes(pa.table({"v": array})))
        assert null["_reason"] is None, what
        assert row["_reason"] in {None, "wrong type", "not in enum"}, what
        assert (row["v"] is None) == (row["_reason"] is not None or what == "null"), what


@pytest.mark.parametrize("kind", hostile.TYPES)
def test_reader_accepts_or_rejects_every_type_of_avro(kind: str) -> None:
    of = reader({"v": shop.optional(hostile.TYPES[kind])})
    for what, (schema, raw, _) in test_avro.VALUES.items():
        data = test_avro.container(test_avro.record(v=schema, n="int"), [{"v": raw, "n": 1}])
        [row] = records(of, data, "a.avro")
        assert row["_reason"] in {None, "wrong type", "not in enum"}, what
        assert json.loads(row["_extra"] or "{}").get("n") == (1 if row["_reason"] is None else None), what


def test_reader_keeps_the_exact_value_of_a_whole_double() -> None:
    doubles = [float(2**62), float(2**60 + 2**9), 2.0**53 + 2, -(2.0**63), 2.0**63, 1e22]
    rows = records(reader({"v": may("long")}), parquet_bytes(pa.table({"v": doubles})))
    assert [row["v"] for row in rows] == [*map(int, doubles[:4]), None, None]


FIELDS = {name: may(kind) for name, kind in hostile.TYPES.items()} | {"code": may("string", text_only=True)}


@pytest.mark.parametrize("name", FIELDS)
def test_reader_reads_a_value_of_parquet_alike_before_and_after_nulls(name: str) -> None:
    of = reader({"v": FIELDS[name]})
    for what, (array, _) in ARRAYS.items():
        value, null = array[:1], array[1:]
        first, last, nulls = (
            [row | {"_seq": 0} for row in records(of, parquet_bytes(pa.table({"v": pa.concat_arrays(parts)})))]
            for parts in ([value, null, null], [null, null, value], [null, null, null])
        )
        assert last == first[::-1], what
        assert nulls == [first[1]] * 3, what


@pytest.mark.parametrize(
    ("what", "declared", "value"),
    [
        ("nanos", "timestamp", INSTANT),
        ("instant", "timestamp", INSTANT),
        ("micros", {"type": "long", "logicalType": "local-timestamp-micros"}, NOON),
        ("date32", "date", date(1, 1, 1)),
        ("decimal32", shop.avro("decimal(9, 3)"), Decimal("1.500")),
        ("decimal256", "double", float("9" * 70)),
        ("float16", shop.avro("decimal(9, 3)"), Decimal("0.100")),
        ("float32", "double", 0.1),
        ("float32", "string", "0.1"),
        ("uint64 beyond int64", shop.avro("decimal(20, 0)"), Decimal(2**64 - 1)),
        ("uuid", "string", str(ID)),
        ("fixed", "bytes", b"\xff\x00"),
        ("map of numbers", {"type": "map", "values": {"type": "array", "items": "int"}}, [("1", [2])]),
        ("bool8", "boolean", True),
    ],
)
def test_reader_returns_the_value_of_parquet(what: str, declared: Any, value: Any) -> None:
    [row, null] = records(reader({"v": shop.optional(declared)}), parquet_bytes(pa.table({"v": ARRAYS[what][0]})))
    assert (row["_reason"], row["_detail"], row["v"], null["v"]) == (None, None, value, None)


def test_reader_returns_texts_of_bytes_that_are_utf8() -> None:
    data = parquet_bytes(pa.table({"v": [b"abc", b"\xff"]}))
    taken, refused = records(reader({"v": "string"}), data)
    assert taken["v"] == "abc"
    assert refused["_reason"] == "wrong type"


def test_reader_keeps_null_of_parquet_null_when_the_field_has_a_default() -> None:
    field = {"type": ["long", "null"], "default": 1}
    contract = shop.contract("rows", {"id": "long"})
    contract["fields"].append({"name": "v", **field})
    of = RecordReader(read_contract(json.dumps(contract), file="rows.avsc"), 1 << 20)
    rows = records(of, parquet_bytes(pa.table({"id": [1], "v": pa.array([None], pa.int64())})))
    assert [row["v"] for row in rows] == [None]
    assert [row["v"] for row in records(of, parquet_bytes(pa.table({"id": [1]})))] == [1]


def test_reader_keeps_undeclared_columns_of_every_type() -> None:
    table = pa.table({"id": [1, 2], **{name: array for name, (array, _) in ARRAYS.items()}})
    first, second = records(reader({"id": "long"}), parquet_bytes(table))
    assert (first["_reason"], second["_reason"], second["_extra"]) == (None, None, None)
    extra = json.loads(first["_extra"])
    assert extra.keys() == ARRAYS.keys() - {"null"}
    assert {name: extra[name] for name in ("nanos", "binary", "decimal32", "time of micros", "map", "infinity")} == {
        "nanos": NOON.isoformat(),
        "binary": "/w==",
        "decimal32": 1.5,
        "time of micros": "00:00:00.000001",
        "map": {"a": 1.5},
        "infinity": "-Infinity",
    }


def test_reader_rejects_a_distant_date_with_its_record_alone() -> None:
    days = pa.array([0, 10**9], pa.date32())
    first, second = records(reader({"id": "long", "day": "date"}), parquet_bytes(pa.table({"id": [1, 2], "day": days})))
    assert (first["_reason"], first["day"]) == (None, date(1970, 1, 1))
    assert (second["_reason"], second["_detail"]) == (
        "wrong type",
        "day: 1000000000 days since 1970 is not date",
    )
    assert json.loads(second["_raw"]) == {"id": 2, "day": "1000000000 days since 1970"}


def test_reader_rejects_the_end_of_a_broken_avro_file() -> None:
    whole = test_avro.container(test_avro.record(id="long"), [{"id": n} for n in range(20)], every=10)
    *taken, broken = records(reader({"id": "long"}), whole[:-20], "a.avro")
    assert [row["id"] for row in taken] == [*range(10)]
    assert broken["_reason"] == "unparseable"
    assert broken["_detail"].startswith("cannot be read after record 10: ")
    assert broken["_seq"] == 11


def test_reader_writes_rejected_nested_texts_so_that_they_can_be_read_again() -> None:
    tags = (["null", {"type": "array", "items": "string"}], {"default": None})
    table = pa.table({"id": pa.array([None], pa.int64()), "tags": pa.array([[b"a", None]], pa.list_(pa.binary()))})
    [row] = records(reader({"id": "long", "tags": tags}), parquet_bytes(table))
    assert (row["_reason"], json.loads(row["_raw"])) == ("missing field", {"id": None, "tags": ["a", None]})
