"""Validated options of a Kafka source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lake.contracts.contract import Contract
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError, did_you_mean

NAMES: Final = ("kind", "bootstrap", "group", "records", "bytes", "seconds", "streams", "client", "registry")
OF_STREAM: Final = ("topic", "value", "key")
VALUES: Final = ("json", "avro")
KEYS: Final = ("text", "json", "avro", "base64")
OURS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "use bootstrap",
    "metadata.broker.list": "use bootstrap",
    "group.id": "use group",
    "isolation.level": "leave it out: what is not committed is never read",
    "auto.offset.reset": "leave it out: a gap is reported, never skipped",
    "enable.auto.commit": "leave it out: offsets are written after the logs' own commits",
    "enable.auto.offset.store": "leave it out: offsets are written after the logs' own commits",
    "enable.partition.eof": "leave it out: it is switched on",
}
"""Settings of librdkafka that exactly-once reading depends on."""
MOST: Final[Mapping[str, int]] = {"records": 500_000, "bytes": 64 << 20, "seconds": 30}
SECRET: Final = re.compile(
    r"password|secret|jaas|user\.info$|key\.pem$|auth\.token$|oauthbearer\.config$", re.IGNORECASE
)
FACTS: Final = "kafka"
TIMESTAMP: Final = f"{FACTS}.timestamp"


@dataclass(frozen=True)
class KafkaTopic:
    """`stamped`: the contract's clock is the timestamp, which then has to be the broker's."""

    stream: str
    name: str
    value: str = "json"
    key: str = "text"
    facts: frozenset[str] = frozenset()
    envelope: bool = False
    stamped: bool = False


@dataclass(frozen=True)
class KafkaOptions:
    name: str
    where: str
    bootstrap: str
    topics: tuple[KafkaTopic, ...]
    group: str = "headwater"
    records: int = MOST["records"]
    bytes: int = MOST["bytes"]
    seconds: int = MOST["seconds"]
    client: Mapping[str, str] = field(default_factory=dict)
    registry: Mapping[str, str] = field(default_factory=dict)

    def redacted(self, text: str) -> str:
        for name, value in {**self.client, **self.registry}.items():
            if isinstance(value, FromEnvironment) and value:
                text = text.replace(value, f"<{name}>")
        return text


def options_of(name: str, options: Mapping[str, Any], contracts: Mapping[str, Contract], where: str) -> KafkaOptions:
    """Raises one DeclarationError with all faults."""
    DeclarationError.raise_any(_faults(options, contracts), where)
    streams = sorted(options["streams"].items())
    topics = tuple(_topic(stream, about, contracts[stream]) for stream, about in streams)
    simple = {option: options[option] for option in ("bootstrap", "group", *MOST) if option in options}
    client, registry = (
        {setting: as_text(value) for setting, value in options.get(table, {}).items()}
        for table in ("client", "registry")
    )
    return KafkaOptions(name, where, topics=topics, **simple, client=client, registry=registry)


def _topic(stream: str, options: Mapping[str, str], contract: Contract) -> KafkaTopic:
    facts = frozenset(".".join(field.path) for field in contract.fields if field.path[:1] == (FACTS,))
    received = contract.field(contract.clock.received).path if contract.clock else ()
    stamped = ".".join(received) == TIMESTAMP
    formats = {name: options[name] for name in ("value", "key") if name in options}
    envelope = bool(contract.envelope)
    return KafkaTopic(stream, options["topic"], **formats, facts=facts, envelope=envelope, stamped=stamped)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _faults(options: Mapping[str, Any], contracts: Mapping[str, Contract]) -> Iterator[tuple[str, str]]:
    for name in options:
        if name not in NAMES:
            yield f"unknown option {name!r}", did_you_mean(name, NAMES)
    for name, example in (("bootstrap", "localhost:9092"), ("group", KafkaOptions.group)):
        if name in options and not (isinstance(options[name], str) and options[name]):
            yield f"{name} must be text, found {options[name]!r}", f'for example {name} = "{example}"'
    if "bootstrap" not in options:
        yield "no bootstrap: where are the brokers?", 'for example bootstrap = "localhost:9092"'
    for name, most in MOST.items():
        value = options.get(name, most)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{name} must be a whole number of at least 1, found {value!r}", f"its default is {most}"
    for table in ("client", "registry"):
        yield from faults_of_settings(table, options.get(table, {}))
    yield from _faults_of_streams(options, contracts)


def faults_of_settings(table: str, settings: Any, ours: Mapping[str, str] = OURS) -> Iterator[tuple[str, str]]:
    """Yield (fault, fix). Settings in `ours` may not be set."""
    if not isinstance(settings, Mapping):
        yield f"{table} must be a table", f"write [{table}], and below it setting = value"
        return
    for name, value in settings.items():
        if not isinstance(value, str | int | float):  # not shown, as it may be a secret
            yield f"[{table}] {name!r} must be text, a number, true or false", 'a secret is "env:NAME"'
        if _is_secret(name, value) and not isinstance(value, FromEnvironment):
            yield f"[{table}] {name!r} is a secret, and must come from the environment", f'"{name}" = "env:NAME"'
        if table == "client" and name in ours:
            yield f"[client] {name!r} cannot be set", ours[name]


def _is_secret(name: str, value: Any) -> bool:
    return bool(SECRET.search(name)) or (name == "url" and "@" in str(value))


def _faults_of_streams(options: Mapping[str, Any], contracts: Mapping[str, Contract]) -> Iterator[tuple[str, str]]:
    streams = options.get("streams")
    if not isinstance(streams, Mapping) or not streams:
        yield (
            "no streams: which topic is which stream's?",
            'for example [streams.flights], and below it topic = "flights"',
        )
        return
    taken: dict[str, str] = {}
    for stream, about in sorted(streams.items()):
        if stream not in contracts:
            yield f"no stream {stream!r}", did_you_mean(stream, contracts, otherwise=f"add schemas/{stream}.avsc")
        if not isinstance(about, Mapping):
            yield (
                f"streams.{stream} must be a table",
                f'for example [streams.{stream}], and below it topic = "{stream}"',
            )
            continue
        yield from _faults_of_stream(stream, about)
        topic = about.get("topic")
        if isinstance(topic, str) and topic in taken:
            yield f"{taken[topic]} and {stream} take the topic {topic!r}", "let a job tell their events apart"
        elif isinstance(topic, str):
            taken[topic] = stream
        if "avro" in {about.get("value"), about.get("key")} and not options.get("registry"):
            yield f"streams.{stream} is Avro, and no registry is named", "write [registry], and below it url = …"
    if options.get("registry") and "url" not in options["registry"]:
        yield "[registry] has no url", 'for example url = "http://localhost:8081"'


def _faults_of_stream(stream: str, about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in about:
        if name not in OF_STREAM:
            yield f"streams.{stream} has an unknown option {name!r}", did_you_mean(name, OF_STREAM)
    if not (isinstance(about.get("topic"), str) and about["topic"]):
        yield f"streams.{stream} has no topic", f'for example topic = "{stream}"'
    for name, values in (("value", VALUES), ("key", KEYS)):
        if about.get(name, values[0]) not in values:
            yield f"streams.{stream}: unknown {name} {about[name]!r}", did_you_mean(str(about[name]), values)
