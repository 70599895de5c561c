"""Connectors of other packages: those of the how-to pages, installed from wheels; and broken ones."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lake.cli import lake as command_line
from lake.config import PublishSettings, Settings, load_settings
from lake.connectors import connector, connectors
from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError, LakeError
from lake.ingest.ingest import ingest
from lake.ops import doctor
from lake.publish.after_publish import after_publish
from lake.session.spark_session import embedded_conf
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.process import fault_of
from lake.store.warehouse import Warehouse
from tests.extensions import AFTER_PUBLISH, MemorySettings
from tests.packages import install
from tests.shop import contract, declare, empty
from tests.warehouse import published

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the connectors of the how-to pages, from wheels."""
    folder = tmp_path_factory.mktemp("connectors")
    for name in ("sqlite-source", "sqlite-sink"):
        (folder / name).mkdir()
        for file in (file for file in (ROOT / "docs/connectors" / name).iterdir() if file.is_file()):
            (folder / name / file.name).write_bytes(file.read_bytes())
        build: list[str | Path] = [UV, "build", "--wheel", "--offline", "--no-build-isolation", "--quiet"]
        subprocess.run([*build, folder / name, "--out-dir", folder / "dist"], check=True, capture_output=True)
    wheels = sorted((folder / "dist").glob("*.whl"))
    into: list[str | Path] = [
        UV,
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--quiet",
        "--target",
        folder / "installed",
    ]
    subprocess.run([*into, *wheels], check=True, capture_output=True)
    return folder / "installed"


def lake(project: Path, packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(packages), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", "from lake.cli import main; main()", *words, "--project", str(project)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def query(file: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute(sql).fetchall()
        database.commit()
        return rows


@pytest.mark.slow
def test_sink_of_the_page_delivers_verifies_and_repairs(tmp_path: Path, packages: Path) -> None:
    project, file = tmp_path / "shop", tmp_path / "shop/shop.sqlite"
    published(project)
    (project / "sinks").mkdir()
    (project / "sinks/shop.toml").write_text('kind = "sqlite"\nfile = "shop.sqlite"\n[tables.current_order]\n')
    assert lake(project, packages, "deliver").returncode == 0
    rows = query(file, "SELECT name, row FROM current_order")
    assert rows
    assert all(json.loads(row) for _, row in rows)
    assert lake(project, packages, "verify", "--sink", "shop").returncode == 0
    query(file, "DELETE FROM current_order WHERE rowid = 1")
    assert lake(project, packages, "verify", "--sink", "shop").returncode == 1
    assert lake(project, packages, "deliver", "shop", "--repair").returncode == 0
    assert sorted(query(file, "SELECT name, row FROM current_order")) == sorted(rows)
    absent = lake(project, tmp_path / "none", "deliver")
    assert absent.returncode == 2
    assert "unknown kind 'sqlite'" in absent.stderr
    assert "sinks/shop.toml" in absent.stderr


def test_source_of_the_page_is_read_once_and_reports_a_gap(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.syspath_prepend(packages)
    settings = empty(tmp_path / "shop")
    fields = {"id": "long", "status": "string", "row": ("long", {"from": "sqlite.rowid"})}
    declare(settings, contract("orders", fields, id=["id"]))
    (settings.project / "sources").mkdir()
    (settings.project / "sources/till.toml").write_text(
        'kind = "sqlite"\nfile = "till.sqlite"\n[streams]\norders = "sale"\n'
    )
    file = settings.project / "till.sqlite"
    query(file, "CREATE TABLE sale (id INTEGER PRIMARY KEY, status TEXT)")
    query(file, "INSERT INTO sale (status) VALUES ('new'), ('paid')")
    contracts = load_contracts(settings)
    assert ingest(settings, lambda: spark, contracts)["orders"].accepted == 2
    query(file, "INSERT INTO sale (status) VALUES ('sent')")
    assert ingest(settings, lambda: spark, contracts)["orders"].accepted == 1
    assert ingest(settings, lambda: spark, contracts)["orders"].read == 0
    events = duckdb_tables.rows(Log(settings, "orders").path, "SELECT id, row, _source FROM t ORDER BY id")
    assert [tuple(row.values()) for row in events] == [(n, n, f"till:sale:{n}") for n in (1, 2, 3)]
    query(file, "DELETE FROM sale WHERE id > 1")
    failures: dict[str, LakeError] = {}
    ingest(settings, lambda: spark, contracts, on_failure=failures.__setitem__)
    assert "rows up to 3 have been read" in str(failures["till"])


def _facts_error(settings: Settings, fact: str) -> DeclarationError:
    fields = {"id": "long", "topic": ("string", {"from": fact})}
    declare(settings, contract("orders", fields, id=["id"]))
    with pytest.raises(DeclarationError) as error:
        load_contracts(settings)
    return error.value


def test_fact_of_another_package_is_known_while_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = empty(tmp_path / "shop")
    error = _facts_error(settings, "mqtt.topic")
    assert "field 'topic' comes from 'mqtt.topic', which no installed source has" in error.what
    assert "file.time, http.headers.NAME, http.id" in error.fix
    assert error.where.startswith("schemas/orders.avsc:")
    install(monkeypatch, tmp_path / "packages", {"lake.sources": {"mqtt": "tests.extensions:MQTT"}})
    [topic] = [field for field in load_contracts(settings)["orders"].fields if field.name == "topic"]
    assert topic.is_fact
    assert topic.transport
    assert _facts_error(settings, "mqtt.topc").fix == "did you mean 'mqtt.topic'?"
    assert "'mqtt.property'" in _facts_error(settings, "mqtt.property").what
    declare(settings, contract("orders", {"id": "long", "of": ("string", {"from": "mqtt.property.a.b"})}, id=["id"]))
    load_contracts(settings)


def test_fact_of_a_broken_kind_is_reported_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = empty(tmp_path / "shop")
    install(monkeypatch, tmp_path / "packages", {"lake.sources": {"mqtt": "absent_client:KIND"}})
    assert "mqtt needs absent_client" in _facts_error(settings, "mqtt.topic").what
    assert "which no installed source has" in _facts_error(settings, "amqp.topic").what


def test_command_of_another_package_is_listed_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, {"lake.commands": {"hello": "tests.extensions:hello"}})
    runner = CliRunner()
    assert "hello" in runner.invoke(command_line, ["--help"]).output
    assert runner.invoke(command_line, ["hello"]).output == "hello\n"


def test_hook_runs_after_publication_if_the_setting_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path / "packages", {"lake.after_publish": {"fake": "tests.extensions:AFTER_PUBLISH"}})
    settings = empty(tmp_path / "shop")
    assert AFTER_PUBLISH not in [*after_publish(settings)]
    named = replace(settings, publish=PublishSettings(after=("fake",)))
    assert [*after_publish(named)][-1] is AFTER_PUBLISH


def test_storage_of_another_package_has_the_warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path / "packages", {"lake.storage": {"mem": "tests.extensions:MEMORY"}})
    settings = load_settings(empty(tmp_path / "shop", 'warehouse = "mem://a/w"\n[tool.lake.storage]\nsize = 3').project)
    assert settings.storage == MemorySettings(size=3)
    monkeypatch.setattr("lake.session.spark_session.class_path", lambda _: "")
    assert embedded_conf(settings)["spark.hadoop.fs.mem.buffer"] == str(settings.path(".lake/spark/local"))
    root = Warehouse(settings).root
    assert (root / "a").put_if_absent(b"first")
    assert not (root / "a").put_if_absent(b"second")
    assert [entry.name for entry in root.list()] == ["a"]
    found = {one.subject: one.found for one in doctor.examine(settings.project)}
    assert found["warehouse"] == "mem://a/w can be written: in 50 races one of 2 writers won"
    assert found["jars for mem"] == "0 verified"
    fault = fault_of(RuntimeError("mem is away"), settings)
    assert fault is not None
    assert fault.what == "mem does not answer"


@pytest.mark.parametrize(
    ("lines", "what", "fix"),
    [
        ('warehouse = "mem://a"', "'warehouse': mem://a names no folder of the storage mem", '"mem://NAME/FOLDER", or'),
        ('archive = "gs://a/b"', "'archive': no storage for gs:// is installed, found gs://a/b", "mem://, s3://; name"),
        (
            'landing = "mem://a/b"\narchive = "s3://abc/d"',
            "'archive': folders are in several storages",
            "of one of them",
        ),
        ('landing = "mem://a/b"\n[tool.lake.storage]\nsise = 1', "unknown setting 'storage.sise'", "mean 'size'?"),
        (
            'landing = "mem://a/b"\n[tool.lake.storage]\nsize = "b"',
            "'storage.size': expected a whole number",
            "size = 0",
        ),
    ],
)
def test_wrong_setting_of_a_storage_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, what: str, fix: str
) -> None:
    install(monkeypatch, tmp_path / "packages", {"lake.storage": {"mem": "tests.extensions:MEMORY"}})
    with pytest.raises(DeclarationError, match=re.escape(what)) as told:
        empty(tmp_path / "shop", lines)
    assert fix in told.value.fix
    assert str(tmp_path / "shop/pyproject.toml") in told.value.where


def test_storage_that_no_setting_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path / "packages", {"lake.storage": {"mem": "absent:KIND"}})
    settings = empty(tmp_path / "shop", "[tool.lake.storage]\nregion = 'eu-central-1'")
    assert settings.object_storage is None


def test_setting_that_names_an_absent_hook_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = empty(tmp_path / "shop").project
    monkeypatch.setenv("LAKE_PUBLISH__AFTER", '["alert"]')
    with pytest.raises(DeclarationError, match="no connector 'alert' is installed") as error:
        load_settings(project)
    assert "alerts" in error.value.fix


@pytest.mark.parametrize(
    ("place", "what", "fix"),
    [
        ("fake.absent:KIND", "needs fake", "reinstall fake"),
        ("json:absent", "is broken", "reinstall its package"),
    ],
)
def test_broken_connector_is_reported_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, what: str, fix: str
) -> None:
    install(monkeypatch, tmp_path, {"lake.sinks": {"fake": place}})
    with pytest.raises(DeclarationError) as told:
        connector("lake.sinks", "fake", "sinks/one.toml")
    assert what in told.value.what
    assert fix in told.value.fix
    assert told.value.where == "sinks/one.toml"


def test_connector_name_of_two_packages_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        install(monkeypatch, tmp_path / name, {"lake.sinks": {"fake": "json:dumps"}}, name=name)
    assert "fake" in connectors("lake.sinks")
    with pytest.raises(DeclarationError, match="'fake' is in several packages: one, two"):
        connector("lake.sinks", "fake", "sinks/one.toml")


def test_unknown_connector_is_reported_with_a_similar_name() -> None:
    with pytest.raises(DeclarationError, match="unknown kind 'redsi'") as told:
        connector("lake.sinks", "redsi", "sinks/one.toml")
    assert told.value.fix == "did you mean 'redis'?"


def test_append_with_decide_imports_only_kinds_that_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = empty(tmp_path / "shop")
    declare(shop, contract("notes", {"id": "long"}))
    shop.path("sources").mkdir()
    shop.path("sources/a.toml").write_text('kind = "aaa"\n')
    shop.path("notes.jsonl").write_text("{}\n")
    install(monkeypatch, tmp_path / "package", {"lake.sources": {"aaa": "fake.absent:KIND"}})
    call = ["append", "notes", str(shop.path("notes.jsonl")), "--decide", "--project", str(shop.project)]
    for text, told in (("", "no source decides on events"), ("decide.other = 't'", "nothing decides on notes")):
        shop.path("sources/web.toml").write_text(f'kind = "http"\nstreams = ["notes"]\n{text}\n')
        done = CliRunner().invoke(command_line, call)
        assert isinstance(done.exception, DeclarationError)
        assert done.exception.what == told
