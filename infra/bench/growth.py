"""The cost of a micro-batch as commits pile up: whole cycles around commit 10, 100 and 1,000 of one project, by part.

A measured cycle takes a landing file of readings into the log, cuts, advances four tables and publishes. `forward`
makes the commits between. In the end `lake maintain` does its work, more cycles are measured, and every table is
verified against its recomputation.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from infra.bench.forward import forward
from infra.bench.meters import Meters, contract
from infra.bench.times import Times, heading
from lake.config import Settings, load_settings
from lake.engine.advance import advance_all
from lake.engine.inputs import Inputs
from lake.engine.verify import Verdict, verify_all
from lake.ingest.ingest import ingest
from lake.ops.maintenance import Policy, maintain
from lake.project.project import Project, load
from lake.publish.cut import cut
from lake.publish.publish import publish
from lake.session.spark_session import start
from lake.store.log import Log

PROJECT: Final = Path(__file__).with_name("project")
TABLES: Final = ("meter_latest", "meter_total", "mode_total", "meter_state")
STREAM: Final = "readings"
METERS, BATCH = 1_000, 300
MAINTAINED: Final = "maintained"
POLICY: Final = Policy(editions=10, days=1, size=1 << 40)
WARM_UP: Final = 20
"""So many cycles of another copy of the project go before, so that the first commits are not those of a cold JVM."""
AROUND: Final = 3
"""So many cycles on either side of a measured commit are measured with it."""


def main() -> None:
    """Makes the cycles and prints what they cost."""
    parser = argparse.ArgumentParser(description="The cost of a micro-batch after 10, 100 and 1,000 commits.")
    parser.add_argument("--commits", type=int, nargs="+", default=[10, 100, 1000], help="where to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-growth-") as folder:
        scratch, settings = copied(Path(folder) / "scratch"), copied(Path(folder) / "measured")
        spark = start(settings)
        for _ in range(WARM_UP):
            cycle(spark, scratch, Times())
        growth(spark, settings, arguments.commits)
        spark.stop()


def copied(home: Path, *, without: Iterable[str] = ()) -> Settings:
    """The bench's project in `home`, its contract beside it; `without` some tables."""
    files = [f"{name}.*" for name in without]
    shutil.copytree(PROJECT, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", *files))
    for folder in ("schemas", f"landing/{STREAM}"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "schemas" / f"{STREAM}.avsc").write_text(contract(STREAM).text)
    return load_settings(home)


def growth(
    spark: SparkSession, settings: Settings, commits: Sequence[int], *, around: int = AROUND, first: int = 1
) -> None:
    """Measures `around` each of `commits`, in rising order, and prints the medians; `first` cycles do not count."""
    times = Times()
    for _ in range(commits[0] - around - first - 1):
        cycle(spark, settings, Times())
    for commit in commits:
        done = Log(settings, STREAM).head().batch
        if batches := commit - around - first - 1 - done:
            forward(small(settings), STREAM, lambda: spark, batches=batches)
        measure(spark, settings, times, f"{commit:,}", around=around, first=first)
    maintain(small(settings), lambda: spark, POLICY, lambda _: None)
    measure(spark, settings, times, MAINTAINED, around=around, first=first)
    verify_all(lambda: spark, small(settings), on_progress=must_be_identical)
    heading(f"A micro-batch of {BATCH} events, seconds by part, after so many commits (target: 1.3 of the first)")
    columns = [*(f"{commit:,}" for commit in commits), MAINTAINED]
    print(f"{'part':<20}" + "".join(f"{column:>12}" for column in columns) + f"{'ratio':>8}")
    for part in ("ingest", "cut", "advance", *small(settings).tables, "publish", "cycle"):
        found = [times[f"{column} {part}"] for column in columns]
        print(f"{part:<20}" + "".join(f"{each:12.3f}" for each in found) + f"{found[-1] / found[0]:8.2f}", flush=True)


def measure(spark: SparkSession, settings: Settings, times: Times, mark: str, *, around: int, first: int) -> None:
    """Cycles, timed under `mark`; the `first`, which read what was written behind Spark's back, are not."""
    for number in range(first + 2 * around + 1):
        cycle(spark, settings, Times() if number < first else times, mark=f"{mark} ")


def cycle(spark: SparkSession, settings: Settings, times: Times, *, mark: str = "") -> None:
    """One cycle as `lake run` makes it; the names of its times begin with `mark`."""
    batch = Log(settings, STREAM).head().batch + 1
    readings = Meters(spark, 1_000_000, METERS).events(STREAM, batch * BATCH, BATCH, late=False)
    rows = readings.withColumn("at", readings["at"].cast("string")).toPandas()
    rows.to_json(settings.path(settings.landing) / STREAM / f"{batch:06}.jsonl", orient="records", lines=True)
    with times.timed(f"{mark}cycle"):
        project = small(settings)
        with times.timed(f"{mark}ingest"):
            ingest(settings, lambda: spark, project.contracts)
        with times.timed(f"{mark}cut"):
            now = cut(project)
        with times.timed(f"{mark}advance"):
            done = advance_all(Inputs(lambda: spark, project, now), on_progress=lambda _: None)
        with times.timed(f"{mark}publish"):
            publish(project, now, lambda: spark, lambda _: None)
    for each in done:
        times.seconds.setdefault(f"{mark}{each.table}", []).append(each.seconds)


def small(settings: Settings) -> Project:
    """The project as a cycle loads it; of its tables, those that are measured here."""
    project = load(settings)
    return replace(project, tables={name: each for name, each in project.tables.items() if name in TABLES})


def must_be_identical(verdict: Verdict) -> None:
    """Raises ValueError where a table is not what its log says."""
    if verdict.verdict != "identical":
        raise ValueError(f"{verdict.table}: {verdict}")


if __name__ == "__main__":
    main()
