"""A database under load beside `lake run --follow`, both killed again and again: one answer at the end.

    python -m tests.workloads.postgres --minutes 10 --changes 1000000 --kills 20 --seed 1

Four programs change three tables: rows and keys, large values, deletes, truncates, rollbacks, savepoints, transactions
in two phases. Meanwhile SIGKILL takes, in turns, all processes of the server and all of `lake`, at a moment by chance.
In the end every table of the newest edition is the table of the database, row for row, and `lake verify` finds nothing.
Prints what was done as JSON; exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import os
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

import psycopg

from lake.testing import Lakehouse
from tests.kills import kill_with_children
from tests.processes import PATIENCE, until
from tests.servers.postgres import Postgres, binaries, home, remove
from tests.shop import HEAD, empty
from tests.sources.shop import UNAVAILABLE, VARIABLE, Shop
from tests.sources.writers import Connection, step
from tests.workloads.follow import FOLLOW, lake

WRITERS: Final = 4
ROWS: Final = 3000
SLOWLY: Final = 100.0
"""Changes a second, once there were as many as were asked for in the time given, while kills go on."""
TABLES: Final[dict[str, dict[str, str]]] = {
    "orders": {"id": "int", "name": "string", "price": "decimal(20, 4)", "at": "timestamp", "note": "string"},
    "lines": {"order_id": "int", "line": "int", "pieces": "int", "note": "string"},
    "people": {"id": "string", "email": "string", "tags": "texts", "raw": "bytes", "born": "date"},
}
KEYS: Final = {"orders": ["id"], "lines": ["order_id", "line"], "people": ["id"]}
LARGE: Final = {"orders": "note", "lines": "note", "people": "raw"}
TYPES: Final[dict[str, Any]] = {
    "decimal(20, 4)": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "date": {"type": "int", "logicalType": "date"},
    "texts": {"type": "array", "items": ["null", "string"]},
}
JOB: Final = '''
@table(
    Latest(
        {key}, sequence=("_lsn", "_ordinal"), deletes="_op = 'd'", truncate="_op = 't'", groups={{"_at": {large!r}}}
    ),
    log("{stream}"),
)
def {stream}_now(rows):
    """A row of the database's table."""
    said = "if({known}, null, lsn) AS _at"
    return rows.selectExpr({columns}, said, "lsn AS _lsn", "ordinal AS _ordinal", "op AS _op")
'''
WIDE: Final[list[bytes]] = [
    b"UPDATE orders SET name = %(text)s WHERE id BETWEEN %(from)s AND %(from)s + 150",
    b"UPDATE lines SET pieces = %(number)s WHERE order_id BETWEEN %(from)s AND %(from)s + 60",
    b"""INSERT INTO lines SELECT i, %(line)s, %(number)s, 'short' FROM generate_series(%(from)s, %(from)s + 60) i
        ON CONFLICT (order_id, line) DO UPDATE SET pieces = excluded.pieces""",
    b"DELETE FROM lines WHERE order_id BETWEEN %(from)s AND %(from)s + 20",
]


@dataclass
class Load:
    """The programs that write, `rate` changes a second; `changed` counts the rows that committed statements changed."""

    shop: Shop
    seed: int
    rate: float
    stopped: Event = field(default_factory=Event)
    changed: list[int] = field(default_factory=lambda: [0] * WRITERS)

    def __enter__(self) -> Load:
        self._threads = [Thread(target=self._work, args=(number,)) for number in range(WRITERS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int) -> None:
        dice = random.Random(self.seed * 100 + number)
        serial, due = 0, time.monotonic()
        while not self.stopped.is_set():
            with suppress(psycopg.Error), self.shop.connect(cursor_factory=psycopg.ClientCursor) as connection:
                resolved(connection, f"{number}.%")
                while not self.stopped.is_set():
                    serial += 1
                    with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                        changed = transaction(connection, dice, f"{number}.{serial}")
                        self.changed[number] += changed
                        due += changed * WRITERS / self.rate
                    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                        connection.execute("ROLLBACK")
                    self.stopped.wait(max(0.0, due - time.monotonic()))
            self.stopped.wait(0.2)


def transaction(connection: Connection, dice: random.Random, name: str) -> int:
    """One transaction; the rows that it changed, where it was committed."""
    values = {
        "from": dice.randint(1, ROWS),
        "line": dice.randint(4, 6),
        "number": dice.randint(-(10**9), 10**9),
        "text": dice.choice(["plain", "é 😀", None]),
    }
    connection.execute("BEGIN")
    changed = connection.execute(dice.choice(WIDE), values).rowcount
    for _ in range(dice.randint(0, 2)):
        step(connection, dice)
    match dice.choices(["COMMIT", "ROLLBACK", "PREPARE"], [85, 10, 5])[0]:
        case "PREPARE":
            connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
            end = dice.choice(["COMMIT", "ROLLBACK"])
            connection.execute(f"{end} PREPARED '{name}'".encode())
        case end:
            connection.execute(end.encode())
    return changed if end == "COMMIT" else 0


def resolved(connection: Connection, names: str) -> None:
    """Gives up the prepared transactions of such `names`: who prepared them has lost the connection."""
    for (name,) in connection.execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", [names]).fetchall():
        connection.execute(f"ROLLBACK PREPARED '{name}'".encode())


def project(folder: Path, slot: str) -> Lakehouse:
    """The project that follows the database."""
    settings = empty(folder / "shop")
    (settings.project / "sources").mkdir()
    streams = "".join(f'{table} = "public.{table}"\n' for table in TABLES)
    said = f'kind = "postgres"\ndsn = "env:{VARIABLE}"\npublication = "lake"\nslot = "{slot}"\n[streams]\n{streams}'
    (settings.project / "sources/shop.toml").write_text(said)
    for table, columns in TABLES.items():
        key, large = KEYS[table], LARGE[table]
        fields: list[dict[str, Any]] = []
        for name, kind in columns.items():
            avro = TYPES.get(kind, kind)
            fields.append({"name": name, "type": avro if name in key else ["null", avro]})
        for name, kind in (("op", "string"), ("lsn", "long"), ("ordinal", "long")):
            fields.append({"name": name, "type": kind, "from": name if name == "op" else f"source.{name}"})
        facts = {"key": key, "id": ["lsn", "ordinal"], "envelope": "debezium", "broadcast": "op = 't'"}
        schema = {"type": "record", "name": table, "doc": "A change.", "lake": facts, "fields": fields}
        (settings.project / f"schemas/{table}.avsc").write_text(json.dumps(schema, indent=1))
        text = f"cast({large} AS string)" if columns[large] == "bytes" else large
        unknown = sorted(UNAVAILABLE, key=len)[0]
        job = JOB.format(
            key=key, stream=table, large=large, known=f"{text} = '{unknown}'", columns=", ".join(map(repr, columns))
        )
        (settings.project / f"jobs/silver/{table}_now.py").write_text(HEAD + "\n" + job)
    return Lakehouse(settings.project, settings.project / ".lake")


def differences(shop: Shop, house: Lakehouse) -> dict[str, int]:
    """Rows of each table that are in one of the two alone."""
    found = {}
    for table, columns in TABLES.items():
        names = ", ".join(columns)
        rows = shop.query(f"SELECT {names} FROM {table}".replace("SELECT id,", "SELECT id::text,"))
        there = {tuple(map(str, row)) for row in rows}
        here = {tuple(str(row[name]) for name in columns) for row in house.table(f"{table}_now")}
        found[table] = len(there ^ here)
    return found


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20, help="of either side, at least")
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    binaries()
    server = Postgres(home())
    server.home.chmod(0o711)
    folder = Path(tempfile.mkdtemp(prefix="headwater-workload-"))
    try:
        server.start()
        done = run(server, folder, said)
    finally:
        server.stop()
        remove(server.home)
    print(json.dumps(done, indent=1))
    return int(any(done["differences"].values()) or done["run"] or done["verify"])


def run(server: Postgres, folder: Path, said: argparse.Namespace) -> dict[str, Any]:
    """The load, the kills, and what is found in the end."""
    shop = Shop(server, server.database())
    os.environ[VARIABLE] = shop.dsn
    prepared(shop)
    house = project(folder, shop.slot)
    place = house.source.project
    dice, kills, begun = random.Random(said.seed), {"server": 0, "lake": 0}, time.monotonic()
    follow = lake(place, *FOLLOW)
    with Load(shop, said.seed, 1.1 * said.changes / (said.minutes * 60)) as load:
        before = confirmed(shop)
        pause = said.minutes * 60 / (2 * said.kills + 2)
        while load.rate > SLOWLY or min(kills.values()) < said.kills:
            load.stopped.wait(pause * dice.uniform(0.5, 1.4))
            before = moved_on(shop, follow, before)
            if follow.poll() is not None:  # it has told that the server was away
                follow = lake(place, *FOLLOW)
            elif kills["lake"] <= kills["server"]:
                kills["lake"] += kill_with_children(follow)
                follow = lake(place, *FOLLOW)
            else:
                server.kill()
                kills["server"] += 1
            if time.monotonic() - begun >= said.minutes * 60 and sum(load.changed) >= said.changes:
                load.rate = SLOWLY
    took = time.monotonic() - begun
    kill_with_children(follow)
    with shop.connect() as connection:
        resolved(connection, "%")
    end = shop.query("SELECT pg_current_wal_flush_lsn()")[0][0]
    caught_up = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{shop.slot}'"
    last = lake(place, *FOLLOW)
    until(lambda: shop.query(caught_up) == [(True,)] or last.poll() is not None, seconds=3 * PATIENCE)
    last.send_signal(signal.SIGTERM)
    last.wait()
    codes = {words: lake(place, *words.split()).wait() for words in ("run", "verify")}
    return {
        "seconds": round(took),
        "changes": sum(load.changed),
        "kills": kills,
        "rows": {table: shop.query(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES},
        "differences": differences(shop, house),
        **codes,
        "folder": str(folder),
    }


def confirmed(shop: Shop) -> object:
    """How far the server was told that its changes are committed."""
    with suppress(psycopg.OperationalError):
        found = shop.query(f"SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{shop.slot}'")
        return found[0][0] if found else None
    return None


def moved_on(shop: Shop, follow: subprocess.Popen[bytes], before: object) -> object:
    """Waits until `lake` has committed something since the last kill, or has ended; what is confirmed by then."""
    until(lambda: follow.poll() is not None or confirmed(shop) != before)
    return confirmed(shop)


def prepared(shop: Shop) -> None:
    """The tables, with rows."""
    from tests.sources.writers import made

    made(shop)
    shop.execute(
        f"INSERT INTO orders SELECT i, 'order ' || i, i / 7.0, now(), 'short' FROM generate_series(50, {ROWS + 200}) i",
        f"INSERT INTO lines SELECT i, 4, i, 'short' FROM generate_series(1, {ROWS + 200}) i",
    )


if __name__ == "__main__":
    sys.exit(main())
