"""Readers of committed records find the table in the topic of a sink, also after kills during a delivery."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lake.connect.kafka.sink import KafkaTarget as Target
from lake.connect.kafka.sink.topics import KafkaTransaction
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.sql import reader
from lake.sinks.deliver import deliver, preview
from lake.sinks.kind import declared_sinks
from lake.sinks.plan import DeliveryPlan
from lake.sinks.sink import SinkDelivery, SinkPosition
from lake.store.ledger import editions
from lake.testing import Commands
from tests.kills import killed
from tests.processes import PATIENCE, until
from tests.servers.kafka import Kafka, done
from tests.servers.kafka import installed as kafka_installed
from tests.shop import empty
from tests.sinks.shop import SINK, KafkaShop
from tests.warehouse import write


@pytest.fixture
def shop(kafka: Kafka, tmp_path: Path) -> KafkaShop:
    """Table of two rows in edition 1, delivered to the topic."""
    shop = KafkaShop.made(kafka, tmp_path)
    shop.things.change({1: 1, 2: 2})
    shop.deliver()
    return shop


def test_compacted_topic_equals_the_edition_after_each_delivery(shop: KafkaShop) -> None:
    assert shop.in_step()
    shop.things.change({1: 1, 2: 5, None: 4})
    assert shop.deliver().tables[0].inserted == 1
    assert shop.in_step()
    assert json.loads(shop.server.committed(f"{shop.topic}-position")[-1].value or "")["position"]["edition"] == 2
    high = shop.server.high(shop.topic)
    shop.things.publish()
    shop.deliver()
    assert shop.server.high(shop.topic) == high, "a rebuild sends nothing"
    with closing(shop.sink.open()) as target:
        assert isinstance(target, Target)
        assert shop.deliver().changed is False


def open_plan(shop: KafkaShop) -> tuple[Target, DeliveryPlan]:
    target = shop.sink.open()
    assert isinstance(target, Target)
    return target, DeliveryPlan(
        shop.things.settings, shop.sink, target.position(), reader(shop.things.settings).edition
    )


@pytest.mark.parametrize("point", ["begin.after", "record.after", "commit.after"])
def test_delivery_is_seen_whole_or_not_at_all_when_it_is_killed(shop: KafkaShop, kills: Commands, point: str) -> None:
    for number in range(3, 8):
        before = shop.published
        shop.things.change({1: number, number: 1, number + 1: 2})
        nth = 1 + number % 3 if point == "record.after" else 1
        assert killed(kills, shop.things.settings, f"deliver {SINK}", point, nth)
        assert shop.read == (shop.published if point == "commit.after" else before)
        shop.deliver()
        assert shop.in_step()


Interrupted = Callable[[KafkaShop, Callable[[], object]], tuple[Target, SinkDelivery]]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """Delivery that calls a function once the cluster has its first row."""

    def delivery(shop: KafkaShop, happens: Callable[[], object]) -> tuple[Target, SinkDelivery]:
        target, plan = open_plan(shop)
        send, first = KafkaTransaction.send, iter([True])

        def sends(transaction: KafkaTransaction, *record: Any, **more: Any) -> None:
            send(transaction, *record, **more)
            if next(first, False):
                assert transaction._producer.flush(PATIENCE) == 0
                happens()

        monkeypatch.setattr(KafkaTransaction, "send", sends)
        return target, plan.delivery()

    return delivery


def test_earlier_of_two_deliveries_is_fenced_off(shop: KafkaShop, interrupted: Interrupted) -> None:
    """As from two machines that share no lease."""
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


def test_aborted_half_of_a_delivery_is_not_seen(shop: KafkaShop, interrupted: Interrupted) -> None:
    before, high = shop.read, shop.server.high(shop.topic)
    shop.things.change({number: number for number in range(500)})

    def fail() -> None:
        raise LakeError("the rows cannot be read")

    target, delivery = interrupted(shop, fail)
    with closing(target), pytest.raises(LakeError, match="cannot be read"):
        target.deliver(delivery)
    assert shop.read == before
    shop.deliver()
    assert shop.in_step()
    assert shop.server.high(shop.topic) > high


def test_delivery_fails_and_is_not_seen_if_the_broker_dies_midway(shop: KafkaShop, interrupted: Interrupted) -> None:
    before = shop.read
    shop.things.change({number: number for number in range(50)})
    target, delivery = interrupted(shop, shop.server.stop)
    try:
        with closing(target), pytest.raises(Unavailable, match="Kafka is unavailable"):
            target.deliver(delivery)
    finally:
        shop.server.start()
    assert shop.read == before
    shop.deliver()
    assert shop.in_step()


def test_delivery_longer_than_its_transaction_may_take_is_not_seen(
    kafka: Kafka, tmp_path: Path, interrupted: Interrupted
) -> None:
    shop = KafkaShop.made(kafka, tmp_path, "transaction_seconds = 1")
    shop.things.change({1: 1})
    shop.deliver()
    before = shop.read
    shop.things.change({number: number for number in range(50)})

    def wait_for_abort() -> None:
        high = kafka.high(shop.topic)
        until(lambda: kafka.high(shop.topic) > high)  # the broker has written the marker

    target, delivery = interrupted(shop, wait_for_abort)
    with closing(target), pytest.raises(Unavailable, match="took longer than 1 s"):
        target.deliver(delivery)
    assert shop.read == before
    shop.deliver()
    assert shop.in_step()


def test_transaction_longer_than_the_cluster_allows_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    shop = KafkaShop.made(kafka, tmp_path, "transaction_seconds = 100000")
    shop.things.change({1: 1})
    with pytest.raises(DeclarationError, match="the cluster allows no transaction of 100000 s"):
        shop.deliver()


def test_delivery_of_a_million_rows_is_one_transaction(kafka: Kafka, tmp_path: Path) -> None:
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


def test_recreated_topic_is_filled_again(shop: KafkaShop, caplog: pytest.LogCaptureFixture) -> None:
    shop.server.drop(shop.topic)
    with caplog.at_level(logging.WARNING, "lake"):
        [sent] = preview(shop.things.settings, shop.sink).tables
    assert sent.whole
    assert "is not the one that was filled" in caplog.text
    shop.server.topic(shop.topic, cleanup_policy="compact")
    shop.deliver()
    assert shop.in_step()


def test_new_cluster_is_filled_again_even_if_the_position_was_mirrored(shop: KafkaShop, tmp_path: Path) -> None:
    kafka_installed()
    other = Kafka(tmp_path / "other")
    try:
        other.start()
        other.topic(f"{shop.topic}-position", cleanup_policy="compact")
        other.topic(shop.topic, cleanup_policy="compact")
        position = shop.server.committed(f"{shop.topic}-position")[-1]
        other.send(f"{shop.topic}-position", position.value, key=position.key)
        other.send(shop.topic, "{}", key="an unknown row")
        moved = KafkaShop(other, shop.things, shop.topic)
        moved.declare()
        moved.deliver()
        assert moved.in_step()
    finally:
        other.stop()


def test_added_partitions_are_reported_because_keys_move(shop: KafkaShop) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub forgets to export it

    done(shop.server.admin.create_partitions([NewPartitions(shop.topic, 3)]))
    shop.things.change({1: 5})
    with pytest.raises(DeclarationError, match="has 3 partitions, and had 1"):
        shop.deliver()


def test_append_topic_has_the_changes(kafka: Kafka, tmp_path: Path) -> None:
    shop = KafkaShop.made(kafka, tmp_path, 'begin = "now"', table='mode = "append"')
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
        one: {"before": old[one], "after": new[one]},
        two: {"before": old[two], "after": None},
        four: {"before": None, "after": new[four]},
    }
    kafka.drop(f"{shop.topic}-position")
    with pytest.raises(DeclarationError, match="has records already, and not of this sink"):
        shop.deliver()
    assert len(kafka.committed(shop.topic)) == 3
    shop.deliver(resync=True)
    kafka.drop(shop.topic)
    shop.things.change({1: 9})
    with pytest.raises(StartOver, match="must begin anew with thing, of mode append"):
        shop.deliver()
    shop.deliver(resync=True)
    assert len(kafka.committed(shop.topic)) == 1


@pytest.mark.parametrize(("mode", "policy"), [("mirror", "delete"), ("append", "compact")])
def test_topic_with_a_lossy_cleanup_policy_is_refused(kafka: Kafka, tmp_path: Path, mode: str, policy: str) -> None:
    shop = KafkaShop.made(kafka, tmp_path, table=f'mode = "{mode}"')
    shop.things.change({1: 1})
    kafka.topic(shop.topic, cleanup_policy=policy)
    with pytest.raises(DeclarationError, match=f"has cleanup.policy={policy}, which loses rows here"):
        shop.deliver()


def test_topics_are_not_created_if_the_sink_forbids_it(kafka: Kafka, tmp_path: Path) -> None:
    shop = KafkaShop.made(kafka, tmp_path, "create = false")
    shop.things.change({1: 1})
    with pytest.raises(DeclarationError, match="no topic"):
        shop.deliver()
    kafka.topic(shop.topic, cleanup_policy="compact")
    kafka.topic(f"{shop.topic}-position", cleanup_policy="compact")
    shop.deliver()
    assert shop.in_step()


def test_headers_have_the_kind_of_change_and_its_edition(shop: KafkaShop) -> None:
    from confluent_kafka import Consumer, TopicPartition

    shop.things.change({1: 9})
    shop.deliver()
    consumer = Consumer({"bootstrap.servers": shop.server.bootstrap, "group.id": "headers"})
    consumer.assign([TopicPartition(shop.topic, 0, 0)])
    messages = consumer.consume(4, timeout=PATIENCE)
    consumer.close()
    headers = [dict(message.headers() or []) for message in messages]
    assert [header["change"] for header in headers] == [b"insert", b"insert", b"update", b"delete"]
    assert [header["edition"] for header in headers] == [b"1", b"1", b"2", b"2"]


def test_delivery_supports_tls_and_prints_no_password_when_sasl_fails(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = KafkaShop.made(kafka, tmp_path)
    shop.things.change({1: 1})
    file = shop.things.settings.path("sinks") / f"{SINK}.toml"

    def declare(port: str, **client: str) -> None:
        text = file.read_text().partition("[client]")[0].replace(kafka.bootstrap, f"127.0.0.1:{kafka.ports[port]}")
        lines = "".join(f'"{name.replace("_", ".")}" = "{value}"\n' for name, value in client.items())
        file.write_text(f"{text}[client]\n{lines}")

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


def test_setting_unknown_to_librdkafka_is_reported(tmp_path: Path) -> None:
    settings = empty(tmp_path / "shop")
    settings.path("sinks").mkdir()
    settings.path("sinks/crm.toml").write_text(
        'kind = "kafka"\nbootstrap = "b:1"\n[client]\n"no.such" = 1\n[tables.thing]\n'
    )
    [sink] = declared_sinks(settings)
    with pytest.raises(DeclarationError, match="librdkafka refuses a setting"):
        sink.open().position()


def test_stored_position_is_read_back_and_an_invalid_one_is_reported() -> None:
    from lake.connect.kafka.sink import StoredPosition

    with pytest.raises(LakeError, match=r"'position' cannot be read: '\{\}' \(sinks/crm.toml\)"):
        StoredPosition.from_json("{}", "position", "sinks/crm.toml")
    position = SinkPosition(1, 1, "2024-03-31T00:00:00+00:00", {"t": ("s", "d")})
    stored = StoredPosition("c", {"t": ("topic", "id", 2)}, position)
    assert StoredPosition.from_json(stored.to_json(), "position", "sinks/crm.toml") == stored
