"""A server that is killed while it decides has accepted nothing that is refused later, and lost nothing of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.commands import soak
from tests.servers.http import installed

pytestmark = pytest.mark.http


def test_killed_while_it_decides_what_was_accepted_is_in_the_log_and_never_refused(tmp_path: Path) -> None:
    """200 times in `make soak`."""
    installed()
    outcome = soak(tmp_path, kills=5, seed=1)
    assert outcome.accepted > 0
    assert outcome.refused > 0
    assert (outcome.lost, outcome.twice, outcome.overdrawn, outcome.others) == (0, 0, 0, {})
