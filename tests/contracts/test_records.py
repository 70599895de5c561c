"""Valid and invalid records of every form, in one batch."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import SparkSession

from lake.config import Settings
from lake.store import quarantine
from tests.store.events import Land, declare, events, reading, take

BAD: dict[str, tuple[str, str]] = {
    "not json": ("unparseable", "not one JSON object"),
    "null": ("unparseable", "not one JSON object"),
    '{"meter": "a", "at"': ("unparseable", "not one JSON object"),
    json.dumps(reading()) + " and more": ("unparseable", "not one JSON object"),
    json.dumps(reading()) + ", " + json.dumps(reading()): ("unparseable", "not one JSON object"),
    json.dumps(reading()) + "}": ("unparseable", "not one JSON object"),
    '{"meter": "a", "meter": "b", "at": "2024-03-01", "value": 1}': ("unparseable", "not one JSON object"),
    json.dumps(reading(value="much")): ("wrong type", "value: much is not decimal(8,2)"),
    json.dumps(reading(value=1.234)): ("wrong type", "value: 1.234"),
    json.dumps(reading(value=12345678)): ("wrong type", "value: 12345678"),
    json.dumps(reading(count=1.5)): ("wrong type", "count: 1.5 is not int"),
    json.dumps(reading(count=" 7 ")): ("wrong type", "count:  7  is not int"),
    json.dumps(reading(day="2024-02-30")): ("wrong type", "day: 2024-02-30 is not date"),
    json.dumps(reading(tags=[1, "x"])): ("wrong type", "tags: "),
    json.dumps({"meter": "a", "at": "2024-03-01T00:00:00Z"}): ("missing field", "value"),
    json.dumps(reading(kind="WATER")): ("not in enum", "kind: WATER is none of GAS, POWER"),
    json.dumps(reading(count=101)): ("out of bounds", "count: 101 is above 100"),
    json.dumps(reading(count=-1)): ("out of bounds", "count: -1 is below 0"),
    json.dumps({"at": "2024-03-01T00:00:00Z", "value": 1}): ("null key", "meter"),
    json.dumps({"meter": "a", "value": 1}): ("null event time", "at"),
    json.dumps(reading(hour=14)): ("too far ahead", "2024-03-01 14:00:00 is more than 1:00:00"),
    json.dumps({"meter": "a", "at": "12345-01-01T00:00:00Z", "value": 1}): ("wrong type", "at: 12345-01-01"),
    r'{"meter": "\\\ud83d", "value": 1}': ("unparseable", "unpaired surrogate"),
    r'{"meter": "\ud83d\\\ude00", "value": 1}': ("unparseable", "unpaired surrogate"),
    r'{"meter": "\\\uFFFF", "value": 1}': ("unparseable", "U+FFFF, which is no character"),
    json.dumps(reading(note="x" * 3000)): ("oversized", "bytes, limit 2000"),
}
GOOD: list[tuple[str, dict[str, Any]]] = [
    (json.dumps(reading("plain")), {"value": Decimal("1.50"), "count": None, "kind": "POWER", "_extra": None}),
    (json.dumps(reading("number", value=2.25, count=3.0)), {"value": Decimal("2.25"), "count": 3}),
    (json.dumps(reading("nulls", count=None, day=None)), {"count": None, "day": None}),
    (json.dumps(reading("text", count="7")), {"count": 7}),
    (json.dumps(reading("nested", tags=[1, 2], day="2024-02-29")), {"tags": [1, 2], "day": date(2024, 2, 29)}),
    (json.dumps(reading("day", day=19782)), {"day": date(2024, 2, 29)}),
    (
        json.dumps(reading("more", colour="r}{d", big=12345678901234567890.5, deep={"a": [1]})),
        {"_extra": {"colour": "r}{d", "deep": {"a": [1]}, "big": 12345678901234567890.5}},
    ),
    (json.dumps({"meter": "epoch", "at": 1709254800000, "value": 1}), {"at": datetime(2024, 3, 1, 1, tzinfo=UTC)}),
    (json.dumps(reading(r"C:\users\ud83d\uffff")), {"value": Decimal("1.50")}),
    (json.dumps(reading("\U0001f600 \\\U0001f600")), {"value": Decimal("1.50")}),
    (json.dumps(reading("ünï} c\u2028ode")), {"value": Decimal("1.50")}),
    (json.dumps({"meter": "zone", "at": "2024-03-01T03:00:00+02:00", "value": 1}), {}),
]


def test_record_is_accepted_or_quarantined_by_its_contract(project: Settings, spark: SparkSession, land: Land) -> None:
    small = replace(project, record_bytes=2000)
    declare(small)
    good = [text for text, _ in GOOD]
    file = land("readings", "a.jsonl", *good, "", *BAD)
    with file.open("ab") as stream:
        stream.write(b'{"meter": "\xff\xfe"}\n')
    counts = take(small, spark)
    assert (counts.read, counts.accepted, counts.duplicates) == (len(good) + len(BAD) + 1, len(good), 0)

    rejected = [*quarantine.rejected(small, "readings", upto=1)]
    assert [row.number for row in rejected] == list(range(1, len(BAD) + 2))
    for line, (kept, (raw, (reason, detail))) in enumerate(zip(rejected[:-1], BAD.items(), strict=True), len(good) + 2):
        assert (kept.reason, kept.source) == (reason, f"readings/a.jsonl:{line}"), raw
        assert detail in kept.detail, raw
        assert kept.raw == raw[:2000]
    assert (rejected[-1].detail, rejected[-1].raw[:11]) == ("not valid UTF-8", '{"meter": "')

    found = {row["meter"]: row for row in events(small, spark)}
    for number, (text, expected) in enumerate(GOOD, 1):
        row = found[json.loads(text)["meter"]]
        assert row["_source"] == f"readings/a.jsonl:{number}"
        for name, value in expected.items():
            got = json.loads(row[name]) if name == "_extra" and row[name] else row[name]
            assert (got.replace(tzinfo=UTC) if isinstance(got, datetime) else got) == value, text
    assert found["zone"]["_time"] == found["epoch"]["_time"]
