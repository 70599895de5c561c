"""Files in formats of other publishers: CSV dialects, times and numbers in declared formats, facts of files."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.ingest.replay import quarantined_records, replay
from lake.store.log import Log
from tests.shop import avro, contract, declare, optional

NOW = datetime(2024, 4, 2, tzinfo=UTC)


def ingest_events(project: Settings, spark: SparkSession, stream: str) -> list[dict[str, Any]]:
    """Ingest the landed files, and return the events of a stream in the order of arrival."""
    contracts = load_contracts(project)
    ingest(project, lambda: spark, contracts, [stream], now=NOW)
    log = Log(project, stream)
    rows = log.read(spark, contracts[stream], upto=log.head().batch).orderBy("_batch", "_arrival").collect()
    return [row.asDict(recursive=True) for row in rows]


def rejections(project: Settings, stream: str) -> list[str]:
    return [f"{row.reason}: {row.detail} ({row.source})" for row in quarantined_records(project, [stream])]


STATION = {"station": "string", "note": "string?", "value": ("double", {"decimal": ",", "thousands": "."})}
TEXTS = ["Zürich", "a;b", 'say "no"', "it's", "two\nlines", "München, Süd"]


def csv_text(options: Mapping[str, Any], rows: list[list[str | None]]) -> str:
    """Return CSV in the format of the options."""
    quote, delimiter = str(options["quote"]), str(options["delimiter"])

    def cell(text: str | None) -> str:
        if text is None or not quote:
            return text or ""
        return quote + text.replace(quote, quote * 2) + quote

    return "".join(delimiter.join(map(cell, row)) + "\r\n" for row in rows)


def options_of(number: int, delimiter: str, quote: str, encoding: str, headed: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"delimiter": delimiter, "quote": quote, "null": ["NA", "-"]}
    options |= {} if headed else {"columns": ["station", "Note 1", "value"]}
    return options | ({} if encoding == "utf-8" and number % 2 else {"encoding": encoding})


KINDS: list[tuple[str, str, str, bool]] = [
    (";", '"', "windows-1252", True),
    ("\t", "", "utf-16", False),
    (",", '"', "utf-8", True),
    ("|", "'", "iso-8859-15", False),
    (";", '"', "utf-8", False),
    (",", "'", "utf-8", True),
    ("\x1f", '"', "utf-16-le", False),
]
"""Delimiter, quote, encoding, and whether there is a header."""


@pytest.mark.long
@pytest.mark.parametrize("kinds", [KINDS[:2], KINDS[2:]], ids=["two", "others"])
def test_csv_of_every_kind_is_read_as_it_was_written(
    project: Settings, spark: SparkSession, kinds: list[tuple[str, str, str, bool]]
) -> None:
    for number, kind in enumerate(kinds):
        delimiter, quote, encoding, headed = kind
        stream, options = f"s{number}", options_of(number, *kind)
        fields = STATION | {"note": (["null", "string"], {"default": None, "aliases": ["Note 1"]})}
        declare(project, contract(stream, fields, id="content", csv=options))
        texts = [text for text in TEXTS if quote or not {delimiter, "\n"} & set(text)]
        rows: list[list[str | None]] = [[f"k{n}", text, f"1.23{n},5"] for n, text in enumerate(texts)]
        rows += [["none", "NA", "0"], ["empty", None, "1,0"], ["none2", "-", "-1"], ["wrong", "x", "1.5"]]
        head: list[list[str | None]] = [["station", "Note 1", "value"]] if headed else []
        content = csv_text(options, head + rows).encode(encoding)
        folder = project.path(f"landing/{stream}")
        folder.mkdir()
        (folder / "a b.csv").write_bytes(content)
        with gzip.open(folder / "c.csv.gz", "wb") as packed:  # only redeliveries
            packed.write(content)
        found = ingest_events(project, spark, stream)
        expected: list[tuple[str, str | None, float]] = [
            (f"k{n}", text, 1230 + n + 0.5) for n, text in enumerate(texts)
        ]
        expected += [("none", None, 0.0), ("empty", None, 1.0), ("none2", None, -1.0)]
        assert [(row["station"], row["note"], row["value"]) for row in found] == expected, kind
        assert found[0]["_source"] == f"{stream}/a b.csv:{2 if headed else 1}"
        last = len(rows) + headed + sum(text.count("\n") for text in texts)
        said = "wrong type: value: 1.5 is not double with decimal ',' and thousands '.'"
        assert rejections(project, stream) == [f"{said} ({stream}/{name}:{last})" for name in ("a b.csv", "c.csv.gz")]


MANY = "".join(f"k{n},{n}\n" for n in range(3000))
"""More rows than are searched for a header."""
NO_TEXT = {
    "plain": ({}, b"station,value\na,1\n" + MANY.encode() + b"Z\xfcrich,2\nb,3\n", "valid UTF-8", ":3003", "b"),
    "told": (
        {"encoding": "windows-1252"},
        b"station,value\n" + MANY.encode() + b"Z\xfcrich,2\n\x81,3\n",
        "valid windows-1252",
        ":3003",
        "Zürich",
    ),
    "wide": (
        {"encoding": "utf-16"},
        f"station,value\na,1\n{MANY}".encode("utf-16") + b"\x00\xd8,\x002\x00\n\x00",
        "valid utf-16",
        "",
        "k2999",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("stream", NO_TEXT)
def test_invalid_bytes_of_text_reject_only_their_record(project: Settings, spark: SparkSession, stream: str) -> None:
    options, content, valid, line, last = NO_TEXT[stream]
    land_csv(project, stream, options, content)
    stations = [row["station"] for row in ingest_events(project, spark, stream)]
    assert [name for name in stations if name[0] == "k"] == [f"k{n}" for n in range(3000)]
    assert stations[-1] == last
    [reason] = rejections(project, stream)
    said, _, place = reason.partition(" (")
    assert said == f"unparseable: not {valid}, or U+FFFF, which is no character"
    assert place.startswith(f"{stream}/a.csv{line}")


def test_invalid_header_text_rejects_its_file(project: Settings, spark: SparkSession) -> None:
    land_csv(project, "header", {}, b"station,value,\xfc\na,1,2\n")
    assert ingest_events(project, spark, "header") == []
    assert rejections(project, "header") == ["file: a header that is not valid UTF-8 (header/a.csv)"]


def land_csv(project: Settings, stream: str, options: Mapping[str, Any], content: bytes) -> None:
    """Declare a stream of CSV, and land a file of it."""
    declare(project, contract(stream, {"station": "string", "value": "double"}, id="content", csv=options))
    project.path(f"landing/{stream}").mkdir()
    project.path(f"landing/{stream}/a.csv").write_bytes(content)


def test_unexpected_header_and_wrong_number_of_columns_are_rejected(project: Settings, spark: SparkSession) -> None:
    declare(project, contract("bare", {"k": "string", "v": "string"}, csv={"columns": ["k", "v"]}))
    folder = project.path("landing/bare")
    folder.mkdir()
    (folder / "a.csv").write_text("K, v\na,1\n")
    (folder / "b.csv").write_bytes(b"\xef\xbb\xbfa,1\nb\nc,2,3\nd,4\n")
    (folder / "c.jsonl").write_text('{"k": "e", "v": "NA"}\n')
    assert [(row["k"], row["v"], row["_source"]) for row in ingest_events(project, spark, "bare")] == [
        ("a", "1", "bare/b.csv:1"),
        ("d", "4", "bare/b.csv:4"),
        ("e", "NA", "bare/c.jsonl:1"),
    ]
    assert sorted(rejections(project, "bare")) == [
        "file: a header, and the contract says that there is none (bare/a.csv)",
        "unparseable: 1 column, and the contract has 2 (bare/b.csv:2)",
        "unparseable: 3 columns, and the contract has 2 (bare/b.csv:3)",
    ]


FORMS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "at": (
        avro("timestamp"),
        {"format": "d/M/yyyy HH:mm[:ss]"},
        {
            '"31/3/2024 09:05"': datetime(2024, 3, 31, 9, 5),
            '" 1/12/1999 23:59:59 "': None,
            '"31/2/2024 09:05"': None,
            '"2024-03-31T09:05:00"': None,
            "1711875900000": None,
            '""': None,
        },
    ),
    "zoned": (
        avro("timestamp"),
        {"format": "yyyyMMdd'T'HHmmss.SSSSSSXXX"},
        {'"20240331T090500.123456+02:00"': datetime(2024, 3, 31, 7, 5, 0, 123456), '"20240331T090500"': None},
    ),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        {"format": "dd MMM yyyy hh:mm a"},
        {'"31 Mar 2024 09:05 PM"': datetime(2024, 3, 31, 21, 5), '"31 Mrz 2024 09:05 PM"': None},
    ),
    "day": (
        avro("date"),
        {"format": "yyyyMMdd"},
        {'"20240229"': date(2024, 2, 29), "20240229": date(2024, 2, 29), '"20230229"': None, '"2024-02-29"': None},
    ),
    "amount": (
        avro("decimal(12, 2)"),
        {"decimal": ",", "thousands": "."},
        {
            '"1.234.567,89"': Decimal("1234567.89"),
            '"-1234,5"': Decimal("-1234.50"),
            '"19,90"': Decimal("19.90"),
            "19.90": Decimal("19.90"),
            "1e2": Decimal("100.00"),
            '"19.90"': None,
            '"1.2345"': None,
            '"1,234"': None,
            '"1,234,5"': None,
            '"12345678901,00"': None,
            '"1e999999999"': None,
        },
    ),
    "pieces": ("long", {"thousands": " "}, {'"1 234 567"': 1234567, '"12 34"': None, "7": 7, '"1.5"': None}),
    "ratio": ("double", {"decimal": ","}, {'"0,5"': 0.5, "0.5": 0.5, '"1,5e3"': 1500.0, '"0.5"': None}),
}
"""By field: its type, its format, and {JSON value of a record: expected value, or None if rejected}."""


@pytest.mark.long
@pytest.mark.parametrize("way", ["quick", "careful"])
def test_times_and_numbers_are_read_in_their_declared_format(
    project: Settings, spark: SparkSession, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "READ_BYTES", 0)
    fields: dict[str, Any] = {"k": "string"}
    for name, (kind, form, _) in FORMS.items():
        fields[name] = (["null", kind], {"default": None, **form})
    declare(project, contract("forms", fields, id=["k"]))
    beside = {"quick": "", "careful": ', "unknown": 1'}[way]
    wanted = {
        f"{name} {text}": (name, text, made) for name, (_, _, texts) in FORMS.items() for text, made in texts.items()
    }
    lines = [f'{{"k": {json.dumps(k)}, "{name}": {text}{beside}}}' for k, (name, text, _) in wanted.items()]
    project.path("landing/forms").mkdir()
    project.path("landing/forms/a.jsonl").write_text("\n".join(lines))
    found = {row["k"]: row for row in ingest_events(project, spark, "forms")}
    for k, (name, _, made) in wanted.items():
        assert (k in found) == (made is not None), k
        assert made is None or found[k][name] == made, k
    reasons = {line.rpartition(" (")[0].partition(" is not ")[0] for line in rejections(project, "forms")}
    assert "wrong type: at: 31/2/2024 09:05" in reasons
    assert "wrong type: amount: 19.90" in reasons


DUMP = {
    "customer": "string",
    "region": (["null", "string"], {"default": None, "from": "file.name", "pattern": r"^(?:full|part)_([a-z]+)_"}),
    "taken_on": (avro("date"), {"from": "file.name", "pattern": r"_(\d{8})\.", "format": "yyyyMMdd"}),
    "file": ("string", {"from": "file.name"}),
    "landed_at": (avro("timestamp"), {"from": "file.time"}),
    "amount": optional("int"),
}


def put(project: Settings, name: str, *lines: str, at: int = 1_700_000_000_123_456_789) -> Path:
    file = project.path(f"landing/dumps/{name}")
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))
    os.utime(file, ns=(at, at))
    return file


@pytest.mark.long
def test_facts_of_a_file_are_fields_of_its_records(project: Settings, spark: SparkSession) -> None:
    declare(project, contract("dumps", DUMP, id=["customer", "taken_on"], time="taken_on", dump="taken_on"))
    put(project, "full_eu_20240330.jsonl", '{"customer": "ada", "amount": 1, "file": "a lie"}', '{"customer": "bob"}')
    put(project, "odd name 20240331_20240331.csv", "customer,amount", "ada,2")
    put(project, "undated.jsonl", '{"customer": "eve"}')
    put(project, "part_us_20240331.jsonl", '{"customer": "joe", "amount": "many"}', '{"customer": "ann"}')
    found = ingest_events(project, spark, "dumps")
    assert [(row["customer"], row["region"], row["taken_on"], row["file"], row["amount"]) for row in found] == [
        ("ada", "eu", date(2024, 3, 30), "full_eu_20240330.jsonl", 1),
        ("bob", "eu", date(2024, 3, 30), "full_eu_20240330.jsonl", None),
        ("ada", None, date(2024, 3, 31), "odd name 20240331_20240331.csv", 2),
        ("ann", "us", date(2024, 3, 31), "part_us_20240331.jsonl", None),
    ]
    assert {row["landed_at"] for row in found} == {datetime(2023, 11, 14, 22, 13, 20, 123456)}
    assert json.loads(found[0]["_extra"]) == {"file": "a lie"}
    assert rejections(project, "dumps") == [
        "wrong type: amount: many is not int (dumps/part_us_20240331.jsonl:1)",
        "missing field: taken_on (dumps/undated.jsonl:1)",
    ]

    # Redelivered in another file: the same events, except for another day's dump.
    put(project, "part_eu_20240330.jsonl", '{"customer": "bob"}', '{"customer": "new"}', at=1)
    put(project, "part_eu_20240401.jsonl", '{"customer": "bob"}')
    again = ingest_events(project, spark, "dumps")[len(found) :]
    assert [(row["customer"], row["file"]) for row in again] == [
        ("new", "part_eu_20240330.jsonl"),
        ("bob", "part_eu_20240401.jsonl"),
    ]
    assert len(rejections(project, "dumps")) == 2

    # A replayed record has the facts of its file.
    [wrong] = [row for row in quarantined_records(project, ["dumps"]) if "part_us" in row.source]
    repair = {"stream": "dumps", "batch": wrong.batch, "number": wrong.number, "raw": '{"customer": "joe"}'}
    replay(project, lambda: spark, repairs=[repair], now=NOW)
    joe = ingest_events(project, spark, "dumps")[-1]
    assert (joe["customer"], joe["region"], joe["taken_on"], joe["file"], joe["landed_at"]) == (
        "joe",
        "us",
        date(2024, 3, 31),
        "part_us_20240331.jsonl",
        datetime(2023, 11, 14, 22, 13, 20, 123456),
    )


@pytest.mark.long
def test_file_name_makes_another_event_only_if_declared(project: Settings, spark: SparkSession) -> None:
    line = '{"k": "a", "v": 1}'
    for stream, more in (("same", {}), ("apart", {"transport": False})):
        fields = {"k": "string", "v": "int", "file": ("string", {"from": "file.name"} | more)}
        declare(project, contract(stream, fields, id="content"))
        project.path(f"landing/{stream}").mkdir()
        for name in ("a.jsonl", "b.jsonl"):
            project.path(f"landing/{stream}/{name}").write_text(f"{line}\n")
    assert [row["file"] for row in ingest_events(project, spark, "same")] == ["a.jsonl"]
    assert [row["file"] for row in ingest_events(project, spark, "apart")] == ["a.jsonl", "b.jsonl"]
