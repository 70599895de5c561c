"""The example project fed by a Kafka broker: `make demo S=kafka`, `python -m infra.kafka.demo [--days N] [--compare]`.

Publishes the records of infra/flights.py to a topic for each stream, a transaction for each landing file, keyed as the
contracts are. Every third transaction is sent once before and aborted. Then `lake run` takes the topics into the logs
of a project in --home (default .lake/kafka-demo), which has nothing else, and builds and publishes its tables.

With --compare the same records go into a second project as files, and each table has to have the same fingerprint.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from infra.server import KAFKA
from lake.config import load_settings
from lake.store.ledger.editions import current_edition

ROOT: Final = Path(__file__).parents[2]
ABORTED: Final = 3
START_SECONDS: Final = 60
QUIET: Final = {"log_level": 0, "linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": 1_000_000}


def main() -> None:
    """Reads the command line, publishes, and runs the project."""
    parser = argparse.ArgumentParser(description="The example project fed by a Kafka broker.")
    parser.add_argument("--days", type=int, default=366, help="UTC days from 2013-01-01 (default: all)")
    parser.add_argument("--home", type=Path, default=ROOT / ".lake/kafka-demo", help="folder of what is made")
    parser.add_argument("--partitions", type=int, default=8, help="partitions of each topic (default: 8)")
    parser.add_argument("--port", type=int, default=9192, help="port of the broker, and the next (default: 9192)")
    parser.add_argument("--compare", action="store_true", help="demand the tables that files give")
    given = parser.parse_args()
    home = given.home.absolute()
    shutil.rmtree(home, ignore_errors=True)
    landing = home / "files/landing"
    subprocess.run([sys.executable, ROOT / "infra/flights.py", landing, "--days", str(given.days)], check=True)
    with broker(home / "broker", given.port) as bootstrap:
        streams = sorted(folder.name for folder in landing.iterdir())
        for stream in streams:
            publish(stream, landing / stream, bootstrap, given.partitions)
        by_kafka = project(home / "by-kafka", sources={"shop": source(streams, bootstrap)})
        run(by_kafka)
    if given.compare:
        by_files = project(home / "files")
        run(by_files)
        compare(fingerprints(by_kafka), fingerprints(by_files))
    else:
        lake(by_kafka, "sql", "select * from carrier_league order by rank")


@contextmanager
def broker(home: Path, port: int) -> Iterator[str]:
    """A broker of this demonstration; where it listens."""
    command = [sys.executable, "-m", KAFKA.run, "--home", home, "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        try:
            end = time.monotonic() + START_SECONDS
            while not listens(port):
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"demo: the broker did not start; see {home}")
                time.sleep(0.1)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def listens(port: int) -> bool:
    """Return whether a broker listens there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def publish(stream: str, folder: Path, bootstrap: str, partitions: int) -> None:
    """Send the files of a stream to its topic, in the order of their names, and print it."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stub forgets it

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(stream, partitions, 1)])[stream].result(timeout=START_SECONDS)
    key = json.loads((ROOT / f"schemas/{stream}.avsc").read_text("utf-8"))["lake"]["key"]
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"demo-{stream}", **QUIET})
    producer.init_transactions(START_SECONDS)
    sent = aborted = 0
    for number, file in enumerate(sorted(folder.iterdir())):
        for attempt in ("abort", "commit") if number % ABORTED == 0 else ("commit",):
            producer.begin_transaction()
            for line in lines(file):
                producer.produce(stream, line, key=key_of(line, key))
                sent, aborted = sent + (attempt == "commit"), aborted + (attempt == "abort")
            if attempt == "abort":
                producer.flush(START_SECONDS)  # what is aborted is to be in the topic
                producer.abort_transaction(START_SECONDS)
            else:
                producer.commit_transaction(START_SECONDS)
    print(f"{stream:<9}{sent:>8,} records committed, {aborted:>8,} aborted")


def lines(file: Path) -> Iterator[str]:
    """The records of a file as JSON."""
    if file.suffix == ".parquet":
        yield from (json.dumps(row) for row in pq.read_table(file).to_pylist())
    elif file.suffix == ".csv":
        with file.open(encoding="utf-8", newline="") as text:
            yield from (json.dumps(row) for row in csv.DictReader(text))
    else:
        yield from file.read_text("utf-8").splitlines()


def key_of(line: str, names: list[str]) -> str:
    """The key of a record; of one that cannot be read, none."""
    try:
        record = json.loads(line)
    except ValueError:
        return ""
    return "|".join(str(record.get(name)) for name in names)


def source(streams: list[str], bootstrap: str) -> str:
    """The file of a source of these topics."""
    tables = "".join(f'{stream} = {{ topic = "{stream}" }}\n' for stream in streams)
    return f'kind = "kafka"\nbootstrap = "{bootstrap}"\n\n[streams]\n{tables}'


def project(folder: Path, sources: Mapping[str, str] | None = None) -> Path:
    """A project with the contracts, jobs and expectations of the example."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text("[tool.lake]\n")
    for name in ("schemas", "jobs", "quality"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in (sources or {}).items():
        (folder / "sources").mkdir(exist_ok=True)
        (folder / f"sources/{name}.toml").write_text(text)
    return folder


def run(folder: Path) -> None:
    """Bring a project's tables up to date, and print the seconds."""
    begun = time.monotonic()
    lake(folder, "run")
    print(f"{folder.name}: {time.monotonic() - begun:.1f} s", flush=True)


def lake(folder: Path, *words: str) -> None:
    """A command of the project in `folder`."""
    command = [Path(sys.executable).with_name("lake"), *words, "--project", folder]
    subprocess.run(command, check=True, env=os.environ)


def fingerprints(folder: Path) -> dict[str, Any]:
    """Return the fingerprint of each published table."""
    edition = current_edition(load_settings(folder))
    return {} if edition is None else {name: entry.fingerprint for name, entry in sorted(edition.tables.items())}


def compare(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Print whether each table is the same; exit with 1 if one is not."""
    for name, fingerprint in wanted.items():
        print(f"{name:<22}{fingerprint}  {'the same' if found.get(name) == fingerprint else found.get(name)}")
    print(f"{len(wanted)} tables")
    sys.exit(not wanted or found != wanted)


if __name__ == "__main__":
    main()
