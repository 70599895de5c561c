"""Benchmarks at a toy size, by the code that measures the full one: they run, and their compared results are equal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from infra.bench import __main__ as flights
from infra.bench import figures, http, queries, sinks, sources, tables
from infra.bench import load as loading
from infra.bench.compare import lines
from infra.bench.growth import copied, growth
from infra.bench.huge import Huge
from infra.bench.huge import project as project_of
from infra.bench.kinds import Bench
from infra.bench.large import Large
from infra.bench.load import load
from infra.bench.meters import Meters, contract
from infra.bench.orders.work import TABLES, Landing
from infra.bench.written import STREAM, Written
from lake.config import Settings
from lake.contracts.expressions import bucket, identity
from lake.ingest.fsck import check_log
from lake.store.log import Log
from lake.testing import Commands
from tests.decide.accounts import DECIDE, accounts
from tests.intake import serving
from tests.servers.http import installed
from tests.servers.kafka import Kafka
from tests.servers.opensearch import OpenSearch
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis
from tests.shop import empty
from tests.sources.shop import VARIABLE, Shop

KINDS = [declaration.name for declaration in tables.KINDS.values()]
BEYOND = ("day_total", "meter_mode", "meter_state")
"""Tables of the large project that no command of it names."""


@pytest.mark.long
def test_benchmark_of_flights_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flights.bench(tmp_path, flights.Size(days=2, last=1, repeat=1, tables=("flight",), commands=1))
    told = capsys.readouterr().out
    assert told.count("\nflight ") == 2
    assert "lake status" in told


@pytest.mark.long
@pytest.mark.parametrize("names", [[name] for name in KINDS], ids=str)
def test_benchmark_of_kinds_runs(
    spark: SparkSession, project: Settings, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    bench = Bench.over(Meters(spark, 2000, 100), project, repeat=1, warm_up=0)
    failed = bench.run(names)
    assert not failed, capsys.readouterr().out


@pytest.mark.long
def test_benchmark_of_a_large_log_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = copied(tmp_path / "large", without=BEYOND)
    bench = Large(settings, spark, Meters(spark, 2000, 100), batch=50, batches=1, warm_up=0)
    bench.run()
    bench.cold(["sql"])
    told = capsys.readouterr().out
    assert told.count("mode_total") == 2
    assert "lake sql" in told


@pytest.mark.long
def test_benchmark_of_a_huge_log_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    huge = Huge(project_of(tmp_path / "huge"), rows=200, days=12)
    huge.write()
    huge.run(["run", "log --check", "backfill", "sql"])
    told = capsys.readouterr().out
    assert "exit code" not in told.replace("exit code 0", "")
    assert [line.split()[0] for line in told.splitlines()[3:]] == ["run", "log", "backfill", "sql"]


@pytest.mark.long
def test_written_log_equals_an_ingested_log(spark: SparkSession, project: Settings) -> None:
    """Buckets and ids are those of Spark, and `lake log --check` finds nothing."""
    of = contract(STREAM)
    project.path(f"schemas/{STREAM}.avsc").write_text(of.text)
    Written(project, rows=50, meters=30).days(3)
    assert not check_log(project, STREAM).faults
    rows = Log(project, STREAM).read(spark, of, upto=3)
    same = f"_bucket = {bucket(of)} and _id = {identity(of)} and _time = at"
    assert (rows.count(), rows.where(same).count()) == (150, 150)


@pytest.mark.long
def test_benchmark_of_growth_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = copied(tmp_path / "growth", without=(*BEYOND, "meter_total", "mode_total"))
    growth(spark, settings, [1, 3], around=0, first=0)
    assert "meter_latest" in capsys.readouterr().out


@pytest.mark.long
def test_benchmark_of_load_runs(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in commands.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(loading, "STUCK", 60)
    others = (*BEYOND, "meter_total", "mode_total")
    load(copied(tmp_path / "load", without=others), minutes=0.1, every=0.5, size=20)
    assert "0 lines of failure" in capfd.readouterr().out


@pytest.mark.kafka
def test_benchmark_of_kafka_runs(
    spark: SparkSession, kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not sources.JARS.exists():
        pytest.skip("Spark's own Kafka source is missing: make bench W=sources")
    sources.with_kafka(spark)
    sources.from_kafka(spark, kafka, tmp_path, messages=2000, repeat=1)
    assert "of by hand" in capsys.readouterr().out


@pytest.mark.postgres
def test_benchmark_of_postgres_runs(
    spark: SparkSession,
    postgres: Postgres,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # Restored at the end
    sources.from_postgres(spark, Shop(postgres, postgres.database()), tmp_path, rows=2000, repeat=1)
    seconds = sources.delays(Shop(postgres, postgres.database()), tmp_path / "delay", inserts=1)
    assert len(seconds) == 1
    assert "changes" in capsys.readouterr().out


@pytest.mark.http
def test_benchmark_of_http_runs(tmp_path: Path) -> None:
    installed()
    assert http.disk(tmp_path / "disk", 0.1) > 0
    with http.served(tmp_path, check=True) as server:
        rate, latency = http.posted(server, 10, 2, 0.5)
    assert rate > 0
    with serving(accounts(tmp_path / "bank", f"{DECIDE}free_bytes = 0\n").project) as server:
        assert http.decided(server, 2, 2, 0.5)[0] > 0
    assert latency > 0


@pytest.mark.http
def test_benchmark_of_queries_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed()
    queries.bench(tmp_path / "project", rows=2000, seconds=0.2, repeat=1)
    assert "requests/s" in capsys.readouterr().out


@pytest.mark.redis
def test_benchmark_of_the_redis_sink_runs(project: Settings, redis: Redis, capsys: pytest.CaptureFixture[str]) -> None:
    sinks.bench("redis", redis, project, rows=300, changes=20, repeat=2)
    assert "redis: 300 rows, then 20 changes" in capsys.readouterr().out


@pytest.mark.opensearch
def test_benchmark_of_the_opensearch_sink_runs(
    project: Settings, opensearch: OpenSearch, capsys: pytest.CaptureFixture[str]
) -> None:
    sinks.bench("opensearch", opensearch, project, rows=300, changes=20, repeat=1)
    assert "ours, changes" in capsys.readouterr().out


@pytest.mark.postgres
def test_benchmark_of_the_postgres_sink_runs(
    project: Settings, postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = sinks.Database(postgres.home)
    server.__dict__["url"] = postgres.database()
    sinks.bench("postgres", server, project, rows=300, changes=20, repeat=1)
    assert len(sinks.landed(server, empty(tmp_path / "landed"), 1)) == 1
    assert "ours, changes" in capsys.readouterr().out


@pytest.mark.long
def test_benchmark_of_peers_runs(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "infra.bench.peers", "--peer", "DuckDB script", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = figures.read(file)["DuckDB script"]
    assert {row[f"differ {stage}"] for stage in ("at the end", "redelivered", "late", "killed", "new column")} == {0}
    assert row["mixed"] == 0


def test_landing_counts_rows_that_differ_from_those_of_all_deliveries(tmp_path: Path) -> None:
    landing, counts = Landing(tmp_path), {"orders": 300, "customers": 100}
    landing.deliver(counts)
    with duckdb.connect() as con:
        for statement in landing.statements("TABLE"):
            con.execute(statement)
        made = {name: con.sql(f"FROM {name}").to_arrow_table() for name in TABLES}
    assert landing.differing(made) == dict.fromkeys(TABLES, 0)
    landing.deliver_again()
    assert landing.differing(made) == dict.fromkeys(TABLES, 0)
    missing = made | {"customer_latest": made["customer_latest"].slice(1)}
    assert landing.differing(missing) == dict.fromkeys(TABLES, 0) | {"customer_latest": 1}
    landing.deliver(counts, late=3600, more=", 'web' AS channel")
    assert landing.differing(made, 2) == dict.fromkeys(TABLES, 0)
    assert all(landing.differing(made).values())


def test_comparison_prints_ratios_of_figures_that_both_runs_have(tmp_path: Path) -> None:
    figures.write(tmp_path / "a", {"cold": {"CPU s": 2.0, "rows": None, "zero": 0}, "warm": {"CPU s": 1.0}})
    figures.write(tmp_path / "b", {"cold": {"CPU s": 3.0, "rows": 7, "zero": 1}})
    figures.write(None, {})
    shown = [line.rsplit(maxsplit=3) for line in lines(*(figures.read(tmp_path / name) for name in "ab"))]
    assert shown == [
        ["cold: CPU s", "2.0", "3.0", "1.50"],
        ["cold: rows", "-", "7.0", "-"],
        ["cold: zero", "0.0", "1.0", "-"],
        ["warm: CPU s", "1.0", "-", "-"],
    ]
