"""A short selection of the crashes; `make soak` has them all, for as long as it is let."""

from __future__ import annotations

import random

import pytest

from lake.testing import Commands
from tests.crash.crashes import OF_PYTHON, Crash, happen
from tests.crash.shop import Shop

SHORT = (
    "run: log.middle",
    "run: table.after",
    "run: edition.before",
    "truncated: last commit of log",
    "maintain: compaction.after",
)


@pytest.fixture(scope="module")
def shop(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop that was run once."""
    shop = Shop(tmp_path_factory.mktemp("crash"), random.Random(1))
    shop.land_some()
    assert commands.lake("run", at=shop.lakehouse).code == 0
    return shop


@pytest.mark.parametrize("crash", [each for each in OF_PYTHON if each.name in SHORT], ids=lambda each: each.name)
def test_one_command_mends_what_a_crash_left(shop: Shop, commands: Commands, crash: Crash) -> None:
    outcome = happen(shop, commands, crash)
    assert outcome.faults == ()
    assert outcome.landed
