"""Records read by a contract: typed columns, rejections, undeclared members and absent fields."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lake.contracts.contract import read_contract
from lake.contracts.csv_options import DEFAULT_CSV
from lake.contracts.reasons import BLANK, CONTROL, Reason
from lake.kinds.grouped_map import pickled
from lake.records import json_value
from lake.records.raw_values import ABSENT, ColumnRecords, FileFault, RawValue, TextRecords
from lake.records.read_tasks import FILES, FileTask, TaskFile
from lake.records.reader import RecordReader

Declared = dict[str, object]
Row = dict[str, object]
LIMIT = 1000
ID: Declared = {"name": "id", "type": "long"}
ADDRESS: Declared = {
    "name": "addr",
    "type": {"type": "record", "name": "address", "fields": [{"name": "city", "type": ["null", "string"]}]},
}


def test_reader_returns_typed_columns_in_the_order_of_its_schema() -> None:
    reader = _reader(ID, _decimal("price"), _optional("at", {"type": "long", "logicalType": "timestamp-micros"}))
    table = reader.read(
        TextRecords([7, 9], [b'{"id":1,"price":1.5,"at":"2024-03-31T12:00:00Z"}', b'{"price":"2","id":2}']), {}
    )
    assert table.schema == reader.schema
    assert table.column_names == [
        "_seq",
        "_raw",
        "_reason",
        "_detail",
        "id",
        "price",
        "at",
        "_extra",
        "_numbers",
        "_unknown",
        "_lacks0",
    ]
    assert table["_seq"].to_pylist() == [7, 9]
    assert table["price"].to_pylist() == [Decimal("1.50"), Decimal("2.00")]
    assert table["at"].to_pylist() == [datetime(2024, 3, 31, 12, tzinfo=UTC), None]
    assert table["_reason"].null_count == table["_raw"].null_count == 2


@pytest.mark.parametrize(
    ("text", "reason", "detail"),
    [
        (b"", BLANK, ""),
        (b" \t\r\n", BLANK, ""),
        (b'{"id":"%s"}' % (b"x" * LIMIT), Reason.OVERSIZED, "1009 bytes, limit 1000"),
        (b"\xff", Reason.UNPARSEABLE, "not valid UTF-8"),
        (b'{"id":"\\ud800"}', Reason.UNPARSEABLE, "unpaired surrogate"),
        (b'{"id":"\\uffff"}', Reason.UNPARSEABLE, "U+FFFF, which is no character"),
        (b"[]", Reason.UNPARSEABLE, "not one JSON object"),
        (b'{"id":1,"old_kind":"a","kind":"b"}', Reason.UNPARSEABLE, "kind is there under two names"),
        (b'{"id":1,"old_kind":true,"kind":1}', Reason.UNPARSEABLE, "kind is there under two names"),
        (b"{}", Reason.MISSING, "id"),
        (b'{"id":null}', Reason.MISSING, "id"),
        (b'{"id":"x"}', Reason.WRONG_TYPE, "id: x is not bigint"),
        (b'{"id":{"a":[1.0]}}', Reason.WRONG_TYPE, 'id: {"a":[1.0]} is not bigint'),
        (b'{"id":1,"code":7.0}', Reason.WRONG_TYPE, "code: 7.0 is a number, and the contract wants text"),
        (b'{"id":1,"kind":"z"}', Reason.NOT_IN_ENUM, "kind: z is none of a, b"),
        (b'{"id":1,"size":0}', Reason.OUT_OF_BOUNDS, "size: 0 is below 0.5"),
        (b'{"id":1,"size":9.10}', Reason.OUT_OF_BOUNDS, "size: 9.10 is above 9"),
        (b'{"id":1,"size":"NaN"}', Reason.OUT_OF_BOUNDS, "size: NaN is above 9"),
        (b'{"kind":"z","size":0}', Reason.MISSING, "id"),
    ],
    ids=repr,
)
def test_reader_rejects_a_record_with_reason_detail_and_text(text: bytes, reason: str, detail: str) -> None:
    kind: Declared = {"type": "enum", "name": "kind", "symbols": ["a", "b"]}
    reader = _reader(
        ID,
        _optional("kind", kind) | {"aliases": ["old_kind"]},
        _optional("code", "string") | {"text_only": True},
        _optional("size", "double") | {"minimum": 0.5, "maximum": 9},
    )
    good = b'{"id":1,"kind":"a","code":"7","size":9}'
    first, row, last = _rows(reader, good, text, good)
    assert (row["_reason"], row["_detail"]) == (reason, detail)
    assert row["_raw"] == text.decode("utf-8", "replace").replace("\ufffd", "\uffff")[:LIMIT]
    assert {row[name] for name in ("id", "kind", "code", "size", "_extra")} == {None}
    assert first["_reason"] is last["_reason"] is None
    assert first["id"] == last["id"] == 1


def test_reader_names_the_first_field_that_is_wrong() -> None:
    [row] = _rows(_reader(ID, _optional("a", "int"), _optional("b", "int")), b'{"id":1,"b":"x","a":"y"}')
    assert row["_detail"] == "a: y is not int"


def test_reader_rejects_undeclared_members_if_the_contract_does() -> None:
    reader = _reader(ID, ADDRESS, lake={"unknown": "refuse"})
    rows = _rows(reader, b'{"id":1,"z":null,"b":{"c":1},"addr":{"zip":1}}', b'{"id":1,"addr":{"city":"Graz"}}')
    assert [row["_reason"] for row in rows] == [Reason.UNKNOWN, None]
    assert rows[0]["_detail"] == "addr.zip, b, z"


def test_reader_rejects_absent_fields_if_the_contract_does() -> None:
    reader = _reader(
        ID, _optional("a", "int") | {"aliases": ["old"]}, _optional("b", "int"), lake={"missing": "refuse"}
    )
    rows = _rows(reader, b"{}", b'{"id":1,"old":null}', b'{"id":1,"a":null,"b":null}')
    assert [row["_detail"] for row in rows] == ["id, a, b", "b", None]
    assert {row["_reason"] for row in rows[:2]} == {Reason.MISSING}


def test_reader_rejects_a_file_without_the_columns_of_its_contract() -> None:
    reader = _reader(ID, _optional("a", "int") | {"aliases": ["old"]}, lake={"missing": "refuse"})
    with pytest.raises(FileFault, match="it has no column a"):
        reader.check_columns(ColumnRecords([1], {"id": [1], "x": [1]}))
    reader.check_columns(ColumnRecords([1], {"id": [1], "old": [None]}))
    reader.check_columns(TextRecords([1], [b"{}"]))


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        (b'{"id":1}', None),
        (b'{"id":1,"z":1.10,"a":-0}', '{"a":-0,"z":1.10}'),
        (b'{"id":1,"z":null}', '{"z":null}'),
        (b'{"id":1,"z":{"y":[{}],"b":{"d":1E2,"c":""}}}', '{"z":{"b":{"c":"","d":1E2},"y":[{}]}}'),
        (b'{"id":1,"\\u00e9":"\\u2028\\"\\n"}', '{"é":"\u2028\\"\\n"}'),
        (b'{"id":1,"addr":{"city":"Graz"}}', None),
        (b'{"id":1,"addr":{"zip":"8010","city":"Graz"}}', '{"addr":{"zip":"8010"}}'),
        (b'{"id":1,"old_addr":{"zip":"8010"}}', '{"old_addr":{"zip":"8010"}}'),
        (b'{"id":1,"addr":"{\\"zip\\":1.0}"}', '{"addr":{"zip":1.0}}'),
        (b'{"id":1,"lines":[{"n":1},{"n":2,"x":[1.0]}]}', '{"lines":{"1":{"x":[1.0]}}}'),
        (b'{"id":1,"by_key":{"k":{"n":1,"x":1},"l":{"n":1}}}', '{"by_key":{"k":{"x":1}}}'),
        (b'{"id":1,"lines":[{"x":{}}],"a":1}', '{"a":1,"lines":{"0":{"x":{}}}}'),
    ],
    ids=repr,
)
def test_reader_keeps_undeclared_members_by_their_path(text: bytes, extra: str | None) -> None:
    line = {"type": "record", "name": "line", "fields": [{"name": "n", "type": "int"}]}
    address = _optional("addr", ADDRESS["type"]) | {"aliases": ["old_addr"]}
    lines = _optional("lines", {"type": "array", "items": line})
    by_key = _optional("by_key", {"type": "map", "values": "line"})
    [row] = _rows(_reader(ID, address, lines, by_key), text)
    assert (row["_reason"], row["_extra"]) == (None, extra)


def test_reader_names_texts_that_came_as_numbers() -> None:
    reader = _reader(ID, _optional("a", "string"), _optional("b", "string"))
    rows = _rows(reader, b'{"id":"1","a":7,"b":1.0}', b'{"id":1,"a":"7","b":true}', b'{"id":1,"b":-0}')
    assert [row["_numbers"] for row in rows] == ["a, b", None, "b"]
    assert [(row["a"], row["b"]) for row in rows] == [("7", "1.0"), ("7", "true"), (None, "-0")]


def test_reader_accepts_equal_values_under_two_names_and_prefers_a_value_to_null() -> None:
    reader = _reader(ID, _optional("a", "string") | {"aliases": ["old", "older"]})
    rows = _rows(reader, b'{"id":1,"a":"x","old":"x"}', b'{"id":1,"a":null,"older":"y"}', b'{"id":1,"old":null}')
    assert [row["a"] for row in rows] == ["x", "y", None]


def test_reader_returns_defaults_for_absent_fields_and_invalid_nulls() -> None:
    day: Declared = {"type": "int", "logicalType": "date"}
    reader = _reader(
        ID,
        {"name": "a", "type": "int", "default": 7},
        {"name": "b", "type": ["string", "null"], "default": "x"},
        {"name": "c", "type": {"type": "array", "items": "int"}, "default": [1]},
        {"name": "d", "type": day, "default": 1, "format": "d.M.yyyy"},
        ADDRESS | {"default": {"city": "Graz"}},
    )
    rows = _rows(
        reader, b'{"id":1}', b'{"id":1,"a":null,"b":null,"c":null,"d":null,"addr":null}', b'{"id":1,"d":"2.1.2024"}'
    )
    [absent, null, given] = [[row[name] for name in ("a", "b", "c", "d", "addr")] for row in rows]
    assert absent == [7, "x", [1], date(1970, 1, 2), {"city": "Graz"}]
    assert null == [7, None, [1], date(1970, 1, 2), {"city": "Graz"}]
    assert given[3] == date(2024, 1, 2)


def test_reader_checks_defaults_like_values() -> None:
    [row] = _rows(_reader(ID, {"name": "a", "type": "int", "default": 7, "maximum": 5}), b'{"id":1}')
    assert (row["_reason"], row["_detail"]) == (Reason.OUT_OF_BOUNDS, "a: 7 is above 5")


def test_reader_sets_a_bit_for_each_optional_field_that_a_record_lacks() -> None:
    fields = [_optional(f"f{n}", "int") for n in range(64)]
    reader = _reader(ID, *fields, {"name": "last", "type": "int", "default": 0, "aliases": ["old"]})
    full = json.dumps({"id": 1, **{f"f{n}": None for n in range(64)}, "old": 1}).encode()
    rows = _rows(reader, full, b'{"id":1}', full.replace(b'"f0": null, ', b"").replace(b', "f63": null', b""))
    assert [(row["_lacks0"], row["_lacks62"]) for row in rows] == [(0, 0), ((1 << 62) - 1, 0b111), (1, 0b010)]


def test_reader_reads_facts_of_files_and_sources() -> None:
    reader = _reader(
        ID,
        _optional("day", {"type": "int", "logicalType": "date"}) | {"from": "file.name", "pattern": "_([0-9-]+)"},
        {"name": "part", "type": "int", "from": "kafka.partition"},
    )
    assert [*reader.fact_keys] == ["day", "part"]
    facts = {"day": ["2024-01-02", None, "x"], "part": ["7", None, "8"]}
    rows = reader.read(TextRecords(range(3), [b'{"id":1,"part":"x"}'] * 3), facts).to_pylist()
    assert [row["_detail"] for row in rows] == [None, "part", "day: x is not date"]
    assert (rows[0]["day"], rows[0]["part"], rows[0]["_extra"]) == (date(2024, 1, 2), 7, '{"part":"x"}')


def test_rejected_record_keeps_the_subject_of_its_personal_fields() -> None:
    who, phone = _optional("who", "string"), _optional("phone", "string") | {"personal": True}
    reader = _reader(ID, who, phone, lake={"subject": "who"})
    [row] = _rows(reader, b'{"id":"x","who":"ada","phone":"1"}')
    assert (row["_reason"], row["who"], row["phone"]) == ("wrong type", "ada", None)


def test_rejected_record_keeps_its_dump_which_is_then_partial() -> None:
    dump, pieces = {"name": "dump", "type": "int"}, {"name": "pieces", "type": "int"}
    reader = _reader(ID, dump, pieces, lake={"dump": "dump"})
    texts = [b'{"id": 1, "dump": 4, "pieces": "many"}', b'{"id": 1, "dump": "x", "pieces": 1}', b'{"id": 1, "dump": 4']
    rows = _rows(reader, *texts)
    assert [(row["dump"], row["pieces"], row["_reason"]) for row in rows] == [
        (4, None, Reason.WRONG_TYPE),
        (None, None, Reason.WRONG_TYPE),
        (None, None, Reason.UNPARSEABLE),
    ]


def test_landed_file_has_null_for_facts_of_a_source() -> None:
    file: Declared = {"name": "file", "type": "string", "from": "file.name"}
    reader = _reader(ID, _optional("who", "string") | {"from": "kafka.key"}, file)
    task = FileTask(reader, DEFAULT_CSV, {b"a": TaskFile(0, "things/a.jsonl", "a.jsonl", {"file": "a.jsonl"})})
    [records] = task(iter([pa.RecordBatch.from_pylist([{"path": "a", "content": b'{"id":1}\n'}], FILES)]))
    [row] = records.to_pylist()
    assert (row["_reason"], row["id"], row["who"], row["file"]) == (None, 1, None, "a.jsonl")


@pytest.mark.parametrize(
    "value", ["-7", "0", "1", "1.50", "2e3", "19812345678", "1e400", '"1"', "true", "[1,{}]", '{"n":-0.0}']
)
def test_reader_reads_the_same_by_msgspec_and_by_the_standard_library(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    types: dict[str, object] = {
        **{kind: kind for kind in ("boolean", "int", "long", "float", "double", "string", "bytes")},
        "decimal": _decimal("")["type"],
        "day": {"type": "int", "logicalType": "date"},
        "millis": {"type": "long", "logicalType": "timestamp-millis"},
        "local": {"type": "long", "logicalType": "local-timestamp-micros"},
        "list": {"type": "array", "items": "double"},
        "map": {"type": "map", "values": "string"},
        "record": {"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "string"]}]},
    }
    reader = _reader(ID, *(_optional(name, type_) for name, type_ in types.items()))
    texts = [f'{{"id":1,"{name}":{value},"z":{value}}}'.encode() for name in types]
    variants = [each for text in texts for each in _changed(text, text.rindex(b',"z"'))]
    lines = TextRecords(range(len(variants)), variants)
    quickly = reader.read(lines, {})
    monkeypatch.setattr(json_value, "decode_without_loss", lambda texts, *_: [None] * len(texts))
    carefully = reader.read(lines, {})
    for name in quickly.column_names:
        assert [*map(repr, quickly[name].to_pylist())] == [*map(repr, carefully[name].to_pylist())], name


def test_reader_reads_rows_like_the_same_records_in_json() -> None:
    reader = _reader(ID, _optional("a", "string"), {"name": "b", "type": "int", "default": 7}, ADDRESS)
    records: list[dict[str, RawValue]] = [
        {"id": 1, "a": "x", "b": 2, "addr": {"city": "Graz", "zip": 1}, "z": 1.5},
        {"id": 2, "addr": {}},
        {"id": 3, "a": 5, "b": None, "addr": {}},
        {"id": "x", "addr": {}},
        {"a": "x", "addr": {}},
    ]
    names = ("id", "z", "a", "b", "addr")
    columns: dict[str, Sequence[RawValue]] = {name: [record.get(name, ABSENT) for record in records] for name in names}
    of_rows = reader.read(ColumnRecords(range(5), columns), {})
    of_lines = reader.read(TextRecords(range(5), [json.dumps(record).encode() for record in records]), {})
    assert of_rows.drop_columns("_raw") == of_lines.drop_columns("_raw")
    again = reader.read(TextRecords(range(5), [str(raw or "{}").encode() for raw in of_rows["_raw"].to_pylist()]), {})
    assert again["_detail"].to_pylist()[3:] == of_rows["_detail"].to_pylist()[3:] == ["id: x is not bigint", "id"]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ({"type": "int", "logicalType": "date"}, datetime(2024, 1, 2)),
        ({"type": "int", "logicalType": "date"}, date(2024, 1, 2)),
        ({"type": "long", "logicalType": "timestamp-micros"}, datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime(2024, 1, 2, 3, 4)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}, Decimal("-1.50")),
        ("double", float("inf")),
        ("double", 0.1),
        ("bytes", b"\xff\x00"),
        ("string", b"text"),
        ("string", Decimal("1E+3")),
        ({"type": "map", "values": "int"}, {"a": 1}),
    ],
    ids=repr,
)
def test_reader_reads_the_text_of_a_rejected_row_as_the_same_values(type_: object, value: RawValue) -> None:
    rows = ColumnRecords([1, 2], {"id": ["x", 1], "v": [value, value]})
    refused, taken = _reader(ID, _optional("v", type_)).read(rows, {}).to_pylist()
    assert refused["_reason"] == Reason.WRONG_TYPE
    assert taken["v"] is not None
    text = refused["_raw"].replace('"id":"x"', '"id":1').encode()
    [row] = _rows(_reader(ID, _optional("v", type_)), text)
    assert (row["_reason"], row["v"]) == (None, taken["v"])


def test_reader_rejects_bytes_that_are_no_text_again_when_their_row_is_replayed() -> None:
    reader = _reader(ID, _optional("v", "string"))
    [row] = reader.read(ColumnRecords([1], {"id": [1], "v": [b"\xff"]}), {}).to_pylist()
    [again] = _rows(reader, row["_raw"].encode())
    assert row["_reason"] == Reason.WRONG_TYPE
    assert again["_reason"] == Reason.UNPARSEABLE


def test_reader_returns_the_same_members_when_a_rejected_row_is_replayed() -> None:
    reader = _reader(ID, _optional("v", "string"))
    [row] = reader.read(ColumnRecords([1], {"id": ["x"], "v": [None], "more": [None], "other": [1]}), {}).to_pylist()
    assert row["_raw"] == '{"id":"x","v":null,"other":1}'
    [again] = _rows(reader, row["_raw"].replace('"x"', "1").encode())
    assert (again["_reason"], again["_extra"]) == (None, '{"other":1}')


@pytest.mark.parametrize("type_", ["string", "int"])
def test_reader_rejects_rows_with_no_character_like_their_json(type_: str) -> None:
    reader = _reader(ID, _optional("v", type_))
    for column in ["a\uffff"], pa.array(["a\uffff"]):
        [row] = reader.read(ColumnRecords([1], {"id": [1], "v": column}), {}).to_pylist()
        [again] = _rows(reader, row["_raw"].encode())
        assert (again["_reason"], again["_detail"]) == (row["_reason"], row["_detail"])


def test_reader_reads_columns_of_arrow() -> None:
    reader = _reader(ID, {"name": "a", "type": "int", "default": 7}, _optional("b", "string"))
    columns = {
        "id": pa.array([1, None]),
        "a": pa.array([None, 3]),
        "b": pa.array(["x", None]),
        "z": pa.array([None, "y"]),
    }
    first, second = reader.read(ColumnRecords([1, 2], columns), {}).to_pylist()
    assert (first["id"], first["a"], first["b"], first["_extra"], first["_lacks0"]) == (1, 7, "x", None, 0)
    assert (second["_reason"], second["_detail"]) == (Reason.MISSING, "id")
    assert second["_raw"] == '{"id":null,"a":3,"b":null,"z":"y"}'


def test_reader_keeps_undeclared_members_of_rows_as_json() -> None:
    address: RawValue = {
        "city": "Graz",
        "since": date(2024, 1, 2),
        "at": float("nan"),
        "key": b"\x00",
        "n": Decimal("1.50"),
    }
    columns: dict[str, Sequence[RawValue]] = {"id": [1, 2, 3], "addr": [address] * 3, "b": [b"\x01", None, "\uffff"]}
    rows = _reader(ID, ADDRESS).read(ColumnRecords([1, 2, 3], columns), {}).to_pylist()
    kept = '{"addr":{"at":"NaN","key":"AA==","n":1.50,"since":"2024-01-02"}'
    assert [row["_extra"] for row in rows] == [kept + ',"b":"AQ=="}', kept + "}", None]
    assert (rows[2]["_reason"], rows[2]["_detail"]) == (Reason.UNPARSEABLE, "b: U+FFFF, which is no character")


def test_reader_opens_rows_in_an_envelope() -> None:
    reader = _reader(ID, lake={"envelope": "debezium"})
    columns: dict[str, Sequence[RawValue]] = {"op": ["c", None, ABSENT], "after": [{"id": 1, "z": 2}, None, ABSENT]}
    rows = ColumnRecords([1, 2, 3], columns, {2: ("cannot be taken apart", "x")})
    reader.check_columns(rows)
    change, other, broken = reader.read(rows, {}).to_pylist()
    assert (change["_reason"], change["id"], change["_extra"]) == (None, 1, '{"z":2}')
    assert other["_reason"] == Reason.ENVELOPE
    assert (broken["_reason"], broken["_raw"]) == (Reason.UNPARSEABLE, "x")


def test_reader_keeps_the_text_of_a_row_that_cannot_be_split() -> None:
    rows = ColumnRecords([1, 2], {"id": [ABSENT, 5]}, {0: ("not as many columns as the header", "1,2,3")})
    broken, row = _reader(ID).read(rows, {}).to_pylist()
    assert broken["_reason"] == Reason.UNPARSEABLE
    assert (broken["_detail"], broken["_raw"]) == ("not as many columns as the header", "1,2,3")
    assert row["id"] == 5


def test_reader_opens_messages_in_an_envelope() -> None:
    reader = _reader(ID, {"name": "name", "type": "string"}, lake={"envelope": "debezium"})
    rows = _rows(
        reader,
        b'{"payload":{"op":"c","before":null,"after":{"id":1,"name":"x","zip":8010},"source":{}}}',
        b'{"op":"d","before":{"id":1},"after":null,"source":{}}',
        b'{"op":"c","after":{"id":1},"source":{}}',
        b"null",
        b" ",
        b"{",
        b"5",
        b"x" * (LIMIT + 1),
    )
    assert [row["_reason"] for row in rows] == [
        *(None, None, Reason.MISSING, CONTROL, CONTROL, Reason.UNPARSEABLE, Reason.ENVELOPE, Reason.OVERSIZED)
    ]
    assert (rows[0]["name"], rows[0]["_extra"]) == ("x", '{"zip":8010}')
    assert (rows[1]["id"], rows[1]["name"]) == (1, None)
    assert [row["_detail"] for row in rows[2:5]] == ["name", "tombstone", "tombstone"]


def test_reader_reads_no_records() -> None:
    reader = _reader(ID, ADDRESS)
    assert reader.read(TextRecords([], []), {}).schema == reader.schema
    assert reader.read(ColumnRecords([], {}), {}).num_rows == 0


def test_reader_reads_in_a_process_without_lake() -> None:
    script = """
import pickle, sys
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "lake":
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
reader, lines, changes, change = pickle.load(sys.stdin.buffer)
print(reader.read(lines, {}).to_pydict()["_detail"] + changes.read(change, {}).to_pydict()["_detail"])
"""
    reader = _reader(ID, ADDRESS, _optional("at", {"type": "long", "logicalType": "timestamp-micros"}))
    lines = TextRecords(range(3), [b'{"id":1,"addr":{"x":1},"at":"2024-01-01T00:00:00Z"}', b"{}", b'{"id":1.5,"id":1}'])
    changes = _reader(ID, lake={"envelope": "debezium"})
    change = b'{"schema":{"fields":[]},"payload":{"op":"c","after":{"id":"x"}}}'
    task = pickled((reader, lines, changes, TextRecords([1], [change])))
    run = subprocess.run([sys.executable, "-c", script], input=task, capture_output=True, check=True)
    assert run.stdout.decode().strip() == str(
        [None, "id", "not one JSON object: duplicate field name", "id: x is not bigint"]
    )
    assert pickle.loads(pickle.dumps(reader)).schema == reader.schema


def _changed(text: bytes, end: int) -> list[bytes]:
    """Return texts that differ from `text` in a byte of the value before `end`."""
    places = range(text.index(b":", text.index(b",")) + 1, end)
    changes = b'0-.e"x'
    return [text, *(text[:at] + bytes([byte]) + text[at + 1 :] for at in places for byte in changes)]


def _reader(*fields: Mapping[str, object], lake: Mapping[str, object] | None = None) -> RecordReader:
    facts = {"key": ["id"], **(lake or {})}
    schema = {"type": "record", "name": "events", "lake": facts, "fields": list(fields)}
    return RecordReader(read_contract(json.dumps(schema), file="schemas/events.avsc"), LIMIT)


def _optional(name: str, type_: object) -> Declared:
    return {"name": name, "type": ["null", type_], "default": None}


def _decimal(name: str) -> Declared:
    return {"name": name, "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}}


def _rows(reader: RecordReader, *texts: bytes) -> list[Row]:
    rows: list[Row] = reader.read(TextRecords(range(len(texts)), texts), {}).to_pylist()
    return rows
