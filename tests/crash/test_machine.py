"""Few steps of the state machine of `machine`; `make soak` runs many."""

from __future__ import annotations

import pytest

from lake.testing import Commands
from tests.crash.machine import run_machine


@pytest.mark.long
def test_tables_equal_the_model_and_the_recomputation_after_random_steps(commands: Commands) -> None:
    run_machine(lambda: commands, number=2, steps=6)
