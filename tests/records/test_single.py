"""Records read one by one: the same values, reasons and details as in columns, on generated records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from lake.contracts.contract import Contract, read_contract
from lake.records.raw_values import TextRecords
from lake.records.single_reader import EXTRA, RecordRejected, SingleReader
from tests.contracts.odd import FIELDS, NUMBERS, TEXTS, TIMES, may, record
from tests.shop import contract

RECORDS: Final = 1200
BYTES: Final = 320
FACTS: Final = {"http.received": "2024-03-01T12:00:00.123456+00:00", "http.headers.x-kind": "a"}
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
VALUES: Final = {
    "tags": ["[1, 2]", "[]", "[1.5]", '["1"]', '["x"]', "[null]", "[[1]]", '"[1]"', "{}", "1", "true", '[{"a": 1}]'],
    "prices": ['{"a": 1.50}', '{"a": "2"}', '{"a": 1.505}', '{"a": 1, "a": 2}', "{}", "[]", '{"a": null}', "7"],
    "of": ['{"n": 1}', "{}", '{"n": "x"}', '{"n": 2147483648}', '{"m": 1}', '{"n": {"n": 1}}', "[]", '{"at": 5}'],
    "days": ["[19782]", '["2024-02-30"]', '["2024-02-29"]', "[-99999999]", "null", '"x"', '[""]'],
    "sent": ["1709254800000", "-1", "1e3", "999999999999999999", '"1709254800000"', "1893456000000", '"n/a"'],
}
STRICT: Final = {name: FIELDS[name] for name in ("id", "name", "text", "flag", "small", "wide", "day", "at")}
CHANGED: Final = {
    "id": "long",
    "name": "string?",
    "at": may({"type": "long", "logicalType": "timestamp-micros"}, encoding="millis"),
    "op": ("string", {"from": "op"}),
}
CONTRACTS: Final = {
    "things": contract("things", FIELDS, id=["request"]),
    "nested": contract("nested", NESTED, key=["station"], time="at"),
    "strict": contract("strict", STRICT, unknown="refuse", missing="refuse"),
    "changed": contract("changed", CHANGED, envelope="debezium"),
}


def nested(chance: random.Random) -> str:
    """Return a record of the contract `nested`."""
    names = chance.sample([name for name in (*NESTED, "latest", "newest") if name != "kind"], chance.randrange(1, 5))
    odd = [*map(json.dumps, (*TEXTS, *NUMBERS, *TIMES)), *(each for each in NUMBERS if each[0] not in "+.0N"), "null"]
    wanted = [("station", '"s"')] * (chance.random() < 0.9) + [("at", '"2024-03-01T00:00:00Z"')] * (
        chance.random() < 0.9
    )
    said = [(name, chance.choice(VALUES.get(name, odd) if chance.random() < 0.9 else odd)) for name in names]
    every = dict(said) | dict(wanted)
    return "{" + ", ".join(f'"{name}": {value}' for name, value in every.items()) + "}"


def change_message(chance: random.Random) -> str:
    """Return a message of the contract `changed`."""
    row = chance.choice(['{"id": 1, "name": "a", "at": 5}', '{"id": 2, "more": 1}', '{"name": "x"}', "null", "7"])
    op = chance.choice(["c", "u", "d", "r", "t", "x"])
    return chance.choice(["", "null", "[]", f'{{"op": "{op}", "before": {row}, "after": {row}}}', row, "{"])


MAKERS: Final[dict[str, Callable[[random.Random], str]]] = {"things": record, "nested": nested, "strict": record}
MAKERS["changed"] = change_message


def read(name: str) -> Contract:
    return read_contract(json.dumps(CONTRACTS[name]), file=f"{name}.avsc")


def read_single(single: SingleReader, text: bytes, facts: dict[str, str]) -> dict[str, Any] | tuple[str, str]:
    try:
        return single.values(text, facts)
    except RecordRejected as refusal:
        return refusal.reason, refusal.detail


@pytest.mark.parametrize("name", CONTRACTS)
def test_single_reader_returns_the_same_as_columns(name: str) -> None:
    single, chance = SingleReader(read(name), BYTES), random.Random(18)
    single._needed = ()  # a check that columns do not have
    texts = [MAKERS[name](chance).encode("utf-8", "surrogatepass") for _ in range(RECORDS)]
    facts = [FACTS | {"http.id": f"é {number}"} for number in range(RECORDS)]
    by_name = {name: [each[key] for each in facts] for name, key in single.fact_keys.items()}
    table = single.read(TextRecords(range(RECORDS), texts), by_name)
    fields, reasons = [reader.field.name for reader in single._readers], set[str]()
    for text, of, row in zip(texts, facts, table.to_pylist(), strict=True):
        found = read_single(single, text, of)
        if isinstance(found, tuple):
            assert found == (row["_reason"], row["_detail"]), text
            reasons.add(found[0])
        elif found:
            assert row["_reason"] is None, (text, row["_reason"], row["_detail"])
            expected = {each: row[each] for each in (*fields, EXTRA)}
            assert found == expected, text
            assert list(map(repr, map(kinds, found.values()))) == list(map(repr, map(kinds, expected.values()))), text
        else:
            assert row["_reason"] == "control message"
    assert len(reasons) > 2


def kinds(value: Any) -> Any:
    """Return the Python types of a value and its parts."""
    if isinstance(value, dict):
        return {name: kinds(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [kinds(each) for each in value]
    return type(value)


@pytest.mark.parametrize("name", CONTRACTS)
def test_single_reader_rejects_the_same_records_one_by_one_and_in_columns(name: str) -> None:
    single, chance = SingleReader(read(name), BYTES), random.Random(7)
    records = list(generate(name, chance, RECORDS))
    together = {index: str(refusal) for index, refusal in single.rejections(records)}
    singles = {index: str(refusal) for index in range(RECORDS) for _, refusal in single.rejections(records[index:][:1])}
    assert together == singles


def generate(name: str, chance: random.Random, count: int) -> Iterator[tuple[bytes, dict[str, str]]]:
    for number in range(count):
        yield MAKERS[name](chance).encode("utf-8", "surrogatepass"), FACTS | {"http.id": f"{number}"}


def test_single_reader_has_the_defaults_of_fields() -> None:
    single = SingleReader(read("things"), BYTES)
    assert [single.default(name) for name in ("count", "said", "text")] == [7, "unsaid", None]


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (b'{"station": null, "at": "2024-03-01"}', "null key: station"),
        (b'{"station": "s"}', "null event time: at"),
        (b'{"station": "s", "at": "2024-03-01", "last": 11}', "out of bounds: last: 11 is above 10"),
        (
            b'{"station": "s", "at": "2024-03-01", "latest": 1, "newest": 2}',
            "unparseable: last is there under two names",
        ),
        (b"[1]", "unparseable: not one JSON object"),
        (b" " * 400, "oversized: 400 bytes, limit 320"),
        (b'{"station": "s", "at": NaN}', "unparseable: not one JSON object: NaN is not JSON"),
    ],
)
def test_single_reader_reports_the_reason_of_a_rejection(text: bytes, refusal: str) -> None:
    with pytest.raises(RecordRejected) as found:
        SingleReader(read("nested"), BYTES).values(text, FACTS)
    assert str(found.value) == refusal
