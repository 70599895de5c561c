"""`make bench W=peers`: the work of `make bench W=orders` by Headwater and other tools: its cost, and wrong rows.

Each tool gets 184,000 changes, then batches of 2,000, then no news. Afterwards its tables are compared with those that
DuckDB makes of all changes; then again after each of `MISHAPS`. Differences add up: nothing is repaired in between.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CalledProcessError
from typing import Final

from infra.bench.figures import Figures, read, write
from infra.bench.orders.__main__ import follow
from infra.bench.orders.work import BATCH, LOADED, Landing
from infra.bench.peers.dbt import Dbt
from infra.bench.peers.headwater import Headwater
from infra.bench.peers.peer import Peer
from infra.bench.peers.script import Script
from infra.bench.peers.spark import Spark
from infra.bench.peers.sqlmesh import SqlMesh
from infra.bench.processes import Used, killed, measured
from infra.bench.times import heading

PEERS: Final[dict[str, Peer]] = {
    "DuckDB script": Script(),
    "dbt, snapshot": Dbt("snapshot"),
    "dbt, model": Dbt("model"),
    "SQLMesh, SCD type 2": SqlMesh("scd2"),
    "SQLMesh, model": SqlMesh("model"),
    "PySpark + MERGE": Spark(),
    "Headwater": Headwater(),
}
FOLLOWING: Final = "Headwater, --follow"
PARTS: Final = ("first", "batch", "no news")
COSTS: Final = ("CPU s", "wall s", "peak MB")
KILLED_AT: Final = (0.5, 0.7, 0.8, 0.9, 0.95)
"""Parts of the CPU seconds of a batch after which a command is killed."""
LATE: Final = 30 * 86_400 + 50
"""Seconds: no two changes of a customer happen at once."""


class Work:
    """The work done by one tool in `home`, and its figures."""

    def __init__(self, peer: Peer, home: Path) -> None:
        self.peer, self.home = peer, home
        self.landing = Landing(home / "landing")
        self.figures: dict[str, float | None] = {}
        self.right: set[str] = set()
        peer.prepare(home)

    def run(self) -> None:
        self.landing.deliver(LOADED)
        self.landing.age(hours=1)  # SQLMesh loads the files of the last five minutes again
        self.cost("first", self.command())
        batches = []
        for _ in range(3):
            self.landing.deliver(BATCH)
            batches.append(self.command())
        batch = Used.median(batches)
        self.cost("batch", batch)
        self.command()  # after which Headwater knows that nothing is new
        self.cost("no news", self.command())
        self.compare("at the end")
        for name, mishap in MISHAPS.items():
            try:
                mishap(self, batch)
                self.command()
                self.compare(name)
            except CalledProcessError as error:
                print(f"{name}: {error.output[-2_000:]}")
                self.figures[f"differ {name}"] = None

    def command(self) -> Used:
        return measured(self.peer.command(self.home), self.home, self.peer.environment)

    def cost(self, part: str, used: Used) -> None:
        for name, value in zip(COSTS, (used.cpu, used.wall, used.peak / 1e6), strict=True):
            self.figures[f"{part} {name}"] = value

    def follow(self) -> None:
        """Continue with `lake run --follow`; the figures are those of its fourth to sixth batch."""
        self.figures = {}
        self.cost("batch", Used.median([*follow(self.home, self.landing, 6)][3:]))
        self.compare("at the end")

    def compare(self, stage: str) -> None:
        differing = self.landing.differing(self.peer.tables(self.home))
        self.figures[f"differ {stage}"] = sum(differing.values())
        self.figures |= {f"differ {stage}, {table}": rows for table, rows in differing.items() if rows}
        self.right = {table for table, rows in differing.items() if not rows}

    def killed(self, batch: Used) -> None:
        """Deliver batches of which each is killed once and then run again. Count kills that leave a mix of tables."""
        mixed = 0
        for part in KILLED_AT:
            self.landing.deliver(BATCH)
            command = self.peer.command(self.home)
            killed(command, self.home, self.peer.environment, cpu=part * batch.cpu)
            mixed += self.is_mixed()
            self.command()
        self.figures["mixed"] = mixed

    def is_mixed(self) -> bool:
        """Return whether some tables have the last delivery and others do not. Tables that were wrong do not count."""
        tables, deliveries = self.peer.tables(self.home), self.landing.deliveries
        before, after = (self.landing.differing(tables, count) for count in (deliveries - 1, deliveries))
        return any(before[table] for table in self.right) and any(after[table] for table in self.right)


MISHAPS: Final[dict[str, Callable[[Work, Used], None]]] = {
    "redelivered": lambda work, _: work.landing.deliver_again(),
    "late": lambda work, _: work.landing.deliver(BATCH, late=LATE),
    "killed": Work.killed,
    "new column": lambda work, _: work.landing.deliver(BATCH, more=", 'web' AS channel"),
}
STAGES: Final = ("at the end", *MISHAPS)


def main() -> None:
    parser = argparse.ArgumentParser(description="The same small work by Headwater and by other tools.")
    parser.add_argument("--peer", action="append", choices=PEERS, help="this tool only; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="put the figures into this file too; others stay")
    arguments = parser.parse_args()
    figures = dict(read(arguments.json)) if arguments.json and arguments.json.exists() else {}
    for name in arguments.peer or PEERS:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
            work = Work(PEERS[name], Path(folder))
            work.run()
            figures[name] = work.figures
            if name == "Headwater":
                work.follow()
                figures[FOLLOWING] = work.figures
        write(arguments.json, figures)
        print(f"{name}: done", flush=True)
    show(figures)


def show(figures: Figures) -> None:
    heading("CPU seconds of all processes, wall seconds, and MB of the largest process")
    print(f"{'':<22}" + "".join(f"{part:>24}" for part in PARTS))
    print(f"{'':<22}" + "".join(f"{cost:>8}" for cost in COSTS) * len(PARTS))
    for name, row in figures.items():
        print(f"{name:<22}" + "".join(shown(row, f"{part} {cost}", 8, 1) for part in PARTS for cost in COSTS))
    heading(f"Wrong rows after each mishap, and how many of {len(KILLED_AT)} kills left a mix of old and new tables")
    print(f"{'':<22}" + "".join(f"{column:>13}" for column in (*STAGES, "mixed")))
    for name, row in figures.items():
        columns = [*(f"differ {stage}" for stage in STAGES), "mixed"]
        print(f"{name:<22}" + "".join(shown(row, column, 13, 0) for column in columns))


def shown(row: Mapping[str, float | None], name: str, width: int, digits: int) -> str:
    """Return a figure as text: "fails" if the command failed, "-" if it is not measured."""
    value = row.get(name)
    return f"{value:{width},.{digits}f}" if value is not None else f"{'fails' if name in row else '-':>{width}}"


if __name__ == "__main__":
    main()
