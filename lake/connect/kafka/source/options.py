"""Validated options of a Kafka source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lake.contracts.contract import Contract
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError, did_you_mean
from lake.sinks.kind import OptionTable, read_options

SEE: Final = "see docs/how-to/kafka.md"
STREAM_OPTIONS: Final[OptionTable] = {
    "topic": (str, None),
    "value": (("json", "avro"), "json"),
    "key": (("text", "json", "avro", "base64"), "text"),
}
RESERVED_SETTINGS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "use bootstrap",
    "metadata.broker.list": "use bootstrap",
    "group.id": "use group",
    "isolation.level": "leave it out: what is not committed is never read",
    "auto.offset.reset": "leave it out: a gap is reported, never skipped",
    "enable.auto.commit": "leave it out: offsets are written after the logs' own commits",
    "enable.auto.offset.store": "leave it out: offsets are written after the logs' own commits",
    "enable.partition.eof": "leave it out: it is switched on",
}
"""Settings of librdkafka that may not be declared: exactly-once reading depends on them."""
SECRET: Final = re.compile(
    r"password|secret|jaas|user\.info$|key\.pem$|auth\.token$|oauthbearer\.config$", re.IGNORECASE
)
FACTS: Final = "kafka"
TIMESTAMP: Final = f"{FACTS}.timestamp"


@dataclass(frozen=True)
class KafkaTopic:
    """If `is_clock`, the contract's clock is the record's timestamp, which the broker then has to set."""

    stream: str
    name: str
    value: str
    key: str
    facts: frozenset[str] = frozenset()
    envelope: bool = False
    is_clock: bool = False


@dataclass(frozen=True)
class KafkaOptions:
    name: str
    where: str
    bootstrap: str
    topics: tuple[KafkaTopic, ...]
    group: str = "headwater"
    records: int = 500_000
    bytes: int = 64 << 20
    seconds: int = 30
    client: Mapping[str, str] = field(default_factory=dict)
    registry: Mapping[str, str] = field(default_factory=dict)

    def redacted(self, text: str) -> str:
        for name, value in {**self.client, **self.registry}.items():
            if isinstance(value, FromEnvironment) and value:
                text = text.replace(value, f"<{name}>")
        return text


OPTIONS: Final[OptionTable] = {
    "bootstrap": (str, None),
    "group": (str, KafkaOptions.group),
    "records": (int, KafkaOptions.records),
    "bytes": (int, KafkaOptions.bytes),
    "seconds": (int, KafkaOptions.seconds),
    "streams": (dict, None),
    "client": (dict, {}),
    "registry": (dict, {}),
}


def options_of(name: str, options: Mapping[str, Any], contracts: Mapping[str, Contract], where: str) -> KafkaOptions:
    values = read_options(OPTIONS, options, where, SEE)
    DeclarationError.raise_any(_faults(values, contracts), where)
    streams = {
        stream: read_options(STREAM_OPTIONS, about, f"{where}, streams.{stream}", SEE)
        for stream, about in sorted(values.pop("streams").items())
    }
    DeclarationError.raise_any(_topic_faults(streams, values["registry"]), where)
    for table in ("client", "registry"):
        values[table] = {setting: as_text(value) for setting, value in values[table].items()}
    topics = tuple(_topic(stream, about, contracts[stream]) for stream, about in streams.items())
    return KafkaOptions(name, where, topics=topics, **values)


def _topic(stream: str, options: Mapping[str, str], contract: Contract) -> KafkaTopic:
    facts = frozenset(".".join(field.path) for field in contract.fields if field.path[:1] == (FACTS,))
    received = contract.field(contract.clock.received).path if contract.clock else ()
    is_clock = ".".join(received) == TIMESTAMP
    envelope, topic = bool(contract.envelope), options["topic"]
    return KafkaTopic(stream, topic, options["value"], options["key"], facts, envelope, is_clock)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _faults(options: Mapping[str, Any], contracts: Mapping[str, Contract]) -> Iterator[tuple[str, str]]:
    for table in ("client", "registry"):
        yield from faults_of_settings(table, options[table])
    if not options["streams"]:
        fix = 'for example [streams.flights], and below it topic = "flights"'
        yield "no streams: which topic is which stream's?", fix
    for stream, about in options["streams"].items():
        if stream not in contracts:
            yield f"no stream {stream!r}", did_you_mean(stream, contracts, otherwise=f"add schemas/{stream}.avsc")
        if not isinstance(about, Mapping):
            fix = f'for example [streams.{stream}], and below it topic = "{stream}"'
            yield f"streams.{stream} must be a table", fix
    if options["registry"] and "url" not in options["registry"]:
        yield "[registry] has no url", 'for example url = "http://localhost:8081"'


def faults_of_settings(
    table: str, settings: Mapping[str, Any], reserved: Mapping[str, str] = RESERVED_SETTINGS
) -> Iterator[tuple[str, str]]:
    """Yield (fault, fix). `reserved` has a fix for each setting that may not be declared."""
    for name, value in settings.items():
        if not isinstance(value, str | int | float):  # not shown, as it may be a secret
            yield f"[{table}] {name!r} must be text, a number, true or false", 'a secret is "env:NAME"'
        if _is_secret(name, value) and not isinstance(value, FromEnvironment):
            yield f"[{table}] {name!r} is a secret, and must come from the environment", f'"{name}" = "env:NAME"'
        if table == "client" and name in reserved:
            yield f"[client] {name!r} cannot be set", reserved[name]


def _is_secret(name: str, value: Any) -> bool:
    return bool(SECRET.search(name)) or (name == "url" and "@" in str(value))


def _topic_faults(streams: Mapping[str, Mapping[str, Any]], registry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    stream_of: dict[str, str] = {}
    for stream, about in streams.items():
        if (other := stream_of.setdefault(about["topic"], stream)) != stream:
            yield f"{other} and {stream} take the topic {about['topic']!r}", "let a job divide its events"
        if "avro" in {about["value"], about["key"]} and not registry:
            yield f"streams.{stream} is Avro, and no registry is named", "write [registry], and below it url = …"
