"""`lake doctor` of a Spark that is not the command's own: its version, its executors' Python, what it commits by."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake import s3
from lake.config import Settings, SparkSettings
from lake.report import doctor
from lake.session import DELTA, EXTENSIONS
from lake.testing import Commands
from tests.shop import new_shop

PYTHON = "spark.sql.execution.pyspark.python"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.conf.unset(PYTHON)


def python_that_sees(folder: Path) -> str:
    """A Python of a worker, which is this one, but for the modules in a folder."""
    file = folder / "python"
    file.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n')
    file.chmod(0o755)
    return str(file)


def test_a_connect_server_is_looked_at_whole(commands: Commands, tmp_path: Path) -> None:
    done = commands.lake("doctor", "--json", at=new_shop(tmp_path))
    found = {each["subject"]: each for each in json.loads(done.out)}
    minor = f"Python {sys.version_info[0]}.{sys.version_info[1]}."
    assert found["executors"]["found"].startswith(minor), done.out
    assert "pyarrow" in found["executors"]["found"]
    assert found["delta"]["found"] == "is among Spark's extensions"
    assert found["spark connect"]["ok"]
    assert (done.code, "log store" in found) == (0, False), done.out


@pytest.mark.long
def test_a_python_that_cannot_run_functions_is_told(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/pyarrow.py").write_text("raise ImportError('no pyarrow here')\n")
    for python, what in (
        (str(tmp_path / "nowhere"), "No such file or directory"),
        (python_that_sees(tmp_path / "bare"), "no pyarrow here"),
    ):
        session.conf.set(PYTHON, python)
        finding = doctor._executors(session)
        assert what in finding.found
        assert "\n" not in finding.found
        assert "spark.pyspark.python" in finding.fix
    session.conf.unset(PYTHON)
    assert doctor._executors(session).ok
    monkeypatch.setattr(session.sparkContext, "pythonVer", "3.9")
    finding = doctor._executors(session)
    assert ("PYTHON_VERSION_MISMATCH" in finding.found, finding.ok) == (True, False)


def test_what_a_server_commits_by_is_told(project: Settings) -> None:
    class Conf:
        def __init__(self, **told: str) -> None:
            self.told = told

        def get(self, name: str, default: str) -> str:
            return self.told.get(name, default)

    class Session:
        def __init__(self, **told: str) -> None:
            self.conf = Conf(**told)

    here, there = project, replace(project, warehouse="s3://bucket/w", spark=SparkSettings())
    delta = {EXTENSIONS: f"a.B,{DELTA}"}
    ours = {doctor.LOG_STORE_OF_S3: s3.LOG_STORE}
    for told, settings, well in (
        ({}, here, [False]),
        (delta, here, [True]),
        (delta, there, [True, False]),
        (delta | ours, there, [True, True]),
        (delta | {doctor.LOG_STORE_OF_S3: "io.delta.storage.S3SingleDriverLogStore"}, there, [True, False]),
    ):
        session = Session(**told)
        assert [each.ok for each in doctor._committing(session, settings)] == well  # type: ignore[arg-type]
