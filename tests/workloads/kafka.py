"""A broker under load beside `lake run --follow`, both killed again and again: one answer at the end.

    python -m tests.workloads.kafka --minutes 5 --kills 10 --seed 1

A producer writes transactions to a topic of eight partitions, some of which it aborts: what customers said, and that
they are gone. Meanwhile SIGKILL takes, in turns, the broker and all of `lake`, at a moment by chance. In the end the
log has every committed record once, the newest edition has of each customer what was said last, and `lake verify` finds
nothing. Prints what was done as JSON; exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from confluent_kafka import KafkaException

from lake.store.log import Log
from lake.testing import Lakehouse
from tests.kills import kill_with_children
from tests.processes import PATIENCE, until
from tests.servers.kafka import Kafka
from tests.shop import contract, declare, empty, job
from tests.workloads.follow import FOLLOW, lake

TOPIC: Final = "customers"
PARTITIONS: Final = 8
CUSTOMERS: Final = 5000
FIELDS: Final = {
    "id": ("string", {"from": "kafka.key"}),
    "at": ("long", {"from": "kafka.offset"}),
    "gone": ("boolean", {"from": "kafka.tombstone"}),
    "email": "string?",
}
RETURNS: Final = 'rows.selectExpr("id", "email", "at AS _at", "gone AS _gone")'


@dataclass
class Load:
    """The program that writes; `ended` counts its transactions, those aborted last."""

    kafka: Kafka
    seed: int
    stopped: Event = field(default_factory=Event)
    ended: list[int] = field(default_factory=lambda: [0, 0])

    def __enter__(self) -> Load:
        self._thread = Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._thread.join()

    def _work(self) -> None:
        dice = random.Random(self.seed)
        while not self.stopped.is_set():
            with suppress(KafkaException, BufferError):
                producer = self.kafka.producer(transactional_id="load", transaction_timeout_ms=60_000)
                producer.init_transactions(PATIENCE)
                while not self.stopped.is_set():
                    self._transaction(producer, dice)
                    self.stopped.wait(dice.uniform(0, 0.2))
            self.stopped.wait(0.5)

    def _transaction(self, producer: Any, dice: random.Random) -> None:
        producer.begin_transaction()
        for _ in range(dice.randint(1, 300)):
            said = None if dice.random() < 0.05 else json.dumps({"email": f"{dice.getrandbits(40):x}@x"})
            producer.produce(TOPIC, said, key=str(dice.randint(1, CUSTOMERS)))
        aborted = dice.random() < 0.15
        (producer.abort_transaction if aborted else producer.commit_transaction)(PATIENCE)
        self.ended[aborted] += 1


def project(folder: Path, kafka: Kafka) -> Lakehouse:
    """The project that follows the topic."""
    latest = 'Latest("id", sequence="_at", deletes="_gone")'
    jobs = {"customer": job("customer", latest, f'log("{TOPIC}")', returns=RETURNS)}
    house = declare(empty(folder / "shop"), contract(TOPIC, FIELDS, id=["at"]), jobs=jobs)
    (house.source.project / "sources").mkdir()
    said = f'kind = "kafka"\nbootstrap = "{kafka.bootstrap}"\n[streams]\n{TOPIC} = {{ topic = "{TOPIC}" }}\n'
    (house.source.project / "sources/shop.toml").write_text(said)
    return Lakehouse(house.source.project, house.source.project / ".lake")


def run(kafka: Kafka, folder: Path, said: argparse.Namespace) -> dict[str, Any]:
    """The load, the kills, and what is found in the end."""
    kafka.topic(TOPIC, partitions=PARTITIONS)
    house = project(folder, kafka)
    place, log = house.source.project, Log(house.settings, TOPIC)
    dice, kills, begun = random.Random(said.seed), {"broker": 0, "lake": 0}, time.monotonic()
    follow, before = lake(place, *FOLLOW), 0
    with Load(kafka, said.seed) as load:
        pause = said.minutes * 60 / (2 * said.kills + 2)
        while time.monotonic() - begun < said.minutes * 60 or min(kills.values()) < said.kills:
            load.stopped.wait(pause * dice.uniform(0.5, 1.4))
            before = moved_on(log, follow, before)
            if kills["lake"] <= kills["broker"]:
                kills["lake"] += kill_with_children(follow)
                follow = lake(place, *FOLLOW)
            else:
                kafka.stop()
                kills["broker"] += 1
                load.stopped.wait(dice.uniform(0, 2))
                kafka.start()
    follow.send_signal(signal.SIGTERM)
    follow.wait()
    codes = {words: lake(place, *words.split()).wait() for words in ("run", "verify")}
    records = kafka.committed(TOPIC)
    last = {record.key: record.value for record in records}
    there = {key: json.loads(value)["email"] for key, value in last.items() if value is not None}
    here = {row["id"]: row["email"] for row in house.table("customer")}
    return {
        "seconds": round(time.monotonic() - begun),
        "transactions": dict(zip(("committed", "aborted"), load.ended, strict=True)),
        "kills": kills,
        "batches": log.head().batch,
        "records": len(records),
        "missing or repeated": len(records) - log.head().events,
        "customers": len(there),
        "differences": len({*there.items()} ^ {*here.items()}),
        **codes,
        "folder": str(folder),
    }


def moved_on(log: Log, follow: subprocess.Popen[bytes], before: int) -> int:
    """Waits until `lake` has committed a batch since the last kill, or has ended; the newest by then."""
    until(lambda: follow.poll() is not None or log.head().batch > before)
    return log.head().batch


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=10, help="of either side, at least")
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headwater-workload-"))
    kafka = Kafka(folder / "kafka")
    try:
        kafka.start()
        done = run(kafka, folder, said)
    finally:
        kafka.stop()
    print(json.dumps(done, indent=1))
    return int(any(done[name] for name in ("missing or repeated", "differences", "run", "verify")))


if __name__ == "__main__":
    sys.exit(main())
