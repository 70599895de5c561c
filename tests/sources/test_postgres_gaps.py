"""Gaps of a PostgreSQL source: an error with its fix, never a silent jump; after give-up the tables are right again."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lake.connect.postgres.source.messages import ERA_BITS, read_lsn
from lake.connect.postgres.source.reader import PostgresSource as Source
from lake.connect.postgres.source.server import PostgresServer
from lake.errors import DeclarationError, Unavailable
from lake.sources.source import Gap, Progress
from tests.processes import until
from tests.servers.postgres import Postgres, binaries, home, remove
from tests.sources.conftest import new_database
from tests.sources.shop import PASSWORD, READER, VARIABLE, Shop, Spooled, State, drained, replay

pytestmark = pytest.mark.postgres  # Also for servers started by the tests


@pytest.fixture
def spare() -> Iterator[Callable[..., Postgres]]:
    """Return a function that starts a separate server with the given settings."""
    binaries()
    servers: list[Postgres] = []

    def start(**settings: str) -> Postgres:
        server = Postgres(home(), settings)
        server.home.chmod(0o711)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()
        remove(server.home)


def orders(shop: Shop) -> None:
    shop.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text)",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "CREATE PUBLICATION lake FOR TABLE orders, others",
        "INSERT INTO orders SELECT i, 'n' || i FROM generate_series(1, 20) i",
        "INSERT INTO others VALUES (1)",
    )
    shop.stream("orders", ["id"], {"id": "int", "name": "string"})
    shop.stream("others", ["id"], {"id": "int"})


def read_source(shop: Shop) -> tuple[Source, Progress, State]:
    """Return a source that has read everything, some of it as a stream of changes."""
    source, spool = shop.source(), Spooled()
    place = drained(source, None, spool)
    shop.execute("UPDATE orders SET name = 'x' WHERE id = 1")
    place = drained(source, place, spool)
    assert place is not None
    return source, place, replay(spool.records, shop.contracts, {})


def assert_give_up(shop: Shop, source: Source, place: Progress, state: State, *found: str) -> Progress:
    """Assert that `found` is reported; give up, and assert that the tables equal the database after the next read."""
    for _ in range(2):
        with pytest.raises(Gap) as error:
            source.read(place, Spooled())
        assert [words for words in found if words not in str(error.value)] == []
        assert "--give-up" in error.value.fix
    place = source.skip_gap(place)
    spool = Spooled()
    end = drained(source, place, spool)
    assert end is not None
    replay(spool.records, shop.contracts, state)
    for table in ("orders", "others"):
        assert state[table] == shop.table(table)
    shop.execute("INSERT INTO orders VALUES (1000, 'after')")
    last = Spooled()
    end = drained(source, end, last)
    assert end is not None
    assert replay(last.records, shop.contracts, state)["orders"] == shop.table("orders")
    return end


def changed_unseen(shop: Shop) -> None:
    """Make changes of each kind that the source does not see."""
    shop.execute(
        "DELETE FROM orders WHERE id IN (2, 3)",
        "UPDATE orders SET name = 'y' WHERE id = 4",
        "INSERT INTO orders VALUES (99)",
    )


def test_dropped_slot_is_a_gap_until_it_is_given_up(shop: Shop) -> None:
    orders(shop)
    source, place, state = read_source(shop)
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    changed_unseen(shop)
    end = assert_give_up(shop, source, place, state, f"no slot '{shop.slot}'", place["to"])
    assert (end["era"], end["system"]) == (0, place["system"])


def test_slot_read_by_another_reader_is_a_gap_until_it_is_given_up(shop: Shop) -> None:
    orders(shop)
    source, place, state = read_source(shop)
    changed_unseen(shop)
    shop.execute(f"SELECT pg_replication_slot_advance('{shop.slot}', pg_current_wal_lsn())")
    assert_give_up(shop, source, place, state, "somebody else", place["to"])


def test_slot_read_by_another_reader_during_the_read_is_a_gap(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check of the slot and the read of its changes."""
    orders(shop)
    source, place, _ = read_source(shop)
    changed_unseen(shop)
    peek = PostgresServer.peek

    def other_first(server: PostgresServer, slot: str, *more: Any) -> Iterator[bytes]:
        shop.execute(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
        return peek(server, slot, *more)

    monkeypatch.setattr(PostgresServer, "peek", other_first)
    with pytest.raises(Gap, match="somebody else"):
        source.read(place, Spooled())


def test_lost_slot_is_a_gap_until_it_is_given_up(
    spare: Callable[..., Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spare(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    shop = new_database(server, monkeypatch)
    orders(shop)
    source, place, state = read_source(shop)
    changed_unseen(shop)
    for _ in range(4):
        shop.execute("SELECT pg_switch_wal()", "CREATE TABLE x AS SELECT generate_series(1, 10000)", "DROP TABLE x")
        shop.execute("CHECKPOINT")
    assert shop.query("SELECT wal_status FROM pg_replication_slots") == [("lost",)]
    assert_give_up(shop, source, place, state, "is lost", "max_slot_wal_keep_size")
    source.close()


def test_recreated_table_is_a_gap_until_it_is_given_up(shop: Shop) -> None:
    """Other tables continue."""
    orders(shop)
    source, place, state = read_source(shop)
    shop.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, name text)",
        "ALTER PUBLICATION lake ADD TABLE orders",
        "INSERT INTO orders VALUES (7, 'new')",
        "INSERT INTO others VALUES (2)",
    )
    end = assert_give_up(shop, source, place, state, "public.orders is a different table")
    assert end["tables"]["others"] == place["tables"]["others"]


def test_table_absent_from_the_publication_for_a_time_is_a_gap(shop: Shop) -> None:
    orders(shop)
    source, place, state = read_source(shop)
    shop.execute("ALTER PUBLICATION lake DROP TABLE orders")
    with pytest.raises(DeclarationError, match=r"has no table 'public\.orders', so its changes would never come"):
        source.read(place, Spooled())
    changed_unseen(shop)
    shop.execute("ALTER PUBLICATION lake ADD TABLE orders")
    assert_give_up(shop, source, place, state, "public.orders was out of the publication")


def test_recreated_publication_is_a_gap_until_it_is_given_up(shop: Shop) -> None:
    orders(shop)
    source, place, state = read_source(shop)
    shop.execute("DROP PUBLICATION lake")
    with pytest.raises(DeclarationError, match="no publication 'lake'"):
        source.read(place, Spooled())
    changed_unseen(shop)
    shop.execute("CREATE PUBLICATION lake FOR TABLE orders, others")
    assert_give_up(shop, source, place, state, "publication 'lake' was dropped and recreated")


def test_publication_altered_for_a_time_is_a_gap_until_it_is_given_up(shop: Shop) -> None:
    orders(shop)
    source, place, state = read_source(shop)
    shop.execute("ALTER PUBLICATION lake SET (publish = 'insert')")
    with pytest.raises(DeclarationError, match="leaves out every update, delete, truncate"):
        source.read(place, Spooled())
    changed_unseen(shop)
    shop.execute("ALTER PUBLICATION lake SET (publish = 'insert, update, delete, truncate')")
    assert_give_up(shop, source, place, state, "the publication 'lake' was altered")


def test_schema_absent_from_the_publication_for_a_time_is_a_gap(shop: Shop) -> None:
    orders(shop)
    shop.execute("DROP PUBLICATION lake", "CREATE PUBLICATION lake FOR TABLES IN SCHEMA public")
    source, place, state = read_source(shop)
    shop.execute("ALTER PUBLICATION lake DROP TABLES IN SCHEMA public")
    changed_unseen(shop)
    shop.execute("ALTER PUBLICATION lake ADD TABLES IN SCHEMA public")
    assert_give_up(shop, source, place, state, "public.orders was out of the publication")


def test_replaced_server_begins_a_new_era_when_it_is_given_up(
    shop: Shop, spare: Callable[..., Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log restarts, but its changes are newer than those of the old server."""
    orders(shop)
    _, place, state = read_source(shop)
    other = new_database(spare(), monkeypatch)
    orders(other)
    other.execute("DELETE FROM orders WHERE id > 10")
    monkeypatch.setenv(VARIABLE, other.reader_dsn)
    other.contracts = shop.contracts
    source = other.source()
    other.execute(f"SELECT pg_create_logical_replication_slot('{other.slot}', 'pgoutput')")
    confirmed = "SELECT confirmed_flush_lsn FROM pg_replication_slots"
    before = other.query(confirmed)
    other.execute("INSERT INTO orders VALUES (30)")
    source.acknowledge({**place, "to": "FF/0"})
    assert other.query(confirmed) == before
    end = assert_give_up(other, source, place, state, "this is a different server", place["system"])
    assert (end["era"], end["system"] == place["system"]) == (1, False)
    spool = Spooled()
    other.execute("INSERT INTO orders VALUES (2000)")
    drained(source, end, spool)
    [message] = spool.messages()
    assert message["source"]["lsn"] >> ERA_BITS == 1
    assert spool.records[0][1].place.startswith("1:")
    source.close()


def test_promoted_standby_begins_a_new_era_when_it_is_given_up(
    spare: Callable[..., Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has everything of the primary except the slot, and continues on another timeline."""
    primary = spare()
    shop = new_database(primary, monkeypatch)
    orders(shop)
    source, place, state = read_source(shop)
    source.close()
    standby = spare()
    standby.stop()
    shutil.rmtree(standby.data)
    backup = [
        str(binaries() / "pg_basebackup"),
        "-d",
        primary.dsn,
        "-D",
        str(standby.data),
        "-R",
        "-X",
        "stream",
        "-c",
        "fast",
    ]
    subprocess.run(backup, check=True, capture_output=True)
    subprocess.run(["chown", "-R", "--reference", str(primary.data), str(standby.data)], check=True)
    (standby.home / "dsn").write_text(primary.dsn.replace(f"port={primary.port}", f"port={standby.port}"))
    standby.start()
    changed_unseen(shop)
    end = shop.query("SELECT pg_current_wal_lsn()")[0][0]
    until(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{end}'") == [(True,)])
    database = shop.dsn.rpartition("dbname=")[2]
    promoted = Shop(standby, f"{standby.dsn} dbname={database}", shop.contracts)
    monkeypatch.setenv(VARIABLE, promoted.reader_dsn)
    source = promoted.source(slot=shop.slot)
    with pytest.raises(Unavailable, match="is a standby"):
        source.read(place, Spooled())
    primary.stop(signal.SIGQUIT)
    standby.execute("SELECT pg_promote()")
    moved = assert_give_up(promoted, source, place, state, "timeline is 2, it was 1", "no slot")
    assert (moved["timeline"], moved["era"]) == (2, 1)
    assert read_lsn(moved["to"]) > read_lsn(place["to"])
    source.close()


def test_restored_older_server_begins_a_new_era_when_it_is_given_up(
    spare: Callable[..., Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the disk, like a snapshot of a virtual machine: only the end of the log shows it."""
    server = spare()
    shop = new_database(server, monkeypatch)
    orders(shop)
    source, place, state = read_source(shop)
    server.stop()
    older = server.home / "older"
    subprocess.run(["cp", "-a", server.data, older], check=True)
    server.start()
    shop.execute("INSERT INTO orders SELECT i FROM generate_series(100, 200) i", "DELETE FROM orders WHERE id = 5")
    spool = Spooled()
    newer = drained(source, place, spool)
    assert newer is not None
    replay(spool.records, shop.contracts, state)
    server.stop()
    shutil.rmtree(server.data)
    older.rename(server.data)
    server.start()
    end = assert_give_up(shop, source, newer, state, "ends before", newer["to"])
    assert end["era"] == 1
    source.close()


def test_unrecorded_give_up_is_repeated(shop: Shop) -> None:
    orders(shop)
    source, place, state = read_source(shop)
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    changed_unseen(shop)
    source.skip_gap(place)
    shop.execute("DELETE FROM orders WHERE id = 10")
    assert_give_up(shop, source, place, state, "somebody else")


def test_skip_gap_is_rejected_without_a_gap(shop: Shop) -> None:
    orders(shop)
    source, place, _ = read_source(shop)
    for at, told in ((place, "nothing is gone"), (None, "nothing has been read yet")):
        with pytest.raises(DeclarationError, match=told):
            source.skip_gap(at)


def test_stopped_server_is_unavailable_and_read_after_its_return(
    spare: Callable[..., Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = spare()
    shop = new_database(server, monkeypatch)
    orders(shop)
    source, place, state = read_source(shop)
    server.stop()
    for _ in range(2):
        with pytest.raises(Unavailable) as error:
            source.read(place, Spooled())
        assert error.value.exit_code == 75
        assert PASSWORD not in str(error.value)
        with pytest.raises(Unavailable):
            source.lag(place)
        with pytest.raises(Unavailable):
            source.acknowledge(place)
    server.start()
    shop.execute("INSERT INTO orders VALUES (1000)")
    spool = Spooled()
    drained(source, place, spool)
    assert replay(spool.records, shop.contracts, state)["orders"] == shop.table("orders")
    source.close()


def test_slot_in_use_is_unavailable(shop: Shop) -> None:
    orders(shop)
    source, place, _ = read_source(shop)
    command = [str(binaries() / "pg_recvlogical"), "-d", shop.dsn, "--slot", shop.slot, "--start", "-f", "/dev/null"]
    options = ["-o", "proto_version=1", "-o", "publication_names=lake", "--no-loop"]
    shop.execute("INSERT INTO orders VALUES (1000)")
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as other:
        until(
            lambda: shop.query(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{shop.slot}'") == [(True,)]
        )
        for at in (place, None):
            with pytest.raises(Unavailable, match="the slot is in use"):
                source.read(at, Spooled())
        other.kill()


def test_server_without_a_free_slot_is_unavailable(
    spare: Callable[..., Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = new_database(spare(max_replication_slots="1"), monkeypatch)
    orders(shop)
    source = shop.source()
    with pytest.raises(Unavailable, match="no slot left") as error:
        source.read(None, Spooled())
    assert "max_replication_slots" in error.value.fix
    source.close()


FAULTS = {
    "ALTER PUBLICATION lake SET (publish = 'insert, update')": "leaves out every delete, truncate",
    "ALTER PUBLICATION lake SET TABLE orders (id), others": "no published column 'name', which the contract requires",
    "ALTER TABLE orders REPLICA IDENTITY NOTHING": "a delete omits the column 'id', which is the contract's key",
    "ALTER TABLE orders DROP COLUMN name": "no published column 'name'",
    "ALTER TABLE orders ADD tags int[]": "an update may omit the column 'tags'",
    "ALTER PUBLICATION lake DROP TABLE others": "has no table 'public.others'",
}


@pytest.mark.parametrize("statement", FAULTS)
def test_postgres_reports_a_contract_mismatch_before_reading(shop: Shop, statement: str) -> None:
    orders(shop)
    shop.stream("orders", ["id"], {"id": "int", "tags": {"type": "array", "items": "int"}}, required={"name": "string"})
    source, spool = shop.source(), Spooled()
    shop.execute(statement)
    with pytest.raises(DeclarationError) as error:
        source.read(None, spool)
    assert FAULTS[statement] in str(error.value)
    assert error.value.fix
    assert spool.records == []


def test_postgres_reports_all_mismatches_at_once(shop: Shop) -> None:
    orders(shop)
    shop.execute(*list(FAULTS)[-2:], "ALTER PUBLICATION lake SET (publish = 'insert')")
    shop.stream("orders", ["id"], {"id": "int", "tags": {"type": "array", "items": "int"}})
    with pytest.raises(DeclarationError, match="3 faults"):
        shop.source().read(None, Spooled())


def test_postgres_names_the_missing_rights_of_a_role(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    orders(shop)
    role = f"poor_{shop.slot}"
    shop.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
    monkeypatch.setenv(VARIABLE, shop.reader_dsn.replace(f"user={READER}", f"user={role}"))
    with pytest.raises(DeclarationError, match="REPLICATION") as error:
        shop.source().read(None, Spooled())
    assert PASSWORD not in str(error.value)
    shop.execute(f"ALTER ROLE {role} REPLICATION")
    with pytest.raises(DeclarationError, match="SELECT on the tables"):
        shop.source().read(None, Spooled())
    shop.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    assert shop.source().read(None, Spooled()) is not None


def test_postgres_reports_a_policy_that_hides_rows_from_a_copy(shop: Shop) -> None:
    orders(shop)
    shop.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY", "CREATE POLICY few ON orders USING (id < 3)")
    with pytest.raises(DeclarationError, match="row-level security"):
        shop.source().read(None, Spooled())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"password": "wrong"}, "password authentication failed"),
        ({"dbname": "nowhere"}, "does not exist"),
    ],
)
def test_refused_connection_is_not_retried(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], told: str
) -> None:
    from psycopg.conninfo import make_conninfo

    monkeypatch.setenv(VARIABLE, make_conninfo(shop.reader_dsn, **change))
    shop.stream("orders", ["id"], {"id": "int"})
    with pytest.raises(DeclarationError, match=told) as error:
        shop.source().read(None, Spooled())
    assert PASSWORD not in str(error.value)
    assert "wrong" not in str(error.value)


def test_server_without_logical_decoding_is_reported(
    spare: Callable[..., Postgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = new_database(spare(wal_level="replica"), monkeypatch)
    orders(shop)
    source = shop.source()
    with pytest.raises(DeclarationError, match="wal_level is replica"):
        source.read(None, Spooled())
    source.close()


def test_process_list_shows_no_password(shop: Shop) -> None:
    orders(shop)
    source, _, _ = read_source(shop)
    lines = [file.read_bytes() for file in Path("/proc").glob("[0-9]*/cmdline") if file.exists()]
    assert lines
    assert not [line for line in lines if PASSWORD.encode() in line]
    assert shop.query(f"SELECT application_name FROM pg_stat_activity WHERE usename = '{READER}'") == [("lake shop",)]
    source.close()
