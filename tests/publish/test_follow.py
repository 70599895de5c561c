"""`lake run --follow`: cycles in one process, past failures, until SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from lake.ops.scaffold import init
from tests.checks import present
from tests.processes import PATIENCE

LAKE = Path(sys.executable).with_name("lake")


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    init(tmp_path / "shop")
    return tmp_path / "shop"


class Following:
    """Running `lake run --follow`, and the lines of its output."""

    def __init__(self, project: Path) -> None:
        command: list[str | Path] = [LAKE, "run", "--follow", "--every", "1s", "--project", project]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: Queue[str] = Queue()
        self.listener = Thread(target=self._listen)
        self.listener.start()

    def _listen(self) -> None:
        for line in present(self.process.stderr):
            self.lines.put(line)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.listener.join()
        present(self.process.stderr).close()

    def until(self, text: str) -> Iterator[str]:
        while True:
            line = self.lines.get(timeout=PATIENCE)
            yield line
            if text in line:
                return


def open_to_others(folder: Path) -> list[Path]:
    """Return the files readable by others than their owner. The JVM deletes its own files shortly after its client
    ends.
    """
    found = []
    for inside, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                if (Path(inside) / name).stat().st_mode & 0o077:
                    found.append(Path(inside) / name)
    return found


@pytest.mark.long
def test_follow_continues_past_a_failing_source_and_stops_on_sigterm(shop: Path) -> None:
    broken = json.loads((shop / "schemas/orders.avsc").read_text()) | {"name": "returns"}
    (shop / "schemas/returns.avsc").write_text(json.dumps(broken))
    (shop / "landing/returns").write_text("a file where a folder should be")
    following = Following(shop)
    try:
        said = list(following.until("publish edition 1"))
        assert any("returns failed" in line for line in said)
        order = {"order_id": 9, "customer": "joan", "status": "placed", "amount": "1.00"}
        times = {"placed_at": "2024-04-02T09:00:00Z", "changed_at": "2024-04-02T09:00:00Z"}
        (shop / "landing/orders/.new").write_text(json.dumps(order | times) + "\n")
        (shop / "landing/orders/.new").rename(shop / "landing/orders/2024-04-02.jsonl")
        list(following.until("publish edition 2"))
        following.process.send_signal(signal.SIGTERM)
        assert following.process.wait(timeout=PATIENCE) == 0
    finally:
        following.end()
    assert open_to_others(shop / ".lake") == []  # Written by Python, delta-rs, DuckDB and the JVM
    query: list[str | Path] = [LAKE, "sql", "select customer from current_order where order_id = 9", "--format", "csv"]
    shown = subprocess.run([*query, "--project", shop], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == ["customer", "joan"]
