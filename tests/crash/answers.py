"""Commits over a network that fails: some are never made, of others only the answer is lost. Nothing dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from lake.store.log import Log
from lake.testing import CommandResult, Commands, Kill
from tests.crash.crashes import DEPLOY, DROP, DUE, PACKING, SHORT, TAKEN, WHOM
from tests.crash.model import CUSTOMERS, Shop

BLAMED: Final = ("another writer", "at the same time", "meanwhile")
NEWEST: Final = "newest batch"


@dataclass(frozen=True)
class Loss:
    """`lake <command>`, after the commands `before`, each of whose commits is lost once: a shop has it happen."""

    name: str
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    tuned: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    changes: bool = False

    def happen(self, make: Callable[[], Shop], commands: Commands, point: str) -> Iterator[str]:
        """What is wrong after the loss of the first commit at `point`, of the second, and so on to the last."""
        shop = make()
        for nth in count(1):
            if WHOM in self.command and len(shop.forgotten()) > len(CUSTOMERS) - 3:
                shop = make()
            done = self._once(shop, commands, Kill(point, nth, "answer"))
            yield from (f"{self.name} {point} {nth}: {fault}" for fault in self._faults(shop, commands, done))
            if not done.landed:
                return

    def _once(self, shop: Shop, commands: Commands, lost: Kill) -> CommandResult:
        shop.land_some()
        if self.changes:
            shop.change()
        for line in self.before:
            assert commands.lake(*line, at=shop.lakehouse).code == 0
        told = {WHOM: f"subject={shop.somebody()}", NEWEST: str(Log(shop.lakehouse.settings, "orders").head().batch)}
        command = [told.get(word, word) for word in self.command]
        done = commands.lake(*command, at=shop.lakehouse, kill=lost, tuned=self.tuned, **self.environment)
        if done.code == 75 and NEWEST not in self.command:
            again = commands.lake(*command, at=shop.lakehouse, tuned=self.tuned, **self.environment)
            assert again.code == 0, shop.status(again)
        return done

    def _faults(self, shop: Shop, commands: Commands, done: CommandResult) -> Iterator[str]:
        if done.code not in {0, 75} or any(blamed in done.out + done.err for blamed in BLAMED):
            yield shop.status(done)
        after = commands.lake("run", at=shop.lakehouse)
        if after.code:
            yield f"lake run: {shop.status(after)}"
        if NEWEST in self.command:  # the model knows of no voids
            verified = commands.lake("verify", at=shop.lakehouse)
            yield from [f"lake verify: {shop.status(verified)}"] if verified.code else []
        else:
            yield from shop.faults(commands)


LOSSES: Final = (
    Loss("run", ("run",)),
    Loss("run by Spark", ("run",), tuned={"lake.cost.APPENDED_BYTES": -1}, environment={"LAKE_IN_PROCESS_ROWS": "0"}),
    Loss("run that packs", ("run",), tuned=PACKING),
    Loss("rebuild", ("rebuild", "--all"), TAKEN),
    Loss("deploy", DEPLOY, TAKEN, changes=True),
    Loss("maintain", ("maintain",), (("run",),), tuned=DUE, environment=SHORT),
    Loss("maintain after a deploy", DROP, (DEPLOY, ("run",)), environment=SHORT, changes=True),
    Loss("forget", ("forget", "orders", WHOM, "--yes"), TAKEN),
    Loss("void", ("void", "orders", "--batch", NEWEST, "--reason", "not ours"), TAKEN),
)
