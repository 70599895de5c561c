"""Repeated kills of the reader and the server under load: every change is delivered once, in order."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lake.contracts.declared_files import FromEnvironment
from lake.errors import Unavailable
from lake.sources.source import Progress, SourceRecord
from tests.processes import ROOT, until
from tests.servers.postgres import Postgres, binaries, home, remove
from tests.sources.conftest import new_database
from tests.sources.shop import VARIABLE, Shop, Spooled, State, order, replay
from tests.sources.writers import TABLES
from tests.workloads.postgres import Load, prepared, resolved

pytestmark = pytest.mark.postgres  # It kills a separate server
KILLS = 8


def deliveries(folder: Path) -> list[Path]:
    """Return the committed deliveries, oldest first."""
    return sorted(folder.glob("*.json"), key=lambda file: int(file.stem))


def read_on(folder: Path, shop: Shop, seed: int) -> None:
    """Read, commit by one rename and acknowledge, until the process is killed."""
    dice = random.Random(seed)
    tables = {table: f"public.{table}" for table in TABLES}
    said = {"dsn": FromEnvironment(os.environ[VARIABLE]), "publication": "lake", "slot": shop.slot, "streams": tables}
    while True:
        committed = deliveries(folder)
        after: Progress | None = json.loads(committed[-1].read_text())["progress"] if committed else None
        source = shop.source(tables, **said, changes=dice.randint(1, 3000))
        with suppress(Unavailable):
            if after is not None:
                source.acknowledge(after)
            spool = Spooled()
            progress = source.read(after, spool)
            if progress is not None:
                records = [[stream, record.text, record.place] for stream, record in spool.records]
                new = folder / "new"
                new.write_text(json.dumps({"progress": progress, "records": records}))
                new.rename(folder / f"{len(committed) + 1}.json")
                source.acknowledge(progress)
        source.close()
        time.sleep(0.01)


def reader(folder: Path, shop: Shop, seed: int) -> subprocess.Popen[bytes]:
    program = (
        "import sys; from pathlib import Path; from tests.sources import test_postgres_kills as t;"
        "from tests.sources.shop import Shop; from tests.sources.writers import streams;"
        "shop = Shop(None, sys.argv[2]); streams(shop); t.read_on(Path(sys.argv[1]), shop, int(sys.argv[3]))"
    )
    command = [sys.executable, "-c", program, str(folder), shop.dsn, str(seed)]
    return subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_postgres_delivers_every_change_once_when_reader_or_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries()
    server = Postgres(home())
    server.home.chmod(0o711)
    folder, dice, kills = tmp_path / "log", random.Random(1), {"reader": 0, "server": 0}
    folder.mkdir()
    try:
        server.start()
        shop = new_database(server, monkeypatch)
        prepared(shop)
        process = reader(folder, shop, 0)
        until(lambda: bool(deliveries(folder)))
        with Load(shop, 1, 3000) as load:
            while min(kills.values()) < KILLS:
                seen = len(deliveries(folder))
                until(lambda seen=seen: len(deliveries(folder)) > seen)  # type: ignore[misc] # what it was by then
                load.stopped.wait(dice.uniform(0, 0.5))
                if kills["reader"] <= kills["server"]:
                    process.kill()
                    process.wait()
                    kills["reader"] += 1
                    process = reader(folder, shop, kills["reader"])
                else:
                    server.kill()
                    kills["server"] += 1
        with shop.connect() as connection:
            resolved(connection, "%")
        shop.execute("INSERT INTO orders VALUES (-1000)")
        last = json.dumps('"id":-1000,').strip('"')
        until(lambda: last in deliveries(folder)[-1].read_text())
        process.kill()
        process.wait()
        committed = [json.loads(file.read_text()) for file in deliveries(folder)]
        records = [(stream, SourceRecord(text, place)) for one in committed for stream, text, place in one["records"]]
        assert sum(load.changed) > 10_000
        assert len({(stream, record.place) for stream, record in records}) == len(records)
        for table in TABLES:
            places = [order(record) for stream, record in records if stream == table]
            assert places == sorted(places)
        froms, tos = ([one["progress"][end] for one in committed] for end in ("from", "to"))
        assert froms[1:] == tos[:-1]
        state = replay(records, shop.contracts, State())
        assert {table: state[table] == shop.table(table, key) for table, key in TABLES.items()} == dict.fromkeys(
            TABLES, True
        )
    finally:
        server.stop()
        remove(server.home)
