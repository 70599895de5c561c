"""One Spark session for the whole run, and empty projects to work in."""

from __future__ import annotations

import gc
import json
import os
import secrets
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck
from pyspark.sql import SparkSession

from lake.config import Settings, SparkSettings
from lake.session.spark_session import INTERPRETED, start
from lake.testing import Commands
from tests import servers
from tests.kills import UNDER
from tests.processes import PATIENCE, free_port
from tests.shop import empty

SERVERS = frozenset(servers.NAMES)
pytest_plugins = [f"tests.servers.{name}" for name in servers.NAMES]


def pytest_configure(config: pytest.Config) -> None:
    """Let signals end the processes of tests, even if nohup or `&` ignores some; set no deadline for hypothesis."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # A handler is not inherited; an ignored signal is
    if is_brief(config):
        os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_JVM)
        os.environ.setdefault("HEADWATER_HISTORIES", "120")
    if find_spec("httpx"):
        from httpx import _config

        default = _config.DEFAULT_TIMEOUT_CONFIG
        default.connect = default.read = default.write = default.pool = PATIENCE
    hypothesis.settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    hypothesis.settings.load_profile("shared machine")
    for name in servers.NAMES:
        config.addinivalue_line("markers", f"{name}: asks this server, found by its fixture; `make test S={name}`")


def is_brief(config: pytest.Config) -> bool:
    """Return whether further turns are excluded. Then the JVM optimizes no code and Spark generates none, which saves
    half the time, and the laws are tried on fewer keys. `make laws` runs the tests again with JVMs and sessions like
    those of users.
    """
    return "not long" in str(config.getoption("markexpr"))


QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m -XX:ParallelGCThreads=1"
"""Code that is compiled quickly, and kept: the JVM's 48 MB for such code are full soon, and swept ever after. Classes
fill what they need without a collection at each step. One thread collects: two cores have two such JVMs.
"""

LONGEST = frozenset(
    {"test_benchmarks.py", "test_flights.py", "test_forget.py", "test_examples.py", "test_recompute.py", "test_dags.py"}
    | {"test_releases.py", "test_debezium.py", "test_readme.py", "test_init.py", "test_kills.py", "test_log.py"}
    | {"test_social.py"}
    | {"test_source_ingestion.py", "test_columns.py", "test_explain.py", "test_at_cut.py", "test_progress.py"}
)
"""Files that take longest, few tests as they have."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start a JVM, and further turns: all but some cases of a test with `turns`, and all tests of a
    server except its smoke test. The longest tests come first, so that no process waits for another at the end.
    """
    turned = defaultdict(list)
    for item in items:
        marks = {mark.name: mark for mark in item.iter_markers()}
        if turns := marks.get("turns"):
            turned[item.nodeid.partition("[")[0], *turns.args].append(item)
        case = getattr(getattr(item, "callspec", None), "params", {}).get("kind")  # A case of tests/bad_input
        fixtures = {*getattr(item, "fixturenames", ())}
        if "spark" in fixtures or (isinstance(case, dict) and case.get("spark")):
            item.add_marker("spark")
        for name in SERVERS & {*fixtures, *marks}:
            item.add_marker(name)
            if "smoke" not in marks:
                item.add_marker("long")
    for (_, *count), cases in turned.items():
        step = len(cases) / min(*count or [1], len(cases))
        for case in {*cases} - {cases[int(n * step)] for n in range(round(len(cases) / step))}:
            case.add_marker("long")
    items.sort(key=lambda item: item.path.name not in LONGEST)


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, which saves a twentieth of the time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Collect them again at the end: DuckDB reports classes that are left as leaked."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """Return the only session: two shuffle partitions, no UI."""
    home = tmp_path_factory.mktemp("spark")
    conf = SparkSettings(
        master="local[2]", driver_memory="3g", conf=_served() | (INTERPRETED if is_brief(pytestconfig) else {})
    )
    session = start(Settings(project=home, spark=conf))
    yield session
    session.stop()


def _served() -> dict[str, str]:
    """Return settings by which the session's JVM also serves Spark Connect, for the processes of `commands`."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(free_port()),
        "spark.connect.authenticate.token": secrets.token_urlsafe(16),
    }


@pytest.fixture(scope="session")
def commands(spark: SparkSession) -> Iterator[Commands]:
    """Return `lake` commands in separate processes that share the session's JVM."""
    port, token = (spark.conf.get(f"spark.connect.{name}") for name in ("grpc.binding.port", "authenticate.token"))
    with Commands(f"sc://localhost:{port}", under=UNDER, SPARK_CONNECT_AUTHENTICATE_TOKEN=token or "") as commands:
        yield commands


@pytest.fixture(scope="session")
def kills() -> Iterator[Commands]:
    """`lake` commands in processes of their own, without a JVM."""
    with Commands(under=UNDER) as commands:
        yield commands


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    """Return an empty project."""
    return empty(tmp_path)


@pytest.fixture
def land(project: Settings) -> Callable[..., Path]:
    """Return a function that writes a landing file of JSON Lines: `land("flights", "a.jsonl", {...}, {...})`."""

    def write(stream: str, name: str, *records: Mapping[str, Any] | str) -> Path:
        file = project.path(project.landing) / stream / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = (record if isinstance(record, str) else json.dumps(record, default=str) for record in records)
        file.write_text("".join(f"{line}\n" for line in lines))
        return file

    return write
