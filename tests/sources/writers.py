"""Two programs that write to a database at once, at random: changes of rows and keys, rollbacks, savepoints."""

from __future__ import annotations

import random
from contextlib import suppress
from threading import Thread
from types import TracebackType
from typing import Final

import psycopg
from psycopg import errors

from tests.sources.shop import Shop

TABLES: Final = {"orders": ("id",), "lines": ("order_id", "line"), "people": ("id",)}
"""The tables and their keys."""
KEYS: Final = 40
Connection = psycopg.Connection[tuple[object, ...]]


def made(shop: Shop) -> None:
    """Create the tables, some rows and their streams; large values are stored out of line."""
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text, price numeric(20, 4), at timestamptz, note text)",
        "CREATE TABLE lines (order_id int, line int, pieces int, note text, PRIMARY KEY (order_id, line))",
        "CREATE TABLE people (id uuid PRIMARY KEY, email text UNIQUE NOT NULL, tags text[], raw bytea, born date)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        "ALTER TABLE lines ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL",
        "ALTER TABLE people ALTER raw SET STORAGE EXTERNAL",
        "CREATE PUBLICATION lake FOR TABLE orders, lines, people",
        f"""INSERT INTO orders
            SELECT i, 'order ' || i, i / 7.0, now(), repeat('x', 5000) FROM generate_series(1, {KEYS}) i""",
    )
    streams(shop)


def streams(shop: Shop) -> None:
    """Declare the streams of the tables."""
    shop.stream("orders", ["id"], {"id": "int", "name": "string", "note": "string"})
    shop.stream("lines", ["order_id", "line"], {"order_id": "int", "line": "int", "note": "string"})
    shop.stream("people", ["id"], {"id": "string", "email": "string", "raw": "bytes"})


class Writers:
    """Two connections that run `transactions` transactions each, until the block ends or all are done."""

    def __init__(self, shop: Shop, seed: int, *, transactions: int, writers: int = 2) -> None:
        self._shop, self._transactions, self._stopped = shop, transactions, False
        self._faults: list[BaseException] = []
        self._threads = [Thread(target=self._work, args=(seed * 10 + number,)) for number in range(writers)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self.join()

    @property
    def at_work(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        """Wait until all have ended; raise the error of one."""
        for thread in self._threads:
            thread.join()
        for fault in self._faults:
            raise fault

    def _work(self, seed: int) -> None:
        dice = random.Random(seed)
        try:
            with self._shop.connect(cursor_factory=psycopg.ClientCursor) as connection:
                for number in range(self._transactions):
                    if self._stopped:
                        return
                    transaction(connection, dice, f"{seed}.{number}")
        except BaseException as fault:
            self._faults.append(fault)


def transaction(connection: Connection, dice: random.Random, name: str) -> None:
    """Run a transaction and commit it, roll it back, or end it in two phases; roll it back on a conflict."""
    with suppress(errors.DeadlockDetected, errors.UniqueViolation):
        try:
            connection.execute("BEGIN")
            for _ in range(dice.randint(1, 8)):
                step(connection, dice)
            end = dice.random()
            if end < 0.75:
                connection.execute("COMMIT")
            elif end < 0.9:
                connection.execute("ROLLBACK")
            else:
                connection.execute(f"PREPARE TRANSACTION '{name}'".encode())
                connection.execute(f"{dice.choice(['COMMIT', 'ROLLBACK'])} PREPARED '{name}'".encode())
        finally:
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                connection.execute("ROLLBACK")


def step(connection: Connection, dice: random.Random) -> None:
    """Run one statement, or some within a savepoint that may be rolled back."""
    if dice.random() < 0.15:
        connection.execute("SAVEPOINT inner_part")
        for _ in range(dice.randint(1, 3)):
            statement(connection, dice)
        connection.execute(dice.choice([b"ROLLBACK TO inner_part", b"RELEASE inner_part"]))
    else:
        statement(connection, dice)


def statement(connection: Connection, dice: random.Random) -> None:
    sql = dice.choices([sql for sql, _ in STATEMENTS], [weight for _, weight in STATEMENTS])[0]
    values = {
        "id": dice.randint(1, KEYS),
        "other": dice.randint(1, KEYS),
        "line": dice.randint(1, 3),
        "number": dice.randint(-(10**9), 10**9),
        "text": dice.choice(['plain "quoted"\n\\', "é 😀", "", "x" * 3000, None]),
        "large": dice.choice("abc") * dice.randint(2500, 9000),
        "uuid": f"00000000-0000-4000-8000-{dice.randint(1, KEYS):012d}",
    }
    connection.execute(sql, values)


STATEMENTS: Final[list[tuple[bytes, int]]] = [
    (
        b"""INSERT INTO orders VALUES (%(id)s, %(text)s, %(number)s / 10000.0, clock_timestamp(), %(large)s)
            ON CONFLICT (id) DO UPDATE SET name = excluded.name, price = excluded.price""",
        8,
    ),
    (b"UPDATE orders SET name = %(text)s WHERE id BETWEEN %(id)s AND %(id)s + 3", 6),
    (b"UPDATE orders SET note = %(large)s WHERE id = %(id)s", 2),
    (b"UPDATE orders SET id = -id, note = %(large)s WHERE id = %(id)s", 2),  # A key and a large value at once
    (b"DELETE FROM orders WHERE id IN (%(id)s, %(other)s, -%(other)s)", 3),
    (
        b"""INSERT INTO lines SELECT %(id)s, line, %(number)s, %(large)s FROM generate_series(1, %(line)s) line
            ON CONFLICT (order_id, line) DO UPDATE SET pieces = excluded.pieces""",
        6,
    ),
    (b"UPDATE lines SET order_id = order_id + 1000 WHERE order_id = %(id)s", 3),  # Its large value is unchanged
    (b"UPDATE lines SET pieces = pieces + 1 WHERE line = %(line)s AND order_id < %(id)s", 2),
    (b"DELETE FROM lines WHERE order_id IN (%(id)s, %(id)s + 1000)", 3),
    (
        b"""INSERT INTO people VALUES (%(uuid)s, %(uuid)s || '@x', ARRAY[%(text)s, NULL], convert_to(%(large)s, 'UTF8'),
            date '2000-01-01' + %(id)s) ON CONFLICT (id) DO UPDATE SET tags = people.tags || 'again'::text""",
        5,
    ),
    (b"UPDATE people SET born = born + 1 WHERE id < %(uuid)s", 2),
    (b"DELETE FROM people WHERE id = %(uuid)s", 2),
    (b"TRUNCATE lines", 1),
]
