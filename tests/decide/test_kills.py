"""Kills of a server that decides: accepted entries stay accepted, and none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.commands import soak
from tests.servers.http import installed

pytestmark = pytest.mark.http


def test_killed_decider_keeps_accepted_entries_and_refuses_none_later(tmp_path: Path) -> None:
    """`make soak` runs 200 kills."""
    installed()
    outcome = soak(tmp_path, kills=5, seed=1)
    assert outcome.accepted > 0
    assert outcome.refused > 0
    assert (outcome.lost, outcome.twice, outcome.overdrawn, outcome.others) == (0, 0, 0, {})
