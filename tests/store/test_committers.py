"""Equal logs by delta-rs and Spark in turn: every type, nulls, extremes, new fields."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.ingest.fsck import check_log
from lake.ingest.ingest import ingest
from lake.store.log import Log
from lake.store.log_rows import types
from tests.shop import avro, contract, declare, empty, optional
from tests.store.events import NOW
from tests.writers import Writer, writing

LOCAL: Final = {"type": "long", "logicalType": "local-timestamp-micros"}
PART: Final = {
    "type": "record",
    "name": "Part",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "local", "type": ["null", LOCAL]},
        {"name": "of", "type": {"type": "array", "items": ["null", "string"]}},
    ],
}
FIRST: Final[dict[str, Any]] = {"meter": "string", "at": "timestamp"}
SIMPLE: Final[dict[str, tuple[Any, Sequence[Any]]]] = {
    "whole": ("int", (-(1 << 31), (1 << 31) - 1)),
    "large": ("long", (-(1 << 63), (1 << 63) - 1)),
    "near": ("float", (0.1, -3.4e38)),
    "real": ("double", (5e-324, -1.7976931348623157e308)),
    "yes": ("boolean", (True, False)),
    "text": ("string", ("", "ünï\U0001f600\u2028")),
    "bytes": ("bytes", ("", "AP8=")),
    "amount": ("decimal(38, 10)", ("9999999999999999999999999999.9999999999", "-0.0000000001")),
    "share": ("decimal(3, 3)", ("0.999", "-0.001")),
    "day": ("date", ("0001-01-01", "9999-12-31")),
    "seen": ("timestamp", ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")),
    "local": (LOCAL, ("1582-10-10T00:00:00", "2024-02-29T23:59:59.999999")),
    "kind": ({"type": "enum", "name": "Kind", "symbols": ["GAS", "POWER"]}, ("GAS", "POWER")),
}
NESTED: Final[dict[str, tuple[Any, Sequence[Any]]]] = {
    "numbers": ({"type": "array", "items": ["null", "int"]}, ([], [1, None, -1])),
    "names": ({"type": "map", "values": ["null", "long"]}, ({}, {"": 1, "a b": None})),
    "part": (PART, ({"n": 7, "local": None, "of": []}, {"n": None, "local": "2024-01-01T00:00:00", "of": ["x", None]})),
    "parts": ({"type": "array", "items": PART | {"name": "Parts"}}, ([], [{"n": 1, "local": None, "of": [None]}])),
}
TURNS: Final[list[tuple[Writer, ...]]] = [
    ("delta-rs", "spark", "delta-rs"),
    ("spark", "delta-rs", "spark"),
    ("delta-rs", "delta-rs", "delta-rs"),
]


def check_redeliveries(settings: Settings, spark: SparkSession, writer: Writer) -> None:
    """Check that redeliveries are found by this process and by Spark."""
    folder = settings.path(settings.landing) / "readings"
    batches = [file.read_text() for file in sorted(folder.glob("?.jsonl"))]
    for number, bound in enumerate((cost.APPENDED_BYTES, 0)):
        (folder / f"again-{number}.jsonl").write_text("".join(batches))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(cost, "APPENDED_BYTES", bound)
            with writing(writer):
                done = ingest(settings, lambda: spark, load_contracts(settings), now=NOW)["readings"]
        assert (done.accepted, done.duplicates, done.quarantined) == (0, 7, 2)


@pytest.mark.long
@pytest.mark.parametrize("writers", TURNS, ids=" ".join)
def test_log_is_the_same_for_every_writer(spark: SparkSession, tmp_path: Path, writers: Sequence[Writer]) -> None:
    home = tmp_path / "meter=other"  # a folder name must not be read as a column value
    assert write_log(spark, home / "turns", writers) == write_log(spark, home / "spark", ["spark"] * 3)


def write_log(spark: SparkSession, home: Path, writers: Sequence[Writer]) -> tuple[str, list[str]]:
    """Return the digest and the events of a log of three batches, whose contract has more fields each time."""
    settings = empty(home)
    (settings.path(settings.landing) / "readings").mkdir()
    known: dict[str, tuple[Any, Sequence[Any]]] = {}
    for number, writer in enumerate(writers):
        known |= [{}, SIMPLE, NESTED][number]
        more = {name: optional(avro(kind)) for name, (kind, _) in known.items()}
        declare(settings, contract("readings", FIRST | more, id=["meter", "at"], time="at"))
        records = [
            {"meter": f"m{row}", "at": f"2024-03-01T0{number}:00:00Z"}
            | {name: values[row] for name, (_, values) in known.items()}
            for row in range(2)
        ]
        records.append({"meter": None, "at": "2024-03-01T00:00:00Z"} if number else {"meter": "m", "at": "2024-02-01"})
        file = settings.path(settings.landing) / "readings" / f"{number}.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        with writing(writer):
            counts = ingest(settings, lambda: spark, load_contracts(settings), now=NOW)["readings"]
        assert (counts.accepted, counts.quarantined) == ((3, 0), (2, 1), (2, 1))[number]
    check_redeliveries(settings, spark, writers[-1])
    log = Log(settings, "readings")
    assert check_log(settings, "readings").faults == []
    rows = log.read(spark, load_contracts(settings)["readings"], upto=3).orderBy("_batch", "_bucket", "_offset")
    assert {field.name: field.dataType.simpleString() for field in rows.schema} == types(
        load_contracts(settings)["readings"]
    )
    return log.head().content["digest"], [row[0] for row in rows.selectExpr("to_json(struct(*))").collect()]
