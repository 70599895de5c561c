"""Kafka options of a source file: all faults at once, each with its fix; and contracts that read facts of records."""

from __future__ import annotations

from typing import Any

import pytest

from lake.config import Settings
from lake.connect.kafka.source.options import RESERVED_SETTINGS, KafkaOptions, options_of
from lake.contracts.contract import load_contract
from lake.errors import DeclarationError
from lake.sources.declared import sound_sources
from tests.shop import contract, declare
from tests.sources.kafka import WHERE, stream

CONTRACTS = {name: stream(name) for name in ("flights", "weather")}
RIGHT: dict[str, Any] = {"bootstrap": "localhost:9092", "streams": {"flights": {"topic": "f"}}}
WRONG: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"bootstrp": "x"}, "unknown key 'bootstrp'", "did you mean 'bootstrap'?"),
    ({"bootstrap": 7}, "bootstrap: expected a text, found int", "see docs/how-to/kafka.md"),
    ({"bootstrap": None}, "bootstrap is missing", "write bootstrap = …; see docs/how-to/kafka.md"),
    ({"group": ""}, "group: found an empty text", "see docs/how-to/kafka.md"),
    ({"records": 0}, "records: found 0", "give a number from 1 on"),
    ({"bytes": True}, "bytes: expected a whole number, found bool", "see docs/how-to/kafka.md"),
    ({"seconds": 1.5}, "seconds: expected a whole number, found float", "see docs/how-to/kafka.md"),
    ({"client": 3}, "client: expected a table, found int", "see docs/how-to/kafka.md"),
    ({"client": {"sasl.password": "a-secret"}}, "'sasl.password' is a secret", '"sasl.password" = "env:NAME"'),
    ({"registry": {"url": "http://me:a-secret@x"}}, "[registry] 'url' is a secret", '"url" = "env:NAME"'),
    ({"registry": {"url": "x", "basic.auth.user.info": "a-secret"}}, "is a secret", '"env:NAME"'),
    ({"client": {"sasl.password": ["a-secret"]}}, "[client] 'sasl.password' must be text", "env:NAME"),
    ({"streams": {}}, "no streams", "[streams.flights]"),
    ({"streams": {"flight": {"topic": "f"}}}, "no stream 'flight'", "did you mean 'flights'?"),
    ({"streams": {"flights": "f"}}, "streams.flights must be a table", "topic ="),
    (
        {"streams": {"flights": {"topi": "f"}}},
        "unknown key 'topi' (sources/shop.toml, streams.flights)",
        "did you mean 'topic'?",
    ),
    ({"streams": {"flights": {"topic": ""}}}, "topic: found an empty text", "see docs/how-to/kafka.md"),
    ({"streams": {"flights": {"value": "json"}}}, "topic is missing", "write topic = …; see docs/how-to/kafka.md"),
    (
        {"streams": {"flights": {"topic": "f", "value": "avr"}}},
        "value: found 'avr' (sources/shop.toml, streams.flights)",
        "did you mean 'avro'?",
    ),
    (
        {"streams": {"flights": {"topic": "f", "key": "txt"}}},
        "key: found 'txt' (sources/shop.toml, streams.flights)",
        "did you mean 'text'?",
    ),
    ({"streams": {"flights": {"topic": "f", "key": "avro"}}}, "is Avro, and no registry is named", "[registry]"),
    ({"registry": {"ssl.ca.location": "x"}}, "[registry] has no url", "http://localhost:8081"),
    (
        {"streams": {"flights": {"topic": "f"}, "weather": {"topic": "f"}}},
        "flights and weather take the topic 'f'",
        "let a job divide its events",
    ),
    *(({"client": {name: "x"}}, f"[client] '{name}' cannot be set", fix) for name, fix in RESERVED_SETTINGS.items()),
)


@pytest.mark.parametrize(("said", "what", "fix"), WRONG)
def test_kafka_fault_is_reported_with_its_fix_and_without_setting_values(
    said: dict[str, Any], what: str, fix: str
) -> None:
    with pytest.raises(DeclarationError) as told:
        options_of("shop", RIGHT | said, CONTRACTS, WHERE)
    assert what in str(told.value)
    assert fix in str(told.value)
    assert WHERE in str(told.value)
    assert "a-secret" not in str(told.value)


def test_kafka_options_report_all_faults_at_once() -> None:
    whole: dict[str, Any] = {}
    for said, _, _ in WRONG:
        whole |= {name: value for name, value in said.items() if name not in {"client", "registry"}}
    with pytest.raises(DeclarationError, match="6 faults:"):
        options_of("shop", whole, CONTRACTS, WHERE)
    wrong = {"client": {"group.id": "x"}, "registry": {"ssl.ca.location": "x"}, "streams": {"flight": {}, "weather": 1}}
    with pytest.raises(DeclarationError, match="4 faults:"):
        options_of("shop", RIGHT | wrong, CONTRACTS, WHERE)


def test_kafka_options_have_defaults_and_pass_numbers_as_text() -> None:
    client = {"fetch.min.bytes": 5, "enable.ssl.certificate.verification": False}
    found = options_of("shop", RIGHT | {"client": client}, CONTRACTS, WHERE)
    defaults = KafkaOptions("shop", WHERE, "localhost:9092", found.topics)
    assert (found.group, found.records, found.bytes, found.seconds) == (
        *(defaults.group, defaults.records, defaults.bytes),
        defaults.seconds,
    )
    assert found.client == {"fetch.min.bytes": "5", "enable.ssl.certificate.verification": "false"}
    [topic] = found.topics
    assert (topic.value, topic.key, topic.facts) == ("json", "text", frozenset())


def test_kafka_source_takes_the_facts_declared_by_its_contract(project: Settings) -> None:
    events = contract("events", {"id": "string", "trace": "string", "gone": "boolean", "whose": "string"})
    facts = {"trace": "kafka.headers.trace.id", "gone": "kafka.tombstone", "whose": "kafka.key.customer.id"}
    for each in events["fields"][1:]:
        each["from"] = facts[each["name"]]
    declare(project, events)
    project.path("sources").mkdir()
    project.path("sources/shop.toml").write_text(
        'kind = "kafka"\nbootstrap = "localhost:9092"\n[streams]\nevents = { topic = "e", key = "json" }\n'
    )
    contracts = {"events": load_contract(project, "events")}
    sources, faults = sound_sources(project, contracts)
    assert (list(sources), faults) == (["shop"], {})
    [topic] = options_of("shop", RIGHT | {"streams": {"events": {"topic": "e"}}}, contracts, WHERE).topics
    assert topic.facts == frozenset(facts.values())


@pytest.mark.parametrize("path", ["kafka", "kafka.headers", "kafka.offset.x", "kafka.kei"])
def test_contract_rejects_a_fact_that_no_record_has(project: Settings, path: str) -> None:
    events = contract("events", {"id": "string", "trace": "string"})
    events["fields"][1]["from"] = path
    declare(project, events)
    with pytest.raises(DeclarationError, match="field 'trace'"):
        load_contract(project, "events")
