"""Avro container files: each value as a contract reads it, each broken file told, each record in its place."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import avro.datafile
import avro.io
import avro.schema
import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts import avro_json
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.ingest.records import avro_files
from lake.ingest.replay import waiting
from lake.store.log import Log
from tests.shop import avro as declared
from tests.shop import contract, declare

NOW = datetime(2024, 4, 2, tzinfo=UTC)
MICROS = 1_711_879_500_123_456
UUID_TEXT = "0f0e0d0c-0b0a-0908-0706-050403020100"


def of(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


VALUES: dict[str, tuple[Any, Any, Any]] = {
    "null": ("null", None, None),
    "whole": ("long", -(1 << 63), -(1 << 63)),
    "flag": ("boolean", True, True),
    "single": ("float", 0.1, 0.1),
    "tiny": ("float", 1e-45, 1e-45),
    "double": ("double", 0.1, 0.1),
    "infinite": ("double", float("-inf"), "-inf"),
    "text": ("string", 'Zürich "\n', 'Zürich "\n'),
    "bytes": ("bytes", b"\x00\xff", "AP8="),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    "price": (of("bytes", "decimal", precision=9, scale=2), (-150).to_bytes(2, "big", signed=True), "-1.50"),
    "cents": (of("bytes", "decimal", precision=9, scale=3), b"\x05", "0.005"),
    "zero": (of("bytes", "decimal", precision=9, scale=0), b"\x00", "0"),
    "long decimal": (
        of("bytes", "decimal", precision=38, scale=2),
        (10**38 - 1).to_bytes(16, "big", signed=True),
        f"{'9' * 36}.99",
    ),
    "day": (of("int", "date"), -1, "1969-12-31"),
    "distant day": (of("int", "date"), 10**9, "1000000000 days since 1970"),
    "millis": (of("long", "timestamp-millis"), -1, "1969-12-31T23:59:59.999000+00:00"),
    "micros": (of("long", "timestamp-micros"), MICROS, "2024-03-31T10:05:00.123456+00:00"),
    "nanos": (of("long", "timestamp-nanos"), MICROS * 1000 + 999, "2024-03-31T10:05:00.123456+00:00"),
    "local": (of("long", "local-timestamp-millis"), MICROS // 1000, "2024-03-31T10:05:00.123000"),
    "distant": (of("long", "timestamp-micros"), 1 << 62, f"{1 << 62} micros since 1970"),
    "time": (of("int", "time-millis"), 3_600_001, "01:00:00.001000"),
    "id": ({"type": "string", "logicalType": "uuid"}, UUID_TEXT, UUID_TEXT),
    "list": ({"type": "array", "items": of("int", "date")}, [0, 1], ["1970-01-01", "1970-01-02"]),
    "map": ({"type": "map", "values": ["null", "bytes"]}, {"a": b"x", "b": None}, {"a": "eA==", "b": None}),
    "nested": (
        {"type": "record", "name": "N", "fields": [{"name": "d", "type": ["null", of("int", "date")]}]},
        {"d": 0},
        {"d": "1970-01-01"},
    ),
    "one of many": (["null", "boolean", "long", "string", "bytes"], b"x", "eA=="),
}


def schema_of(**types: Any) -> str:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "rows", "namespace": "a.b", "fields": fields})


def container(schema: str, rows: list[Any], codec: str = "null", *, every: int = 1 << 20) -> bytes:
    """A container file of raw values, a block ending after so `every` many rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = avro.schema.parse(schema)
        plain = avro.schema.parse(json.dumps(avro_json.without_logical_types(json.loads(schema))))
    stream = BytesIO()
    writer = avro.datafile.DataFileWriter(stream, avro.io.DatumWriter(), full, codec=codec)
    writer.datum_writer.writers_schema = plain
    for number, row in enumerate(rows, 1):
        writer.append(row)
        if number % every == 0:
            writer.sync()
    writer.flush()
    return stream.getvalue()


def doubled(times: int) -> dict[str, Any]:
    """A record of two records of two records …, in which there is nothing."""
    made: dict[str, Any] = {"type": "record", "name": "D0", "fields": []}
    for number in range(1, times + 1):
        fields = [{"name": "a", "type": made}, {"name": "b", "type": f"D{number - 1}"}]
        made = {"type": "record", "name": f"D{number}", "fields": fields}
    return made


def lines(folder: Path, content: bytes, *, record_bytes: int = 1 << 20) -> list[bytes]:
    (folder / "a.avro").write_bytes(content)
    made = avro_files.as_lines(folder / "a.avro", folder / "a.jsonl", record_bytes=record_bytes)
    return made.read_bytes().splitlines()


def test_every_value_is_as_a_contract_reads_it(tmp_path: Path) -> None:
    names = {f"f{number}": value for number, value in enumerate(VALUES.values())}
    schema = schema_of(**{name: kind for name, (kind, _, _) in names.items()})
    row = {name: raw for name, (_, raw, _) in names.items()}
    for codec in ("null", "deflate"):
        [line] = lines(tmp_path, container(schema, [row], codec))
        found = json.loads(line)
        assert {what: found[name] for what, name in zip(VALUES, names, strict=True)} == {
            what: made for what, (_, _, made) in VALUES.items()
        }
        assert avro_files.fault_of(tmp_path / "a.avro") == ""


def test_a_file_that_breaks_off_gives_what_came_before_and_says_where(tmp_path: Path) -> None:
    whole = container(schema_of(k="string"), [{"k": str(n)} for n in range(30)], every=10)
    damaged = whole[:-30] + b"\xff" * 30
    for broken in (whole[:-25], damaged):
        *kept, last = lines(tmp_path, broken)
        assert [json.loads(line)["k"] for line in kept] == [str(n) for n in range(len(kept))]
        assert len(kept) >= 20
        assert last.startswith(f"cannot be read after record {len(kept)}".encode())


def test_what_is_too_large_is_cut(tmp_path: Path) -> None:
    content = container(schema_of(k="string"), [{"k": "x" * 200_000}] * 3, "deflate")
    first, *_, last = lines(tmp_path, content, record_bytes=1000)
    assert len(first) == 16_000
    assert last.startswith(b"the records of a.avro are more than")


@pytest.mark.parametrize("codec", ["deflate", "bzip2"])
def test_what_unpacks_to_too_much_is_refused_as_a_whole(tmp_path: Path, codec: str) -> None:
    file = tmp_path / "a.avro"
    schema, small = schema_of(k="string"), [{"k": "x" * 7_000}] * 2
    for bomb in (
        container(schema, [*small, {"k": "x" * 4_000_000}], codec),
        container(schema, small * 300, codec, every=2),
    ):
        file.write_bytes(bomb)
        told = f"oversized: unpacked, its {len(bomb):,} bytes are more than 100 times as many"
        assert avro_files.fault_of(file, record_bytes=1000) == told
        assert avro_files.fault_of(file) == ""
    for sound in (container(schema, small, codec), bomb[:-40], bomb[:200] + b"\xff" * 9):
        file.write_bytes(sound)
        assert avro_files.fault_of(file, record_bytes=1_000_000) == ""


def test_a_block_that_unpacks_to_more_than_a_reader_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AVRO_MAX_DECOMPRESS_LENGTH", "100000")
    (tmp_path / "a.avro").write_bytes(container(schema_of(k="string"), [{"k": "x" * 200_000}], "deflate"))
    assert avro_files.fault_of(tmp_path / "a.avro").startswith("oversized: a block is larger than it may be: ")


def test_what_is_no_container_of_records_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.avro"
    header = container(schema_of(k="string"), [])
    for content, told in (
        (b"{}", "not an Avro container file that can be read"),
        (header[:30], "not an Avro container file that can be read"),
        (header.replace(b"null", b"snip"), "not an Avro container file that can be read"),
        (container('{"type": "array", "items": "int"}', []), "an Avro file of array values: records are read"),
        (container(schema_of(k={"type": "array", "items": "null"}), []), "arrays of values without a size"),
        (container(schema_of(k={"type": "array", "items": doubled(3)}), []), "arrays of values without a size"),
        (container(schema_of(k={"type": "array", "items": doubled(60)}), []), "oversized: 2,"),
    ):
        file.write_bytes(content)
        assert told in avro_files.fault_of(file)


def test_avro_files_are_landing_files(project: Settings, spark: SparkSession) -> None:
    fields = {"k": "string", "at": "timestamp", "day": "date?", "price": declared("decimal(9, 2)"), "ratio": "float"}
    declare(project, contract("rows", fields, id=["k"], time="at"))
    folder = project.path("landing/rows")
    folder.mkdir()
    kinds: dict[str, Any] = {"k": "string", "at": of("long", "timestamp-millis"), "day": ["null", of("int", "date")]}
    kinds |= {"price": of("bytes", "decimal", precision=12, scale=3), "ratio": "float", "more": "int"}
    row = {"k": "a", "at": MICROS // 1000, "day": 1, "price": (1500).to_bytes(2, "big"), "ratio": 0.1, "more": 7}
    rows = [row, row | {"k": "b", "day": 10**9}, row | {"k": "c", "day": None}, row | {"k": "d", "price": b"\x01"}]
    content = container(schema_of(**kinds), rows, "deflate", every=2)
    (folder / "a b.avro").write_bytes(content)
    (folder / "again.avro").write_bytes(content[:-25])
    (folder / "bomb.avro").write_bytes(container(schema_of(**kinds), [row | {"k": "x" * 20_000_000}], "deflate"))
    (folder / "none.avro").write_bytes(b"Obj\x01")
    (folder / "empty.avro").touch()
    contracts = load_contracts(project)
    ingest(project, lambda: spark, contracts, now=NOW)
    log = Log(project, "rows").read(spark, contracts["rows"], upto=1).orderBy("_arrival").collect()
    at = datetime(2024, 3, 31, 10, 5, 0, 123000)
    assert [(row["k"], row["at"], row["day"], row["price"], row["ratio"], row["_source"]) for row in log] == [
        ("a", at, date(1970, 1, 2), Decimal("1.50"), pytest.approx(0.1), "rows/a b.avro:1"),
        ("c", at, None, Decimal("1.50"), pytest.approx(0.1), "rows/a b.avro:3"),
    ]
    assert json.loads(log[0]["_extra"]) == {"more": 7}
    said = [f"{row.reason}: {row.detail} ({row.source})" for row in waiting(project, ["rows"])]
    assert said[0].startswith("file: oversized: unpacked, its ")
    assert said[1].startswith("file: not an Avro container file that can be read")
    assert said[2:] == [
        "wrong type: day: 1000000000 days since 1970 is not date (rows/a b.avro:2)",
        "wrong type: price: 0.001 is not decimal(9,2) (rows/a b.avro:4)",
        "wrong type: day: 1000000000 days since 1970 is not date (rows/again.avro:2)",
        "unparseable: not one JSON object (rows/again.avro:3)",
    ]
    assert not [file for file in project.path(".lake/staging").iterdir() if not file.is_symlink()]
