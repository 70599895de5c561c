"""Records as publishers write them: values, reasons and undeclared members, by one `lake ingest`.

All streams are in one project, so that a fault of one would show in the others.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import os
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings
from lake.contracts.contract import Contract, read_contract
from lake.contracts.reasons import Reason
from lake.ingest.replay import quarantined_records
from lake.records.raw_values import FileFault, TextRecords
from lake.records.read_tasks import read_file
from lake.records.reader import RecordReader
from lake.store import duckdb_tables
from lake.store.log import Log
from tests import shop
from tests.ingest.test_renames import lake

Row = Mapping[str, Any]
Fields = Mapping[str, Any]
LOCAL: Final = {"type": "long", "logicalType": "local-timestamp-micros"}
RECORD_BYTES: Final = 1 << 16
NAMED: Final[Fields] = {"id": "long", "name": "string?"}
CHANGE: Final[Fields] = {"id": "int", "op": ("string", {"from": "op"}), "lsn": ("long", {"from": "source.lsn"})}
CHANGES: Final = {"envelope": "debezium", "id": ["lsn", "op"]}
TEXT_OF_PSQL: Final = {"delimiter": "\t", "quote": "", "null": ["\\N"], "escape": "\\"}
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
UNKNOWN: Final = "__debezium_unavailable_value"
FAR: Final = (datetime(2300, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
"""Time of a file beyond nanoseconds in 64 bits."""
ABBREVIATIONS: Final = ("BST", "AST", "NST", "SST", "CST", "PST", "CET", "EDT", "PDT", "CEST", "MSK")
ZONES: Final = {"UTC": 12, "GMT": 12, "Z": 12, "+02": 10, "UTC+1": 11, "Europe/London": 11}
"""Zones, each with the hour of UTC at noon there in July."""
TAP: Final = """
print('{"type":"SCHEMA","stream":"rows","schema":{},"key_properties":["id"]}')
print('{"type":"RECORD","stream":"rows","record":{"id":1,"d":0.5}}')
print('{"type":"RECORD","stream":"rows","record":{"id":2,"d":NaN}}')
print('{"type":"RECORD","stream":"rows","record":{"id":3}}')
print('{"type":"STATE","value":{"at":3}}')
"""


JOBS: Final = {
    "current": shop.job("current", "Latest('id', sequence='name')", "log('unknown_field_not_in_identity')"),
    "customer": """
from lake import Latest, log, table

LARGE = ("body", "arr", "blob")

@table(
    Latest("id", sequence="_lsn", deletes="_op = 'd'", groups={f"_{column}_at": column for column in LARGE}),
    log("debezium_toast_declared"),
)
def customer(rows):
    \"\"\"A customer as the database has it.\"\"\"
    at = (f"if(array_contains(unchanged, '{column}'), null, lsn) AS _{column}_at" for column in LARGE)
    return rows.selectExpr("id", "price", *LARGE, *at, "lsn AS _lsn", "op AS _op")
""",
}


@dataclass(frozen=True)
class Case:
    """A stream: its fields, the rest of its contract, its files, and the outcomes of their records.

    `rows` have `_extra` if a record has undeclared members; `refused` are "reason: detail (file:line)".
    """

    fields: Fields
    files: Mapping[str, bytes | str]
    rows: list[Row] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)


def parquet(columns: Mapping[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({**columns}), out, **options)
    return out.getvalue()


def zipped(**files: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.txt", text)
    return out.getvalue()


def lines(*records: object) -> str:
    return "".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records)


def change(lsn: int, row: Row, *columns: Mapping[str, Any], op: str = "c") -> dict[str, Any]:
    """Return a message of Debezium, with a schema that describes `columns`."""
    payload = {"before": None, "after": {"id": 1, **row}, "source": {"lsn": lsn}, "op": op}
    if not columns:
        return payload
    described = {"type": "struct", "field": "after", "fields": [{"type": "int32", "field": "id"}, *columns]}
    return {"schema": {"type": "struct", "fields": [described]}, "payload": payload}


def unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes(8, "big", signed=True)).decode()


def optional(kind: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    kind, default = shop.optional(kind)
    return kind, default | more


def record(name: str, **fields: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [shop.field(*each) for each in fields.items()]}


TOAST: Final = (
    change(1, {"price": 1, "body": "a long text", "arr": ["x"], "blob": "AP8="}),
    change(
        2,
        {"price": 2, "body": UNKNOWN, "arr": [UNKNOWN], "blob": base64.b64encode(UNKNOWN.encode()).decode()},
        op="u",
    ),
)
CSV: Final[Mapping[str, Case]] = {
    "csv_blank_first_line": Case(
        NAMED,
        {"a.csv": "\nid,name\n1,a\n2,b\n", "b.csv.gz": gzip.compress(b"\r\n,\r\nid,name\r\n3,c\r\n"), "c.csv": "\n\n"},
        [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}],
        ["file: no record: all lines are blank or skipped, or a quote in the header is not closed (c.csv)"],
    ),
    "csv_mixed_line_ends": Case(
        {"wh": "string?", "qty": "long?"},
        {
            "a.csv": "wh,qty\nnorth,1",
            "b.csv": "wh,qty\nnorth,2\r\nsouth,3\r\n",
            "c.csv": 'wh,qty\r"a\r\nb",4\n"c\rd",5\r',
        },
        [
            *({"wh": "north", "qty": 1}, {"wh": "north", "qty": 2}, {"wh": "south", "qty": 3}),
            *({"wh": "a\r\nb", "qty": 4}, {"wh": "c\rd", "qty": 5}),
        ],
    ),
    "csv_quoted_empty_is_null": Case(
        {"id": "long", "note": "string?", "qty": "long?"},
        {"a.csv": 'id,note,qty\n1,"",\n2,,\n3," ",1\n4,NULL,""\n'},
        [
            *({"id": 1, "note": "", "qty": None}, {"id": 2, "note": None, "qty": None}),
            {"id": 3, "note": " ", "qty": 1},
        ],
        ['wrong type: qty: "" is not bigint ("null": [""] for CSV would read it as no value) (a.csv:5)'],
    ),
    "csv_quoted_empty_required": Case(
        {"id": "long", "note": "string"},
        {"a.csv": 'id,note\n1,""\n2,x\n3,\n'},
        [{"id": 1, "note": ""}, {"id": 2, "note": "x"}],
        ["missing field: note (a.csv:4)"],
    ),
    "csv_trailing_delimiter": Case(
        NAMED,
        {"a.csv": "id,name,\n1,a,\n2,b,\n", "b.csv": "id,name,,\n3,c,x,\n4,d\n", "c.csv": "id,name\n5,e,,\n6,f,,x\n"},
        [
            *({"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c", "_extra": '{"_3":"x"}'}),
            *({"id": 4, "name": "d"}, {"id": 5, "name": "e"}),
        ],
        ["unparseable: 4 columns, and the header has 2 (c.csv:3)"],
    ),
    "csv_duplicate_header": Case(
        NAMED,
        {"a.csv": "id,name,remark,remark\n1,a,x,y\n", "b.csv": "id,name,ID\n2,b,9\n", "c.csv": "id,name,id\n3,c,3\n"}
        | {"d.parquet": parquet({"id": [4], "name": ["d"], "Name": ["D"]})},
        [
            {"id": 1, "name": "a", "_extra": '{"remark":"x","remark_4":"y"}'},
            {"id": 2, "name": "b", "_extra": '{"ID":"9"}'},
            {"id": 4, "name": "d", "_extra": '{"Name":"D"}'},
        ],
        ["file: a header that names the field id twice: id,name,id (c.csv)"],
    ),
    "csv_preamble": Case(
        NAMED,
        {"a.csv": "# Source: agency\n# 2024\nid,name\n1,a\n", "b.csv": "sep=,\nid,name\n2,b\n"},
        [{"id": 2, "name": "b"}],
        [
            "file: a header without a field of the contract: # Source: agency "
            '("csv": {"skip": "#"} would read it) (a.csv)'
        ],
    ),
    "csv_preamble_declared": Case(
        NAMED,
        {"a.csv": "# Source: agency\n# 2024\nid,name\n1,a\n", "b.csv": "sep=;\n# x\nid;name\n2;b\n"},
        [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        about={"csv": {"skip": "#"}},
    ),
    "csv_preamble_counted": Case(
        NAMED,
        {"a.csv": '"Report\n2024"\nid,name\n1,a\n', "b.csv": "id,name\n2,b\n"},
        [{"id": 1, "name": "a"}],
        ["file: no record: all lines are blank or skipped, or a quote in the header is not closed (b.csv)"],
        {"csv": {"skip": 2}},
    ),
    "csv_backslash_escapes": Case(
        NAMED,
        {"a.csv": "id\tname\n1\ta\\tb\\\\c\\nd\n2\t\\N\n3\t\\\\N\n4\ta\\\nb\n5\t\\x41\n"},
        [{"id": 1, "name": "a\tb\\c\nd"}, {"id": 2, "name": None}, {"id": 3, "name": "\\N"}, {"id": 4, "name": "a\nb"}],
        ["unparseable: \\x is no escape that is read (a.csv:7)"],
        {"csv": TEXT_OF_PSQL},
    ),
    "csv_backslash_undeclared": Case(
        NAMED,
        {"a.csv": "id\tname\n1\ta\\tb\\\\c\\nd\n"},
        [{"id": 1, "name": "a\\tb\\\\c\\nd"}],
        about={"csv": {"delimiter": "\t", "quote": "", "null": ["\\N"]}},
    ),
    "csv_utf16_without_bom": Case(
        NAMED,
        {
            "a.csv": "id,name\n1,ä\n".encode("utf-16-le"),
            "b.csv": "id,name\n2,ä\n".encode(),
            "c.csv": "id,name\n3,ä\n".encode("utf-16"),
            "d.csv.gz": gzip.compress("id,name\n4,ä\n".encode("utf-16-be")),
        },
        [{"id": 3, "name": "ä"}],
        [
            'file: no byte order mark of utf-16: write "csv": {"encoding": "utf-16-le"} (a.csv)',
            'file: no byte order mark of utf-16: write "csv": {"encoding": "utf-8"} (b.csv)',
            'file: no byte order mark of utf-16: write "csv": {"encoding": "utf-16-be"} (d.csv.gz)',
        ],
        {"csv": {"encoding": "utf-16"}},
    ),
    "csv_utf16_declared": Case(
        NAMED,
        {"a.csv": f"id,name\n1,{'日本語' * 9}\n".encode("utf-16-le"), "b.csv": "id,name\n2,ä\n".encode("utf-16-le")},
        [{"id": 1, "name": "日本語" * 9}, {"id": 2, "name": "ä"}],
        about={"csv": {"encoding": "utf-16-le"}},
    ),
    "tsv_and_packed_names": Case(
        NAMED,
        {
            "a.tsv": "id\tname\n1\ta\n",
            "b.csv.zst": pa.compress(b"id,name\n2,b\n", "zstd", asbytes=True),
            "c.tsv.bz2": bz2.compress(b"id\tname\n3\tc\n"),
            "d.csv.zip": zipped(d="id,name\n4,d\n"),
            "e.csv.zip": zipped(d="id,name\n4,d\n", e="x"),
            "f.txt": "id,name\n5,e\n",
        },
        [{"id": number, "name": name} for number, name in enumerate("abcd", 1)],
        [
            "file: a zip archive of 2 files: one is read (e.csv.zip)",
            "file: unknown format: none of .jsonl, .json, .ndjson, .csv, .tsv, .parquet, .avro, .gz, .zst, .bz2, .zip "
            "after the text formats; name it by what is in it, as a.csv or a.jsonl.gz (f.txt)",
        ],
    ),
}
TIMES: Final[Mapping[str, Case]] = {
    "time_of_day_is_today": Case(
        {"id": "long", "at": "timestamp?", "t": optional(LOCAL)},
        {
            "a.jsonl": lines({"id": 1, "at": "12:30:00"}, {"id": 2, "at": "T12:30"}, {"id": 3, "t": "now"}),
            "b.parquet": parquet({"id": [4], "at": pa.array([45_000_000_000], pa.time64("us"))}),
        },
        refused=[
            "wrong type: at: 12:30:00 is not timestamp (a.jsonl:1)",
            "wrong type: at: T12:30 is not timestamp (a.jsonl:2)",
            "wrong type: t: now is not timestamp_ntz (a.jsonl:3)",
            "wrong type: at: 12:30:00 is not timestamp (b.parquet:1)",
        ],
    ),
    "year_is_days": Case(
        {"id": "long", "day": "date?", "at": "timestamp?"},
        {
            "a.csv": "id,day,at\n1,2024,\n2,45382,\n3,,2024\n4,,20240331\n5,,20240331120000\n6,,1711886400\n",
            "b.jsonl": lines({"id": 7, "day": "2024-03"}, {"id": 8, "day": 19813}),
        },
        [{"id": 8, "day": date(2024, 3, 31), "at": None}],
        [
            'wrong type: day: 2024 is not date ("format": "yyyy" would read it) (a.csv:2)',
            "wrong type: day: 45382 is not date (a.csv:3)",
            'wrong type: at: 2024 is not timestamp ("format": "yyyy" would read it) (a.csv:4)',
            'wrong type: at: 20240331 is not timestamp ("format": "yyyyMMdd" would read it) (a.csv:5)',
            'wrong type: at: 20240331120000 is not timestamp ("format": "yyyyMMddHHmmss" would read it) (a.csv:6)',
            'wrong type: at: 1711886400 is not timestamp ("format": "epoch-seconds" would read it) (a.csv:7)',
            'wrong type: day: 2024-03 is not date ("format": "yyyy-MM" would read it) (b.jsonl:1)',
        ],
    ),
    "year_is_declared": Case(
        {
            "id": "long",
            "year": optional("date", format="yyyy"),
            "day": optional("date", format="yyyyMMdd"),
            "at": optional("timestamp", format="epoch-seconds"),
        },
        {
            "a.csv": "id,year,day,at\n1,2024,20240331,1711886400.5\n",
            "b.jsonl": lines({"id": 2, "year": 2024, "day": 20240331, "at": 1711886400}),
        },
        [
            {
                "id": 1,
                "year": date(2024, 1, 1),
                "day": date(2024, 3, 31),
                "at": datetime(2024, 3, 31, 12, 0, 0, 500_000, UTC),
            },
            {"id": 2, "year": date(2024, 1, 1), "day": date(2024, 3, 31), "at": datetime(2024, 3, 31, 12, tzinfo=UTC)},
        ],
    ),
    "hour_24": Case(
        {"id": "long", "at": "timestamp?", "t": optional(LOCAL, format="yyyy-MM-dd HH:mm")},
        {"a.csv": "id,at,t\n1,2024-03-31T24:00:00Z,\n2,,2024-03-31 24:00\n"},
        refused=[
            'wrong type: at: 2024-03-31T24:00:00Z is not timestamp ("hour24": true would read it) (a.csv:2)',
            "wrong type: t: 2024-03-31 24:00 is not timestamp_ntz in the format yyyy-MM-dd HH:mm "
            '("hour24": true would read it) (a.csv:3)',
        ],
    ),
    "hour_24_declared": Case(
        {
            "id": "long",
            "at": optional("timestamp", hour24=True),
            "t": optional(LOCAL, format="yyyy-MM-dd HH:mm", hour24=True),
        },
        {"a.csv": "id,at,t\n1,2024-03-31T24:00:00Z,\n2,,2024-03-31 24:00\n3,2024-12-31T24:00+02:00,2024-02-28 24:01\n"},
        [
            {"id": 1, "at": datetime(2024, 4, 1, tzinfo=UTC), "t": None},
            {"id": 2, "at": None, "t": datetime(2024, 4, 1)},
        ],
        ["wrong type: t: 2024-02-28 24:01 is not timestamp_ntz in the format yyyy-MM-dd HH:mm (a.csv:4)"],
    ),
    "two_digit_years": Case(
        {
            "id": "long",
            "born": optional("date", format="dd/MM/yy"),
            "since": optional("date", format="d.M.yy", pivot=1930),
        },
        {"a.csv": "id,born,since\n1,31/12/65,31.12.65\n2,31/12/99,1.1.30\n3,31/12/24,31.12.29\n4,31/12/1965,\n"},
        [
            {"id": 1, "born": date(2065, 12, 31), "since": date(1965, 12, 31)},
            {"id": 2, "born": date(2099, 12, 31), "since": date(1930, 1, 1)},
            {"id": 3, "born": date(2024, 12, 31), "since": date(2029, 12, 31)},
        ],
        ["wrong type: born: 31/12/1965 is not date in the format dd/MM/yy (a.csv:5)"],
    ),
    "zone_abbreviations": Case(
        {"id": "long", "at": "timestamp?"},
        {
            "a.csv": "id,at\n"
            + "".join(f"{number},2024-07-01 12:00:00 {zone}\n" for number, zone in enumerate(ABBREVIATIONS, 1))
            + "".join(f"{number},2024-07-01 12:00:00 {zone}\n" for number, zone in enumerate(ZONES, 30)),
        },
        [
            {"id": number, "at": datetime(2024, 7, 1, hour, tzinfo=UTC)}
            for number, hour in enumerate(ZONES.values(), 30)
        ],
        [
            f"wrong type: at: 2024-07-01 12:00:00 {zone} is not timestamp "
            f"({zone} is no zone: UTC, GMT, Z, offsets and regions such as Europe/London are) (a.csv:{line})"
            for line, zone in enumerate(ABBREVIATIONS, 2)
        ],
    ),
}
OTHERS: Final[Mapping[str, Case]] = {
    "json_array_file": Case(
        NAMED,
        {
            "a.json": '[\n{"id":1},\n{"id":2}\n]\n',
            "b.json": '[{"id":3},{"id":4}]',
            "c.jsonl": '{"id":5}{"id":6}\n{\n"id": 7,\n"name": "]"\n}\n',
            "d.json.gz": gzip.compress(b'[{"id":8},9]'),
            "e.json": "[]",
        },
        [{"id": number, "name": "]" if number == 7 else None} for number in range(1, 9)],
        ["unparseable: not one JSON object (d.json.gz:2)"],
    ),
    "nested_record_cannot_grow": Case(
        {"id": "long", "addr": optional(record("addr_t", city="string?"))},
        {"a.jsonl": lines({"id": 1, "addr": {"city": "Graz", "zip": "8010"}})},
        [{"id": 1, "addr": {"city": "Graz"}, "_extra": '{"addr":{"zip":"8010"}}'}],
    ),
    "nested_unknown_lost": Case(
        {
            "id": "long",
            "addr": optional(record("addr_t", city="string?")),
            "lines": optional({"type": "array", "items": record("line_t", sku="string?")}),
            "by": optional({"type": "map", "values": record("by_t", sku="string?")}),
        },
        {
            "a.jsonl": lines(
                {"id": 1, "addr": {"city": "Graz", "zip": "8010"}},
                '{"id":2,"lines":[{"sku":"a"},{"sku":"b","x":1.50}],"by":{"k":{"y":null}},"z":0}',
            ),
            "b.csv": 'id,addr\n3,"{""city"":""Graz"",""zip"":8010.0}"\n',
            "c.parquet": parquet({"id": [4], "addr": [{"city": b"Graz", "since": date(2024, 1, 1)}]}),
        },
        [
            {"id": 1, "addr": {"city": "Graz"}, "lines": None, "by": None, "_extra": '{"addr":{"zip":"8010"}}'},
            {
                "id": 2,
                "addr": None,
                "lines": [{"sku": "a"}, {"sku": "b"}],
                "by": {"k": {"sku": None}},
                "_extra": '{"by":{"k":{"y":null}},"lines":{"1":{"x":1.50}},"z":0}',
            },
            {"id": 3, "addr": {"city": "Graz"}, "lines": None, "by": None, "_extra": '{"addr":{"zip":8010.0}}'},
            {"id": 4, "addr": {"city": "Graz"}, "lines": None, "by": None, "_extra": '{"addr":{"since":"2024-01-01"}}'},
        ],
    ),
    "parquet_nanoseconds": Case(
        {"id": "long", "at": "timestamp?", "t": optional(LOCAL), "note": "string?"},
        {
            "a.parquet": parquet(
                {
                    "id": [1, 2],
                    "at": pa.array([1_711_886_400_123_456_789, -1], pa.timestamp("ns")),
                    "t": pa.array([1_711_886_400_123_456_789, None], pa.timestamp("ns")),
                    "note": pa.array([45_000_000_000_000, None], pa.time64("ns")),
                    "other": pa.array([1.5, None], pa.float16()),
                }
            ),
            "b.parquet": parquet(
                {"id": [3], "at": pa.array([1_711_886_400_123_456_789], pa.timestamp("ns"))},
                use_deprecated_int96_timestamps=True,
            ),
        },
        [
            {
                "id": 1,
                "at": datetime(2024, 3, 31, 12, 0, 0, 123_456, UTC),
                "t": datetime(2024, 3, 31, 12, 0, 0, 123_456),
                "note": "12:30:00",
                "_extra": '{"other":1.5}',
            },
            {"id": 2, "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "t": None, "note": None},
            {"id": 3, "at": datetime(2024, 3, 31, 12, 0, 0, 123_456, UTC), "t": None, "note": None},
        ],
    ),
    "parquet_text_without_annotation": Case(
        {"id": "long", "name": "string?", "tags": optional({"type": "array", "items": "string"})},
        {
            "a.parquet": parquet(
                {
                    "id": [1, 2],
                    "name": [b"abc", b"\xff"],
                    "tags": pa.array([[b"a", b"\xc3\xa4"], None], pa.list_(pa.binary())),
                }
            )
        },
        [{"id": 1, "name": "abc", "tags": ["a", "ä"]}],
        ["wrong type: name: \\xff is not string (not UTF-8, or U+FFFF, which is no character) (a.parquet:2)"],
    ),
    "parquet_null_gets_default": Case(
        {"id": "long", "qty": (["long", "null"], {"default": 1}), "note": (["string", "null"], {"default": "none"})},
        {
            "a.parquet": parquet({"id": [1], "qty": pa.nulls(1, pa.int64()), "note": pa.nulls(1)}),
            "b.jsonl": lines({"id": 2, "qty": None, "note": None}, {"id": 3}),
            "c.parquet": parquet({"id": [4]}),
            "d.csv": "id,qty,note\n5,,\n",
        },
        [
            *({"id": number, "qty": None, "note": None} for number in (1, 2)),
            *({"id": number, "qty": 1, "note": "none"} for number in (3, 4, 5)),
        ],
    ),
    "debezium_decimal_as_text": Case(
        {**CHANGE, "price": "string?", "whole": "string?", "day": "string?", "at": "string?"},
        {
            "a.jsonl": lines(
                change(
                    1,
                    {"price": "MDk=", "whole": "MDk=", "day": 19813, "at": 1_711_886_400_123_456, "x": unscaled(-5)},
                    {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "2"}, "field": "price"},
                    {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "-1"}, "field": "whole"},
                    {"type": "int32", "name": "io.debezium.time.Date", "field": "day"},
                    {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "field": "at"},
                    {"type": "bytes", "name": DECIMAL, "parameters": {"scale": "1"}, "field": "x"},
                )
            )
        },
        [
            {
                **{"id": 1, "op": "c", "lsn": 1, "price": "123.45", "whole": "123450", "day": "2024-03-31"},
                **{"at": "2024-03-31T12:00:00.123456", "_extra": '{"x":"-0.5"}'},
            }
        ],
        about=CHANGES,
    ),
    "debezium_digits_that_are_base64": Case(
        {**CHANGE, "price": "decimal(10, 4)?", "coded": optional("decimal(10, 4)", encoding="base64")},
        {
            "a.jsonl": lines(
                change(1, {"price": "1234", "coded": "ALxhTg=="}),
                change(2, {"price": "ALxhTg=="}),
                change(3, {"coded": "1.5"}),
            )
        },
        [{"id": 1, "op": "c", "lsn": 1, "price": Decimal("1234.0000"), "coded": Decimal("1234.5678")}],
        [
            'wrong type: price: ALxhTg== is not decimal(10,4) ("encoding": "base64" would read it; '
            "texts of digits were taken as numbers) (a.jsonl:2)",
            "wrong type: coded: 1.5 (base64) is not decimal(10,4) (a.jsonl:3)",
        ],
        CHANGES,
    ),
    "debezium_toast": Case(
        {
            **{**CHANGE, "price": "long?", "body": "string?", "blob": "bytes?"},
            "arr": optional({"type": "array", "items": "string"}),
        },
        {"a.jsonl": lines(*TOAST)},
        [{"id": 1, "op": "c", "lsn": 1, "price": 1, "body": "a long text", "arr": ["x"], "blob": b"\0\xff"}],
        [
            "envelope: body: the message has no value for it, as it did not change: declare a field with "
            '"from": "unchanged" (docs/how-to/debezium.md, Unchanged values) (a.jsonl:2)'
        ],
        CHANGES,
    ),
    "debezium_toast_declared": Case(
        {
            **{**CHANGE, "price": "long?", "body": "string?", "blob": "bytes?"},
            "arr": optional({"type": "array", "items": "string"}),
            "unchanged": optional({"type": "array", "items": "string"}, **{"from": "unchanged"}),
        },
        {"a.jsonl": lines(*TOAST)},
        [
            {
                **{"id": 1, "op": "c", "lsn": 1, "price": 1, "body": "a long text", "arr": ["x"], "blob": b"\0\xff"},
                "unchanged": [],
            },
            {
                **{"id": 1, "op": "u", "lsn": 2, "price": 2, "body": None, "arr": None, "blob": None},
                "unchanged": ["arr", "blob", "body"],
            },
        ],
        about=CHANGES,
    ),
    "file_time_after_2262": Case({"id": "long"}, {"a.jsonl": '{"id":1}\n'}, [{"id": 1}]),
    "unknown_field_not_in_identity": Case(
        NAMED,
        {"a.jsonl": lines(*({"id": 1, "name": "a", "status": status} for status in ("open", "closed", "open")))},
        [{"id": 1, "name": "a", "_extra": f'{{"status":"{status}"}}'} for status in ("open", "closed")],
        about={"id": "content"},
    ),
    "unknown_field_is_a_conflict": Case(
        NAMED,
        {"a.jsonl": lines(*({"id": 1, "name": "a", "status": status} for status in ("open", "closed")))},
        [{"id": 1, "name": "a", "_extra": '{"status":"open"}'}],
        ["conflict: same id as unknown_field_is_a_conflict/a.jsonl:1, other content (a.jsonl:2)"],
        {"id": ["id"]},
    ),
    "tap_nan": Case(
        {"id": "long", "d": "double?"},
        {},
        [{"id": 1, "d": 0.5}, {"id": 3, "d": None}],
        ["unparseable: not one JSON object: NaN is not JSON (tap)"],
    ),
    "zz": Case({"id": "long"}, {"z.jsonl": '{"id":1}\n'}, [{"id": 1}]),
}
CASES: Final[Mapping[str, Case]] = {**CSV, **TIMES, **OTHERS}


def declaration(name: str, **more: Any) -> dict[str, Any]:
    """Return the contract of a case, with `more` fields."""
    case = CASES[name]
    return shop.contract(name, {**case.fields, **more}, **{"buckets": 1, **case.about})


def write(settings: Settings) -> None:
    """Write the contracts and files of all cases, and a tap for one of them."""
    shop.declare(settings, *map(declaration, CASES), jobs=JOBS)
    for name, case in CASES.items():
        folder = settings.path(settings.landing) / name
        folder.mkdir()
        for file, content in case.files.items():
            (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(settings.path("landing/file_time_after_2262/a.jsonl"), (FAR, FAR))
    settings.path("tap.py").write_text(TAP)
    settings.path("sources").mkdir()
    command = json.dumps([sys.executable, "tap.py"])
    settings.path("sources/tap.toml").write_text(f'kind = "tap"\ncommand = {command}\n[streams]\ntap_nan = "rows"\n')


@pytest.fixture(
    scope="module", params=[cost.READ_BYTES, pytest.param(0, marks=pytest.mark.long)], ids=["here", "by tasks"]
)
def ingested_project(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Settings:
    """Project after one `lake ingest`, with files read in this process or by tasks of Spark."""
    settings = shop.empty(tmp_path_factory.mktemp("ways") / "project")
    write(settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "READ_BYTES", request.param)
        lake(settings, "ingest")
    return settings


def events(settings: Settings, stream: str) -> list[Row]:
    """Return the fields of the events of a stream in their order, and `_extra` if it is not null."""
    path = Log(settings, stream).path
    rows = duckdb_tables.rows(path, "SELECT * FROM t WHERE _bucket >= 0 ORDER BY _batch, _arrival")
    return [
        {name: value for name, value in row.items() if name in CASES[stream].fields or (name == "_extra" and value)}
        for row in rows
    ]


def refusals(settings: Settings, stream: str) -> list[str]:
    found = ((row, row.source.removeprefix(f"{stream}/")) for row in quarantined_records(settings, [stream]))
    return [f"{row.reason}: {row.detail} ({source if CASES[stream].files else 'tap'})" for row, source in found]


@pytest.mark.parametrize("name", CASES)
def test_records_are_read_as_meant_or_rejected_with_a_fix(ingested_project: Settings, name: str) -> None:
    case = CASES[name]
    assert (events(ingested_project, name), refusals(ingested_project, name)) == (case.rows, case.refused)


TEXTS: Final = [name for name, case in CASES.items() if case.files]


@pytest.mark.parametrize("name", TEXTS)
def test_packed_files_give_the_same_records_and_rejected_ones_the_same_reason(name: str) -> None:
    case = CASES[name]
    contract = read_contract(json.dumps(declaration(name)), file=f"schemas/{name}.avsc")
    reader = RecordReader(contract, RECORD_BYTES)
    for file, content in case.files.items():
        data = content.encode() if isinstance(content, str) else content
        rows = records(contract, file, data)
        if file.endswith((".csv", ".tsv", ".json", ".jsonl")):
            assert records(contract, f"{file}.gz", gzip.compress(data)) == rows
            assert records(contract, f"{file}.zst", pa.compress(data, "zstd", asbytes=True)) == rows
        refused = [row for row in rows if isinstance(row, dict) and row["_reason"] and row["_raw"].startswith("{")]
        again = reader.read(TextRecords(range(len(refused)), [row["_raw"].encode() for row in refused]), {}).to_pylist()
        for row, same in zip(refused, again, strict=True):
            no_text = (str(Reason.UNPARSEABLE), "unpaired surrogate")  # JSON has it for bytes of Parquet
            assert (same["_reason"], same["_detail"]) in {(row["_reason"], row["_detail"]), no_text}


def records(contract: Contract, name: str, data: bytes) -> list[str | dict[str, Any]]:
    """Return the records of a file, and its fault."""
    reader = RecordReader(contract, RECORD_BYTES)
    rows: list[str | dict[str, Any]] = []
    try:
        parts = read_file(io.BytesIO(data), name, contract.csv, record_bytes=RECORD_BYTES, declared=reader.names)
        for part in parts:
            rows += reader.read(part, {}).to_pylist()
    except FileFault as fault:
        rows.append(str(fault))
    return rows


@pytest.mark.long
def test_fields_and_members_declared_later_have_the_values_of_older_events(ingested_project: Settings) -> None:
    grown = declaration("nested_record_cannot_grow", addr=optional(record("addr_t", city="string?", zip="string?")))
    shop.declare(ingested_project, grown, declaration("unknown_field_not_in_identity", status="string?"))
    ingested_project.path("landing/file_time_after_2262/a.jsonl").unlink()
    lake(ingested_project, "run")
    lake(ingested_project, "void", "file_time_after_2262", "--batch", "1", "--reason", "clock")
    lake(ingested_project, "run")
    assert sql(ingested_project, "select addr.zip from log.nested_record_cannot_grow") == [{"zip": "8010"}]
    assert sql(ingested_project, "select * from current") == [{"id": 1, "name": "a", "status": "closed"}]
    [row] = sql(ingested_project, "select id, price, body, arr, hex(blob) as blob from customer")
    assert row == {"id": 1, "price": 2, "body": "a long text", "arr": ["x"], "blob": "00FF"}
    assert sql(ingested_project, "select count(*) as n from log.file_time_after_2262") == [{"n": 0}]
    lake(ingested_project, "verify")


def sql(settings: Settings, query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(lake(settings, "sql", query, "--json"))
    return rows
