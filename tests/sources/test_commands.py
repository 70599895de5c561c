"""Commands of `lake` on failing sources: one clear message, its exit code, no secret; other streams continue, and a
later run recovers. On sound sources: their position, the lag of the logs, and the origin of a row.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo

from lake.cli import lake
from lake.testing import CommandResult, Commands, Lakehouse
from tests.processes import PATIENCE, ROOT, free_port, until
from tests.registry import registry
from tests.servers.kafka import USER, Kafka, done
from tests.servers.postgres import Postgres, binaries
from tests.shop import contract, declare, empty, job
from tests.sources.shop import PASSWORD, VARIABLE, Shop

AVRO: Final = (
    '{"type": "record", "name": "o", "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}]}'
)
WRONG: Final = "not-the-password"
SECRETS: Final = (PASSWORD, USER["KAFKA_PASSWORD"], WRONG)
BOOTSTRAP: Final = "SHOP_BOOTSTRAP"
TOML: Final = "sources/shop.toml"


@dataclass
class Followed:
    """Project with a stream `orders` of a source and landed `notes`, and its commands."""

    house: Lakehouse
    commands: Commands
    environment: dict[str, Any] = field(default_factory=dict)
    noted: int = 0

    def lake(self, *words: str) -> CommandResult:
        return self.commands.lake(*words, at=self.house, **self.environment)

    def note(self) -> None:
        self.noted += 1
        self.house.land("notes", {"number": self.noted})

    def said(self, *words: str) -> Any:
        """Return the answer as JSON."""
        done = self.lake(*words, "--json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    @property
    def toml(self) -> Path:
        return self.house.source.project / TOML

    def rows(self) -> dict[int, str]:
        return {row["id"]: row["name"] for row in self.house.table("order")}

    def must_have_notes(self) -> None:
        assert [row["number"] for row in self.house.table("note")] == [*range(1, self.noted + 1)]


def new_project(
    folder: Path, commands: Commands, toml: str, fields: dict[str, Any], kind: str, **about: Any
) -> Followed:
    settings = empty(folder / "shop")
    hidden = ", ".join(f'"{name} AS _{name}"' for name in fields if name not in {"id", "name"})
    jobs = {
        "order": job("order", kind, 'log("orders")', returns=f'rows.selectExpr("id", "name", {hidden})'),
        "note": job("note", 'Latest("number")', 'log("notes")'),
    }
    declare(settings, contract("orders", fields, **about), contract("notes", {"number": "long"}), jobs=jobs)
    (settings.project / "sources").mkdir()
    (settings.project / TOML).write_text(toml)
    return Followed(Lakehouse(settings.project, folder), commands)


@dataclass
class Topic:
    """Topic of a broker and its project."""

    kafka: Kafka
    name: str
    shop: Followed

    def send(self, *names: str) -> None:
        for number, name in enumerate(names, 1):
            self.kafka.send(self.name, json.dumps({"id": number, "name": name}))


@pytest.fixture
def topic(kafka: Kafka, commands: Commands, tmp_path: Path) -> Iterator[Topic]:
    name = kafka.topic()
    toml = f'kind = "kafka"\nbootstrap = "env:{BOOTSTRAP}"\nseconds = 20\n[streams]\norders = {{ topic = "{name}" }}\n'
    fields = {"id": "int", "name": "string", "at": ("long", {"from": "kafka.offset"})}
    shop = new_project(tmp_path, commands, toml, fields, 'Latest("id", sequence="_at")')
    shop.environment[BOOTSTRAP] = kafka.bootstrap
    yield Topic(kafka, name, shop)
    assert kafka.process is not None
    if kafka.process.poll() is not None:
        kafka.start()


@dataclass(frozen=True)
class Harm:
    """Damage to a source, the expected report, and its repair."""

    name: str
    code: int
    says: str
    fix: str
    done: Callable[[Any], None]
    healed: Callable[[Any], None] = lambda _: None
    give_up: bool = False
    where: str = TOML

    def __str__(self) -> str:
        return self.name


def assert_reported(shop: Followed, harm: Harm) -> None:
    """Assert that both commands report the fault once, exit with its code, and update the other stream's table."""
    for words in (("ingest",), ("run", "--quiet")):
        shop.note()
        done = shop.lake(*words)
        said = done.out + done.err
        assert done.code == harm.code, said
        assert harm.says in said
        assert harm.fix in said
        assert f"({harm.where}" in said
        assert "Traceback" not in said
        assert not [secret for secret in SECRETS if secret in said], said
        told = [line for line in said.splitlines() if harm.says in line]
        assert len(told) == 1, said
    shop.must_have_notes()
    assert shop.lake("status").code == 0


def assert_recovered(shop: Followed, harm: Harm) -> None:
    if harm.give_up:
        done = shop.lake("ingest", "shop", "--give-up")
        assert done.code == 0, done.err
    done = shop.lake("run")
    assert done.code == 0, done.err


def replace_text(old: str, new: str) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """Return actions that replace text in the source's file and restore it."""

    def change(of: Any, this: str, by: str) -> None:
        text = of.shop.toml.read_text()
        assert this in text
        of.shop.toml.write_text(text.replace(this, by))

    return (lambda of: change(of, old, new)), (lambda of: change(of, new, old))


def stop_broker(topic: Topic) -> None:
    topic.kafka.stop()


def start_broker(topic: Topic) -> None:
    topic.kafka.start()


def recreate_topic(topic: Topic) -> None:
    done(topic.kafka.admin.delete_topics([topic.name]))
    until(lambda: topic.name not in topic.kafka.admin.list_topics(timeout=PATIENCE).topics)
    topic.kafka.topic(topic.name)


def clear_topic(topic: Topic) -> None:
    from confluent_kafka import TopicPartition

    topic.send("gone")
    done(topic.kafka.admin.delete_records([TopicPartition(topic.name, 0, topic.kafka.high(topic.name))]))


def use_other_port(port: str, settings: str) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
    """Return actions that use another port of the broker, with these client settings."""

    def change(topic: Topic) -> None:
        topic.shop.environment |= {BOOTSTRAP: f"127.0.0.1:{topic.kafka.ports[port]}", "KAFKA_WORD": WRONG}
        topic.shop.toml.write_text(topic.shop.toml.read_text() + settings)

    def heal(topic: Topic) -> None:
        topic.shop.environment[BOOTSTRAP] = topic.kafka.bootstrap
        topic.shop.toml.write_text(topic.shop.toml.read_text().replace(settings, ""))

    return change, heal


SASL: Final = f"""[client]
"security.protocol" = "SASL_PLAINTEXT"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "{USER["KAFKA_USER"]}"
"sasl.password" = "env:KAFKA_WORD"
"""
OF_KAFKA: Final = [
    Harm(
        "the broker is gone", 75, "Kafka is unavailable", "try again when the brokers answer", stop_broker, start_broker
    ),
    Harm("the topic was recreated", 2, "was recreated", "lake ingest shop --give-up", recreate_topic, give_up=True),
    Harm(
        "retention took records", 2, "were deleted there before they were read", "--give-up", clear_topic, give_up=True
    ),
    Harm(
        "no such topic", 2, "the topic 'orderz-", "correct its name", *replace_text('topic = "topic', 'topic = "orderz')
    ),
    Harm("a wrong password", 2, "authentication failed", "[client]", *use_other_port("sasl-port", SASL)),
    Harm("no TLS", 75, "Kafka is unavailable", "is bootstrap right?", *use_other_port("tls-port", "")),
]


@pytest.mark.parametrize("harm", OF_KAFKA, ids=str)
def test_kafka_fault_is_reported_and_recovers(topic: Topic, harm: Harm) -> None:
    topic.send("Ann", "Ben")
    topic.shop.note()
    assert topic.shop.lake("run").code == 0
    harm.done(topic)
    assert_reported(topic.shop, harm)
    harm.healed(topic)
    topic.send("Cy")
    assert_recovered(topic.shop, harm)
    assert topic.shop.rows() == {1: "Cy", 2: "Ben"}


def test_missing_registry_is_reported_and_recovers(topic: Topic) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient

    from tests.sources.test_kafka_values import serialized

    text, shop = topic.shop.toml.read_text(), topic.shop
    with registry() as running:
        with SchemaRegistryClient({"url": running.url}) as client:
            values = [serialized(client, AVRO, {"id": n, "name": name}) for n, name in ((1, "Ann"), (2, "Ben"))]
        avro = text.replace(f'"{topic.name}" }}', f'"{topic.name}", value = "avro" }}')
        shop.toml.write_text(f'{avro}[registry]\nurl = "{running.url}"\n')
        topic.kafka.send(topic.name, values[0])
        shop.note()
        assert shop.lake("run").code == 0
        sound = shop.toml.read_text()
        shop.toml.write_text(f'{avro}[registry]\nurl = "env:REGISTRY"\n')
        shop.environment["REGISTRY"] = f"http://someone:{WRONG}@127.0.0.1:{free_port()}"
        topic.kafka.send(topic.name, values[1])
        gone = Harm("", 75, "the schema registry does not answer", "is its url right?", lambda _: None)
        assert_reported(shop, gone)
        shop.toml.write_text(sound)
        assert_recovered(shop, gone)
    assert shop.rows() == {1: "Ann", 2: "Ben"}


@dataclass
class Table:
    """Table of a database and its project."""

    server: Postgres
    database: Shop
    shop: Followed
    other: subprocess.Popen[bytes] | None = None

    def execute(self, *statements: str) -> None:
        self.database.execute(*statements)


@pytest.fixture
def table(shop: Shop, postgres: Postgres, commands: Commands, tmp_path: Path) -> Iterator[Table]:
    facts = {"op": "op", "lsn": "source.lsn", "ordinal": "source.ordinal"}
    fields: dict[str, Any] = {"id": "int", "name": "string?"}
    fields |= {name: ("string" if name == "op" else "long", {"from": path}) for name, path in facts.items()}
    toml = (
        f'kind = "postgres"\ndsn = "env:{VARIABLE}"\npublication = "lake"\nslot = "{shop.slot}"\n'
        '[streams]\norders = "public.orders"\n'
    )
    kind = 'Latest("id", sequence=("_lsn", "_ordinal"), deletes="_op = \'d\'", truncate="_op = \'t\'")'
    about = {"id": ["lsn", "ordinal"], "envelope": "debezium", "broadcast": "op = 't'"}
    found = Table(postgres, shop, new_project(tmp_path, commands, toml, fields, kind, **about))
    found.shop.environment[VARIABLE] = shop.reader_dsn
    shop.execute(CREATE, "CREATE PUBLICATION lake FOR TABLE orders", "INSERT INTO orders VALUES (1, 'Ann'), (2, 'Ben')")
    yield found
    if found.other is not None:
        found.other.kill()
        found.other.wait()
    if postgres.process is None:
        postgres.start()


CREATE: Final = "CREATE TABLE orders (id int PRIMARY KEY, name text)"


def run_sql(*statements: str) -> Callable[[Table], None]:
    return lambda table: table.execute(*(each.format(slot=table.database.slot) for each in statements))


def take_slot(table: Table) -> None:
    """Read the slot in another process, without acknowledgement."""
    slot = table.database.slot
    command = [
        str(binaries() / "pg_recvlogical"),
        "-d",
        table.database.dsn,
        "--slot",
        slot,
        "--start",
        "-f",
        "/dev/null",
    ]
    options = ["-o", "proto_version=1", "-o", "publication_names=lake", "--no-loop"]
    options += ["--status-interval=0", "--fsync-interval=0"]
    table.execute("INSERT INTO orders VALUES (7, 'taken')")
    table.other = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    until(
        lambda: table.database.query(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'") == [(True,)]
    )


def release_slot(table: Table) -> None:
    assert table.other is not None
    table.other.kill()
    table.other.wait()
    is_free = f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{table.database.slot}'"
    until(lambda: table.database.query(is_free) == [(True,)])


def change_connection(**change: str) -> Callable[[Table], None]:
    """Return an action that changes the connection."""

    def connect(table: Table) -> None:
        table.shop.environment[VARIABLE] = make_conninfo(table.database.reader_dsn, **change)

    return connect


AGAIN: Final = "CREATE PUBLICATION lake FOR TABLE orders"
DROPPED: Final = "SELECT pg_drop_replication_slot('{slot}')"


def stop_server(table: Table) -> None:
    table.server.stop()


def start_server(table: Table) -> None:
    table.server.start()


OF_POSTGRES: Final = [
    Harm("the server is gone", 75, "PostgreSQL does not answer", "try again", stop_server, start_server),
    Harm("the slot is gone", 2, "has no slot", "--give-up", run_sql(DROPPED), give_up=True),
    Harm("the slot is taken", 75, "the slot is in use", "another process reads it", take_slot, release_slot),
    Harm(
        "a wrong password",
        2,
        "password authentication failed",
        "its password",
        change_connection(password=WRONG),
        change_connection(),
    ),
    Harm(
        "no publication",
        2,
        "has no publication 'lake'",
        "CREATE",
        run_sql("DROP PUBLICATION lake"),
        run_sql(AGAIN),
        True,
    ),
    Harm(
        "the table is gone",
        2,
        "has no table 'public.orders'",
        'ALTER PUBLICATION "lake" ADD TABLE public.orders',
        run_sql("DROP TABLE orders"),
        run_sql(CREATE, "ALTER PUBLICATION lake ADD TABLE orders", "INSERT INTO orders VALUES (5, 'new')"),
        give_up=True,
    ),
    Harm(
        "no identity",
        2,
        "a delete omits the column 'id'",
        "REPLICA IDENTITY",
        run_sql("ALTER TABLE orders REPLICA IDENTITY NOTHING"),
        run_sql("ALTER TABLE orders REPLICA IDENTITY DEFAULT"),
        where="schemas/orders.avsc",
    ),
]


@pytest.mark.parametrize("harm", OF_POSTGRES, ids=str)
def test_postgres_fault_is_reported_and_recovers(table: Table, harm: Harm) -> None:
    table.shop.note()
    assert table.shop.lake("run").code == 0
    harm.done(table)
    assert_reported(table.shop, harm)
    harm.healed(table)
    assert_recovered(table.shop, harm)
    assert table.shop.rows() == dict(table.database.query("SELECT id, name FROM orders"))
    table.execute("INSERT INTO orders VALUES (9, 'last')")
    assert table.shop.lake("run").code == 0
    assert table.shop.rows()[9] == "last"


def test_commands_report_the_position_of_a_topic_and_the_origin_of_a_row(topic: Topic) -> None:
    shop, place = topic.shop, f"shop:{topic.name}/0"
    topic.send("Ann", "Ben")
    assert shop.lake("run").code == 0
    topic.send("Cy")
    [source] = shop.said("status")["sources"]
    ranges = {topic.name: {"id": source["progress"]["topics"][topic.name]["id"], "ranges": {"0": [0, 2]}}}
    assert (source["name"], source["kind"], source["delivery"], source["progress"]["topics"]) == (
        "shop",
        "kafka",
        1,
        ranges,
    )
    assert (source["events"], source["retained"]) == (1, None)
    assert source["seconds"] >= 0
    assert [word for word in ("shop", "kafka") if word not in shop.lake("status").out] == []
    done = shop.lake("status", "--fail-if", "behind")
    assert (done.code, "1 events of shop wait to be ingested" in done.err) == (1, True)
    assert shop.lake("run").code == 0
    assert shop.said("status")["sources"][0]["events"] == 0
    newest, first = shop.said("log", "orders")["batches"]
    assert (first["delivery"]["delivery"], newest["delivery"]["delivery"]) == (1, 2)
    assert newest["delivery"]["progress"]["topics"][topic.name]["ranges"] == {"0": [2, 3]}
    assert f"{topic.name}/0 2-2" in shop.lake("log", "orders").out
    [row] = shop.said("explain", "order", "id=1")["rows"]
    assert [event["source"] for event in events_of(row)] == [f"{place}:2", f"{place}:0"]
    assert f"{place}:2" in shop.lake("explain", "order", "id=1").out


def test_commands_report_the_position_of_a_database_and_the_origin_of_a_row(table: Table) -> None:
    shop = table.shop
    assert shop.lake("run").code == 0
    table.execute("UPDATE orders SET name = 'Bo' WHERE id = 2", "INSERT INTO orders VALUES (3, 'Cy')")
    [source] = shop.said("status")["sources"]
    [[system]] = table.database.query("SELECT system_identifier::text FROM pg_control_system()")
    assert (source["kind"], source["delivery"], source["progress"]["system"]) == ("postgres", 1, system)
    assert source["events"] == 2
    assert source["retained"] > 0
    assert source["seconds"] > 0
    assert shop.lake("status", "--fail-if", "behind").code == 1
    assert shop.lake("run").code == 0
    assert shop.said("status")["sources"][0]["events"] == 0
    newest, first = shop.said("log", "orders")["batches"]
    began, ended = (newest["delivery"]["progress"][end] for end in ("from", "to"))
    assert began == first["delivery"]["progress"]["to"]
    assert f"{began} to {ended}" in shop.lake("log", "orders").out
    [row] = shop.said("explain", "order", "id=2")["rows"]
    places = [event["source"] for event in events_of(row)]
    assert len(places) == 2
    told = table.database.query(
        f"SELECT '{places[0].split(':')[1].partition('#')[0]}'::pg_lsn BETWEEN '{began}' AND '{ended}'"
    )
    assert told == [(True,)], places
    assert places[0] in shop.lake("explain", "order", "id=2").out


def events_of(row: Any) -> list[Any]:
    """Return the events behind a row, newest first."""
    [side] = row["from"]
    return sorted(side["events"], key=lambda event: event["batch"], reverse=True)


HIDDEN: Final = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {packages!r} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""
EXTRAS: Final = {
    "kafka": ({"confluent_kafka"}, 'bootstrap = "127.0.0.1:1"\n[streams]\norders = { topic = "orders" }\n'),
    "postgres": (
        {"psycopg", "psycopg_binary"},
        'dsn = "env:HOME"\npublication = "p"\n[streams]\norders = "public.orders"\n',
    ),
}


@contextmanager
def hide_packages(packages: set[str], folder: Path) -> Iterator[dict[str, str]]:
    """Return an environment without these packages."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDDEN.format(packages=packages))
    yield {"PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.long
@pytest.mark.parametrize("kind", EXTRAS)
def test_missing_extra_is_named_and_other_streams_continue(commands: Commands, tmp_path: Path, kind: str) -> None:
    packages, toml = EXTRAS[kind]
    fields = {"id": "int", "name": "string?", "op": ("string", {"from": "op"})}
    fields |= {name: ("long", {"from": f"source.{name}"}) for name in ("lsn", "ordinal")}
    about = {"id": ["lsn", "ordinal"], "envelope": "debezium", "broadcast": "op = 't'"}
    shop = new_project(tmp_path, commands, f'kind = "{kind}"\n{toml}', fields, 'Latest("id", sequence="_lsn")', **about)
    shop.note()
    with hide_packages(packages, tmp_path / "hidden") as environment:
        for command in ("ingest", "run"):
            done = run_command(shop, command, **environment)
            said = done.stdout + done.stderr
            assert done.returncode == 2, said
            assert f"headwater[{kind}]" in said
            assert f"({TOML})" in said
            assert "Traceback" not in said
    shop.must_have_notes()


@pytest.mark.long
def test_serve_http_names_its_missing_extra(tmp_path: Path, commands: Commands) -> None:
    shop = new_project(
        tmp_path, commands, 'kind = "http"\n[streams]\norders = {}\n', {"id": "int", "name": "string"}, 'Latest("id")'
    )
    shop.toml.write_text('kind = "http"\n')
    with hide_packages({"starlette", "uvicorn"}, tmp_path / "hidden") as environment:
        done = run_command(shop, "serve", "http", **environment)
    assert done.returncode == 2, done.stderr
    assert "headwater[serve]" in done.stderr
    assert "Traceback" not in done.stderr


def run_command(shop: Followed, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process."""
    settings = shop.house.settings
    own = {"LAKE_WAREHOUSE": str(settings.warehouse_path), "LAKE_LANDING": str(settings.path(settings.landing))}
    return subprocess.run(
        [sys.executable, "-c", "from lake.cli import main; main()", *words, "--project", str(settings.project)],
        env=os.environ | shop.commands.environment | own | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_ingest_prints_no_result_if_its_source_fails(tmp_path: Path) -> None:
    project = declare(empty(tmp_path), contract("orders", {"id": "long"})).settings.project
    (project / "sources").mkdir()
    source = 'kind = "postgres"\ndsn = "env:NO_SUCH_DSN"\npublication = "p"\n[streams]\norders = "public.orders"\n'
    (project / "sources/shop.toml").write_text(source)
    done = CliRunner().invoke(lake, ["ingest", "shop", "--project", str(project)], standalone_mode=False)
    assert (done.return_value, done.stdout, "NO_SUCH_DSN" in done.stderr) == (2, "", True)
