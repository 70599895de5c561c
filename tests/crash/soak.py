"""One Spark Connect server, one process that forks commands, and the shops that crash."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from lake.ops.scaffold import init
from lake.testing import Commands
from lake.testing.fault_injection import jvm_of
from tests.crash.crashes import Crash, Outcome, disk_full, file_too_large, happen
from tests.crash.model import CUSTOMERS, Shop
from tests.crash.room import small_disk
from tests.serving import SHORT_LIVED, SMALL, Serving, serving

AGES = {"first": 1, "people": 5}
AGE = 25
"""Crashes until a shop is closed and another opened; by its kind, where there are fewer."""
DISKS = {"full: the disk": disk_full, "full: a file may not grow": file_too_large}


class Soak:
    """Crashes, one after another; counts by name which landed, and after which something was wrong."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self.chance = random.Random(seed)
        self.turns: Counter[str] = Counter()
        self.landed: Counter[str] = Counter()
        self.faulty: Counter[str] = Counter()
        self.converged: Counter[str] = Counter()
        self.numbers = count(1)
        self.shops: dict[str, tuple[Shop, int]] = {}
        self.stack = ExitStack()
        self.up = ExitStack()
        self.disk = self.stack.enter_context(small_disk(home / "disk", megabytes=64))
        init(home / "server")
        self.commands = self.stack.enter_context(Commands(**SHORT_LIVED))
        self.restart()

    def __enter__(self) -> Soak:
        return self

    def __exit__(self, *_: object) -> None:
        self.up.close()
        self.stack.close()

    def restart(self, *, short_lived: bool = False) -> None:
        """A new server, for every command from now on; a `short_lived` one is to be killed soon."""
        self.up.close()
        self.short_lived = short_lived
        environment = SHORT_LIVED if short_lived else SMALL
        self.server: Serving = self.up.enter_context(serving(self.home / "server", environment))
        token = (self.home / "server/.lake/spark/connect.token").read_text()
        self.commands.environment |= {
            "SPARK_REMOTE": self.server.remote,
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        }

    def turn(self, crash: Crash | str) -> Outcome:
        """One crash, or one of DISKS by its name."""
        name = crash if isinstance(crash, str) else crash.name
        kind = name if isinstance(crash, str) else crash.shop
        shop = self._shop(kind)
        outcome = DISKS[name](shop, self.commands) if isinstance(crash, str) else self._crash(shop, crash)
        self.turns[name] += 1
        self.landed[name] += outcome.landed
        self.faulty[name] += bool(outcome.faults)
        self.converged[name] += outcome.landed and not outcome.faults
        _, age = self.shops[kind]
        self.shops[kind] = shop, age + 1
        if outcome.faults:
            del self.shops[kind]
            print(f"    kept: {shop.home}")
        elif age + 1 >= AGES.get(kind, AGE):
            del self.shops[kind]
            shutil.rmtree(shop.home)
        return outcome

    def _crash(self, shop: Shop, crash: Crash) -> Outcome:
        mend = partial(self.restart, short_lived=True)
        if crash.jvm == "own":
            self.up.close()  # one JVM at a time is enough for this machine
            self.commands.environment["SPARK_REMOTE"] = ""
            return happen(shop, self.commands, crash, mend=mend)
        if self.short_lived and not crash.jvm:
            self.restart()
        jvm = jvm_of(self.server.process.pid) if crash.jvm else 0
        return happen(shop, self.commands, crash, jvm=jvm, mend=mend)

    def _shop(self, kind: str) -> Shop:
        """The shop of this kind: an old one, or one that is opened now."""
        if kind not in self.shops:
            on_disk = self.disk if kind in DISKS and self.disk else self.home
            shop = Shop(on_disk / f"shop-{next(self.numbers)}", self.chance)
            if kind != "first":
                shop.land(*(shop.order(number=number) for number in range(1, 1 + len(CUSTOMERS))))
                done = self.commands.lake("run", at=shop.lakehouse)
                assert done.code == 0, shop.status(done)
            self.shops[kind] = shop, 0
        return self.shops[kind][0]

    def told(self) -> list[str]:
        """The figures."""
        lines = [f"{'crash':<48} landed  converged"]
        for name in sorted({*self.landed, *self.faulty}):
            lines.append(f"{name:<48} {self.landed[name]:>6}  {self.converged[name]:>9}")
        return [*lines, f"{'all':<48} {self.landed.total():>6}  {self.converged.total():>9}"]
