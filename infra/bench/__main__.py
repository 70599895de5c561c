"""`make bench`: what Headwater costs beside hand-written PySpark + Delta and beside DuckDB, in one run, in one session.

The flights of 2013 land in a folder of their own; all but the last days become batch 1, the last days a batch each.
Every figure is the median of its repetitions; ratios compare things timed in this run. Tables that have no hand-written
counterpart here have one, of their kind, in `make bench W=kinds`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from infra.bench.handwritten import DUCKDB, Lake
from infra.bench.part import part
from infra.bench.times import Times, heading, line
from lake.config import Settings, load_settings
from lake.engine.advance import advance
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild, rebuild_all
from lake.engine.verify import verify, verify_all
from lake.ingest.ingest import ingest
from lake.project.project import Project, load
from lake.publish.cut import cut
from lake.publish.publish import publish
from lake.session.spark_session import start
from lake.store.duckdb_tables import connection

REPOSITORY = Path(__file__).parents[2]


def main() -> None:
    """Runs all benchmarks and prints their tables."""
    parser = argparse.ArgumentParser(description="Headwater beside hand-written Spark and DuckDB.")
    parser.add_argument("--days", type=int, default=365, help="days of flights (default: all)")
    parser.add_argument("--last", type=int, default=4, help="how many of them come as micro-batches (default: 4)")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions of each rebuild")
    parser.add_argument("--table", action="append", help="this table only, with those it is derived from; repeatable")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        size = Size(arguments.days, arguments.last, arguments.repeat, arguments.table or ())
        bench(Path(folder), size)


@dataclass(frozen=True)
class Size:
    """How many days of flights, how many of them a batch each, how often, and which tables (default: all)."""

    days: int
    last: int
    repeat: int
    tables: Collection[str] = ()
    commands: int = 7

    def copied(self, home: Path) -> Settings:
        """The repository's project in `home`, with these tables and what they are derived from."""
        project = load(load_settings(REPOSITORY))
        tables = part(project, self.tables).tables.values()
        files = {f"schemas/{stream}.avsc" for each in tables for stream in project.logs(each)}
        for each in tables:
            files |= {f"jobs/{each.layer}/{each.name}.py", f"quality/{each.name}.json"}
        for file in sorted(files):
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / file, home / file)
        (home / "pyproject.toml").write_text("[tool.lake]\n")
        return load_settings(home)


def bench(home: Path, size: Size) -> None:
    """Everything, in `home`."""
    times = Times()
    landing, held = home / "landing", home / "held"
    generate = [sys.executable, str(REPOSITORY / "infra/flights.py"), str(landing), "--days", str(size.days)]
    generate.append("--no-made")
    subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
    settings = replace(size.copied(home / "project"), landing=landing, warehouse=home / "warehouse")
    files = sorted((landing / "flights").iterdir())
    held.mkdir()
    last = [Path(shutil.move(file, held / file.name)) for file in files[-size.last :]]
    with times.timed("session"):
        spark = start(settings)
    spark.range(1000).selectExpr("sum(id)").collect()
    project = load(settings)

    plain = home / "plain"
    with times.timed("land plain"):
        _plain_append(spark, landing / "flights", plain)
    with times.timed("land"):
        counts = ingest(settings, lambda: spark, {"flights": project.contracts["flights"]})["flights"]
    with times.timed("land dimensions"):
        ingest(settings, lambda: spark, project.contracts)
    heading(f"Landing files to log: {counts.accepted:,} events of {len(files) - size.last} files")
    line("lake ingest", times["land"], f"{counts.accepted / times['land']:,.0f} events/s")
    line("plain Spark append", times["land plain"], f"ratio {times['land'] / times['land plain']:.2f} (target 1.5)")

    hand = Lake(spark, settings.warehouse_path / "logs", home / "hand")
    _rebuilds(Inputs(lambda: spark, project, cut(project)), hand, times, size.repeat)
    _micro_batches(settings, hand, last, times)
    _commands(settings, project, times, size.commands)
    heading("Cold start of a session")
    line("session", times["session"], "")


def _rebuilds(inputs: Inputs, hand: Lake, times: Times, repeat: int) -> None:
    tables = inputs.project.tables
    for declaration in tables.values():
        with times.timed(f"build {declaration.name}"):
            advance(inputs, declaration)
        hand.rebuild(declaration.name)
    for _ in range(repeat):
        for name, declaration in tables.items():
            with times.timed(f"rebuild {name}"):
                rebuild(inputs, declaration)
            with times.timed(f"hand {name}"):
                hand.rebuild(name)
            if name not in DUCKDB:
                continue
            with connection() as con, times.timed(f"duckdb {name}"):
                con.execute(f"create temp table t as {DUCKDB[name].format(logs=hand.logs)}")
        with times.timed("rebuild --all"):
            rebuild_all(inputs, (), on_progress=lambda _: None)
        with times.timed("verify --all"):
            verify_all(inputs.connect, inputs.project, on_progress=lambda _: None)
    for declaration in tables.values():
        with times.timed(f"verify {declaration.name}"):
            verify(Inputs(inputs.connect, inputs.project, inputs.cut, recompute=True), declaration)
    heading("Rebuild from the log (target: 1.3 of the hand-written job)")
    print(f"{'table':<20}{'lake s':>9}{'hand s':>9}{'ratio':>8}{'DuckDB s':>10}{'build s':>9}{'verify s':>9}")
    for name in tables:
        ours = times[f"rebuild {name}"]
        theirs, duckdb = times[f"hand {name}"], f"{times[f'duckdb {name}']:10.2f}" if name in DUCKDB else " " * 10
        more = f"{duckdb}{times[f'build {name}']:9.2f}{times[f'verify {name}']:9.2f}"
        print(f"{name:<20}{ours:9.2f}{theirs:9.2f}{ours / theirs:8.2f}{more}")
    theirs, ours = sum(times[f"hand {name}"] for name in tables), times["rebuild --all"]
    print(f"{'rebuild --all':<20}{ours:9.2f}{theirs:9.2f}{ours / theirs:8.2f}{times['verify --all']:28.2f}")


def _micro_batches(settings: Settings, hand: Lake, files: list[Path], times: Times) -> None:
    project = load(settings)
    spark = hand.spark
    for file in files:
        shutil.move(file, settings.path(settings.landing) / "flights" / file.name)
        with times.timed("step ingest"):
            batch = ingest(settings, lambda: spark, {"flights": project.contracts["flights"]})["flights"].batch
        with times.timed("step cut"):
            now = cut(project)
        inputs = Inputs(lambda: spark, project, now)
        for name, declaration in project.tables.items():
            with times.timed(f"step {name}"):
                advance(inputs, declaration)
            if name in DUCKDB:
                with times.timed(f"merge {name}"):
                    hand.step(name, batch)
        with times.timed("step publish"):
            publish(project, now, lambda: spark, lambda _: None)
    heading("Warm micro-batch of one day (target: 0.6 of the hand-written MERGE)")
    print(f"{'table':<20}{'lake s':>9}{'MERGE s':>9}{'ratio':>8}")
    for name in project.tables:
        ours, beside = times[f"step {name}"], ""
        if name in DUCKDB:
            beside = f"{times[f'merge {name}']:9.2f}{ours / times[f'merge {name}']:8.2f}"
        print(f"{name:<20}{ours:9.2f}{beside}")
    compared = [name for name in project.tables if name in DUCKDB]
    ours, theirs = (sum(times[f"{verb} {name}"] for name in compared) for verb in ("step", "merge"))
    print(f"{'the compared':<20}{ours:9.2f}{theirs:9.2f}{ours / theirs:8.2f}")
    for verb in ("ingest", "cut", "publish"):
        line(verb, times[f"step {verb}"], "")


def _commands(settings: Settings, project: Project, times: Times, repeat: int) -> None:
    environment = {"LAKE_WAREHOUSE": str(settings.warehouse), "LAKE_LANDING": str(settings.landing), "PATH": "/usr/bin"}
    lake = str(Path(sys.executable).with_name("lake"))
    commands = {
        "import deltalake, duckdb": [sys.executable, "-c", "import deltalake, duckdb"],
        "lake sql": [lake, "sql", f"select count(*) from {next(iter(project.tables))}"],
        "lake status": [lake, "status"],
    }
    for _ in range(repeat):
        for name, command in commands.items():
            with times.timed(name):
                subprocess.run(command, check=True, cwd=settings.project, env=environment, stdout=subprocess.DEVNULL)
    heading("Commands, cold (target: lake sql within 2.0 of the import)")
    for name in commands:
        line(name, times[name], f"ratio {times[name] / times['import deltalake, duckdb']:.2f}")


def _plain_append(spark: SparkSession, landing: Path, target: Path) -> None:
    """Plain Spark: read the JSON by its schema, add a bucket, append."""
    files = [str(file) for file in sorted(landing.iterdir())]
    kinds = {"carrier": "string", "tailnum": "string", "origin": "string", "dest": "string", "time_hour": "timestamp"}
    names = [
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        "air_time",
        "distance",
        "hour",
        "minute",
        "time_hour",
    ]
    schema = ", ".join(f"{name} {kinds.get(name, 'int')}" for name in names)
    events = spark.read.schema(schema).json(files)
    bucketed = events.selectExpr("*", "cast(pmod(xxhash64(carrier, flight), 8) as int) as _bucket")
    bucketed.write.format("delta").partitionBy("_bucket").mode("append").save(str(target))


if __name__ == "__main__":
    main()
