"""`lake serve http` killed under load, again and again, while another reads: nothing that was acknowledged is lost.

Each life of the server is loaded by connections that post single events and bodies of several, until SIGKILL comes. A
reader takes deliveries and acknowledges them meanwhile, and dies between the two now and then: it reads again from
where its own log, a list, says. In the end the list has every acknowledged event; once, as its reader is exact.

python -m tests.crash.intake --kills 200 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lake.sources.source import Progress
from tests.intake import Serving, request
from tests.kills import beside, killed_under_load
from tests.servers.http import Http, shop
from tests.spool import Kept

SEVERAL = 20
"""Events of a body; every third request has so many."""


@dataclass
class Reader:
    """What `lake ingest` is to the source: a log of deliveries, whose last says where it stands."""

    http: Http
    random: random.Random
    at: Progress | None = None
    numbers: Counter[int] = field(default_factory=Counter)
    deliveries: int = 0
    deaths: int = 0

    def read(self) -> None:
        """One delivery, committed, and most of the time acknowledged."""
        taken, source = Kept(), self.http.source
        if self.at is not None and self.random.random() < 0.5:
            source.acknowledge(self.at)
        progress = source.read(self.at, taken)
        if progress is not None and self.random.random() < 0.2:  # it dies before its commit
            self.deaths += 1
        elif progress is not None:
            self.numbers.update(json.loads(record.text)["number"] for _, record in taken.records)
            self.at, self.deliveries = progress, self.deliveries + 1


@dataclass
class Outcome:
    """What became of it: events acknowledged, those of them that are lost, those that are there more than once."""

    kills: int
    acknowledged: int
    lost: list[int]
    twice: list[int]
    unanswered: int
    deliveries: int
    deaths: int


def soak(folder: Path, kills: int, seed: int) -> Outcome:
    """Kills a server so many times."""
    settings, chance = shop(folder / "shop"), random.Random(seed)
    reader = Reader(Http(settings, _nobody()), random.Random(seed + 1))
    acknowledged, sent, first = set[int](), 0, 0
    with beside(reader.read, 0.05) as failed:
        for _ in range(kills):
            make = partial(_request, first)
            client = killed_under_load(settings.project, chance.uniform(0.02, 0.6), make, failed)
            for number in client.acknowledged:
                acknowledged.update(_numbers(first + number * SEVERAL))
            sent += client.last
            first += (client.last + 1) * SEVERAL
    for _ in range(100):
        reader.read()
    lost = sorted(acknowledged - reader.numbers.keys())
    twice = sorted(number for number, count in reader.numbers.items() if count > 1)
    unanswered = len(reader.numbers.keys() - acknowledged)
    return Outcome(kills, len(acknowledged), lost, twice, unanswered, reader.deliveries, reader.deaths)


def _nobody() -> Any:
    """In the place of a server, whom the reader never asks."""


def _numbers(first: int) -> range:
    """The events of the request that begins with one: their numbers are no other's."""
    return range(first, first + (SEVERAL if first // SEVERAL % 3 == 0 else 1))


def _request(before: int, serving: Serving, number: int) -> bytes:
    numbers = _numbers(before + number * SEVERAL)
    body = b"".join(json.dumps({"station": "a", "number": each}).encode() + b"\n" for each in numbers)
    return request(serving, "readings", body, "application/x-ndjson")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        began = time.monotonic()
        outcome = soak(Path(folder), given.kills, given.seed)
    print(
        f"{outcome.kills} kills in {time.monotonic() - began:.0f} s: {outcome.acknowledged} events acknowledged,"
        f" {len(outcome.lost)} lost, {len(outcome.twice)} twice; {outcome.unanswered} kept without an answer;"
        f" {outcome.deliveries} deliveries, {outcome.deaths} readers died"
    )
    sys.exit(bool(outcome.lost or outcome.twice or not outcome.acknowledged))


if __name__ == "__main__":
    main()
