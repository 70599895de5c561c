"""Hosts that write to one table of a bucket, with pauses beyond their lease and kills: one writes at a time."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lake.config import Settings
from lake.store import delta, duckdb_tables
from lake.store.locks import Holder
from lake.store.storage import Address
from lake.store.warehouse import Location, Warehouse
from tests.processes import PATIENCE, ROOT
from tests.servers.s3 import S3

SECONDS = 60
"""At least as long, and until there are more than ENTRIES: how fast they come depends on the machine."""
ENTRIES = 30


def test_commits_of_an_epoch_never_follow_those_of_a_later_one(s3: S3, project: Settings, tmp_path: Path) -> None:
    """Epochs of the table's commits never decrease, and no number exists twice."""
    chance, warehouse = random.Random(1), f"{s3.bucket()}/w"
    hosts = {number: host(tmp_path, number, warehouse, s3.url) for number in range(4)}
    settings = replace(project, warehouse=warehouse, storage=s3.storage)
    table = Warehouse(settings).table("gold", "sums")
    paused = killed = 0
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or not enough(table):
            assert time.monotonic() < end + PATIENCE, "hardly anybody writes"
            time.sleep(chance.uniform(0.5, 2))
            one = holding(tmp_path, hosts)
            if chance.random() < 0.7:
                hosts[one].send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(2.5, 5))
                hosts[one].send_signal(signal.SIGCONT)
                paused += 1
            else:
                hosts[one].kill()
                hosts[one].wait()
                killed += 1
                del hosts[one]
                hosts[max(hosts) + 1] = host(tmp_path, max(hosts) + 1, warehouse, s3.url)
    finally:
        for process in hosts.values():
            process.kill()
            process.wait()
    epochs = [position.data["epoch"] for position in reversed(entries(table))]
    refused = sum(len(file.read_text().splitlines()) for file in tmp_path.glob("*.out"))
    print(f"{len(epochs)} entries, {refused} refused, {paused} pauses, {killed} kills")
    assert epochs == sorted(epochs)
    rows = duckdb_tables.rows(table.path, "SELECT epoch FROM t ORDER BY epoch")
    assert [row["epoch"] for row in rows] == epochs
    assert len(epochs) > ENTRIES
    assert refused


def entries(table: Location) -> list[delta.Position]:
    """Return the appended entries, the newest first."""
    return [one for one in delta.positions(table.path, table.app) if not one.data.get("repeated")]


def enough(table: Location) -> bool:
    """Return whether enough entries exist."""
    return delta.exists(table.path) and len(entries(table)) > ENTRIES


def holding(folder: Path, hosts: Iterable[int]) -> int:
    """Return a host that holds the lease."""
    while True:
        for number in hosts:
            for file in folder.glob(f"host-{number}/**/locks/*.holder"):
                if Holder.read(Address(str(file))).epoch:
                    return number
        time.sleep(0.01)


def host(folder: Path, number: int, warehouse: str, url: str) -> subprocess.Popen[bytes]:
    """Start a host that shares nothing with others except the bucket."""
    command = [sys.executable, "-m", "tests.s3.hosts", str(folder / f"host-{number}"), warehouse, url]
    with (folder / f"{number}.out").open("ab") as out:
        return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out)
