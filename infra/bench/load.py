"""Load: `lake run --follow` beside a producer that lands readings as fast as they are ingested.

The producer keeps a bounded number of files waiting, pauses for a sixth of the time in the middle, and continues. Each
cycle is printed, and at intervals its cost: memory of both processes, files, lag.
In the end all events must be ingested, every table identical to its recomputation, and the log without a fault.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Final

from infra.bench.growth import STREAM, copied
from infra.bench.times import heading
from lake.config import Settings
from lake.ingest.landing import backlog
from lake.store import duckdb_tables
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import latest_edition
from lake.store.log import Log

LAKE: Final = Path(sys.executable).with_name("lake")
METERS, EVENTS_A_FILE, WAITING = 10_000, 10_000, 40
STUCK: Final = 300.0
"""Seconds without an event or an edition, while files wait, after which it has failed."""
LIMITS: Final = {
    "LAKE_ARCHIVE": "archive",
    "LAKE_BATCH_FILES": "20",
    "LAKE_KEEP_EDITIONS": "10",
    "LAKE_KEEP_DAYS": "0",
    "LAKE_MAINTAIN_EVERY": "10",
    "LAKE_SPARK__DRIVER_MEMORY": "3g",
}
READINGS: Final = """
    COPY (
        SELECT n AS number, 'M' || hash(n, 'meter') % {meters} AS meter,
            strftime(TIMESTAMP '2024-01-04' + to_milliseconds(n * 10), '%Y-%m-%dT%H:%M:%S.%fZ') AS "at",
            (hash(n, 'value') % 1000)::INTEGER AS value, if(hash(n, 'mode') % 4 = 0, 'off', 'on') AS mode,
            hash(n, 'removed') % 50 = 0 AS removed
        FROM range({first}, {first} + {count}) t(n)
    ) TO '{file}' (FORMAT json)"""


def main() -> None:
    """Run the load for `minutes` and print its cost."""
    parser = argparse.ArgumentParser(description="lake run --follow under a producer that never waits for long.")
    parser.add_argument("--minutes", type=float, default=10, help="how long the producer is at work")
    parser.add_argument("--every", type=float, default=20, help="seconds between two lines")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-load-") as folder:
        load(copied(Path(folder)), minutes=arguments.minutes, every=arguments.every)


@dataclass
class Producer:
    """Lands files of `size` readings, at most `WAITING` ahead of what has been ingested, except while it is paused."""

    settings: Settings
    size: int = EVENTS_A_FILE
    landed: int = 0
    paused: Event = field(default_factory=Event)
    done: Event = field(default_factory=Event)

    def work(self) -> None:
        folder = self.settings.path(self.settings.landing) / STREAM
        while not self.done.wait(0.05):
            while not self.paused.is_set() and len(list(folder.glob("*.jsonl"))) < WAITING:
                self._land(folder)

    def _land(self, folder: Path) -> None:
        part = folder / f"{self.landed:08}.part"
        with duckdb_tables.connection() as con:
            con.execute(READINGS.format(first=self.landed * self.size, count=self.size, meters=METERS, file=part))
        part.rename(part.with_suffix(".jsonl"))
        self.landed += 1


@contextmanager
def producing(producer: Producer) -> Iterator[Producer]:
    thread = Thread(target=producer.work)
    thread.start()
    try:
        yield producer
    finally:
        producer.done.set()
        thread.join()


@dataclass(frozen=True)
class Sample:
    """Sample `at` a number of seconds: files waiting, events ingested, MiB resident, files under the warehouse."""

    at: float
    waiting: int
    events: int
    edition: int
    python: int
    jvm: int
    files: int
    mebibytes: int


def load(settings: Settings, *, minutes: float, every: float, size: int = EVENTS_A_FILE) -> None:
    """The producer beside a follower; prints a line every so often, and the proof in the end."""
    environment = os.environ | LIMITS
    seconds, samples = minutes * 60, list[Sample]()
    heading(f"{minutes:g} minutes of lake run --follow, files of {size:,} events, at most {WAITING} waiting")
    print(f"{'s':>6}{'waiting':>9}{'events':>12}{'edition':>9}{'python MiB':>12}{'JVM MiB':>9}{'files':>8}{'MiB':>7}")
    with following(settings, environment) as process, producing(Producer(settings, size)) as producer:
        began = time.monotonic()

        def sample() -> None:
            samples.append(seen(settings, process.pid, time.monotonic() - began))
            told(samples[-1])

        def until(end: Callable[[], bool], *, busy: bool = False) -> None:
            while not end() and process.poll() is None:
                time.sleep(every)
                sample()
                if stuck(samples, busy=busy):
                    raise SystemExit(f"not all is taken in, and nothing has come of it for {STUCK:.0f} s")

        until(lambda: time.monotonic() - began > seconds / 2)
        producer.paused.set()
        paused = time.monotonic()
        until(lambda: caught_up(settings, producer), busy=True)
        print(f"paused: the lag was gone after {time.monotonic() - paused:.0f} s")
        until(lambda: time.monotonic() - paused > seconds / 6)
        producer.paused.clear()
        until(lambda: time.monotonic() - began > seconds)
        producer.paused.set()
        until(lambda: caught_up(settings, producer), busy=True)
        if process.poll() is not None:
            raise SystemExit("the follower ended before the producer did")
    summary(samples, producer)
    for command in (["log", STREAM, "--check"], ["verify", "--all"], ["status"]):
        subprocess.run([LAKE, *command, "--project", settings.project], env=environment, check=True)


def stuck(samples: list[Sample], *, busy: bool) -> bool:
    """Return whether nothing was done for long although files wait, or the follower is `busy`."""
    last = samples[-1]
    earlier = [s for s in samples if s.at <= last.at - STUCK]
    waits = earlier and (last.waiting or busy)
    return bool(waits) and (earlier[-1].events, earlier[-1].edition) == (last.events, last.edition)


def caught_up(settings: Settings, producer: Producer) -> bool:
    """Return whether an edition has all landed events."""
    head, edition = Log(settings, STREAM).head(), latest_edition(settings)
    taken = sum(head.offsets.values()) == producer.landed * producer.size
    return taken and edition is not None and get_cut(settings, edition.cut).batches.get(STREAM, 0) == head.batch


@contextmanager
def following(settings: Settings, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """`lake run --follow` in a process of its own; what it says goes to a file beside the warehouse."""
    said = settings.path("follow.log")
    with said.open("wb") as talk:
        line = [str(LAKE), "run", "--follow", "--every", "1s", "--project", str(settings.project)]
        process = subprocess.Popen(line, env=environment, stdout=talk, stderr=talk)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    failed = [line for line in said.read_text().splitlines() if "failed" in line]
    print(f"the follower ended with {process.returncode}; {len(failed)} lines of failure", *failed[:5], sep="\n")


def seen(settings: Settings, pid: int, at: float) -> Sample:
    head, edition = Log(settings, STREAM).head(), latest_edition(settings)
    files = [file for file in settings.warehouse_path.rglob("*.parquet") if file.parent.name != "_delta_log"]
    size = sum(file.stat().st_size for file in files if file.exists())
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return Sample(
        at,
        backlog(settings, STREAM)[0],
        sum(head.offsets.values()),
        edition.number if edition else 0,
        resident(pid),
        sum(resident(int(child)) for child in children),
        len(files),
        size >> 20,
    )


def resident(pid: int) -> int:
    """Resident memory of a process and what it started, in MiB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) >> 10
    except (OSError, IndexError):
        return 0


def told(s: Sample) -> None:
    row = f"{s.at:6.0f}{s.waiting:9}{s.events:12,}{s.edition:9}{s.python:12}{s.jvm:9}{s.files:8}{s.mebibytes:7}"
    print(row, flush=True)


def summary(samples: list[Sample], producer: Producer) -> None:
    half = [s for s in samples if s.at > samples[-1].at / 4] or samples
    busy = [(b.at - a.at, b.events - a.events) for a, b in pairwise(samples) if b.events > a.events]
    seconds, events = (sum(column) for column in zip(*busy, strict=True)) if busy else (1, 0)
    print(f"landed {producer.landed:,} files, {producer.landed * producer.size:,} events")
    print(f"taken in {events / seconds:,.0f} events a second while there were any")
    for name in ("python", "jvm", "files", "waiting"):
        values = [getattr(s, name) for s in half]
        print(f"{name:<8} from {min(values):,} to {max(values):,} after the first quarter, {values[-1]:,} at the end")


if __name__ == "__main__":
    main()
