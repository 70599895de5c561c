"""Tests of the store that do not depend on a folder, with every warehouse in a bucket."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from lake.connect.s3 import KIND
from lake.session.jars import storage_faults
from tests.processes import ROOT
from tests.servers import needed
from tests.servers.s3 import JARS, installed

FILE: Final = "tests/store/test_commit.py"


@pytest.mark.s3
@pytest.mark.spark
def test_committers_keep_their_contract_in_a_bucket() -> None:
    installed()
    needed(None if storage_faults(JARS, KIND) else True, "the jars for S3 are missing: lake setup --s3")
    words = ["-p", "tests.s3.in_bucket", "-n", "0", "-m", "", "-p", "no:cacheprovider", FILE]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
