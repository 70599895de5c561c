"""Upload of local files below the warehouse for a Spark that does not share this disk."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings, SparkSettings
from lake.contracts.contract import read_contract
from lake.engine.at_cut import build_to
from lake.engine.inputs import Inputs
from lake.errors import DeclarationError
from lake.ingest.delivery import FileDelivery
from lake.ingest.files import list_folder
from lake.publish.cut import pick_cut
from lake.session.remote import shares_disk
from lake.store import temporary_files
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.shop import contract, declare, job

ELSEWHERE = '[tool.lake.spark]\nshares_disk = false\nmaster = "local[2]"\n'


@pytest.mark.parametrize(
    ("how", "shared"),
    [
        (SparkSettings(master="local[2]"), True),
        (SparkSettings(master="local"), True),
        (SparkSettings(master="spark://127.0.0.1:7077"), False),
        (SparkSettings(master="yarn"), False),
        (SparkSettings(master="yarn", shares_disk=True), True),
        (SparkSettings(remote="sc://localhost:15002"), True),
        (SparkSettings(remote="sc://spark.example.org:443/;use_ssl=true"), False),
        (SparkSettings(remote="sc://localhost:15002", shares_disk=False), False),
    ],
)
def test_spark_shares_the_disk_when_it_runs_here(
    project: Settings, monkeypatch: pytest.MonkeyPatch, how: SparkSettings, shared: bool
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert shares_disk(replace(project, spark=how)) is shared


def test_uploaded_files_are_removed_or_found_as_abandoned(project: Settings, tmp_path: Path) -> None:
    file = tmp_path / "a b.jsonl"
    file.write_text("{}\n")
    assert temporary_files.upload(project, [file]) == {}
    elsewhere = replace(project, spark=SparkSettings(shares_disk=False))
    [address] = temporary_files.upload(elsewhere, [file]).values()
    assert (address.name, address.read()) == ("a b.jsonl", b"{}\n")
    assert temporary_files.upload(elsewhere, [file]) == {file: address}, "the same file, the same place"
    assert temporary_files.abandoned_uploads(elsewhere, datetime(2000, 1, 1, tzinfo=UTC)) == []
    assert temporary_files.abandoned_uploads(elsewhere, datetime(2100, 1, 1, tzinfo=UTC)) == [address]
    temporary_files.remove_uploads([address])
    assert temporary_files.abandoned_uploads(elsewhere, datetime(2100, 1, 1, tzinfo=UTC)) == []


def test_file_too_large_for_spark_elsewhere_is_rejected_by_its_size(project: Settings) -> None:
    folder = project.path("landing/notes")
    folder.mkdir()
    (folder / "a.csv").write_text("id\n1\n")
    with (folder / "b.csv").open("wb") as file:
        file.truncate(3_000_000_000)
    notes = read_contract(json.dumps(contract("notes", {"id": "long"})), file="schemas/notes.avsc")
    files = list_folder(folder, "notes")
    assert FileDelivery.checked(project, files, notes).faults == []
    elsewhere = replace(project, spark=SparkSettings(shares_disk=False))
    fault = "oversized: 3,000,000,000 bytes, limit 2,000,000,000 for a Spark that does not share this disk"
    assert FileDelivery.checked(elsewhere, files, notes).faults == [
        ("notes/b.csv", f"{fault}: divide it into smaller files")
    ]


def test_files_that_spark_cannot_read_here_get_into_the_log(project: Settings, spark: SparkSession) -> None:
    project.path("pyproject.toml").write_text(f"[tool.lake]\n{ELSEWHERE}")
    fields = {"id": "long", "of": ("string", {"from": "file.name"}), "word": "string?"}
    lakehouse: Lakehouse = declare(
        project,
        contract("notes", fields, csv={"encoding": "windows-1252"}),
        jobs={"note": job("note", 'Latest("id")', 'log("notes")')},
    )
    landing = lakehouse.settings.path(lakehouse.settings.landing) / "notes"
    landing.mkdir(parents=True, exist_ok=True)
    (landing / "a [1] é.jsonl").write_text('{"id": 1, "word": "one"}\n{"id": 2}\n')
    (landing / "b.csv").write_bytes("id,word\n3,drei\n4,vier\u00e4\n".encode("cp1252"))
    (landing / "c.jsonl.gz").write_bytes(gzip.compress(b'{"id": 5}\n{"id": "no number"}\n'))
    lakehouse.run()
    rows = {row["id"]: (row["of"], row["word"]) for row in lakehouse.table("note")}
    assert rows == {
        1: ("a [1] é.jsonl", "one"),
        2: ("a [1] é.jsonl", None),
        3: ("b.csv", "drei"),
        4: ("b.csv", "vierä"),
        5: ("c.jsonl.gz", None),
    }
    assert list(Warehouse(lakehouse.settings).root.list(deep=True))
    assert temporary_files.abandoned_uploads(lakehouse.settings, datetime(2100, 1, 1, tzinfo=UTC)) == []


def test_tables_of_an_old_cut_are_not_written_where_spark_cannot(project: Settings, spark: SparkSession) -> None:
    project.path("pyproject.toml").write_text(f"[tool.lake]\n{ELSEWHERE}")
    lakehouse = declare(
        project, contract("notes", {"id": "long"}), jobs={"note": job("note", 'Latest("id")', 'log("notes")')}
    )
    lakehouse.land("notes", {"id": 1}).run()
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None))
    with pytest.raises(DeclarationError, match="Spark runs elsewhere"):
        build_to(inputs, ["note"], project.path("old"), on_progress=print)
