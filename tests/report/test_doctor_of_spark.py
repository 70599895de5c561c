"""`lake doctor` of an external Spark: its version, its executors' Python, its committer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.ops import doctor
from lake.testing import Commands
from tests.shop import new_shop

PYTHON = "spark.sql.execution.pyspark.python"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    spark.conf.unset(PYTHON)


def python_that_sees(folder: Path) -> str:
    """Return a Python for workers that imports the modules of a folder first."""
    file = folder / "python"
    file.write_text(f'#!/bin/sh\nPYTHONPATH={folder}:$PYTHONPATH exec {sys.executable} "$@"\n')
    file.chmod(0o755)
    return str(file)


def test_doctor_examines_a_connect_server(commands: Commands, tmp_path: Path) -> None:
    done = commands.lake("doctor", "--json", at=new_shop(tmp_path))
    found = {each["subject"]: each for each in json.loads(done.out)}
    minor = f"Python {sys.version_info[0]}.{sys.version_info[1]}."
    assert found["executors"]["found"].startswith(minor), done.out
    assert "pyarrow" in found["executors"]["found"]
    assert found["delta"]["found"] == "is among Spark's extensions"
    assert found["spark connect"]["ok"]
    assert (done.code, "log store" in found) == (0, False), done.out


@pytest.mark.long
def test_doctor_reports_a_python_that_cannot_run_functions(
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
