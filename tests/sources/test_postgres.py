"""PostgreSQL source against a real server: a plain replay of the messages equals the table."""

from __future__ import annotations

import json
import random
import tracemalloc
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest

from lake.connect.postgres.source import reader
from lake.connect.postgres.source.messages import TRUNCATE, read_lsn
from lake.sources.source import Progress
from tests.servers.postgres import Postgres
from tests.sources.shop import Shop, Spooled, State, drained, exported, is_rewritten, order, read, replay, rows
from tests.sources.writers import TABLES, Writers, made

LARGE = "repeat(md5(random()::text), 200)"
"""More than fits into a row: it is kept beside the table, and an update that does not touch it does not send it."""


def orders(shop: Shop) -> None:
    """Create a table and its stream."""
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text, price numeric(12, 2), note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        "CREATE PUBLICATION lake FOR TABLE orders",
    )
    fields = {"id": "int", "name": "string", "price": "double", "note": "string"}
    shop.stream("orders", ["id"], fields)


def after(progress: Progress | None) -> Progress:
    assert progress is not None
    found: Progress = json.loads(json.dumps(progress))
    return found


@pytest.mark.smoke
def test_postgres_reads_every_operation(shop: Shop) -> None:
    orders(shop)
    shop.execute(f"INSERT INTO orders SELECT i, 'n' || i, i / 3.0, {LARGE} FROM generate_series(1, 9) i")
    source, copy = shop.source(), Spooled()
    begun = after(source.read(None, copy))
    assert [message["op"] for message in copy.messages()] == ["r"] * 9
    assert replay(copy.records, shop.contracts, {})["orders"] == shop.table("orders")
    shop.execute(
        "BEGIN; INSERT INTO orders VALUES (10, 'ten', 1.10, 'x'); UPDATE orders SET name = 'TEN' WHERE id = 10; COMMIT",
        "UPDATE orders SET name = 'two' WHERE id = 2",
        "DELETE FROM orders WHERE id = 3",
        "UPDATE orders SET id = 40, note = 'new' WHERE id = 4",
        "BEGIN; UPDATE orders SET name = 'never'; ROLLBACK",
        "BEGIN; SAVEPOINT a; DELETE FROM orders; ROLLBACK TO a; INSERT INTO orders VALUES (11); COMMIT",
        "BEGIN; INSERT INTO orders VALUES (12); PREPARE TRANSACTION 'twelve'",
        "BEGIN; INSERT INTO orders VALUES (13); PREPARE TRANSACTION 'thirteen'",
        "COMMIT PREPARED 'twelve'",
        "ROLLBACK PREPARED 'thirteen'",
        "ALTER TABLE orders ADD more jsonb",
        """INSERT INTO orders VALUES (14, 'a "quoted" name\n', 'NaN', NULL, '{"a": [1.50]}')""",
        "SELECT pg_logical_emit_message(true, 'lake', 'of no table')",
    )
    changes = Spooled()
    progress = after(source.read(begun, changes))
    ops = [message["op"] for message in changes.messages()]
    assert ops == ["c", "u", "u", "d", "d", "c", "c", "c", "c"]
    two = next(message for message in changes.messages() if message["op"] == "u" and message["after"]["id"] == 2)
    assert two["after"]["note"] == "__debezium_unavailable_value"
    assert two["before"] is None
    assert changes.messages()[3]["before"] == {"id": 3}
    state = replay(changes.records, shop.contracts, replay(copy.records, shop.contracts, {}))
    table = shop.table("orders")
    table[(14,)] |= {"price": "NaN", "more": '{"a": [1.50]}'}
    assert {key: {"more": None} | row for key, row in state["orders"].items()} == table
    source.acknowledge(progress)
    shop.execute("TRUNCATE orders", "ALTER TABLE orders REPLICA IDENTITY FULL", "INSERT INTO orders VALUES (1, 'a')")
    shop.execute("UPDATE orders SET name = 'b'", "DELETE FROM orders")
    last = Spooled()
    drained(source, progress, last)
    assert [message["op"] for message in last.messages()] == ["t", "c", "u", "d"]
    assert [message["before"] and message["before"]["name"] for message in last.messages()] == [None, None, "a", "b"]
    places = [order(record) for spool in (copy, changes, last) for _, record in spool.records]
    assert places == sorted(places)
    names = [record.place for spool in (copy, changes, last) for _, record in spool.records]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("seed", range(3))
def test_postgres_replays_two_writers_at_any_boundary(shop: Shop, seed: int) -> None:
    """Deliveries are of random size, some are read twice, and some positions are read by others too."""
    made(shop)
    dice = random.Random(seed)
    source, spool, state = shop.source(), Spooled(), State()
    place: Progress = after(source.read(None, spool))
    replay(spool.records, shop.contracts, state)
    everything, seen, compared = list(spool.records), set[int](), 0
    with Writers(shop, seed, transactions=400) as writers:
        while writers.at_work or (at_end := source.read(place, Spooled())) is not None:
            source.options = replace(source.options, changes=dice.randint(1, 200))
            delivery = Spooled()
            if dice.random() < 0.2:
                with exported(shop, f"looked_{seed}", TABLES) as (lsn, connection):
                    progress: Progress | None = source.read_upto(place, f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}", delivery)
                    replay(delivery.records, shop.contracts, state)
                    for table, key in TABLES.items():
                        if not is_rewritten(connection, table):
                            assert state.get(table, {}) == rows(connection, table, key)
                            compared += 1
            else:
                progress = source.read(place, delivery)
                if dice.random() < 0.3:  # The first was not acknowledged
                    again = Spooled()
                    source.read(place, again)
                    for table in TABLES:
                        first = delivery.messages(table)
                        assert again.messages(table)[: len(first)] == first
                replay(delivery.records, shop.contracts, state)
            transactions = {message["source"]["txId"] for message in delivery.messages()}
            assert not transactions & seen, "a transaction is split"
            seen |= transactions
            everything += delivery.records
            if progress is not None:
                place = after(progress)
                if dice.random() < 0.7:
                    source.acknowledge(place)
    assert at_end is None
    assert compared > 15
    for table, key in TABLES.items():
        assert state[table] == shop.table(table, key), table
    dice.shuffle(everything)
    placed = sorted(everything, key=lambda record: order(record[1]))
    assert replay(placed, shop.contracts, {}) == state
    assert len({(of, record.place) for of, record in everything}) == len(everything)


def test_large_transaction_is_one_delivery(shop: Shop) -> None:
    orders(shop)
    source = shop.source(changes=1000)
    begun = after(source.read(None, Spooled()))
    shop.execute(
        "INSERT INTO orders VALUES (0)",
        "INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 100000) i",
        "INSERT INTO orders VALUES (-1)",
    )
    first, second = Spooled(), Spooled()
    place = after(source.read(begun, first))
    assert source.more
    place = after(source.read(place, second))
    assert not source.more
    found = [[message["after"]["id"] for message in spool.messages()] for spool in (first, second)]
    assert found == [[*range(100_001)], [-1]]
    ordinals = [message["source"]["ordinal"] for message in first.messages()]
    assert ordinals == [1, *range(1, 100_001)]


def test_postgres_memory_does_not_grow_with_a_transaction(shop: Shop) -> None:
    """Memory grows neither with its rows nor with their size; nor with a table that is copied."""

    class Sink(Spooled):
        size = 0

        def put_many(self, stream: str, texts: Any, places: Any, facts: Any) -> None:
            self.size += texts.nbytes

    orders(shop)
    shop.execute("INSERT INTO orders SELECT i, repeat(md5(i::text), 1000) FROM generate_series(1, 3000) i")
    source, copy, stream = shop.source(changes=10), Sink(), Sink()
    tracemalloc.start()
    try:
        place = after(source.read(None, copy))
        shop.execute("UPDATE orders SET name = name || 'x'")
        source.read(place, stream)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert min(copy.size, stream.size) > 90_000_000
    assert peak < 40_000_000


def test_new_stream_is_copied_at_the_position_of_the_others(shop: Shop) -> None:
    """Writers are active; at the end of that delivery, all tables are as of one position."""
    made(shop)
    tables = {name: f"public.{name}" for name in TABLES}
    some = dict(list(tables.items())[:1])
    source, state = shop.source(some), State()
    with Writers(shop, 7, transactions=150) as writers:
        spool = Spooled()
        place = after(source.read(None, spool))
        replay(spool.records, shop.contracts, state)
        source.close()
        source = shop.source(tables)
        spool = Spooled()
        while not all(place["tables"].get(name) for name in tables):
            delivery = Spooled()
            place = after(source.read(place, delivery))
            spool.records += delivery.records
        replay(spool.records, shop.contracts, state)
        new = tables.keys() - some.keys()
        copied = {name for name, record in spool.records if read(record)["op"] == "r"}
        assert copied <= new  # a writer may have no row yet in one of them
        assert {entry["since"] for name, entry in place["tables"].items() if name in new} == {place["to"]}
        writers.join()
    last = Spooled()
    drained(source, place, last)
    replay(last.records, shop.contracts, state)
    for table, key in TABLES.items():
        assert state[table] == shop.table(table, key)


def test_repeated_copy_reports_missing_rows_and_is_exact(shop: Shop) -> None:
    """Rows of a drifted state, and a default for a new column of all rows."""
    made(shop)
    source, spool, state = shop.source(), Spooled(), State()
    place = after(source.read(None, spool))
    replay(spool.records, shop.contracts, state)
    state["orders"][(-1,)] = {"id": -1}
    with Writers(shop, 3, transactions=100) as writers:
        shop.execute("ALTER TABLE orders ADD stars int DEFAULT 5")
        place = source.copy_again(place, ["orders"])
        while place["tables"]["orders"]["since"] is None:
            delivery = Spooled()
            place = after(source.read(place, delivery))
            replay(delivery.records, shop.contracts, state)
        [gone] = [message for message in delivery.messages("orders") if message["source"]["ordinal"] == TRUNCATE]
        assert (gone["op"], gone["source"]["lsn"]) == ("t", read_lsn(place["to"]))
        writers.join()
    last = Spooled()
    drained(source, place, last)
    replay(last.records, shop.contracts, state)
    for table, key in TABLES.items():
        assert state[table] == shop.table(table, key)


def test_rows_at_a_position_equal_those_of_the_log(shop: Shop) -> None:
    made(shop)
    source, spool, state = shop.source(), Spooled(), State()
    place = after(source.read(None, spool))
    replay(spool.records, shop.contracts, state)
    other = shop.source()
    with Writers(shop, 5, transactions=200) as writers:
        for _ in range(4):
            for table in TABLES:
                with other.rows(table) as found:
                    delivery = Spooled()
                    place = after(source.read_upto(place, found.lsn, delivery))
                    assert place["to"] == found.lsn
                    replay(delivery.records, shop.contracts, state)
                    there = replay(((table, record) for record in found.records), shop.contracts, {})
                    assert there.get(table, {}) == state.get(table, {})
        writers.join()


def test_first_read_is_repeated_after_a_crash(shop: Shop) -> None:
    orders(shop)
    shop.execute("INSERT INTO orders SELECT i FROM generate_series(1, 100) i")

    class Full(Spooled):
        def put(self, stream: str, record: Any) -> None:
            if len(self.records) == 50:
                raise OSError("No space left on device")
            super().put(stream, record)

    source = shop.source()
    with pytest.raises(OSError, match="No space"):
        source.read(None, Full())
    shop.execute("INSERT INTO orders VALUES (101)")
    spool = Spooled()
    place = drained(source, None, spool)
    assert replay(spool.records, shop.contracts, {})["orders"].keys() == shop.table("orders").keys()
    assert len(spool.records) == 101
    assert shop.query("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(1,)]
    assert place is not None


def test_excluded_stream_is_copied_again_when_it_returns(shop: Shop) -> None:
    made(shop)
    spool, state = Spooled(), State()
    place = after(shop.source().read(None, spool))
    some = {name: f"public.{name}" for name in TABLES if name != "orders"}
    shop.execute("UPDATE orders SET name = 'unseen' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    shop.execute("INSERT INTO lines VALUES (1, 1, 1, 'a')")
    place = after(drained(shop.source(some), place, spool))
    drained(shop.source(), place, spool)
    for table, key in TABLES.items():
        assert replay(spool.records, shop.contracts, state).get(table, {}) == shop.table(table, key)
        state.clear()


def test_postgres_changes_begin_with_the_slot_without_a_copy(shop: Shop) -> None:
    orders(shop)
    shop.execute("INSERT INTO orders VALUES (1)")
    source, spool = shop.source(snapshot=False), Spooled()
    place = after(source.read(None, spool))
    assert spool.records == []
    shop.execute("UPDATE orders SET name = 'one'", "INSERT INTO orders VALUES (2)")
    place = after(drained(source, place, spool))
    assert [(message["op"], message["after"]["id"]) for message in spool.messages()] == [("u", 1), ("c", 2)]
    shop.execute("CREATE TABLE more (id int PRIMARY KEY)", "INSERT INTO more VALUES (1)")
    shop.execute("ALTER PUBLICATION lake ADD TABLE more")
    shop.stream("more", ["id"], {"id": "int"})
    source, spool = shop.source(snapshot=False), Spooled()
    place = after(drained(source, place, spool))
    shop.execute("INSERT INTO more VALUES (2)")
    drained(source, place, spool)
    assert [(message["op"], message["after"]["id"]) for message in spool.messages()] == [("c", 2)]


def test_postgres_lag_counts_the_changes_to_be_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    orders(shop)
    source = shop.source()
    place = drained(source, None, Spooled())
    assert source.lag(after(place)).events == 0
    shop.execute("CREATE TABLE others AS SELECT generate_series(1, 100) i")
    assert source.lag(after(place)).events == 0
    for number in range(3):
        shop.execute(f"INSERT INTO orders (id) SELECT i FROM generate_series({number}00 + 1000, {number}00 + 1099) i")
    lag = source.lag(after(place))
    assert (lag.events, lag.at_least) == (300, False)
    monkeypatch.setattr(reader, "COUNTED_MESSAGES", 150)
    lag = source.lag(after(place))
    assert (lag.events, lag.at_least) == (200, True)
    monkeypatch.setattr(reader, "COUNT_TIME", timedelta(milliseconds=1))
    monkeypatch.setattr(reader, "COUNTED_MESSAGES", 10**9)
    assert source.lag(after(place)).events in {300, None}
    spool = Spooled()
    caught_up = drained(source, after(place), spool)
    assert len(spool.records) == 300
    assert source.lag(after(caught_up)).events == 0


def test_postgres_position_advances_once_a_minute_without_relevant_changes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or after many bytes of the log."""
    orders(shop)
    source = shop.source()
    place = after(source.read(None, Spooled()))
    source.acknowledge(place)
    shop.execute("CREATE TABLE others AS SELECT generate_series(1, 20000) i", "CHECKPOINT")
    assert source.read(place, Spooled()) is None
    kept = source.lag(place).retained
    earlier = {**place, "at": "2020-01-01T00:00:00.000000+00:00"}
    spool = Spooled()
    moved = after(source.read(earlier, spool))
    assert spool.records == []
    assert (moved["from"], read_lsn(moved["to"]) > read_lsn(place["to"])) == (place["to"], True)
    source.acknowledge(moved)
    now = source.lag(moved)
    assert kept is not None
    assert now.retained is not None
    assert now.retained < kept / 10
    assert now.events == 0
    monkeypatch.setattr(reader, "IDLE_BYTES", 100_000)
    assert source.read(moved, Spooled()) is None
    shop.execute("INSERT INTO others SELECT generate_series(1, 20000) i")
    assert after(source.read(moved, Spooled()))["from"] == moved["to"]


def test_crashed_server_resends_acknowledged_changes_that_are_read_once(postgres: Postgres, shop: Shop) -> None:
    """The slot's position reaches the server's disk only at its next checkpoint; the source's position follows the log
    alone.
    """
    orders(shop)
    source, spool = shop.source(changes=10), Spooled()
    place = after(drained(source, None, spool))
    for number in range(100):
        shop.execute(f"INSERT INTO orders VALUES ({number})")
    place = after(drained(source, place, spool))
    postgres.crash()
    shop.execute("INSERT INTO orders VALUES (100)")
    drained(source, place, spool)
    assert [message["after"]["id"] for message in spool.messages()] == [*range(101)]


def test_postgres_reads_quoted_names_partitions_and_row_filters(shop: Shop) -> None:
    shop.execute(
        'CREATE SCHEMA "My Shop"',
        'CREATE TABLE "My Shop"."Order" ("Id" int PRIMARY KEY, "a ""b""" text)',
        "CREATE TABLE parts (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE few (id int PRIMARY KEY, name text, secret text, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        """CREATE PUBLICATION "La ke" FOR TABLE "My Shop"."Order", parts, few (id, name) WHERE (id > 5)
           WITH (publish_via_partition_root)""",
        'GRANT USAGE ON SCHEMA "My Shop" TO lake',
        'GRANT SELECT ON ALL TABLES IN SCHEMA "My Shop" TO lake',
        """INSERT INTO "My Shop"."Order" VALUES (1, '"')""",
        "INSERT INTO parts VALUES (1, 'a'), (11, 'b')",
        "INSERT INTO few VALUES (1, 'a', 's'), (6, 'b', 's')",
    )
    shop.stream("ordered", ["Id"], {"Id": "int"})
    shop.stream("parts", ["id"], {"id": "int", "name": "string"})
    shop.stream("few", ["id"], {"id": "int", "name": "string"})
    tables = {"ordered": "My Shop.Order", "parts": "public.parts", "few": "public.few"}
    source, spool = shop.source(tables, publication="La ke"), Spooled()
    place = after(source.read(None, spool))
    shop.execute(
        'UPDATE "My Shop"."Order" SET "a ""b""" = \'c\'',
        "UPDATE parts SET id = 12 WHERE id = 1",
        "UPDATE few SET id = 7 WHERE id = 1",
        "UPDATE few SET id = 2 WHERE id = 6",
    )
    drained(source, place, spool)
    state = replay(spool.records, shop.contracts, {})
    assert state["ordered"] == {(1,): {"Id": 1, 'a "b"': "c"}}
    assert state["parts"] == shop.table("parts")
    assert state["few"] == {(7,): {"id": 7, "name": "a"}}


def test_postgres_values_of_every_type_are_exact(shop: Shop) -> None:
    """The copy and the stream write a value alike."""
    shop.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN cents AS numeric(30, 2)",
        """CREATE TABLE kinds (id int PRIMARY KEY, small int2, big int8, exact numeric, money cents, f float8, r float4,
           yes bool, t text, v varchar(9), c char(5), raw bytea, d date, ts timestamp, tz timestamptz, tod time,
           span interval, doc jsonb, u uuid, m mood, ints int[], texts text[], moods mood[], cash cents[], days date[],
           spot point, ip inet, bits bit(3))""",
        "CREATE PUBLICATION lake FOR ALL TABLES",
    )
    values = """32767, -9223372036854775808, 12345678901234567890123456789.000000000123, 0.10, 0.1, 1e-7, true,
        E'tab\\t nl\\n back\\\\ quote" \\u00e9 \\U0001F600', 'vv', 'ab', '\\x00ff10', '2024-02-29',
        '2024-02-29 12:34:56.000001', '2024-06-30 23:59:59.999999+02', '12:34:56.7', '1 day 2 hours',
        '{"b": 1.10, "a": [null]}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'ok', '{1,NULL,-3}',
        ARRAY['a,b', NULL, 'NULL', '{"}', ''], '{sad,ok}', '{0.10,2.00}', '{2024-02-29}', '(1,2.5)', '10.0.0.1',
        B'101'"""
    nulls = ", ".join(["NULL"] * 27)
    shop.execute(f"INSERT INTO kinds VALUES (1, {values}), (2, {nulls})")
    shop.stream("kinds", ["id"], {"id": "int"})
    source, spool = shop.source(), Spooled()
    place = after(source.read(None, spool))
    shop.execute("INSERT INTO kinds SELECT id + 10, " + f"{values} FROM kinds WHERE id = 1")
    drained(source, place, spool)
    copied, empty, streamed = (message["after"] for message in spool.messages())
    assert {**streamed, "id": 1} == copied
    assert set(empty.values()) == {2, None}
    texts = {
        '"exact":12345678901234567890123456789.000000000123',
        '"money":0.10',
        '"r":1e-07',
        '"c":"ab   "',
        '"raw":"AP8Q"',
        '"ts":"2024-02-29T12:34:56.000001"',
        '"tz":"2024-06-30T21:59:59.999999Z"',
        '"span":"P1DT2H"',
        '"ints":[1,null,-3]',
        '"texts":["a,b",null,"NULL","{\\"}",""]',
        '"moods":["sad","ok"]',
        '"cash":[0.10,2.00]',
        '"days":["2024-02-29"]',
    }
    assert [text for text in texts if text not in spool.records[0][1].text] == []
    assert copied["t"] == 'tab\t nl\n back\\ quote" é 😀'
    assert json.loads(copied["doc"]) == {"a": [None], "b": 1.1}


def test_changed_key_with_full_identity_keeps_large_values(shop: Shop) -> None:
    orders(shop)
    shop.execute(
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        f"INSERT INTO orders VALUES (1, 'a', 1, {LARGE})",
    )
    source, spool = shop.source(), Spooled()
    place = after(source.read(None, spool))
    shop.execute("UPDATE orders SET id = 2", "UPDATE orders SET name = 'b'")
    drained(source, place, spool)
    assert [message["op"] for message in spool.messages()] == ["r", "d", "c", "u"]
    assert replay(spool.records, shop.contracts, {})["orders"] == shop.table("orders")
    assert "unavailable" not in "".join(record.text for _, record in spool.records)


def test_transaction_has_one_position_in_all_tables(shop: Shop) -> None:
    orders(shop)
    shop.execute("CREATE TABLE lines (id int PRIMARY KEY)", "ALTER PUBLICATION lake ADD TABLE lines")
    shop.stream("lines", ["id"], {"id": "int"})
    source = shop.source()
    place = after(source.read(None, Spooled()))
    shop.execute(
        *(
            f"BEGIN; INSERT INTO orders VALUES ({n}); INSERT INTO lines VALUES ({n}); DELETE FROM orders; COMMIT"
            for n in range(5)
        )
    )
    spool = Spooled()
    drained(source, place, spool)
    sources = sorted((*order(record), stream, read(record)["op"]) for stream, record in spool.records)
    transactions = [list(found) for _, found in groupby(sources, key=lambda source: source[0])]
    assert len(transactions) == 5
    for transaction in transactions:
        assert [found[1:] for found in transaction] == [(1, "orders", "c"), (2, "lines", "c"), (3, "orders", "d")]
