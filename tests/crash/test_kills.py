"""Short selection of the crashes; `make soak` tries them all."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from lake.testing import Commands, Kill
from tests.crash.crashes import OF_PYTHON, Crash, happen
from tests.crash.model import Shop

SHORT = (
    "run: log.middle",
    "run: edition.before",
    "run: files of changed rows, table.middle",
    "truncated: last commit of log",
    "maintain: compaction.after",
    "archive: cold.after",
    "archive: log.before",
    "truncated: the end of an archive",
)


@pytest.fixture(scope="module")
def shop(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Shop after one run."""
    shop = Shop(tmp_path_factory.mktemp("crash"), random.Random(1))
    shop.land_some()
    assert commands.lake("run", at=shop.lakehouse).code == 0
    return shop


@pytest.mark.long
@pytest.mark.parametrize("crash", [each for each in OF_PYTHON if each.name in SHORT], ids=lambda each: each.name)
def test_next_command_repairs_the_damage_of_a_crash(shop: Shop, commands: Commands, crash: Crash) -> None:
    outcome = happen(shop, commands, crash)
    assert outcome.faults == ()
    assert outcome.landed


@pytest.mark.long
def test_kill_counts_only_if_it_landed(commands: Commands, tmp_path: Path) -> None:
    shop = Shop(tmp_path, random.Random(1))
    for kill, landed in ((Kill("meta.before", 2), False), (Kill("meta.before"), True), (Kill("meta.after"), True)):
        (tmp_path / "warehouse").mkdir(exist_ok=True)
        done = commands.lake("cut", at=shop.lakehouse, kill=kill)
        assert (done.landed, done.code) == (landed, -9 if landed else 0)
        shutil.rmtree(tmp_path / "warehouse")


@pytest.mark.long
def test_full_disk_is_reported_with_its_path_and_the_next_command_succeeds(commands: Commands, tmp_path: Path) -> None:
    shop = Shop(tmp_path, random.Random(1))
    done = commands.lake("cut", at=shop.lakehouse, file_bytes=1000)
    assert done.code == 75
    assert f"disk full: File too large ({tmp_path}/warehouse" in done.err
    assert "fix: free some space" in done.err
    assert commands.lake("cut", at=shop.lakehouse).out == "cut 1\n"
