"""A topic that a sink fills is the table, for whoever reads what is committed, whoever dies filling it."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lake.connect.kafka.sink.target import KafkaTarget as Target
from lake.connect.kafka.sink.transaction import KafkaTransaction
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.declared import declared_sinks
from lake.sinks.deliver import deliver, preview
from lake.sinks.plan import DeliveryPlan
from lake.sinks.sink import RejectedRow, SinkDelivery, SinkPosition
from lake.store.ledger import editions
from lake.testing import Commands
from tests.docs.sessions import SHOP, play
from tests.processes import PATIENCE, until
from tests.read.things import NAME
from tests.servers.kafka import Kafka, done
from tests.servers.kafka import installed as kafka_installed
from tests.shop import empty
from tests.sinks.dying import killed
from tests.sinks.kafka_sink import SINK, Shop
from tests.warehouse import write


@pytest.fixture
def shop(kafka: Kafka, tmp_path: Path) -> Shop:
    """A table of two rows in edition 1, which the topic has."""
    shop = Shop.made(kafka, tmp_path)
    shop.things.change({1: 1, 2: 2})
    shop.deliver()
    return shop


def test_a_compacted_topic_is_the_edition_after_each_delivery(shop: Shop) -> None:
    assert shop.in_step()
    shop.things.change({1: 1, 2: 5, None: 4})
    assert shop.deliver().tables[0].inserted == 1
    assert shop.in_step()
    assert json.loads(shop.broker.committed(f"{shop.topic}-position")[-1].value or "")["position"]["edition"] == 2
    high = shop.broker.high(shop.topic)
    shop.things.publish()
    shop.deliver()
    assert shop.broker.high(shop.topic) == high, "a rebuild sends nothing"
    with closing(shop.sink.open()) as target:
        assert isinstance(target, Target)
        assert shop.deliver().changed is False


@pytest.mark.parametrize("seed", range(3))
def test_whatever_editions_come_the_topic_follows(kafka: Kafka, tmp_path: Path, seed: int) -> None:
    chance, shop = random.Random(seed), Shop.made(kafka, tmp_path, table=f"partitions = {seed % 3 + 1}")
    shop.things.change({1: 1, 2: 2})
    for _ in range(14):
        shop.things.step(chance)
        if chance.random() < 0.3:
            continue
        try:
            shop.deliver(resync=chance.random() < 0.1)
        except DeclarationError:
            assert NAME not in reader(shop.things.settings).edition.tables
        else:
            assert shop.in_step()
            assert rows_read(shop) == {row["k"]: repr(row) for row in shop.things.as_of(shown(shop)).values()}


def shown(shop: Shop) -> int:
    return reader(shop.things.settings).edition.number


def rows_read(shop: Shop) -> dict[Any, str]:
    """What the target reads back, by key."""
    target, plan = planned(shop)
    with closing(target):
        [changes] = plan.delivery().tables
        rows = target.rows(changes.table).read_all().to_pylist()
    return {row["k"]: repr(row) for row in rows}


def planned(shop: Shop) -> tuple[Target, DeliveryPlan]:
    target = shop.sink.open()
    assert isinstance(target, Target)
    return target, DeliveryPlan(
        shop.things.settings, shop.sink, target.position(), reader(shop.things.settings).edition
    )


@pytest.mark.parametrize("point", ["before", "inside", "after"])
def test_a_delivery_that_is_killed_is_seen_whole_or_not_at_all(shop: Shop, point: str) -> None:
    for number in range(3, 8):
        before = shop.published
        shop.things.change({1: number, number: 1, number + 1: 2})
        assert killed(shop.things.settings.project, SINK, point, nth=1 + number % 3)
        assert shop.read == (shop.published if point == "after" else before)
        shop.deliver()
        assert shop.in_step()


Interrupted = Callable[[Shop, Callable[[], object]], tuple[Target, SinkDelivery]]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """A delivery during which something happens, once the cluster has its first row."""

    def delivery(shop: Shop, happens: Callable[[], object]) -> tuple[Target, SinkDelivery]:
        target, plan = planned(shop)
        send, first = KafkaTransaction.send, iter([True])

        def sends(transaction: KafkaTransaction, *record: Any, **more: Any) -> None:
            send(transaction, *record, **more)
            if next(first, False):
                assert transaction._producer.flush(PATIENCE) == 0
                happens()

        monkeypatch.setattr(KafkaTransaction, "send", sends)
        return target, plan.delivery()

    return delivery


def test_of_two_deliverers_the_earlier_is_fenced_off(shop: Shop, interrupted: Interrupted) -> None:
    """As from two machines, which no lease keeps apart."""
    shop.things.change({1: 7, 3: 3})
    first, half = interrupted(shop, shop.deliver)
    with closing(first), pytest.raises(Unavailable, match="ended by another of that id"):
        first.deliver(half)
    assert shop.in_step()
    late, stale = interrupted(shop, lambda: None)
    shop.things.change({1: 8})
    shop.deliver()
    with closing(late), pytest.raises(Unavailable, match="brought to another position meanwhile: it has edition 3"):
        late.deliver(stale)
    assert shop.in_step()


def test_an_aborted_half_is_not_seen(shop: Shop, interrupted: Interrupted) -> None:
    before, high = shop.read, shop.broker.high(shop.topic)
    shop.things.change({number: number for number in range(500)})

    def fails() -> None:
        raise LakeError("the rows cannot be read")

    target, delivery = interrupted(shop, fails)
    with closing(target), pytest.raises(LakeError, match="cannot be read"):
        target.deliver(delivery)
    assert shop.read == before
    shop.deliver()
    assert shop.in_step()
    assert shop.broker.high(shop.topic) > high


def test_a_broker_that_dies_midway_is_waited_for_no_longer_than_said(shop: Shop, interrupted: Interrupted) -> None:
    before = shop.read
    shop.things.change({number: number for number in range(50)})
    target, delivery = interrupted(shop, shop.broker.stop)
    try:
        with closing(target), pytest.raises(Unavailable, match="Kafka is unavailable"):
            target.deliver(delivery)
    finally:
        shop.broker.start()
    assert shop.read == before
    shop.deliver()
    assert shop.in_step()


def test_a_delivery_that_takes_longer_than_its_transaction_may_is_not_seen(
    kafka: Kafka, tmp_path: Path, interrupted: Interrupted
) -> None:
    shop = Shop.made(kafka, tmp_path, "transaction_seconds = 1")
    shop.things.change({1: 1})
    shop.deliver()
    before = shop.read
    shop.things.change({number: number for number in range(50)})

    def is_aborted() -> None:
        high = kafka.high(shop.topic)
        until(lambda: kafka.high(shop.topic) > high)  # the broker has written the marker

    target, delivery = interrupted(shop, is_aborted)
    with closing(target), pytest.raises(Unavailable, match="took longer than 1 s"):
        target.deliver(delivery)
    assert shop.read == before
    shop.deliver()
    assert shop.in_step()


def test_a_transaction_longer_than_the_cluster_allows_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    shop = Shop.made(kafka, tmp_path, "transaction_seconds = 100000")
    shop.things.change({1: 1})
    with pytest.raises(DeclarationError, match="the cluster allows no transaction of 100000 s"):
        shop.deliver()


def test_a_million_rows_are_one_transaction(kafka: Kafka, tmp_path: Path) -> None:
    settings = empty(tmp_path / "large")
    version = write(settings, "silver", "large", "SELECT range AS k, 'word ' || range AS word FROM range(1000000)")
    publish(settings, large=version)
    declared(settings.project, kafka, "large", tmp_path.name)
    [sink] = declared_sinks(settings)
    assert deliver(settings, sink).tables[0].inserted == 1_000_000
    assert len(kafka.committed(f"{tmp_path.name}-large")) == 1_000_000


def publish(settings: Any, **versions: int) -> None:
    tables = {
        name: editions.EditionTable("silver", f"silver/{name}", version, "f", identity=["k"])
        for name, version in versions.items()
    }
    editions.record_edition(settings, 1, tables)


def declared(project: Path, kafka: Kafka, table: str, id: str) -> None:
    (project / "sinks").mkdir()
    about = f'kind = "kafka"\nbootstrap = "{kafka.bootstrap}"\nid = "{id}"\n[tables.{table}]\nname = "{id}-{table}"\n'
    (project / f"sinks/{SINK}.toml").write_text(about)


def test_a_row_too_large_for_its_topic_is_left_out_and_told_until_it_changes(kafka: Kafka, tmp_path: Path) -> None:
    settings = empty(tmp_path / "texts")

    def change(*lengths: int) -> None:
        rows = " UNION ALL ".join(
            f"SELECT {number}::BIGINT AS k, repeat('x', {length}) AS text" for number, length in enumerate(lengths)
        )
        publish(settings, texts=write(settings, "silver", "texts", rows, mode="overwrite"))

    def read() -> dict[str, int]:
        latest = {record.key: record.value for record in kafka.committed(f"{tmp_path.name}-texts")}
        return {key: len(json.loads(value)["text"]) for key, value in latest.items() if value is not None}

    change(5, 2_000_000, 7)
    declared(settings.project, kafka, "texts", tmp_path.name)
    [sink] = declared_sinks(settings)
    assert deliver(settings, sink).rejected == 1
    assert read() == {'{"k": 0}': 5, '{"k": 2}': 7}
    with closing(sink.open()) as target:
        position = target.position()
        assert position is not None
        [lacks] = position.rejected
        assert lacks == RejectedRow("texts", '{"k": 1}', "a record of 2,000,028 bytes, more than the topic takes")
    change(3_000_000, 2_000_000, 8)
    assert deliver(settings, sink).rejected == 2
    assert read() == {'{"k": 2}': 8}, "an update that cannot be taken takes away what is there"
    change(1, 2, 8)
    assert deliver(settings, sink).rejected == 0
    assert read() == {'{"k": 0}': 1, '{"k": 1}': 2, '{"k": 2}': 8}


def test_a_topic_that_was_recreated_is_filled_anew(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.broker.drop(shop.topic)
    with caplog.at_level(logging.WARNING, "lake"):
        [sent] = preview(shop.things.settings, shop.sink).tables
    assert sent.whole
    assert "is not the one that was filled" in caplog.text
    shop.broker.topic(shop.topic, cleanup_policy="compact")
    shop.deliver()
    assert shop.in_step()


def test_a_cluster_that_is_another_is_filled_anew(shop: Shop, tmp_path: Path) -> None:
    """Also where the position was copied there, as by tools that mirror topics."""
    kafka_installed()
    other = Kafka(tmp_path / "other")
    try:
        other.start()
        other.topic(f"{shop.topic}-position", cleanup_policy="compact")
        other.topic(shop.topic, cleanup_policy="compact")
        position = shop.broker.committed(f"{shop.topic}-position")[-1]
        other.send(f"{shop.topic}-position", position.value, key=position.key)
        other.send(shop.topic, "{}", key="a row that nobody knows")
        moved = Shop(other, shop.things, shop.topic)
        moved.declare()
        moved.deliver()
        assert moved.in_step()
    finally:
        other.stop()


def test_partitions_that_were_added_are_told_as_keys_lie_elsewhere(shop: Shop) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub forgets to export it

    done(shop.broker.admin.create_partitions([NewPartitions(shop.topic, 3)]))
    shop.things.change({1: 5})
    with pytest.raises(DeclarationError, match="has 3 partitions now, and had 1"):
        shop.deliver()


def test_with_upsert_rows_that_go_stay(kafka: Kafka, tmp_path: Path) -> None:
    shop = Shop.made(kafka, tmp_path, table='mode = "upsert"')
    shop.things.change({1: 1, 2: 2})
    shop.deliver()
    had = shop.read
    shop.things.change({1: 3})
    shop.deliver()
    assert shop.read == had | shop.published
    shop.deliver(resync=True)
    assert shop.in_step()


def test_with_append_a_topic_has_the_changes(kafka: Kafka, tmp_path: Path) -> None:
    shop = Shop.made(kafka, tmp_path, 'begin = "now"', table='mode = "append"')
    shop.things.change({1: 1, 2: 2})
    shop.deliver()
    assert not kafka.committed(shop.topic)
    old = shop.published
    shop.things.change({1: 3, 4: 4})
    shop.deliver()
    new = shop.published
    one, two, four = (f'{{"k": {k}}}' for k in (1, 2, 4))
    changes = {record.key: json.loads(record.value or "") for record in kafka.committed(shop.topic)}
    assert changes == {
        one: {"before": json.loads(old[one]), "after": json.loads(new[one])},
        two: {"before": json.loads(old[two]), "after": None},
        four: {"before": None, "after": json.loads(new[four])},
    }
    kafka.drop(shop.topic)
    shop.things.change({1: 9})
    with pytest.raises(StartOver, match="must begin anew with thing, of mode append"):
        shop.deliver()
    shop.deliver(resync=True)
    assert len(kafka.committed(shop.topic)) == 1


@pytest.mark.parametrize(("mode", "policy"), [("mirror", "delete"), ("append", "compact")])
def test_a_topic_that_is_cleaned_up_otherwise_is_refused(kafka: Kafka, tmp_path: Path, mode: str, policy: str) -> None:
    shop = Shop.made(kafka, tmp_path, table=f'mode = "{mode}"')
    shop.things.change({1: 1})
    kafka.topic(shop.topic, cleanup_policy=policy)
    with pytest.raises(DeclarationError, match=f"has cleanup.policy={policy}, which loses rows here"):
        shop.deliver()


def test_topics_are_not_made_where_the_file_says_so(kafka: Kafka, tmp_path: Path) -> None:
    shop = Shop.made(kafka, tmp_path, "create = false")
    shop.things.change({1: 1})
    with pytest.raises(DeclarationError, match="no topic"):
        shop.deliver()
    kafka.topic(shop.topic, cleanup_policy="compact")
    kafka.topic(f"{shop.topic}-position", cleanup_policy="compact")
    shop.deliver()
    assert shop.in_step()


def test_headers_say_what_changed_and_in_which_edition(shop: Shop) -> None:
    from confluent_kafka import Consumer, TopicPartition

    shop.things.change({1: 9})
    shop.deliver()
    consumer = Consumer({"bootstrap.servers": shop.broker.bootstrap, "group.id": "headers"})
    consumer.assign([TopicPartition(shop.topic, 0, 0)])
    messages = consumer.consume(4, timeout=PATIENCE)
    consumer.close()
    headers = [dict(message.headers() or []) for message in messages]
    assert [told["change"] for told in headers] == [b"insert", b"insert", b"update", b"delete"]
    assert [told["edition"] for told in headers] == [b"1", b"1", b"2", b"2"]


def test_a_broker_with_tls_and_passwords_is_a_target_and_no_secret_is_told(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop.made(kafka, tmp_path)
    shop.things.change({1: 1})
    file = shop.things.settings.path("sinks") / f"{SINK}.toml"

    def declare(port: str, **client: str) -> None:
        said = file.read_text().partition("[client]")[0].replace(kafka.bootstrap, f"127.0.0.1:{kafka.ports[port]}")
        lines = "".join(f'"{name.replace("_", ".")}" = "{value}"\n' for name, value in client.items())
        file.write_text(f"{said}[client]\n{lines}")

    tls = file.read_text()
    declare("tls-port", security_protocol="SSL", ssl_ca_location=str(kafka.certificate))
    shop.deliver()
    assert shop.in_step()
    monkeypatch.setenv("THE_PASSWORD", "not-that-secret")
    file.write_text(tls)
    sasl = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "reader"}
    declare("sasl-port", **sasl, sasl_password="env:THE_PASSWORD")
    with pytest.raises(LakeError) as refused:
        shop.deliver()
    assert "authentication failed" in str(refused.value)
    assert "not-that-secret" not in str(refused.value)


BAD = [
    ("", "bootstrap is missing"),
    ("bootstrap = 7", "bootstrap: expected a text, found int"),
    ('bootstrap = "b"\nseconds = 0', "seconds must be at least 1, found 0"),
    ('bootstrap = "b"\ntransaction_seconds = -1', "transaction_seconds must be at least 1, found -1"),
    ('bootstrap = "b"\ncreate = "yes"', "create: expected true or false, found str"),
    ('bootstrap = "b"\ntopic = "x"', "unknown key 'topic'"),
    ('bootstrap = "b"\n[client]\n"transactional.id" = "x"', "'transactional.id' cannot be set"),
    ('bootstrap = "b"\n[client]\n"isolation.level" = "read_uncommitted"', "'isolation.level' cannot be set"),
    ('bootstrap = "b"\n[client]\n"sasl.password" = "x"', "is a secret, and must come from the environment"),
    ('bootstrap = "b"\n[client]\n"sasl.password" = "env:NOT_SET_AT_ALL"', "NOT_SET_AT_ALL, which is not set"),
    ('bootstrap = "b"\n[client]\nlinger = [1]', "must be text, a number, true or false"),
]


@pytest.mark.parametrize(("options", "found"), BAD)
def test_what_cannot_be_is_told_with_its_place(tmp_path: Path, options: str, found: str) -> None:
    settings = empty(tmp_path / "shop")
    settings.path("sinks").mkdir()
    settings.path("sinks/crm.toml").write_text(f'kind = "kafka"\n{options}\n[tables.thing]\n')
    with pytest.raises(DeclarationError) as fault:
        declared_sinks(settings)[0].open()
    assert found in str(fault.value)
    assert "sinks/crm.toml" in str(fault.value)


def test_a_setting_that_librdkafka_does_not_know_is_told(tmp_path: Path) -> None:
    settings = empty(tmp_path / "shop")
    settings.path("sinks").mkdir()
    settings.path("sinks/crm.toml").write_text(
        'kind = "kafka"\nbootstrap = "b:1"\n[client]\n"no.such" = 1\n[tables.thing]\n'
    )
    [sink] = declared_sinks(settings)
    with pytest.raises(DeclarationError, match="librdkafka refuses a setting"):
        sink.open().position()


def test_a_position_that_is_none_is_told() -> None:
    from lake.connect.kafka.sink.target import StoredPosition

    with pytest.raises(LakeError, match="cannot be read"):
        StoredPosition.from_json("{}")
    position = SinkPosition(1, 1, "2024-03-31T00:00:00+00:00", {"t": ("s", "d")})
    stored = StoredPosition("c", {"t": ("topic", "id", 2)}, position)
    assert StoredPosition.from_json(stored.to_json()) == stored


def test_the_page_prints_what_it_shows(tmp_path: Path, commands: Commands, kafka: Kafka) -> None:
    play([SHOP, "docs/how-to/sink-kafka.md"], tmp_path, {**commands.environment, "KAFKA": kafka.bootstrap})
