"""`make bench W=large`: ten million events of a million keys, six tables beside hand-written PySpark + Delta.

The log is one batch, made by a seeded Spark expression, and is followed by batches of ten thousand events. Queries
of a person are timed warm, in this process, and cold, as a command. `--growth` adds a micro-batch's cost after 10,
100 and 1,000 commits.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from pyspark.sql import SparkSession

from infra.bench.byhand import JOBS
from infra.bench.growth import STREAM, copied, growth, must_be_identical
from infra.bench.meters import Meters, append, contract
from infra.bench.plain import Hand
from infra.bench.times import Times, heading, line
from lake.cli import lake
from lake.config import Settings
from lake.engine.advance import advance_all
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.project.project import Project, load
from lake.publish.cut import cut
from lake.publish.publish import publish
from lake.session.spark_session import start

COMMANDS: Final = {
    "plan": ("plan",),
    "explain": ("explain", "meter_total", "meter=M7"),
    "diff": ("diff", "mode_total", "--from-edition", "1", "--to-edition", "2"),
    "wait": ("wait", f"{STREAM}@2"),
    "sql": ("sql", "select count(*) from meter_latest"),
    "status": ("status",),
}


def main() -> None:
    """Runs the benchmark and prints its tables."""
    parser = argparse.ArgumentParser(description="Headwater beside hand-written Spark on a large log.")
    parser.add_argument("--events", type=int, default=10_000_000, help="events to build from (default: ten million)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="meters (default: a million)")
    parser.add_argument(
        "--growth",
        type=int,
        nargs="*",
        default=[10, 100, 1000],
        metavar="COMMITS",
        help="counts of commits after which a micro-batch is timed (default: 10 100 1000)",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-large-") as folder:
        settings = copied(Path(folder) / "large")
        spark = start(settings)
        bench = Large(settings, spark, Meters(spark, arguments.events, arguments.keys))
        bench.run()
        if arguments.growth:
            growth(spark, copied(Path(folder) / "growth"), arguments.growth)
        heading("Peak memory")
        for name, process in {"this process": Path("/proc/self"), "the JVM": jvm()}.items():
            print(f"{name:<26}{peak(process) / 2**30:9.2f} GiB", flush=True)
        spark.stop()
        bench.cold()


@dataclass
class Large:
    """The project of `settings` over `meters`, and its hand-written twin; tables are the whole project's.

    The log goes on by `batches` of `batch` events, of which the first `warm_up` are not counted.
    """

    settings: Settings
    spark: SparkSession
    meters: Meters
    batch: int = 10_000
    batches: int = 3
    warm_up: int = 1
    times: Times = field(default_factory=Times)

    def run(self) -> None:
        """Everything that shares this process's session."""
        with self.times.timed("append"):
            append(self.settings, contract(STREAM), self.meters.events(STREAM, 0, self.meters.readings, late=False))
        heading(f"{self.meters.readings:,} events of {self.meters.meters:,} keys")
        line("commit to the log", self.times["append"], "")
        project = load(self.settings)
        hand = Hand(self.spark, self.settings.warehouse_path / "logs", self.settings.warehouse_path / "hand", JOBS)
        self.whole(project, hand)
        for number in range(self.batches):
            self.step(load(self.settings), hand, number)  # each edition names the homes that are live
        self.tell_steps(project)
        for name, words in COMMANDS.items():
            with self.times.timed(f"warm {name}"):
                typed = [*words, "--project", str(self.settings.project)]
                done = CliRunner(catch_exceptions=False).invoke(lake, typed)
            if done.exit_code:
                raise ValueError(f"lake {name}: {done.output}")

    def whole(self, project: Project, hand: Hand) -> None:
        """All tables from the log: built, rebuilt, verified, and overwritten by hand."""
        inputs = self.now(project)
        with self.times.timed("build"):
            built = {each.table: each.seconds for each in advance_all(inputs, on_progress=lambda _: None)}
        publish(project, inputs.cut, lambda: self.spark, lambda _: None)
        for name in project.tables:
            with self.times.timed(f"overwrite {name}"):
                hand.rebuild(name, 1)
        with self.times.timed("rebuild"):
            rebuilt = {each.table: each.seconds for each in rebuild_all(inputs, [], on_progress=lambda _: None)}
        with self.times.timed("verify"):
            verify_all(lambda: self.spark, project, on_progress=must_be_identical)
        heading("All tables from the log (target: 1.15 of the hand-written jobs); side by side, so lines overlap")
        print(f"{'table':<20}{'rows':>11}{'build s':>9}{'rebuild s':>10}{'hand s':>8}")
        for name, declaration in project.tables.items():
            table = project.table(declaration)
            figures = f"{built[name]:9.2f}{rebuilt[name]:10.2f}{self.times[f'overwrite {name}']:8.2f}"
            print(f"{name:<20}{table.rows(table.version()):11,}{figures}")
        by_hand = sum(self.times[f"overwrite {name}"] for name in project.tables)
        for verb in ("build", "rebuild", "verify"):
            line(f"{verb}, all", self.times[verb], f"ratio {self.times[verb] / by_hand:.2f} of {by_hand:.2f} s by hand")

    def step(self, project: Project, hand: Hand, number: int) -> None:
        """One micro-batch, by `lake` and by hand."""
        first = self.meters.readings + number * self.batch
        append(self.settings, contract(STREAM), self.meters.events(STREAM, first, self.batch, late=False))
        times = Times() if number < self.warm_up else self.times
        inputs = self.now(project)
        with times.timed("step"):
            done = advance_all(inputs, on_progress=lambda _: None)
        for each in done:
            times.seconds.setdefault(f"step {each.table}", []).append(each.seconds)
        with times.timed("publish"):
            publish(project, inputs.cut, lambda: self.spark, lambda _: None)
        for name in project.tables:
            with times.timed(f"merge {name}"):
                hand.step(name, number + 2)

    def tell_steps(self, project: Project) -> None:
        """Prints what the micro-batches cost."""
        heading(f"Warm micro-batch of {self.batch:,} events (target: a third of the hand-written MERGE)")
        print(f"{'table':<20}{'lake s':>9}{'MERGE s':>9}{'ratio':>8}")
        for name in project.tables:
            ours, theirs = self.times[f"step {name}"], self.times[f"merge {name}"]
            print(f"{name:<20}{ours:9.2f}{theirs:9.2f}{ours / theirs:8.2f}")
        merges = sum(self.times[f"merge {name}"] for name in project.tables)
        print(f"{'all':<20}{self.times['step']:9.2f}{merges:9.2f}{self.times['step'] / merges:8.2f}")
        line("publish", self.times["publish"], "")

    def cold(self, names: Iterable[str] = COMMANDS) -> None:
        """Queries of a person, each as a command of its own, and in a warm process."""
        command = str(Path(sys.executable).with_name("lake"))
        heading("As a person feels them: a command, and the same in a warm process")
        for name in names:
            with self.times.timed(f"cold {name}"):
                subprocess.run([command, *COMMANDS[name]], cwd=self.settings.project, capture_output=True, check=True)
            line(f"lake {name}", self.times[f"cold {name}"], f"warm {self.times[f'warm {name}']:.2f} s")

    def now(self, project: Project) -> Inputs:
        return Inputs(lambda: self.spark, project, cut(project))


def jvm() -> Path:
    """The process of the session's JVM, a child of this one."""
    children = (
        int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    )
    return next(Path(f"/proc/{pid}") for pid in children if "java" in Path(f"/proc/{pid}/comm").read_text())


def peak(process: Path) -> int:
    """The greatest resident size that a process has had, in bytes."""
    [kilobytes] = [
        text.split()[1] for text in (process / "status").read_text().splitlines() if text.startswith("VmHWM")
    ]
    return int(kilobytes) * 1024


if __name__ == "__main__":
    main()
