"""A commit whose answer was lost counts and is blamed on no other writer; the next command repeats a failed one.

Whole commands; tests/store/test_answers.py loses commits one by one, without a JVM.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from lake.testing import Commands, Kill
from lake.testing.fault_injection import COMMITS
from tests.crash.answers import LOSSES, Loss
from tests.crash.model import Shop


@pytest.fixture
def make(commands: Commands, tmp_path: Path) -> Callable[[], Shop]:
    """Return a function that makes a shop and runs it once."""
    numbers = count(1)

    def shop() -> Shop:
        number = next(numbers)
        new = Shop(tmp_path / str(number), random.Random(number))
        new.land_some()
        assert commands.lake("run", at=new.lakehouse).code == 0
        return new

    return shop


@pytest.mark.long
def test_commits_of_a_cycle_count_if_the_answer_of_each_is_lost(make: Callable[[], Shop], commands: Commands) -> None:
    shop = make()
    for point in ("log.after", "table.after", "edition.after", "quarantine.after"):
        shop.land_some()
        done = commands.lake("run", at=shop.lakehouse, kill=Kill(point, 1, "answer"))
        assert (done.landed, done.code) == (True, 0), shop.status(done)
    assert list(shop.faults(commands)) == []


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_commands_recover_if_any_commit_fails_or_loses_its_answer(
    make: Callable[[], Shop], commands: Commands, loss: Loss, moment: str
) -> None:
    faults = [fault for what in COMMITS for fault in loss.happen(make, commands, f"{what}.{moment}")]
    assert faults == []
