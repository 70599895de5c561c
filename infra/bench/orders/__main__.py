"""`make bench W=orders`: what small work costs, beside one DuckDB transaction.

184,000 changes of orders and customers are loaded at once, then batches of 2,000, by cold commands and by a command
that follows. Five tables: the newest orders, the newest customers, versions of customers, orders with the version of
their customer, revenue by day. CPU seconds are those of all processes that a command starts, its JVM too.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import lake
from infra.bench.figures import write
from infra.bench.following import following
from infra.bench.orders.work import BATCH, COMPARED, LOADED, Landing
from infra.bench.processes import Used, cpu_of, measured, peak_of
from infra.bench.times import heading
from lake.config import load_settings
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import latest_edition

PROJECT: Final = Path(__file__).with_name("project")
LAKE: Final = str(Path(sys.executable).with_name("lake"))


def main() -> None:
    """Run all and print the figures."""
    parser = argparse.ArgumentParser(description="Small work beside one DuckDB transaction.")
    parser.add_argument("--batches", type=int, default=3, help="micro-batches of each way (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        orders = Orders(Path(folder))
        orders.run(arguments.batches)
        write(arguments.json, orders.figures)


class Orders:
    """The project in `home`, its landing files, and the figures by row."""

    def __init__(self, home: Path) -> None:
        self.project = home / "project"
        shutil.copytree(PROJECT, self.project)
        self.landing = Landing(self.project / "landing")
        self.figures: dict[str, dict[str, float | None]] = {}

    def run(self, batches: int) -> None:
        self.landing.deliver(LOADED)
        heading("184,000 changes at once, then batches of 2,000: five tables, published")
        print(f"{'':<34}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}")
        self.show("lake run, first", [measured([LAKE, "run"], self.project)])
        self.show("DuckDB, one transaction", [self.by_duckdb()])
        cold = []
        for _ in range(batches):
            self.landing.deliver(BATCH)
            cold.append(measured([LAKE, "run"], self.project))
        self.show("lake run, a batch", cold)
        self.show("DuckDB, all again", [self.by_duckdb()])
        self.show("lake run, no news", [measured([LAKE, "run"], self.project)])
        self.show("lake run, no news again", [measured([LAKE, "run"], self.project)])
        self.show("lake run --follow, a batch", [*follow(self.project, self.landing, batches + 3)][3:])
        differing = sum(self.landing.differing(published_tables(self.project)).values())
        print(f"rows that differ from DuckDB's: {differing}")

    def by_duckdb(self) -> Used:
        return measured(in_duckdb(self.project / "peer.duckdb", self.landing), self.project)

    def show(self, name: str, used: Sequence[Used]) -> None:
        middle = Used.median(used)
        self.figures[name] = {"CPU s": middle.cpu, "wall s": middle.wall, "peak MB": middle.peak / 1e6}
        print(f"{name:<34}{middle.cpu:8.1f}{middle.wall:8.1f}{middle.peak / 1e6:9.0f}", flush=True)


def in_duckdb(database: Path, landing: Landing) -> list[str]:
    """Return a command that makes the tables from all files in one transaction."""
    lines = ["import duckdb", f"con = duckdb.connect({str(database)!r})", "con.begin()"]
    lines += [f"con.execute({query!r})" for query in landing.statements("OR REPLACE TABLE")]
    return [sys.executable, "-c", "\n".join([*lines, "con.commit()"])]


def follow(project: Path, landing: Landing, batches: int) -> Iterator[Used]:
    """Yield the cost of each batch from its files to the edition that has it."""
    settings = load_settings(project)

    def published() -> Mapping[str, int]:
        edition = latest_edition(settings)
        return get_cut(settings, edition.cut).batches if edition else {}

    def is_newer(before: Mapping[str, int]) -> bool:
        return all(batch > before[stream] for stream, batch in published().items())

    def editions() -> int:
        assert process.poll() is None
        return (project / "follow.log").read_text("utf-8").count("publish edition")

    with following(settings) as process:
        for _ in range(batches):
            before, seen = published(), editions()
            cpu, began = cpu_of(process.pid), time.monotonic()
            landing.deliver(BATCH)
            while not is_newer(before):
                while editions() == seen:  # the log is looked at because it takes no time of the processors
                    time.sleep(0.02)
                seen = editions()
            yield Used(cpu_of(process.pid) - cpu, time.monotonic() - began, peak_of(process.pid))


def published_tables(project: Path) -> dict[str, object]:
    """Return the tables of the newest edition in Arrow."""
    opened = lake.open(project)
    return {name: opened.sql(f"SELECT * FROM {name}").arrow() for name in COMPARED}


if __name__ == "__main__":
    main()
