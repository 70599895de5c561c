"""Bad landing files, ingested by one command: landing.yaml and changes.yaml list the outcome of each."""

from __future__ import annotations

import gzip
import os
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from lake import cli, cost
from lake.config import Settings, load_settings
from lake.ingest import fsck as log_run
from lake.ingest.replay import FIXES, quarantined_records
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.quarantine import Rejected
from lake.store.warehouse import Warehouse
from tests.bad_input.test_kinds import table
from tests.shop import avro, contract, declare, empty, optional

RECORD_BYTES = 7000
AMOUNT = avro("decimal(10, 2)")
EVENTS = contract(
    "events",
    {
        "id": ("long", {"minimum": 1}),
        "kind": {"type": "enum", "name": "kind", "symbols": ["a", "b"]},
        "at": "timestamp",
        "amount": (["null", AMOUNT], {"default": None, "minimum": 0}),
        "count": "int?",
        "ratio": "double?",
        "ok": "boolean?",
        "name": "string?",
        "day": "date?",
        "local": optional({"type": "long", "logicalType": "local-timestamp-micros"}),
        "data": "bytes?",
        "tags": optional({"type": "array", "items": "int"}),
        "facts": optional({"type": "map", "values": "int"}),
    },
    id=["id"],
    time="at",
    max_ahead="1 day",
)
CHANGES = contract(
    "changes",
    {"id": "long", "lsn": ("long", {"from": "source.lsn"}), "amount": (["null", AMOUNT], {"encoding": "base64"})},
    id="content",
    envelope="debezium",
    table="shop.orders",
)


@dataclass(frozen=True)
class Landed:
    """Outcome of the landing files: quarantined records by file, and the number of accepted records."""

    settings: Settings
    files: Mapping[str, Path]
    bytes: Mapping[str, bytes]
    code: int
    refused: list[Rejected]
    accepted: Mapping[str, int]


def parameters(area: str) -> list[Any]:
    return [pytest.param(number, kind, id=kind["input"]) for number, kind in enumerate(table(area), 1)]


def sound(area: str, number: int) -> dict[str, str]:
    """Return a valid record as {field: JSON}."""
    if area == "changes":
        source = f'{{"lsn": {number}, "schema": "shop", "table": "orders"}}'
        return {"op": '"c"', "after": f'{{"id": {number}}}', "source": source}
    return {"id": str(number), "kind": '"a"', "at": '"2024-03-31T12:00:00Z"'}


def written(record: Mapping[str, str | None]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in record.items() if value is not None) + "}"


def text(area: str, number: int, kind: Mapping[str, Any]) -> str:
    """Return the lines of an entry: the bad one, then a sound record unless it is alone."""
    numbers = iter(range(1000 * number, 1000 * number + 999))
    if "order" in kind:
        bad = written(sound(area, next(numbers)) | kind["order"])
    elif "repeat" in kind:
        opening, times, *closing = kind["repeat"]
        bad = opening * times + "".join(closing[:1]) + "".join(closing[1:]) * times
    else:
        bad = kind["line"].replace("SAME", written(sound(area, next(numbers))))
        while "ORDER" in bad:
            bad = bad.replace("ORDER", written(sound(area, next(numbers))), 1)
    return bad if kind.get("alone") else f"{bad}\n{written(sound(area, next(numbers)))}\n"


def put(folder: Path, area: str, number: int, kind: Mapping[str, Any]) -> Path:
    name = kind.get("file", "x.jsonl")
    file = folder / (f"{number:03}-{name}" if not name.startswith(".") else name)
    elsewhere = folder.parents[1] / "elsewhere.jsonl"
    match kind.get("special"):
        case "folder":
            file.mkdir()
        case "link":
            elsewhere.write_text("{}")
            file.symlink_to(elsewhere)
        case "dangling":
            file.symlink_to(folder / "nothing.jsonl")
        case "pipe":
            os.mkfifo(file)
        case _ if "parquet" in kind:
            duckdb.sql(f"COPY ({kind['parquet']}) TO '{file}' (FORMAT parquet)")
            file.write_bytes(file.read_bytes()[: -kind.get("cut", 0) or None])
        case _ if "gzip" in kind:
            file.write_bytes(gzip.compress(gzip.compress(b"{}\n")))
        case _ if "bytes" in kind:
            bad = kind["bytes"] if isinstance(kind["bytes"], bytes) else kind["bytes"].encode()
            beside = f"{written(sound(area, 1000 * number))}\n" if kind.get("accepted") and "file" not in kind else ""
            file.write_bytes(bad + beside.encode())
        case _:
            file.write_bytes(text(area, number, kind).encode("utf-8", "surrogatepass"))
    return file


def take_in(folder: Path, area: str, contract: Mapping[str, Any], spark: SparkSession) -> Landed:
    stream = contract["name"]
    declare(empty(folder, f"record_bytes = {RECORD_BYTES}\n"), contract)
    landing = folder / "landing" / stream
    landing.mkdir()
    files = {kind["input"]: put(landing, area, number, kind) for number, kind in enumerate(table(area), 1)}
    bytes_ = {name: file.read_bytes() for name, file in files.items() if file.is_file() and not file.is_fifo()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.Shell, "spark", spark)
        patch.setattr(cost, "READ_BYTES", 0)  # By tasks of Spark
        patch.setattr(sys, "argv", ["lake", "ingest", "--project", str(folder)])
        code = cli._run()
    settings = load_settings(folder)
    places = duckdb_tables.rows(Warehouse(settings).log(stream).path, "SELECT _source FROM t WHERE _bucket >= 0")
    accepted = Counter(row["_source"].rpartition(":")[0] for row in places)
    return Landed(settings, files, bytes_, code, [*quarantined_records(settings)], accepted)


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Landed:
    return take_in(tmp_path_factory.mktemp("events"), "landing", EVENTS, spark)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Landed:
    return take_in(tmp_path_factory.mktemp("changes"), "changes", CHANGES, spark)


def outcome_of(landed: Landed, stream: str, kind: Mapping[str, Any]) -> tuple[list[str], int, list[Rejected]]:
    """Return the quarantine reasons of an entry's file, the number of accepted records, and its pending ones."""
    name = f"{stream}/{landed.files[kind['input']].name}".replace("\n", "\\n")
    mine = [row for row in landed.refused if row.source == name or row.source.rpartition(":")[0] == name]
    shown = [f"{row.reason}: {row.detail} ({row.source})" for row in mine]
    return shown, landed.accepted.get(name, 0), mine


def check(landed: Landed, stream: str, kind: Mapping[str, Any]) -> None:
    shown, accepted, mine = outcome_of(landed, stream, kind)
    expected = kind.get("says", [])
    assert shown == ([expected] if isinstance(expected, str) else expected)
    assert accepted == kind.get("accepted", 1)
    file, whole = landed.files[kind["input"]], landed.bytes.get(kind["input"])
    for row in mine:
        assert FIXES[row.reason]
        assert row.reason == "file" or is_unchanged(row, file), "a byte was lost"
    assert whole is None or file.read_bytes() == whole, "a byte was lost"


def is_unchanged(row: Rejected, file: Path) -> bool:
    """Return whether a record is in quarantine unchanged. A record that is too long or not UTF-8 is only in its file,
    and a file with columns has a record made of them.
    """
    if file.suffix in (".csv", ".parquet") or row.reason == "oversized" or "UTF-8" in row.detail:
        return bool(row.raw)
    return row.raw.encode() in file.read_bytes()


@pytest.mark.parametrize(("number", "kind"), parameters("landing"))
def test_bad_landing_file_is_reported_and_its_sound_record_ingested(events: Landed, number: Any, kind: Any) -> None:
    check(events, "events", kind)


@pytest.mark.parametrize(("number", "kind"), parameters("changes"))
def test_bad_change_message_is_reported_and_the_sound_one_ingested(changes: Landed, number: Any, kind: Any) -> None:
    check(changes, "changes", kind)


def test_log_counts_every_record_read(events: Landed, changes: Landed) -> None:
    for landed, stream in ((events, "events"), (changes, "changes")):
        assert landed.code == 0
        head = Log(landed.settings, stream).head()
        assert head.batch == 1
        counts = dict(head.counts)
        assert counts["read"] == sum(count for name, count in counts.items() if name != "read")
        assert counts["quarantined"] == len(landed.refused)
        assert log_run.check_log(landed.settings, stream).faults == []
