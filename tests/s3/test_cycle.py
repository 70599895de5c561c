"""`lake run` and later commands with the warehouse in a bucket: as in a folder, after any lost answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

import pytest

from lake.connect.s3 import KIND
from lake.session.jars import storage_faults
from tests.processes import ROOT
from tests.servers import needed
from tests.servers.s3 import JARS, KEY, S3

PUTS: Final = 40
"""A run of the shop has about so many."""


def cycle(s3: S3, *parts: str) -> dict[str, Any]:
    """Run parts of tests.s3.cycle and return their output."""
    needed(None if storage_faults(JARS, KIND) else True, "the jars for S3 are missing: lake setup --s3")
    (s3.home / "buckets/shop").mkdir(exist_ok=True)
    environment = {**os.environ, **KEY, "S3_PORT": str(s3.port), "S3_PUTS": str(PUTS)}
    command = [sys.executable, "-m", "tests.s3.cycle", *parts]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "error" not in told, told["error"]
    return told


@pytest.mark.spark
def test_tables_in_a_bucket_equal_those_in_a_folder(s3: S3) -> None:
    told = cycle(s3, "same")["same"]
    assert told["bucket"] == told["rebuilt"] == told["folder"]
    assert {verdict for verdict, _ in told["bucket"].values()} == {"identical"}
    assert told["rows"] == told["rows in a folder"]
    assert not told["secret is told"]
    total = {step: sum(methods.values()) for step, methods in told["requests"].items()}
    assert total["query"] <= 15, told["requests"]
    assert total["run, delta-rs"] <= 150, told["requests"]
    assert total["run of nothing new, delta-rs"] <= 80, told["requests"]


@pytest.mark.spark
@pytest.mark.parametrize("fault", ["lose", "cut"])
def test_next_run_converges_when_a_put_is_lost(s3: S3, fault: str) -> None:
    told = cycle(s3, fault)[fault]
    assert not [outcome for outcome in told["outcomes"] if outcome.startswith("FAULT")]
    assert any(outcome != "not reached" for outcome in told["outcomes"])
    assert {verdict for verdict, _ in told["tables"].values()} == {"identical"}


@pytest.mark.spark
def test_tables_equal_their_recomputation_when_archiving_is_killed(s3: S3) -> None:
    told = cycle(s3, "archives")["archives"]
    assert {verdict for verdict, _ in told["tables"].values()} == {"identical"}
    assert told["faults"] == []
    assert told["kills"] > 6


@pytest.mark.spark
def test_project_continues_in_a_bucket_when_a_backup_was_uploaded_there(s3: S3) -> None:
    told = cycle(s3, "moved")["moved"]
    assert told["faults"] == []
    assert {verdict for verdict, _ in told["bucket"].values()} == {"identical"}
    assert told["bucket"] == told["folder"]
