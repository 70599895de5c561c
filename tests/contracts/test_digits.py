"""Digits of accepted numbers: none is lost, for any place, notation and reader."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.ingest.ingest import ingest
from lake.store import quarantine
from lake.store.log import Log
from tests import shop
from tests.store.events import Land

NUMBERS: Final = [
    *("0", "-0", "7", "1.5", "1.50", "-1.25", "1.234", "0.12345678901234", "0.30000000000000004", "0.1234567890123456"),
    *("5.0", "5.00000000000000000001", "5." + "0" * 60, "0." + "0" * 60 + "1", "19.990000000000000000001"),
    *("9007199254740993", "9007199254740993.0", "9223372036854775807", "9223372036854775808", "2147483648"),
    *("12345678901234567890.5", "9" * 38, "9" * 39, "1" + "0" * 45, "0." + "9" * 38, "0." + "9" * 39),
    *(
        "1e2",
        "1E2",
        "1.5e+1",
        "15e-1",
        "1e-3",
        "1e-40",
        "10000e-5",
        "100000000000000000000e-20",
        "1.2345678901234567e3",
    ),
    *("1e400", "-1e400", "1e-400", "1e99999999", "-1e99999999", "0e99999999"),
]
NO_NUMBERS: Final = ["01", "+1", ".5", "1.", "NaN", "Infinity", "-", "1e", "1_0", "0x1"]
NO_TEXTS: Final = ["NaN", "Infinity", "-", "1e", "1_0", "0x1", "1,5", "12,345", "--1", "1.2.3", "1e5.5"]
OTHERS: Final = ["true", "{}", "[]", '{"a": 1}', "[1]", '"x"', '""', '" "', '"[1]"', '"{}"']


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


@dataclass(frozen=True)
class Place:
    """Place of a value of type `leaf`: field `name` of type `kind`, written as `around` % the value."""

    name: str
    leaf: Any
    kind: Any
    around: str
    path: tuple[Any, ...] = ()

    def of(self, value: Any) -> Any:
        for step in self.path:
            value = value[step]
        return value


LEAVES: Final[dict[str, Any]] = {
    "cents": shop.avro("decimal(8, 2)"),
    "wide": shop.avro("decimal(38, 4)"),
    "tiny": shop.avro("decimal(38, 38)"),
    "short": "int",
    "long": "long",
    "text": "string",
}
PLACES: Final = [
    place
    for name, leaf in LEAVES.items()
    for place in (
        Place(name, leaf, leaf, "%s"),
        Place(f"{name}_in", leaf, record(f"{name}_r", v=leaf, w=["null", "string"]), '{"w": "1", "v": %s}', ("v",)),
        Place(f"{name}_list", leaf, {"type": "array", "items": leaf}, "[%s]", (0,)),
        Place(f"{name}_map", leaf, {"type": "map", "values": leaf}, '{"k": %s}', ("k",)),
        Place(
            f"{name}_deep",
            leaf,
            {"type": "array", "items": record(f"{name}_d", m={"type": "map", "values": leaf})},
            '[{"m": {"k": %s}}]',
            (0, "m", "k"),
        ),
    )
]


def declare(project: Settings, stream: str, places: list[Place], **facts: Any) -> None:
    fields = {"id": "string"} | {place.name: shop.optional(place.kind) for place in places}
    shop.declare(project, shop.contract(stream, fields, **facts))


def exact(leaf: Any, text: str) -> Any:
    """Return the value of the JSON number `text` in the type `leaf`; None if it would be rounded."""
    if leaf == "string":
        return text
    number = Decimal(text)
    if not number:
        return number
    scale = leaf["scale"] if isinstance(leaf, dict) else 0
    if abs(number.adjusted()) > 100 or Fraction(text) * 10**scale % 1:
        return None
    if leaf == "int":
        return number if -(2**31) <= number < 2**31 else None
    if leaf == "long":
        return number if -(2**63) <= number < 2**63 else None
    return number if number.adjusted() < leaf["precision"] - scale else None


ENVELOPE: Final = '{"op": "c", "source": {"db": "d", "schema": "s", "table": "t"}, "after": %s}'
PLAIN: Final = {f"plain_{name}": [place for place in PLACES if place.name == name] for name in LEAVES}
WITHIN: Final = {f"within_{name}": [p for p in PLACES if p.leaf == leaf and p.path] for name, leaf in LEAVES.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("streams", "envelope"),
    [
        pytest.param({name: PLAIN[name] for name in ("plain_cents", "plain_text")}, False, id="contracts of one field"),
        pytest.param(PLAIN | WITHIN, False, id="contracts of few fields"),
        pytest.param({"all": PLACES}, True, id="an envelope"),
        pytest.param({"all": PLACES}, False, id="a contract of many fields"),
    ],
)
def test_number_is_accepted_digit_by_digit_or_rejected(
    project: Settings, spark: SparkSession, land: Land, streams: dict[str, list[Place]], envelope: bool
) -> None:
    numbers = [(text, form % text) for text in NUMBERS for form in ("%s", '"%s"')]
    for stream, places in streams.items():
        declare(project, stream, places, **{"envelope": "debezium", "table": "s.t"} if envelope else {})
        cases = list(product(places, numbers, ('{"id": "a", %s}', '{"id": "a", %s, "more": 1.10}')))
        texts = [form % f'"{place.name}": {place.around % json_}' for place, (_, json_), form in cases]
        land(stream, "a.jsonl", *(ENVELOPE % text if envelope else text for text in texts))
        ingest(project, lambda: spark, load_contracts(project), [stream])
        refused = {int(row.source.split(":")[1]): row for row in quarantine.rejected(project, stream, upto=1)}
        taken = {int(row["_source"].split(":")[1]): row.asDict(True) for row in rows(project, spark, stream)}
        for line, (written, (place, (text, _), form)) in enumerate(zip(texts, cases, strict=True), 1):
            if line in refused:
                about = f"{written} is refused: {refused[line].detail}"
                assert refused[line].reason == "wrong type", about
                assert exact(place.leaf, text) is None or "e" in text.lower(), about
            else:
                value = place.of(taken[line][place.name])
                assert value == (text if place.leaf == "string" else exact(place.leaf, text)), written
                assert taken[line]["_extra"] == ('{"more":1.10}' if "more" in form else None), written


def rows(project: Settings, spark: SparkSession, stream: str) -> list[Any]:
    stored = Log(project, stream).read(spark, load_contracts(project)[stream], upto=1)
    return stored.where("_source IS NOT NULL").collect()


@pytest.mark.long
def test_value_that_is_no_number_is_never_read_as_one(project: Settings, spark: SparkSession, land: Land) -> None:
    places = [place for place in PLACES if place.leaf != "string"]
    declare(project, "all", places)
    wrong = [*NO_NUMBERS, *(f'"{text}"' for text in NO_TEXTS), *OTHERS]
    cases = list(product(places, wrong, ('{"id": "a", "%s": %s}', '{"id": "a", "%s": %s, "more": 1}')))
    land("all", "a.jsonl", *(form % (place.name, place.around % text) for place, text, form in cases))
    ingest(project, lambda: spark, load_contracts(project))
    for row in rows(project, spark, "all"):
        place, text, form = cases[int(row["_source"].split(":")[1]) - 1]
        pytest.fail(f"{form % (place.name, place.around % text)} is taken as {row[place.name]}")


@pytest.mark.long
def test_number_in_a_text_field_warns_or_is_rejected(
    project: Settings, spark: SparkSession, land: Land, caplog: pytest.LogCaptureFixture
) -> None:
    for stream, more in (("told", {}), ("strict", {"text_only": True})):
        shop.declare(project, shop.contract(stream, {"id": "string", "zip": ("string", more)}))
        land(
            stream,
            "a.jsonl",
            '{"id": "a", "zip": "01234"}',
            '{"id": "b", "zip": 1234}',
            '{"id": "c", "\\u007aip": 1.10}',
        )
    done = ingest(project, lambda: spark, load_contracts(project))
    assert (done["told"].accepted, done["strict"].accepted) == (3, 1)
    assert [row["zip"] for row in sorted(rows(project, spark, "told"), key=lambda row: str(row["id"]))] == [
        "01234",
        "1234",
        "1.10",
    ]
    assert ["told: 2 of 3 records have numbers in the text field zip" in text for text in caplog.messages] == [True]
    details = [row.detail for row in quarantine.rejected(project, "strict", upto=1)]
    assert details == [f"zip: {text} is a number, and the contract wants text" for text in ("1234", "1.10")]
