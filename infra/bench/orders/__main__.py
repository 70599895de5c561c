"""`make bench W=orders`: what small work costs, beside one DuckDB transaction.

184,000 changes of orders and customers are loaded at once, then batches of 2,000, by cold commands and by a command
that follows. Five tables: the newest orders, the newest customers, versions of customers, orders with the version of
their customer, revenue by day. CPU seconds are those of all processes that a command starts, its JVM too.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import duckdb

import lake
from infra.bench.following import following
from infra.bench.times import heading
from lake.config import load_settings
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import latest_edition
from tests.processes import until

PROJECT: Final = Path(__file__).with_name("project")
LAKE: Final = str(Path(sys.executable).with_name("lake"))
CUSTOMERS: Final = 20_000
ORPHANS_COME_TO_ME: Final = 36
"""Number of PR_SET_CHILD_SUBREAPER in prctl(2)."""

# Changes with numbers from `first`: two of three are of a new order. Customers all begin before the first order.
CHANGES: Final[Mapping[str, str]] = {
    "orders": """
        SELECT n AS change, CASE WHEN hash(n, 'new') % 3 > 0 THEN n ELSE hash(n, 'order') % (n + 1) END AS order_id,
            hash(order_id, 'customer') % {customers} AS customer_id,
            ['placed', 'paid', 'shipped', 'cancelled'][1 + (hash(n, 'status') % 4)::INT] AS status,
            ((hash(n, 'amount') % 1000000) / 100)::DECIMAL(12, 2)::VARCHAR AS amount,
            strftime(TIMESTAMP '2024-01-02' + to_seconds(n * 100), '%Y-%m-%dT%H:%M:%SZ') AS changed_at
        FROM range({first}, {first} + {count}) t(n)""",
    "customers": """
        SELECT n AS change, CASE WHEN n < {customers} THEN n ELSE hash(n, 'customer') % {customers} END AS customer_id,
            'region ' || hash(n, 'region') % 20 AS region, 'tier ' || hash(n, 'tier') % 4 AS tier,
            strftime(TIMESTAMP '2024-01-01' + to_seconds(greatest(n - {customers} + 1, 0) * 4000), '%Y-%m-%dT%H:%M:%SZ')
                AS changed_at
        FROM range({first}, {first} + {count}) t(n)""",
}
LOADED: Final = {"orders": 160_000, "customers": 24_000}
BATCH: Final = {"orders": 1_980, "customers": 20}

# The five tables from all changes, without any code of Headwater.
TABLES: Final[Mapping[str, str]] = {
    "order_latest": """
        SELECT order_id, change, customer_id, status, amount, changed_at FROM orders
        QUALIFY row_number() OVER (PARTITION BY order_id ORDER BY changed_at DESC, change DESC) = 1""",
    "customer_latest": """
        SELECT customer_id, change, region, tier, changed_at FROM customers
        QUALIFY row_number() OVER (PARTITION BY customer_id ORDER BY changed_at DESC, change DESC) = 1""",
    "customer_history": """
        SELECT customer_id, region, tier, changed_at AS valid_from,
            lead(changed_at) OVER (PARTITION BY customer_id ORDER BY changed_at, change) AS valid_to
        FROM (
            SELECT *, lag((region, tier)) OVER (PARTITION BY customer_id ORDER BY changed_at, change) AS before
            FROM customers
        ) WHERE before IS DISTINCT FROM (region, tier)""",
    "order_enriched": """
        SELECT o.*, c.region, c.tier FROM orders o LEFT JOIN customer_history c
        ON c.customer_id = o.customer_id AND c.valid_from <= o.changed_at
            AND (c.valid_to IS NULL OR o.changed_at < c.valid_to)""",
    "daily_revenue": """
        SELECT status, date_trunc('day', changed_at) AS day, count(*) AS orders, sum(amount) AS revenue
        FROM order_latest WHERE status <> 'cancelled' GROUP BY ALL""",
}
COMPARED: Final[Mapping[str, str]] = {
    "order_latest": "order_id, change, customer_id, status, amount, epoch_us(changed_at)",
    "customer_latest": "customer_id, change, region, tier, epoch_us(changed_at)",
    "customer_history": "customer_id, region, tier, epoch_us(valid_from), epoch_us(valid_to)",
    "order_enriched": "change, order_id, customer_id, status, amount, epoch_us(changed_at), region, tier",
    "daily_revenue": "status, orders, revenue",
}


def main() -> None:
    """Run all and print the figures."""
    parser = argparse.ArgumentParser(description="Small work beside one DuckDB transaction.")
    parser.add_argument("--batches", type=int, default=3, help="micro-batches of each way (default: 3)")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        Orders(Path(folder)).run(parser.parse_args().batches)


@dataclass(frozen=True)
class Used:
    """CPU and wall seconds; `peak` is the memory of the largest process in bytes."""

    cpu: float
    wall: float
    peak: int


def measured(command: Sequence[str], folder: Path) -> Used:
    """Run a command; count also the processes that outlive it for a moment, such as its JVM."""
    ctypes.CDLL(None).prctl(ORPHANS_COME_TO_ME, 1)
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    printed = process.stdout.read().decode()
    cpu, peak, wall = 0.0, 0, 0.0
    for pid, status, usage in reaped():
        if pid == process.pid:
            process.returncode, wall = os.waitstatus_to_exitcode(status), time.monotonic() - began
        cpu += usage.ru_utime + usage.ru_stime
        peak = max(peak, usage.ru_maxrss << 10)
    assert process.returncode == 0, printed
    return Used(cpu, wall, peak)


def reaped() -> Iterator[tuple[int, int, Any]]:
    """Yield each child that ends, until there are none."""
    while True:
        try:
            yield os.wait4(-1, 0)
        except ChildProcessError:
            return


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, its children and theirs, ended ones too."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    tree, grown = {pid}, 0
    while len(tree) > grown:
        grown = len(tree)
        tree |= {child for child, parent in parents.items() if parent in tree}
    return sum(ticks.get(each, 0) for each in tree) / os.sysconf("SC_CLK_TCK")


class Orders:
    """The project in `home` and the number of changes that were landed."""

    def __init__(self, home: Path) -> None:
        self.project = home / "project"
        shutil.copytree(PROJECT, self.project)
        self.changes = dict.fromkeys(CHANGES, 0)

    def run(self, batches: int) -> None:
        self.land(LOADED)
        heading("184,000 changes at once, then batches of 2,000: five tables, published")
        print(f"{'':<34}{'CPU s':>8}{'wall s':>8}{'peak MB':>9}")
        show("lake run, first", [measured([LAKE, "run"], self.project)])
        show("DuckDB, one transaction", [self.by_duckdb()])
        cold = []
        for _ in range(batches):
            self.land(BATCH)
            cold.append(measured([LAKE, "run"], self.project))
        show("lake run, a batch", cold)
        show("DuckDB, all again", [self.by_duckdb()])
        show("lake run, no news", [measured([LAKE, "run"], self.project)])
        show("lake run --follow, a batch", [*self.follow(batches + 3)][3:])
        print(f"rows that differ from DuckDB's: {self.differing()}")

    def land(self, counts: Mapping[str, int]) -> None:
        for stream, count in counts.items():
            first = self.changes[stream]
            folder = self.project / "landing" / stream
            folder.mkdir(parents=True, exist_ok=True)
            query = CHANGES[stream].format(first=first, count=count, customers=CUSTOMERS)
            file = folder / f"{first:09}.jsonl"
            duckdb.execute(f"COPY ({query}) TO '{file}.part' (FORMAT json)")
            Path(f"{file}.part").rename(file)
            self.changes[stream] += count

    def follow(self, batches: int) -> Iterator[Used]:
        """Yield the cost of each batch from its files to the edition that has it."""
        settings = load_settings(self.project)

        def published() -> Mapping[str, int]:
            edition = latest_edition(settings)
            return get_cut(settings, edition.cut).batches if edition else {}

        def is_newer(before: Mapping[str, int]) -> bool:
            return all(batch > before[stream] for stream, batch in published().items())

        with following(settings) as process:
            for _ in range(batches):
                before, cpu, began = published(), cpu_of(process.pid), time.monotonic()
                self.land(BATCH)
                until(partial(is_newer, before), seconds=600)
                yield Used(cpu_of(process.pid) - cpu, time.monotonic() - began, 0)

    def by_duckdb(self) -> Used:
        """Make the tables from all changes in a process of its own."""
        lines = ["import duckdb", f"con = duckdb.connect({str(self.project / 'peer.duckdb')!r})", "con.begin()"]
        lines += [f"con.execute({query!r})" for query in self.statements("OR REPLACE TABLE")]
        return measured([sys.executable, "-c", "\n".join([*lines, "con.commit()"])], self.project)

    def statements(self, what: str) -> Iterator[str]:
        for stream in CHANGES:
            amount = "REPLACE (amount::DECIMAL(12, 2) AS amount)" if stream == "orders" else ""
            files = str(self.project / "landing" / stream / "*.jsonl")
            yield f"CREATE {what} {stream} AS SELECT * {amount} FROM read_json('{files}')"
        for name, query in TABLES.items():
            yield f"CREATE {what} {name} AS {query}"

    def differing(self) -> int:
        """Return the number of rows that are only in Headwater's tables or only in DuckDB's."""
        opened = lake.open(self.project)
        with duckdb.connect() as con:
            con.execute("SET TimeZone = 'UTC'")
            for query in self.statements("TEMP TABLE"):
                con.execute(query)
            count = 0
            for name, columns in COMPARED.items():
                ours = opened.sql(f"SELECT * FROM {name}").arrow()
                con.register("ours", ours)
                mine, theirs = (f"SELECT {columns} FROM {each}" for each in ("ours", name))
                query = f"(({mine}) EXCEPT ALL ({theirs})) UNION ALL (({theirs}) EXCEPT ALL ({mine}))"
                [(differing,)] = con.execute(f"SELECT count(*) FROM ({query})").fetchall()
                count += differing
        return count


def show(name: str, used: Sequence[Used]) -> None:
    cpu, wall, peak = (median(getattr(each, figure) for each in used) for figure in ("cpu", "wall", "peak"))
    print(f"{name:<34}{cpu:8.1f}{wall:8.1f}{f'{peak / 1e6:9.0f}' if peak else ''}", flush=True)


if __name__ == "__main__":
    main()
