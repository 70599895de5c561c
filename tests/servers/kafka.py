"""A Kafka broker as `make server S=kafka` starts it, on free ports; topics, records and transactions for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from infra.server import KAFKA
from tests.processes import PATIENCE, free_port, until
from tests.servers import Server
from tests.servers import installed as server_installed
from tests.tls import certificate

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

USER: Final = {"KAFKA_USER": "reader", "KAFKA_PASSWORD": "a-secret-of-tests"}
QUIET: Final = {"log_level": 0}

POLL_SECONDS: Final = 1.0


def installed() -> None:
    """Skips a test where the client or the broker's jars are missing."""
    server_installed(KAFKA, "confluent_kafka", "kafka")


class Committed(NamedTuple):
    """A record: topic/partition:offset, key and value as text."""

    place: str
    key: str
    value: str | None


@dataclass
class Kafka(Server):
    """A broker with its data in `home`."""

    ports: Mapping[str, int] = field(
        default_factory=lambda: {name: free_port() for name in ("port", "controller-port", "sasl-port", "tls-port")}
    )
    made: int = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.ports['port']}"

    @property
    def url(self) -> str:
        """How it is reached, as benchmarks ask any server."""
        return self.bootstrap

    @property
    def certificate(self) -> Path:
        """A PEM file of the key and the certificate of this machine; it is its own authority."""
        return self.home / "server.pem"

    def start(self) -> None:
        """Starts the broker, and waits until it answers."""
        if not self.certificate.exists():
            self.home.mkdir(parents=True, exist_ok=True)
            self.certificate.write_bytes(certificate())
        ports = {name.replace("-", "_"): port for name, port in self.ports.items()}
        self.launch_own(KAFKA, USER, certificate=self.certificate, **ports)
        until(self.answers)

    def answers(self) -> bool:
        """Whether it does. Fails where it has ended."""
        self.assert_up()
        from confluent_kafka import KafkaException

        with suppress(KafkaException, TimeoutError):
            self.admin.describe_cluster(request_timeout=PATIENCE / 10).result(timeout=PATIENCE / 10)
            return True
        return False

    @cached_property
    def admin(self) -> AdminClient:
        """Its administrator: one that goes takes with it what it was asked."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def topic(self, name: str = "", *, partitions: int = 1, **config: str) -> str:
        """A new topic; its name."""
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stub forgets to export it

        self.made += 1
        name = name or f"topic-{self.made}"
        config = {option.replace("_", "."): value for option, value in config.items()}
        done(self.admin.create_topics([NewTopic(name, partitions, 1, config=config)]))
        until(lambda: self.is_led(name))
        return name

    def drop(self, topic: str) -> None:
        """Deletes a topic."""
        done(self.admin.delete_topics([topic]))
        until(lambda: topic not in self.admin.list_topics(timeout=PATIENCE).topics)

    def is_led(self, topic: str) -> bool:
        """Whether every partition of a topic that was just made has a leader."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException, KeyError):
            return self.high(topic) == 0
        return False

    def producer(self, **settings: object) -> Producer:
        from confluent_kafka import Producer

        names = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 1, **QUIET, **names})

    def send(self, topic: str, *values: str | bytes | None, **about: Any) -> None:
        """Records of these values; `about`: key, headers, partition, timestamp."""
        producer = self.producer()
        for value in values:
            producer.produce(topic, value, **about)
        assert producer.flush(PATIENCE) == 0

    def transaction(self, topic: str, values: Iterable[str], *, end: str = "commit", **about: Any) -> Producer:
        """Records of one transaction that is committed, aborted, or left `open`: its producer ends it when it goes."""
        self.made += 1
        producer = self.producer(transactional_id=f"transaction-{self.made}", transaction_timeout_ms=600_000)
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, **about)
        assert producer.flush(PATIENCE) == 0
        if end != "open":
            self.end(producer, topic, end)
        return producer

    def end(self, producer: Producer, topic: str, end: str = "commit") -> None:
        """Commits or aborts an open transaction of one partition of a topic."""
        before = self.high(topic)
        getattr(producer, f"{end}_transaction")(PATIENCE)
        until(lambda: self.high(topic) > before)  # its marker is written a little later

    def committed(self, topic: str) -> list[Committed]:
        """The committed records of a topic, those of a partition in their order, by a consumer of the test's own."""
        from confluent_kafka import Consumer, TopicPartition

        about = {"bootstrap.servers": self.bootstrap, "group.id": "truth", "isolation.level": "read_committed"}
        consumer = Consumer({**about, "enable.partition.eof": True, **QUIET})
        partitions = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        records, ended = list[Committed](), set[int | None]()
        while len(ended) < len(partitions):
            for message in consumer.consume(10_000, timeout=POLL_SECONDS):
                if message.error():
                    ended.add(message.partition())
                    continue
                place, key, value = f"{topic}/{message.partition()}:{message.offset()}", message.key(), message.value()
                records.append(Committed(place, (key or b"").decode(), None if value is None else value.decode()))
        consumer.close()
        return records

    def told(self, group: str, topic: str) -> dict[int, int]:
        """The offsets of a group, by partition; 0 where it has none."""
        from confluent_kafka import Consumer, TopicPartition

        partitions = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, **QUIET})
        try:
            found = consumer.committed([TopicPartition(topic, number) for number in partitions], timeout=PATIENCE)
            return {place.partition: max(0, place.offset) for place in found}
        finally:
            consumer.close()

    def high(self, topic: str) -> int:
        """The offsets of a topic that are taken, of all its partitions."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stub forgets to export it

        partitions = self.admin.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # so is the client
        asked = self.admin.list_offsets({TopicPartition(topic, number): latest for number in partitions})
        return sum(future.result(timeout=PATIENCE).offset for future in asked.values())


def done(futures: Mapping[Any, Future[Any]]) -> None:
    """Waits for what an administrator asked."""
    for future in futures.values():
        future.result(timeout=PATIENCE)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A running broker."""
    installed()
    broker = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
