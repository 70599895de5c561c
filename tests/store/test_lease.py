"""Commands that wait for a lease: they name its holder, and end with exit code 75 if it takes too long. No JVM."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lake.config import Settings, load_settings
from lake.ops.scaffold import init
from lake.store.ledger.cuts import latest_cut, record_cut
from lake.store.locks.lease import lease
from tests.checks import present
from tests.processes import PATIENCE, other_process

LAKE = Path(sys.executable).with_name("lake")
HEARD = [
    number
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if signal.getsignal(number) is not signal.SIG_IGN  # as under nohup, which a command respects
]


@pytest.fixture
def shop(tmp_path: Path) -> Settings:
    """Project with one empty cut."""
    init(tmp_path / "shop")
    settings = load_settings(tmp_path / "shop")
    record_cut(settings, {}, 0)
    return settings


@pytest.fixture
def holder(shop: Settings, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lease until its standard input ends."""
    with other_process(shop, request.param) as process:
        yield process


def waiter(shop: Settings, *arguments: str) -> subprocess.Popen[str]:
    command: list[str | Path] = [LAKE, *arguments, "--project", shop.project]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("holder", ["table.current_order"], indirect=True)
def test_command_names_the_holder_and_exits_75_when_waiting_ends(
    shop: Settings, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_LEASE_SECONDS", "1.2")
    with waiter(shop, "advance", "current_order") as waiting:
        said = next(line for line in present(waiting.stderr) if not line.startswith("load "))
        assert "waiting for the table current_order, held by" in said
        assert f"pid {holder.pid}" in said
        assert "waited 1.2 s" in present(waiting.stderr).read()
    assert waiting.returncode == 75


@pytest.mark.slow
@pytest.mark.parametrize("holder", ["meta.cuts"], indirect=True)
def test_command_continues_when_the_lease_is_released(shop: Settings, holder: subprocess.Popen[str]) -> None:
    with waiter(shop, "cut", "--label", "after") as waiting:
        assert "waiting for the ledger of cuts" in present(waiting.stderr).readline()
        holder.communicate("")
        assert present(waiting.stdout).read() == "cut 2\n"
    assert waiting.returncode == 0


def test_lease_is_free_when_its_process_dies(shop: Settings) -> None:
    with other_process(shop, "meta.cuts") as process:
        process.kill()
        process.wait()
        with lease(shop, "meta.cuts"):
            assert present(latest_cut(shop)).number == 1


def test_holder_is_recorded_without_arguments_of_its_command(shop: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/lake", "forget", "orders", "subject=joan", "--value", "joan@example.org"])
    with lease(shop, "table.current_order"):
        told = (shop.warehouse_path / "locks/table.current_order.holder").read_text()
    assert '"lake forget"' in told
    assert "joan" not in told


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("holder", ["meta.cuts"], indirect=True)
def test_waiting_command_ends_at_any_signal(
    shop: Settings, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_LEASE_SECONDS", "600")
    with ExitStack() as all_wait:
        waiting = [(number, all_wait.enter_context(waiter(shop, "cut"))) for number in HEARD]
        for number, process in waiting:
            all_wait.callback(process.kill)
            assert "waiting for the ledger of cuts" in present(process.stderr).readline()
            process.send_signal(number)
        for number, process in waiting:
            told = process.communicate(timeout=PATIENCE)[1]
            assert "Traceback" not in told
            assert process.returncode == 128 + number
