"""Warm server (`spark.keep_warm`): commands share it, and it ends if it is unused, killed or outdated."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from lake.config import Settings, SparkSettings
from lake.session.spark_session import gone
from lake.session.warm_process import Clients
from lake.session.warm_server import WarmServer, _JoinedRecord, is_wanted
from lake.testing import Lakehouse
from tests.intake import LAKE
from tests.processes import children, until
from tests.shop import new_shop

SHORT = 'keep_warm = "1 s"\ndriver_memory = "1g"\n'
LONG = 'keep_warm = "1 h"\ndriver_memory = "1g"\n'


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Lakehouse]:
    shop = new_shop(tmp_path).land_samples()
    lake(shop, "run").communicate()
    yield shop
    for server in servers(shop):
        os.kill(server, signal.SIGTERM)
    until(lambda: not any(map(is_alive, servers(shop))))


def lake(shop: Lakehouse, *words: str, **environment: str) -> subprocess.Popen[str]:
    line = [str(LAKE), *words, "--project", str(shop.source.project)]
    return subprocess.Popen(
        line, env={**os.environ, "LAKE_CONTAINER": "no", **environment}, stdout=subprocess.PIPE, text=True
    )


def verify(shop: Lakehouse, **environment: str) -> int:
    """Verify a table, which needs Spark, and return the process of the only server."""
    command = lake(shop, "verify", "current_order", **environment)
    command.communicate()
    assert command.returncode == 0
    [server] = servers(shop)
    return server


def servers(shop: Lakehouse) -> list[int]:
    """Return the processes that records name."""
    records = shop.source.path(".lake/spark").glob("warm-*.json")
    return [json.loads(record.read_text())["pid"] for record in records]


def is_alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def configure(shop: Lakehouse, settings: str) -> None:
    file = shop.source.project / "pyproject.toml"
    file.write_text(f"{file.read_text()}\n[tool.lake.spark]\n{settings}")


def test_commands_at_once_share_a_server_that_ends_unused(shop: Lakehouse) -> None:
    configure(shop, SHORT)
    commands = [lake(shop, "verify", table) for table in ("current_order", "customer_daily")]
    until(lambda: bool(servers(shop)))
    [server] = servers(shop)
    jvms = children(server)
    until(
        lambda: (
            f"spark    pid {server} on port" in (shown := lake(shop, "status").communicate()[0]) and "in use" in shown
        )
    )
    for command in commands:
        command.communicate()
    assert [command.returncode for command in commands] == [0, 0]
    until(lambda: not servers(shop))
    until(lambda: not any(map(is_alive, [server, *jvms])))


@pytest.mark.long
def test_server_is_replaced_after_a_kill_a_crash_of_its_jvm_and_a_change(shop: Lakehouse) -> None:
    configure(shop, LONG)
    first = verify(shop)
    assert verify(shop) == first
    [jvm] = children(first)
    os.kill(first, signal.SIGKILL)
    until(lambda: not is_alive(jvm))

    second = verify(shop)
    [jvm] = children(second)
    os.kill(jvm, signal.SIGKILL)
    until(lambda: not servers(shop))

    third = verify(shop)
    changed = verify(shop, LAKE_SPARK__DRIVER_MEMORY="1100m")
    until(lambda: not is_alive(third))
    assert verify(shop, LAKE_SPARK__DRIVER_MEMORY="1100m") == changed
    assert len({first, second, third, changed}) == 4


@pytest.mark.long
def test_killed_command_leaves_a_server_that_others_use(shop: Lakehouse) -> None:
    configure(shop, LONG)
    server = verify(shop)
    killed = lake(shop, "verify", "--all")
    until(lambda: "in use" in lake(shop, "status").communicate()[0])
    killed.kill()
    killed.communicate()
    until(lambda: "unused" in lake(shop, "status").communicate()[0])
    assert verify(shop) == server


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "warm-1.json"


def test_server_ends_only_without_clients(record: Path) -> None:
    clients = Clients(record, 0.0)
    clients.announce(WarmServer(os.getpid(), 1))
    with record.open() as client:
        fcntl.flock(client, fcntl.LOCK_SH)
        assert [clients.end_if_unused() for _ in range(2)] == [False, False]
    assert clients.end_if_unused()
    assert not record.exists()


def test_server_waits_after_a_client_that_came_and_went(record: Path) -> None:
    clients = Clients(record, 3600.0, seen_at=-7200.0)
    clients.announce(WarmServer(os.getpid(), 1))
    assert not clients.end_if_unused()


def test_server_ends_if_another_has_its_record_and_keeps_that(record: Path) -> None:
    """A command that started the first was killed before it joined."""
    clients = Clients(record, 3600.0)
    clients.announce(WarmServer(os.getpid() + 1, 1))
    assert clients.end_if_unused()
    clients.withdraw()
    assert record.exists()


def test_lost_session_of_a_warm_server_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Exception("[SESSION_NOT_FOUND] it is not found")
    assert "lake serve connect" in getattr(gone(error), "fix", "")
    monkeypatch.setattr(_JoinedRecord, "descriptor", 0)
    assert getattr(gone(error), "fix", "") == "try again"


@pytest.mark.parametrize(
    "conf", [{"remote": "sc://localhost:1"}, {"master": "spark://host:7077"}, {"container": "yes"}]
)
def test_server_is_of_embedded_sessions_outside_of_containers(
    tmp_path: Path, conf: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_CONTAINER", conf.pop("container", "no"))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    spark = SparkSettings(keep_warm=timedelta(minutes=10), **conf)  # type: ignore[arg-type]
    assert not is_wanted(Settings(project=tmp_path, spark=spark))
