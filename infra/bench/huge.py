"""`make bench W=huge`: a log larger than memory, and what a user asks of it, each a command of its own.

The log is of a year, a batch a day, and written straight in the log's format (`infra/bench/written.py`): GB is its size
on disk, as Parquet. The JVM has 1 GiB of heap. It prints for each command: seconds, the peak resident memory of the
client (the Python process) and of the JVM, the bytes read, and the peak size of temporary folders.

A command fails the benchmark if it fails, if its client takes more than CLIENT, or if the backfill of one day reads
more than a SHARE of the log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from infra.bench.growth import copied
from infra.bench.times import heading
from infra.bench.written import DAYS, START, STREAM, Written
from lake.config import Settings, load_settings
from lake.project.project import load
from lake.store.log import Log
from lake.store.scan import Scan

LAKE: Final = Path(sys.executable).with_name("lake")
TABLES: Final = ("meter_latest", "day_total")
HEAP: Final = "1g"
CLIENT: Final = 512 << 20
HELD: Final = 128 << 20
"""Of these, what queries of DuckDB hold; Python, with all libraries and what the gate needs, takes 280 MB of them."""
SHARE: Final = 0.1
TRIED: Final = 300
"""Bytes that an event may take, by which a batch is made that tells how many it does take."""
EVERY: Final = 0.05
"""Seconds between two looks at a command's processes."""
CHANGED: Final = 182
"""The day of the year whose rows are changed by another hand, and mended by the backfill."""


def main() -> None:
    """Runs the benchmark and prints its table; exits with 1 where a command failed or took more than it may."""
    parser = argparse.ArgumentParser(description="Headwater on a log larger than memory.")
    parser.add_argument("--gb", type=float, default=8, help="of the log; what is packed takes less (default: 8)")
    parser.add_argument("--notes", type=int, default=8, help="texts of 32 characters that an event has (default: 8)")
    parser.add_argument("--shuffled", action="store_true", help="each batch has events of every day of the year")
    parser.add_argument("--folder", type=Path, help="where it is made (default: a temporary folder)")
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="run these alone (default: all)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-huge-", dir=arguments.folder) as folder:
        a_day = arguments.gb * (1 << 30) / DAYS
        tried = bytes_an_event(Path(folder) / "tried", round(a_day / TRIED), arguments.notes)
        rows = round(a_day / tried)
        huge = Huge(project(Path(folder) / "huge"), rows, shuffled=arguments.shuffled, notes=arguments.notes)
        huge.write()
        failed = huge.run(arguments.commands)
    sys.exit(bool(failed))


def bytes_an_event(folder: Path, rows: int, notes: int) -> float:
    """Return the bytes of an event in a log of `rows` a day."""
    settings = project(folder)
    events = Written(settings, rows, notes=notes).days(1).events
    return size(settings) / events


def project(folder: Path) -> Settings:
    """The bench's project with two of its tables, and the memory that a JVM gets here."""
    copied(folder)
    for file in folder.glob("jobs/*/*.py"):
        if file.stem not in TABLES:
            file.unlink()
    settings = folder / "pyproject.toml"
    text = settings.read_text().replace('driver_memory = "4g"', f'driver_memory = "{HEAP}"')
    settings.write_text(f"{text}client_memory = {HELD}\n")
    return load_settings(folder)


def size(settings: Settings) -> int:
    """The bytes of the log's files."""
    return sum(Path(file).stat().st_size for file in Scan(Log(settings, STREAM).path).files())


@dataclass
class Huge:
    """The project of `settings`, whose log has `rows` events a day."""

    settings: Settings
    rows: int
    shuffled: bool = False
    days: int = DAYS
    notes: int = 0

    @property
    def day(self) -> datetime:
        """The day that is redone."""
        return START + timedelta(days=CHANGED * self.days // DAYS)

    def write(self) -> None:
        """Writes the log."""
        began, written = time.monotonic(), Written(self.settings, self.rows, shuffled=self.shuffled, notes=self.notes)
        head = written.days(self.days)
        heading(
            f"{head.events:,} events in {self.days} batches, {size(self.settings) / 1e9:.2f} GB of Parquet,"
            f" written in {time.monotonic() - began:.0f} s{', in no order of time' if self.shuffled else ''}"
        )

    def run(self, names: Sequence[str] = ()) -> list[str]:
        """Runs the commands in their order; the names of those that failed or took more than they may."""
        until = self.day + timedelta(days=1)
        backfill = ("backfill", "day_total", "--from", f"{self.day:%Y-%m-%d}", "--to", f"{until:%Y-%m-%d}")
        commands = {
            "run": ("run",),
            "log --check": ("log", STREAM, "--check"),
            "verify": ("verify",),
            "rebuild": ("rebuild", "--all"),
            "backfill": backfill,
            "maintain": ("maintain",),
            "backfill again": backfill,
            "micro-batch": ("run",),
            "status": ("status",),
            "sql": ("sql", "select mode, sum(readings) from day_total group by mode order by mode"),
        }
        columns = f"{'s':>8}{'client MB':>11}{'JVM MB':>8}{'read MB':>10}{'of log':>8}{'temp MB':>9}"
        print(f"{'command':<16}{columns}", flush=True)
        return [name for name, words in commands.items() if (not names or name in names) and not self.step(name, words)]

    def step(self, name: str, words: Sequence[str]) -> bool:
        """Runs a command and prints what it took; whether that is well."""
        if name.startswith("backfill"):
            self.change()
        if name == "micro-batch":
            self.land()
        whole, used = size(self.settings), Used(self.settings.project)
        command = [str(LAKE), *words, "--json", "--project", str(self.settings.project)]
        used.watch(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        share = used.read / whole
        well = not used.code and used.client <= CLIENT and not (name.startswith("backfill") and share > SHARE)
        client, jvm, read, temporary = (n / 1e6 for n in (used.client, used.jvm, used.read, used.temporary))
        figures = f"{client:11.0f}{jvm:8.0f}{read:10.0f}{share:8.0%}{temporary:9.0f}"
        print(f"{name:<16}{used.seconds:8.1f}{figures}{'' if well else f'  !! exit code {used.code}'}", flush=True)
        if used.code:
            print(used.told, flush=True)
        return well

    def change(self) -> None:
        """Changes the rows of one day in a table behind the engine's back."""
        project = load(self.settings)
        path = project.table(project.tables["day_total"]).path
        where = f"window_start = '{self.day:%Y-%m-%dT%H:%M:%S}Z'"
        changed = DeltaTable(path.url).update(updates={"readings": "readings + 1"}, predicate=where)
        if not changed["num_updated_rows"]:
            raise ValueError(f"no row of {self.day} is there to be changed")

    def land(self) -> None:
        """Lands a file of ten thousand events of one more day."""
        head = Log(self.settings, STREAM).head()
        at = START + timedelta(days=self.days)
        same = {"at": at.isoformat(), "value": 1, "mode": "on", "removed": False}
        numbers = range(head.events, head.events + 10_000)
        lines = [{"number": number, "meter": f"M{number % 1000}", **same} for number in numbers]
        folder = self.settings.path(self.settings.landing) / STREAM
        (folder / "more.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@dataclass
class Used:
    """Resources of a command, in bytes: peak resident sizes, bytes read, and the peak size of temporary folders."""

    folder: Path
    client: int = 0
    jvm: int = 0
    temporary: int = 0
    seconds: float = 0
    code: int = -1
    told: str = ""
    _read: dict[int, int] = field(default_factory=dict)

    @property
    def read(self) -> int:
        return sum(self._read.values())

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Looks at the process and all below it until it ends."""
        began = time.monotonic()
        while process.poll() is None:
            for pid in _family(process.pid):
                self._look(pid, client=pid == process.pid)
            self.temporary = max(self.temporary, _bytes(self.folder / ".lake/spark/local"))
            time.sleep(EVERY)
        out, talk = process.communicate()
        self.seconds, self.code, self.told = time.monotonic() - began, process.returncode, f"{out}{talk}"

    def _look(self, pid: int, *, client: bool) -> None:
        with suppress(OSError, ValueError, StopIteration):
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            peak = int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024
            self._read[pid] = int(Path(f"/proc/{pid}/io").read_text().split()[1])
            if client:
                self.client = max(self.client, peak)
            elif "java" in Path(f"/proc/{pid}/comm").read_text():
                self.jvm = max(self.jvm, peak)


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder; some may be deleted meanwhile."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(above, name)).st_size
    return total


if __name__ == "__main__":
    main()
