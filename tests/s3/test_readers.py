"""Readers of a published warehouse, from a bucket as from a folder, by the command line. No JVM of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from lake.config import Settings, load_settings
from lake.store.ledger import editions
from lake.store.snapshot import write_manifest
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.s3.wire import Wire, wired
from tests.servers.s3 import KEY, S3
from tests.warehouse import published

QUERIES: Final = (
    "SELECT * FROM current_order ORDER BY ALL",
    "SELECT count(*) FROM current_order",
    "SHOW TABLES",
    "SELECT * EXCLUDE (_ingested_at) FROM log.orders ORDER BY ALL",
    "SELECT verb, count(*) FROM lake.runs GROUP BY ALL ORDER BY ALL",
)
REQUESTS: Final[dict[tuple[str, ...], dict[str, int]]] = {
    ("status",): {"GET": 9, "HEAD": 6, "LIST": 15},
    ("tables",): {"GET": 8, "HEAD": 6, "LIST": 15},
    ("sql", QUERIES[0]): {"GET": 3, "LIST": 2},
    ("sql", "SELECT 1 FROM current_order, customer_daily"): {"GET": 4, "LIST": 2},
    ("log", "orders"): {"GET": 3, "LIST": 3},
    ("graph",): {"GET": 1, "LIST": 1},
    ("wait", "orders@2"): {"GET": 3, "LIST": 5},
}
"""The requests of a command; the shop of one edition has two tables of a file each, and one stream of two batches."""


def lake(folder: Path, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from lake.cli import main; main()", *words]
    variables = os.environ | (environment or {})
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def upload(folder: Path, settings: Settings) -> None:
    """Copy the warehouse of a project to the bucket of `settings`."""
    here, there = Address(str(load_settings(folder).warehouse_path)), Warehouse(settings).root
    for entry in here.list(deep=True):
        if not entry.name.startswith("locks/"):
            assert (there / entry.name).put_if_absent((here / entry.name).read())


@pytest.fixture
def shop(s3: S3, tmp_path: Path) -> tuple[Path, str]:
    """Return a project, and the URL of a bucket with a copy of its warehouse."""
    folder = tmp_path / "shop"
    published(folder)
    settings = replace(load_settings(folder), warehouse=f"{s3.bucket()}/shop", storage=s3.storage)
    upload(folder, settings)
    edition = editions.latest_edition(settings)
    assert edition is not None
    write_manifest(settings, edition)
    return folder, settings.place(settings.warehouse)


def run_on_bucket(wire: Wire, shop: tuple[Path, str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that reads from the bucket."""
    place = {"LAKE_WAREHOUSE": shop[1], "LAKE_STORAGE__ENDPOINT": wire.url}
    return lake(shop[0], *words, environment={**KEY, **place})


@pytest.mark.parametrize("query", QUERIES)
def test_query_of_a_bucket_answers_like_one_of_a_folder(s3: S3, shop: tuple[Path, str], query: str) -> None:
    with wired(s3.port) as wire:
        there = run_on_bucket(wire, shop, ["sql", query])
    here = lake(shop[0], "sql", query)
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout) != (0, "")
    assert not any(secret in there.stdout + there.stderr for secret in KEY.values())


@pytest.mark.parametrize("words", REQUESTS)
def test_command_needs_a_fixed_number_of_requests(s3: S3, shop: tuple[Path, str], words: tuple[str, ...]) -> None:
    with wired(s3.port) as wire:
        done = run_on_bucket(wire, shop, words)
    assert done.returncode == 0, done.stderr
    assert wire.kinds() == REQUESTS[words], wire.requests
    writes = [path for method, path in wire.requests if method not in {"GET", "HEAD"}]
    assert writes == []


def test_query_cannot_read_files_outside_its_edition(s3: S3, shop: tuple[Path, str]) -> None:
    with wired(s3.port) as wire:
        for query in (f"FROM read_parquet('{shop[1]}/meta/cuts/*.parquet')", f"FROM glob('{shop[1]}/**')"):
            done = run_on_bucket(wire, shop, ["sql", query])
            assert done.returncode == 2
            assert "a query can read the tables of the edition only" in done.stderr
            assert "Traceback" not in done.stderr


def test_missing_file_is_named_by_a_query(s3: S3, shop: tuple[Path, str]) -> None:
    root = Warehouse(replace(load_settings(shop[0]), warehouse=shop[1], storage=s3.storage)).root
    for entry in root.list(deep=True):
        if entry.name.startswith("silver/current_order") and entry.name.endswith(".parquet"):
            (root / entry.name).delete()
            gone = entry.name
    with wired(s3.port) as wire:
        done = run_on_bucket(wire, shop, ["sql", QUERIES[0]])
    assert done.returncode == 1
    assert "a file is gone" in done.stderr
    assert gone in done.stderr
