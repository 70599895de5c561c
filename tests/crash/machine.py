"""A state machine: whatever happens to a shop in whatever order, its tables are the model's and the recomputation's."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lake.testing import CommandResult, Commands, Kill
from tests.crash.crashes import DUE, PACKING, SHORT
from tests.crash.model import CUSTOMERS, Shop

KILLS = st.sampled_from(
    [
        ("run", "log.before"),
        ("run", "log.middle"),
        ("run", "log.after"),
        ("run", "quarantine.after"),
        ("run", "redeliveries.after"),
        ("run", "table.before"),
        ("run", "table.middle"),
        ("run", "table.after"),
        ("run", "compaction.middle"),
        ("run", "meta.after"),
        ("run", "edition.before"),
        ("run", "edition.after"),
        ("maintain", "compaction.middle"),
        ("maintain", "compaction.after"),
        ("maintain", "vacuum.after"),
        ("rebuild", "table.middle"),
        ("rebuild", "table.after"),
        ("archive", "cold.before"),
        ("archive", "cold.after"),
        ("archive", "log.before"),
        ("archive", "log.after"),
        ("archive", "vacuum.before"),
        ("forget", "meta.before"),
        ("forget", "meta.after"),
        ("forget", "table.after"),
        ("forget", "checkpoint.after"),
        ("forget", "vacuum.after"),
        ("forget", "edition.after"),
    ]
)


def machine(commands: Callable[[], Commands]) -> type[RuleBasedStateMachine]:
    """The state machine, whose commands are run by what `commands` gives."""

    class ShopMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.home = Path(mkdtemp(prefix="machine-"))
            self.published = False

        def lake(
            self, *arguments: str, kill: Kill | None = None, tuned: dict[str, Any] | None = None, **env: Any
        ) -> CommandResult:
            done = commands().lake(*arguments, at=self.shop.lakehouse, kill=kill, tuned=tuned, **env)
            assert done.landed or done.code == 0 or "has no events of a person" in done.err, (
                f"lake {arguments}: {self.shop.status(done)}"
            )
            self.published = not done.landed and arguments[0] in {"run", "deploy"}
            return done

        @initialize(seed=st.integers(0, 2**32))
        def opens(self, seed: int) -> None:
            self.shop = Shop(self.home, random.Random(seed))
            self.shop.land_some()
            self.lake("run")

        @rule(late=st.booleans(), number=st.integers(1, 4))
        def events_come(self, late: bool, number: int) -> None:
            self.shop.land(*(self.shop.order(late=late) for _ in range(number)))
            self.published = False

        @rule()
        def duplicates_and_rubbish_come(self) -> None:
            self.shop.land(*self.shop.chance.choices(self.shop.sent, k=2), "rubbish")
            self.published = False

        @rule()
        def a_file_is_appended(self) -> None:
            self.shop.land_some()
            landing = self.shop.home / "landing/orders"
            file = self.shop.home / f"appended-{self.shop.steps}.jsonl"
            max(landing.iterdir()).replace(file)
            self.lake("append", "orders", str(file))
            self.published = False

        @rule()
        def a_cycle_runs(self) -> None:
            self.lake("run")

        @rule(kill=KILLS, nth=st.integers(1, 3))
        def a_command_is_killed(self, kill: tuple[str, str], nth: int) -> None:
            command, point = kill
            self.shop.land_some()
            whom = f"subject={self.shop.chance.choice(CUSTOMERS)}"
            old = ("orders", "--through", str(self.shop.batch()))
            more = {"rebuild": ("--all",), "forget": ("orders", whom, "--yes"), "archive": old}
            arguments = (command, *more.get(command, ()))
            self.lake(*arguments, kill=Kill(point, nth), tuned={**DUE, **PACKING}, **SHORT)
            self.published = False

        @rule(who=st.sampled_from(CUSTOMERS))
        def somebody_is_forgotten(self, who: str) -> None:
            published = self.published
            self.lake("forget", "orders", f"subject={who}", "--yes")
            self.published = published

        @rule()
        def tables_are_rebuilt(self) -> None:
            self.lake("rebuild", "--all")
            self.published = False

        @rule()
        def files_are_compacted_and_deleted(self) -> None:
            published = self.published
            self.lake("maintain", tuned=DUE, **SHORT)
            self.published = published

        @rule()
        def old_batches_are_archived(self) -> None:
            published = self.published
            self.lake("archive", "orders", "--through", str(self.shop.batch()))
            self.published = published

        @rule()
        def the_contract_grows(self) -> None:
            self.shop.add_field()

        @rule()
        def a_definition_is_deployed(self) -> None:
            self.shop.change()
            self.lake("deploy", "--yes")
            self.published = False  # deploy takes in nothing

        @invariant()
        def what_is_published_is_the_model(self) -> None:
            if self.published:
                faults = list(self.shop.model_faults())
                assert not faults, faults

        def teardown(self) -> None:
            if hasattr(self, "shop"):
                self.lake("run")
                faults = list(self.shop.faults(commands()))
                assert not faults, faults
            shutil.rmtree(self.home)

    return ShopMachine


def run_machine(commands: Callable[[], Commands], *, number: int, steps: int) -> None:
    """One run of so many steps, chosen by the seed `number`. What fails is told as it happened, not made smaller."""
    run_state_machine_as_test(
        seed(number)(machine(commands)),
        settings=settings(
            max_examples=2,  # the first is always Hypothesis's simplest: one rule again and again
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
