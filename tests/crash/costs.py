"""Hostile records and files, each alone, beside an ordinary file: what a byte of them costs, and what becomes of them.

python -m tests.crash.costs --minutes 5 --seed 1
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from lake.config import Settings, load_settings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.ingest.replay import quarantined_records
from lake.records.decompression import EXPANSION, OVERSIZED, line_bytes
from lake.session.spark_session import start
from lake.store.log import Log
from tests.bad_input import hostile

ORDINARY = 4 << 20
"""Bytes of the ordinary file, and about as many of each hostile one."""
MOST = 30.0
"""How many times as much as a byte of an ordinary file one may cost: a record of ten bytes costs more than bytes do."""
SIZES = (100, 1_000, 30_000, 300_000, 1_000_000)
FORMS = ("jsonl", "jsonl.gz", "csv", "parquet", "changes")


@dataclass(frozen=True)
class Attack:
    """A file to land: `records` of them, of which at least `refused` go to quarantine; None for all, as one file."""

    what: str
    stream: str
    name: str
    data: bytes
    size: int
    records: int = 1
    refused: int | None = None


class Target:
    """A project that takes in one attack after another."""

    def __init__(self, home: Path) -> None:
        hostile.project(home)
        self.settings: Settings = load_settings(home)
        self.contracts = load_contracts(self.settings)
        self.spark: SparkSession = start(self.settings)
        self.numbers = count(1)
        ordinary = (hostile.ordinary(ORDINARY, first=n * ORDINARY) for n in range(3))
        self.ordinary = min(self.timed("sound", "x.jsonl", data) for data in ordinary)

    def timed(self, stream: str, name: str, data: bytes) -> float:
        """Seconds until a file is taken in."""
        (self.settings.path("landing") / stream / f"{next(self.numbers)}-{name}").write_bytes(data)
        began = time.monotonic()
        ingest(self.settings, lambda: self.spark, self.contracts)
        return time.monotonic() - began

    def meets(self, attack: Attack) -> tuple[float, list[str]]:
        """What a byte costs, by that of an ordinary file, and what was wrong."""
        before = len([*quarantined_records(self.settings, [attack.stream])])
        (self.settings.path("landing/sound") / f"{next(self.numbers)}.jsonl").write_bytes(hostile.ordinary(100))
        sound = Log(self.settings, "sound").head().batch
        seconds = self.timed(attack.stream, attack.name, attack.data)
        cost = seconds / self.ordinary / max(1.0, attack.size / ORDINARY)
        faults = [] if cost <= MOST else [f"{seconds:.1f} s, an ordinary file {self.ordinary:.1f} s"]
        rows = [*quarantined_records(self.settings, [attack.stream])][before:]
        read = dict(Log(self.settings, attack.stream).head().counts)["read"]
        if Log(self.settings, "sound").head().batch == sound:
            faults.append("the other stream stood still")
        if attack.refused is None:
            if [row.detail.startswith(OVERSIZED) for row in rows] != [True]:
                faults.append(f"in quarantine: {[row.detail[:100] for row in rows]}")
        elif read != attack.records or len(rows) < attack.refused or any(not row.reason for row in rows):
            faults.append(f"{read} of {attack.records} read, {len(rows)} of at least {attack.refused} refused")
        return cost, faults


def records(chance: random.Random) -> Iterator[Attack]:
    """Records with one hostile value each."""
    kinds = sum(1 for _ in hostile.records(SIZES[0]))
    while True:
        size = chance.choice(SIZES)
        what, record = next(islice(hostile.records(size), chance.randrange(kinds), None))
        form = chance.choice(FORMS)
        times = max(1, ORDINARY // (len(hostile.written(record)) + 1))
        many = [(what, {**record, "id": str(n)}) for n in range(1, times + 1)]
        write = {"csv": hostile.table, "parquet": hostile.parquet}.get(form, hostile.lines)
        data = write(many) if form != "changes" else hostile.lines(many, write=hostile.change)
        stored = gzip.compress(data) if form.endswith(".gz") else data
        if form.endswith(".gz") and len(data) > max(EXPANSION * len(stored), line_bytes(1 << 20)):
            continue
        refused = times if hostile.must_be_refused(what) else 0
        name = "x.jsonl" if form == "changes" else f"x.{form}"
        stream = "changes" if form == "changes" else "hostile"
        told = f"{form}, {len(hostile.written(record))} bytes, {what}"
        yield Attack(told, stream, name, stored, max(len(data), ORDINARY), times, refused)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failed = 0
    with TemporaryDirectory(prefix="costs-") as home:
        target = Target(Path(home))
        files = [
            Attack(what, "hostile", name, data, len(data))
            for what, name, data in hostile.files(line_bytes(target.settings.record_bytes))
        ]
        end = time.monotonic() + 60 * given.minutes
        generated = records(random.Random(given.seed))
        while files or time.monotonic() < end:
            attack = files.pop() if files else next(generated)
            cost, faults = target.meets(attack)
            failed += bool(faults)
            print(f"{cost:6.1f}  {attack.what}", *faults, sep="\n    ", flush=True)
        target.spark.stop()
    print(f"{failed} attacks cost more than {MOST:g} times an ordinary file, or were not told")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
