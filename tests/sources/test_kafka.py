"""Kafka source against a real broker: transactions, gaps, partitions, an unavailable broker, secrets, formats."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lake.config import Settings
from lake.connect.kafka.source.reader import GENERATION
from lake.connect.kafka.source.reader import KafkaSource as Source
from lake.contracts.contract import Clock
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError, Unavailable
from lake.sources.declared import sound_sources
from lake.sources.source import Gap
from tests.processes import free_port, until
from tests.servers.kafka import USER, Kafka, done
from tests.sources.kafka import options, read_all, stream
from tests.spool import Kept


@pytest.fixture
def open_sources() -> Iterator[list[Source]]:
    """Return a list of sources and close them afterwards."""
    sources: list[Source] = []
    yield sources
    for source in sources:
        source.close()


def source_of(opened: list[Source], bootstrap: str, *contracts: Any, topics: Any, **said: Any) -> Source:
    opened.append(Source(options(bootstrap, *contracts, topics=topics, **said)))
    return opened[-1]


@pytest.mark.smoke
def test_kafka_reads_committed_records_once_and_skips_holes(kafka: Kafka, open_sources: list[Source]) -> None:
    topic = kafka.topic()
    kafka.transaction(topic, [f'{{"n": {n}}}' for n in range(5)])
    kafka.transaction(topic, [f'{{"n": {n}}}' for n in range(5, 10)], end="abort")
    kafka.transaction(topic, [f'{{"n": {n}}}' for n in range(10, 15)])
    unfinished = kafka.transaction(topic, ['{"n": 15}'], end="open")
    source = source_of(open_sources, kafka.bootstrap, topics={"events": topic})
    kept, progress, deliveries = read_all(source)
    assert [json.loads(text)["n"] for text in kept.texts] == [*range(5), *range(10, 15)]
    assert kept.places == [f"{topic}/0:{at}" for at in (*range(5), *range(12, 17))]
    assert progress is not None
    assert progress["topics"][topic]["ranges"] == {"0": [0, 18]}
    assert deliveries == 1
    source.acknowledge(progress)
    source.acknowledge(progress)
    assert kafka.told("headwater", topic)[0] == 18
    assert source.lag(progress).events == 0
    kafka.end(unfinished, topic)
    more, progress, _ = read_all(source, progress)
    assert more.texts == ['{"n": 15}']
    assert progress is not None
    assert progress["topics"][topic]["ranges"] == {"0": [18, 20]}


@pytest.mark.parametrize("seed", range(6))
def test_kafka_reads_committed_records_once_with_any_limits_and_partitions(
    kafka: Kafka, open_sources: list[Source], seed: int
) -> None:
    random = Random(seed)
    partitions = random.choice([1, 3, 8])
    topic = kafka.topic(partitions=partitions)
    expected: dict[int, list[str]] = {partition: [] for partition in range(partitions)}
    number, after, kept, unfinished = 0, None, Kept(), []
    for _ in range(12):
        partition, values = random.randrange(partitions), []
        for _ in range(random.randint(1, 40)):
            values.append(f'{{"n": {number}}}')
            number += 1
        match random.choice(["plain", "commit", "abort", "open"]):
            case "plain":
                kafka.send(topic, *values, partition=partition)
                expected[partition] += values
            case "commit" | "abort" as end:
                kafka.transaction(topic, values, end=end, partition=partition)
                expected[partition] += values if end == "commit" else []
            case "open":
                unfinished.append(kafka.transaction(topic, values, end="open", partition=partition))
                expected[partition] += values
        if random.random() < 0.4:
            source = source_of(
                open_sources, kafka.bootstrap, topics={"events": topic}, records=random.randint(1, 60), bytes=2000
            )
            progress = source.read(after, kept)
            after = progress or after
    for producer in unfinished:
        kafka.end(producer, topic)
    source = source_of(open_sources, kafka.bootstrap, topics={"events": topic}, records=random.randint(20, 100))
    rest, after, _ = read_all(source, after)
    found: dict[int, list[str]] = {partition: [] for partition in range(partitions)}
    for text, place in zip(kept.texts + rest.texts, kept.places + rest.places, strict=True):
        found[int(place.rpartition("/")[2].partition(":")[0])].append(text)
    assert found == expected
    assert source.lag(after).events == 0


def test_recreated_topic_is_a_gap_until_it_is_given_up(kafka: Kafka, open_sources: list[Source]) -> None:
    topic = kafka.topic()
    kafka.send(topic, '{"n": 1}')
    source = source_of(open_sources, kafka.bootstrap, stream("events", "kafka.offset"), topics={"events": topic})
    _, after, _ = read_all(source)
    done(kafka.admin.delete_topics([topic]))
    until(lambda: topic not in kafka.admin.list_topics().topics)
    with pytest.raises(DeclarationError, match="Unknown topic"):
        source.read(after, Kept())
    until(lambda: is_recreated(kafka, topic))
    kafka.send(topic, '{"n": 2}', '{"n": 3}')
    with pytest.raises(Gap, match="was recreated: its id is") as told:
        source.read(after, Kept())
    assert "lake ingest shop --give-up reads all its records as new" in told.value.fix
    kept, _, _ = read_all(source, source.skip_gap(after))
    assert kept.texts == ['{"n": 2}', '{"n": 3}']
    assert [int(facts["kafka.offset"]) for facts in kept.facts] == [GENERATION, GENERATION + 1]


def test_kafka_delivers_nothing_when_a_topic_is_recreated_during_the_read(
    kafka: Kafka, open_sources: list[Source]
) -> None:
    topic = kafka.topic()
    kafka.send(topic, '{"n": 1}')
    source = source_of(open_sources, kafka.bootstrap, topics={"events": topic})

    class Anew(Kept):
        def put_many(self, *columns: Any) -> None:
            done(kafka.admin.delete_topics([topic]))
            until(lambda: is_recreated(kafka, topic))

    with pytest.raises(Unavailable, match="was recreated while it was being read"):
        source.read(None, Anew())
    assert source.read(None, Kept()) is None


def is_recreated(kafka: Kafka, topic: str) -> bool:
    try:
        return bool(kafka.topic(topic))
    except Exception:  # The old topic disappears gradually
        return False


def test_records_deleted_by_retention_are_a_gap_until_they_are_given_up(
    kafka: Kafka, open_sources: list[Source]
) -> None:
    from confluent_kafka import TopicPartition

    topic = kafka.topic()
    kafka.send(topic, *(f'{{"n": {n}}}' for n in range(4)))
    source = source_of(open_sources, kafka.bootstrap, topics={"events": topic})
    _, after, _ = read_all(source)
    kafka.send(topic, *(f'{{"n": {n}}}' for n in range(4, 9)))
    done(kafka.admin.delete_records([TopicPartition(topic, 0, 7)]))
    with pytest.raises(Gap, match="the offsets 4 to 6 were deleted there before they were read") as told:
        source.read(after, Kept())
    assert "lake ingest shop --give-up continues at 7, without the lost records" in told.value.fix
    assert source.lag(after).events == 2
    kept, _, _ = read_all(source, source.skip_gap(after))
    assert kept.texts == ['{"n": 7}', '{"n": 8}']
    first, _, _ = read_all(source_of(open_sources, kafka.bootstrap, topics={"events": topic}))
    assert first.texts == kept.texts


def test_new_partitions_are_read_from_their_beginning_with_a_warning(
    kafka: Kafka, open_sources: list[Source], caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]  # its stub forgets to export it

    topic = kafka.topic()
    kafka.send(topic, '{"n": 1}')
    source = source_of(
        open_sources, kafka.bootstrap, stream("events", "kafka.offset"), topics={"events": topic}, records=2
    )
    _, after, _ = read_all(source)
    done(kafka.admin.create_partitions([NewPartitions(topic, 3)]))
    until(lambda: len(kafka.admin.list_topics(topic).topics[topic].partitions) == 3)
    kafka.send(topic, '{"n": 3}', partition=2)
    kafka.send(topic, *(f'{{"n": {n}}}' for n in range(4, 9)), partition=0)
    with caplog.at_level(logging.WARNING, "lake"):
        kept, after, _ = read_all(source, after)
    assert kept.places == [*(f"{topic}/0:{n}" for n in range(1, 6)), f"{topic}/2:0"]
    assert [int(facts["kafka.offset"]) for facts in kept.facts] == [*range(1, 6), GENERATION]
    kafka.send(topic, '{"n": 9}', partition=0)
    later, _, _ = read_all(source, after)
    assert [int(facts["kafka.offset"]) for facts in later.facts] == [GENERATION + 6]
    assert "has new partitions (1, 2)" in caplog.text
    assert after is not None
    assert {p: end for p, (_, end) in after["topics"][topic]["ranges"].items()} == {"0": 6, "1": 0, "2": 1}


def test_stopped_broker_is_unavailable_and_committed_records_are_read_after_its_return(
    kafka: Kafka, open_sources: list[Source]
) -> None:
    topic = kafka.topic()
    kafka.send(topic, *(f'{{"n": {n}}}' for n in range(3)))
    source = source_of(open_sources, kafka.bootstrap, topics={"events": topic}, seconds=10)
    first, after, _ = read_all(source)
    kafka.send(topic, '{"n": 3}')
    kafka.stop()
    try:
        for ask in (
            lambda: source.read(after, Kept()),
            lambda: source.lag(after),
            lambda: source.acknowledge(after or {}),
            lambda: source_of(open_sources, kafka.bootstrap, topics={"events": topic}, seconds=1).read(after, Kept()),
        ):
            with pytest.raises(Unavailable, match="Kafka is unavailable"):
                ask()
    finally:
        kafka.start()
    more, _, _ = read_all(source_of(open_sources, kafka.bootstrap, topics={"events": topic}), after)
    assert first.texts + more.texts == [f'{{"n": {n}}}' for n in range(4)]


def test_broker_that_dies_during_a_range_is_unavailable(kafka: Kafka, open_sources: list[Source]) -> None:
    topic = kafka.topic()
    kafka.send(topic, *(f'{{"n": {n}, "pad": "{"x" * 2000}"}}' for n in range(20_000)))
    source = source_of(
        open_sources,
        kafka.bootstrap,
        topics={"events": topic},
        seconds=10,
        client={"queued.max.messages.kbytes": 1024, "fetch.message.max.bytes": 100_000},
    )

    class Deadly(Kept):
        def put_many(self, *columns: Any) -> None:
            super().put_many(*columns)
            if kafka.process is not None and kafka.process.poll() is None:
                kafka.stop()

    dead = Deadly()
    try:
        with pytest.raises(Unavailable, match="no records received from partition 0"):
            source.read(None, dead)
    finally:
        kafka.start()
    assert 0 < len(dead.records) < 20_000
    whole, _, _ = read_all(source_of(open_sources, kafka.bootstrap, topics={"events": topic}))
    assert [json.loads(text)["n"] for text in whole.texts] == list(range(20_000))


def test_sasl_and_tls_settings_read_their_secrets_from_the_environment(
    kafka: Kafka,
    project: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic = kafka.topic()
    kafka.send(topic, '{"n": 1}')
    for name, value in (USER | {"KAFKA_CA": str(kafka.certificate)}).items():
        monkeypatch.setenv(name, value)
    sasl = """
        "security.protocol" = "SASL_PLAINTEXT"
        "sasl.mechanism" = "PLAIN"
        "sasl.username" = "env:KAFKA_USER"
        "sasl.password" = "env:KAFKA_PASSWORD"
    """
    for name, port, settings in (
        ("sasl", "sasl-port", sasl),
        ("tls", "tls-port", '"security.protocol" = "SSL"\n"ssl.ca.location" = "env:KAFKA_CA"'),
        ("untrusted", "tls-port", '"security.protocol" = "SSL"'),
    ):
        project.path(f"sources/{name}.toml").parent.mkdir(exist_ok=True)
        project.path(f"sources/{name}.toml").write_text(
            f'kind = "kafka"\nbootstrap = "127.0.0.1:{kafka.ports[port]}"\n'
            f'[streams]\nevents = {{ topic = "{topic}" }}\n[client]\n{settings}'
        )
    project.path("schemas/events.avsc").touch()
    contracts = {"events": stream("events")}
    sources, faults = sound_sources(project, contracts)
    assert not faults
    for name in ("sasl", "tls"):
        with closing(sources[name].open()) as source:
            kept = Kept()
            source.read(None, kept)
            assert kept.texts == ['{"n": 1}']
    monkeypatch.setenv("KAFKA_PASSWORD", "not-the-secret")
    with caplog.at_level(logging.DEBUG, "lake"):
        for name, declared in sound_sources(project, contracts)[0].items():
            if name != "tls":
                with closing(declared.open()) as source, pytest.raises(DeclarationError) as told:
                    source.read(None, Kept())
                assert "authentication failed: " in told.value.what
                assert told.value.where == f"sources/{name}.toml"
                assert "not-the-secret" not in str(told.value)
    assert "librdkafka" in caplog.text
    assert "not-the-secret" not in caplog.text
    assert capfd.readouterr().err == ""


def test_kafka_reports_a_setting_rejected_by_librdkafka_without_its_value(
    kafka: Kafka, open_sources: list[Source], capfd: pytest.CaptureFixture[str]
) -> None:
    for client, said in (
        ({"sasl.pasword": "a-secret"}, 'No such configuration property: "sasl.pasword"'),
        ({"security.protocol": "a-secret"}, 'Invalid value for configuration property "security.protocol"'),
        ({"ssl.ca.location": "/nowhere", "security.protocol": "ssl"}, "ssl.ca.location failed"),
        ({"ssl.key.pem": FromEnvironment("a-secret"), "security.protocol": "ssl"}, "ssl.key.pem failed"),
    ):
        with pytest.raises(DeclarationError, match="librdkafka refuses a setting") as told:
            source_of(open_sources, kafka.bootstrap, topics={"events": "events"}, client=client).read(None, Kept())
        assert said in told.value.what
        assert "a-secret" not in str(told.value)
    with pytest.raises(Unavailable, match="Kafka is unavailable"):
        source_of(open_sources, f"127.0.0.1:{free_port()}", topics={"events": "events"}, seconds=1).read(None, Kept())
    assert capfd.readouterr().err == ""


def test_kafka_delivers_the_facts_that_the_contract_reads(kafka: Kafka, open_sources: list[Source]) -> None:
    topic = kafka.topic()
    kafka.send(
        topic, '{"n": 1}', key="AA", headers=[("trace.id", b"1"), ("trace.id", b"2")], timestamp=1_357_034_400_123
    )
    kafka.send(topic, None, key='{"id": 7.10, "name": "é"}', headers=[("other", None)])
    kafka.send(topic, '{"n": 3}', headers=[("trace.id", b"\xff")])
    taken = ("key", "headers.trace.id", "timestamp", "topic", "partition", "offset", "tombstone")
    events = stream("events", *(f"kafka.{fact}" for fact in taken))
    kept, _, _ = read_all(source_of(open_sources, kafka.bootstrap, events, topics={"events": topic}))
    assert kept.texts[:2] == ['{"n": 1}', "{}"]
    assert kept.texts[2].startswith("cannot be decoded: kafka.headers.trace.id: not valid UTF-8 at byte 0; its bytes: ")
    assert kept.facts[0] == {
        "kafka.key": "AA",
        "kafka.headers.trace.id": "2",
        "kafka.timestamp": "2013-01-01T10:00:00.123+00:00",
        "kafka.topic": topic,
        "kafka.partition": "0",
        "kafka.offset": "0",
        "kafka.tombstone": "false",
    }
    second = dict(kept.facts[1])
    assert second.pop("kafka.timestamp")
    assert (second["kafka.key"], second["kafka.tombstone"]) == ('{"id": 7.10, "name": "é"}', "true")
    assert "kafka.headers.trace.id" not in second


def test_clock_requires_the_timestamps_of_the_broker(kafka: Kafka, open_sources: list[Source]) -> None:
    events = stream("events", "sent", "kafka.timestamp")
    corrected = replace(events, clock=Clock(sent="f0", received="f1"))
    created, appended = kafka.topic(), kafka.topic(message_timestamp_type="LogAppendTime")
    for topic in (created, appended):
        kafka.send(topic, '{"sent": "1970-01-01T00:00:01Z"}', timestamp=1_000)
    with pytest.raises(DeclarationError, match="found CreateTime, the producer's own clock, at offset 0") as told:
        source_of(open_sources, kafka.bootstrap, corrected, topics={"events": created}).read(None, Kept())
    assert f"topic {created}" in str(told.value)
    assert "message.timestamp.type=LogAppendTime" in str(told.value)
    kept, _, _ = read_all(source_of(open_sources, kafka.bootstrap, corrected, topics={"events": appended}))
    assert kept.facts[0]["kafka.timestamp"] > "2000"
    kept, _, _ = read_all(source_of(open_sources, kafka.bootstrap, events, topics={"events": created}))
    assert kept.facts[0]["kafka.timestamp"] == "1970-01-01T00:00:01.000+00:00"


def test_null_value_is_control_event_or_rejected_as_the_contract_declares(
    kafka: Kafka, open_sources: list[Source]
) -> None:
    topic = kafka.topic()
    kafka.send(topic, None, key='{"id": 7.10, "on": null}')
    for contract, text in (
        (stream("events", envelope="debezium"), ""),
        (stream("events", "kafka.key.id", "kafka.key.on", "kafka.tombstone"), "{}"),
        (stream("events", "kafka.key"), None),
    ):
        about = {"topic": topic, "key": "json"}
        kept, _, _ = read_all(source_of(open_sources, kafka.bootstrap, contract, topics={"events": about}))
        [found] = kept.texts
        if text is None:
            assert found.startswith(
                "cannot be decoded: a null value, but no field of the contract is from kafka.tombst"
            )
        else:
            assert found == text
        if text == "{}":
            assert kept.facts == [{"kafka.key.id": "7.10", "kafka.tombstone": "true"}]


def test_kafka_reads_several_topics_into_several_logs_of_one_progress(kafka: Kafka, open_sources: list[Source]) -> None:
    first, second = kafka.topic(), kafka.topic(partitions=2)
    source = source_of(open_sources, kafka.bootstrap, topics={"a": first})
    kafka.send(first, '{"n": 1}')
    _, after, _ = read_all(source)
    both = source_of(open_sources, kafka.bootstrap, topics={"a": first, "b": second})
    kafka.send(first, '{"n": 2}')
    kafka.send(second, '{"n": 3}', partition=1)
    kept, after, _ = read_all(both, after)
    assert [(name, record.text) for name, record in kept.records] == [("a", '{"n": 2}'), ("b", '{"n": 3}')]
    assert after is not None
    assert {name: said["ranges"] for name, said in after["topics"].items()} == {
        first: {"0": [1, 2]},
        second: {"0": [0, 0], "1": [0, 1]},
    }


def test_broker_keeps_its_files_private_and_passwords_off_the_command_line(kafka: Kafka) -> None:
    assert (kafka.home / "server.properties").stat().st_mode & 0o077 == 0
    assert kafka.process is not None
    line = Path(f"/proc/{kafka.process.pid}/cmdline").read_bytes()
    assert b"kafka.Kafka" in line
    assert USER["KAFKA_PASSWORD"].encode() not in line
