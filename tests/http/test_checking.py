"""Records that break their contract are refused as they are posted, exactly where intake would refuse them for that."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.contracts.breaches import Breaches
from lake.contracts.contract import load_contracts, read_contract
from lake.contracts.strict import NotTaken
from lake.ingest.ingest import ingest
from lake.sources.http_files import Folder, Writer
from lake.sources.json_text import whole
from lake.store import quarantine, small
from lake.store.log import Log
from tests.contracts.odd import FIELDS, NUMBERS, TEXTS, TIMES, may, record
from tests.shop import contract, declare, empty

RECORDS: Final = 1500
BYTES: Final = 320
FACTS: Final = {"http.received": "2024-03-01T12:00:00.123456+00:00"}
OF: Final = {
    "type": "record",
    "name": "of",
    "fields": [{"name": "n", "type": "int"}, {"name": "at", "type": ["null", "string"]}],
}
MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
NESTED: Final = {
    "station": "string?",
    "tags": may({"type": "array", "items": "int"}),
    "prices": may({"type": "map", "values": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}}),
    "of": may(OF),
    "days": ({"type": "array", "items": {"type": "int", "logicalType": "date"}}, {"default": []}),
    "price": may("decimal(9, 2)", decimal=",", thousands="."),
    "written": may("date", format="d/M/yyyy"),
    "part": "float?",
    "near": may("float", minimum=0.1),
    "sent": may(MILLIS, maximum="2024-12-31T00:00:00Z"),
    "kind": may("string", **{"from": "http.headers.x-kind"}),
    "at": "timestamp?",
    "last": may("int", maximum=10, aliases=["latest", "newest"]),
}
PLAIN: Final = {name: FIELDS[name] for name in ("id", "name", "text", "flag", "small", "wide", "day", "at")}
VALUES: Final = {
    "tags": ["[1, 2]", "[]", "[1.5]", '["1"]', '["x"]', "[null]", "[[1]]", '"[1]"', "{}", "1", "true", '[{"a": 1}]'],
    "prices": ['{"a": 1.50}', '{"a": "2"}', '{"a": 1.505}', '{"a": 1, "a": 2}', "{}", "[]", '{"a": null}', "7"],
    "of": ['{"n": 1}', "{}", '{"n": "x"}', '{"n": 2147483648}', '{"m": 1}', '{"n": {"n": 1}}', "[]", '{"at": 5}'],
    "days": ["[19782]", '["2024-02-30"]', '["2024-02-29"]', "[-99999999]", "null", '"x"', '[""]'],
    "sent": ["1709254800000", "-1", "1e3", "999999999999999999", '"1709254800000"', "1893456000000", '"n/a"'],
}


def nested(chance: random.Random) -> str:
    """A record of the second contract."""
    names = chance.sample([name for name in (*NESTED, "latest", "newest") if name != "kind"], chance.randrange(1, 5))
    odd = [*map(json.dumps, (*TEXTS, *NUMBERS, *TIMES)), *(each for each in NUMBERS if each[0] not in "+.0N"), "null"]
    wanted = [("station", '"s"')] * (chance.random() < 0.9) + [("at", '"2024-03-01T00:00:00Z"')] * (
        chance.random() < 0.9
    )
    said = [(name, chance.choice(VALUES.get(name, odd) if chance.random() < 0.9 else odd)) for name in names]
    every = dict(said) | dict(wanted)
    return "{" + ", ".join(f'"{name}": {value}' for name, value in every.items()) + "}"


def objects(make: Any, chance: random.Random) -> Iterator[str]:
    """Records that the server has seen to be JSON objects before it looks into contracts."""
    while True:
        text = make(chance)
        try:
            if isinstance(json.loads(text), dict) and "NaN" not in text and "Infinity" not in text:
                yield text.strip()
        except ValueError:
            pass


def test_what_is_seen_to_be_right_at_once_is_right_when_it_is_looked_at_with_care() -> None:
    declared = {"things": contract("things", FIELDS, id=["request"]), "plain": contract("plain", PLAIN)}
    chance, seen = random.Random(21), 0
    for of in declared.values():
        breaches, facts = Breaches(read_contract(json.dumps(of), file="a.avsc")), FACTS | {"http.id": "k"}
        make = objects(record, chance)
        for text in (next(make) for _ in range(RECORDS)):
            if breaches.seem_none(text, whole(text)):
                breaches.must_be_none(text, facts, record_bytes=BYTES * 9)
                seen += 1
    assert seen > RECORDS / 50


@pytest.mark.long
@pytest.mark.turns
@pytest.mark.parametrize("count", [RECORDS // 4, RECORDS])
def test_what_is_refused_when_it_is_posted_is_what_intake_would_refuse_for_the_same_reason(
    tmp_path: Path, spark: SparkSession, count: int
) -> None:
    settings, chance = empty(tmp_path / "shop", f"record_bytes = {BYTES}\n"), random.Random(18)
    declare(
        settings,
        contract("things", FIELDS, id=["request"]),
        contract("nested", NESTED, key=["station"], time="at", max_ahead="1 day"),
    )
    settings.path("sources").mkdir()
    settings.path("sources/web.toml").write_text('kind = "http"\n')
    contracts = load_contracts(settings)
    makers = {"things": objects(record, chance), "nested": objects(nested, chance)}
    posted = [(stream, next(make)) for _ in range(count) for stream, make in makers.items()]
    facts = [FACTS | {"http.id": f"é {number}"} for number in range(len(posted))]
    lines = [json.dumps([*each, of]).encode() + b"\n" for each, of in zip(posted, facts, strict=True)]
    writer = Writer(Folder.of(settings, "web"))
    writer.put(lines, len(lines))
    writer.close()
    ingest(settings, lambda: spark, contracts, ["web"], now=datetime(2026, 1, 1, tzinfo=UTC))
    refused: dict[str, Any] = {}
    for stream in contracts:
        refused |= {each.source: each for each in quarantine.rejected(settings, stream, upto=1)}
    wrong, told, left = list[str](), dict[str, int](), 0
    breaches = {name: Breaches(each) for name, each in contracts.items()}
    for number, (stream, text) in enumerate(posted):
        by_log = refused.get(f"web:1:{number}")
        try:
            breaches[stream].must_be_none(text, facts[number], record_bytes=BYTES)
        except NotTaken as error:
            told[error.reason] = told.get(error.reason, 0) + 1
            if by_log is None or by_log.reason != error.reason:
                wrong.append(f"{text}: {error}; by the log {by_log and (by_log.reason, by_log.detail)}")
        else:
            left += by_log is not None
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:30])
    taken = sum(
        small.rows(Log(settings, name).path, "SELECT count(*) AS n FROM t WHERE _refusal IS NULL")[0]["n"]
        for name in contracts
    )
    assert taken > count / 3
    assert {"oversized", "unparseable", "missing field", "wrong type", "not in enum", "out of bounds"} <= told.keys()
    assert {"null event time"} | ({"null key"} if count == RECORDS else set()) <= told.keys()
    assert left < sum(told.values()), "most of what intake refuses is known before"
