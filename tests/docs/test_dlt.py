"""docs/how-to/dlt.md with the real dlt: project files, pipeline run, and ingested rows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.ingest import landing
from lake.ingest.files import fault_of
from lake.ops.pipeline import run
from lake.project import project
from lake.store import duckdb_tables
from lake.store.log import Log
from tests.docs.pages import DOCS
from tests.servers import needed
from tests.shop import empty

PAGE = (DOCS / "how-to/dlt.md").read_text("utf-8")
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE))


@pytest.fixture
def shop(tmp_path: Path) -> Settings:
    settings = empty(tmp_path / "shop")
    assert "mkdir -p landing && touch landing/init " in PAGE
    settings.path("landing/init").touch()
    for name, text in FILES.items():
        settings.path(name).write_text(text, "utf-8")
    return settings


def load(settings: Settings) -> None:
    """Run `python load_orders.py` with all files of dlt inside the project."""
    needed(find_spec("dlt"), "dlt is not installed: make setup")
    home = str(settings.path(".lake/home"))
    environment = os.environ | {"HOME": home, "DLT_DATA_DIR": home, "RUNTIME__DLTHUB_TELEMETRY": "false"}
    command = [sys.executable, "load_orders.py"]
    done = subprocess.run(command, cwd=settings.project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_dlt_page_contains_all_files_of_a_project(shop: Settings) -> None:
    assert list(FILES) == ["load_orders.py", "schemas/orders.avsc", "jobs/silver/order_now.py"]
    assert list(project.load(shop).tables) == ["order_now"]


@pytest.mark.long
def test_dlt_lands_a_file_of_rows_with_complete_lists(shop: Settings) -> None:
    load(shop)
    [file] = shop.path("landing/orders").iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["order_id"], row["items"]) for row in rows] == [(1, [{"sku": "A", "pieces": 2}]), (2, [])]
    assert all(row["_dlt_id"] and row["_dlt_load_id"] for row in rows)
    listed = landing.list_files(shop, "orders")
    assert [(each.name, fault_of(each)) for each in listed] == [(f"orders/{file.name}", "")]


@pytest.mark.long
def test_dlt_rows_are_ingested_and_repeated_rows_are_duplicates(shop: Settings, spark: SparkSession) -> None:
    load(shop)
    streams = run(shop, lambda: spark, lambda _: None).streams["orders"]
    assert (streams.read, streams.accepted, streams.quarantined) == (2, 2, 0)
    rows = duckdb_tables.rows(Log(shop, "orders").path, "SELECT * FROM t ORDER BY order_id")
    assert [(row["order_id"], str(row["amount"])) for row in rows] == [(1, "19.90"), (2, "5.00")]
    assert [row["_extra"] for row in rows] == [None, None]
    assert all(row["dlt_id"] and row["dlt_load_id"] for row in rows)
    load(shop)  # Nothing is new
    assert run(shop, lambda: spark, lambda _: None).streams["orders"].read == 0
    for file in shop.path(".lake/dlt").rglob("state.json"):
        file.unlink()
    for folder in ("_dlt_pipeline_state", "_dlt_loads", "_dlt_version"):  # Dlt has lost its bookmark
        for file in shop.path(f"landing/{folder}").glob("*"):
            file.unlink()
    load(shop)
    again = run(shop, lambda: spark, lambda _: None).streams["orders"]
    assert (again.read, again.accepted, again.duplicates) == (2, 0, 2)
