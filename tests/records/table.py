"""Table of values for all ways of ingestion: members of records, and the documented values of their fields."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from tests.contracts.odd import KIND, may
from tests.records import stated, texts
from tests.records.stated import REFUSED, Literal
from tests.shop import LOGICAL, contract

LOCAL: Final = {"type": "long", "logicalType": "local-timestamp-micros"}
PART: Final = {"type": "record", "name": "part_t", "fields": [{"name": "n", "type": ["null", "int"]}]}
PLAIN: Final[Mapping[str, tuple[Any, stated.Kind]]] = {
    "word": ("string", "string"),
    "flag": ("boolean", "boolean"),
    "small": ("int", "int"),
    "large": ("long", "bigint"),
    "single": ("float", "float"),
    "twice": ("double", "double"),
    "money": ("decimal(9, 2)", "decimal(9,2)"),
    "wide": ("decimal(38, 10)", "decimal(38,10)"),
    "day": ("date", "date"),
    "at": ("timestamp", "timestamp"),
    "local": (LOCAL, "timestamp_ntz"),
    "raw": ("bytes", "binary"),
    "kind": (KIND, ("a", "b")),
    "numbers": ({"type": "array", "items": "int"}, ["int"]),
    "days": ({"type": "map", "values": LOGICAL["date"]}, {"*": "date"}),
    "part": (PART, {"n": "int"}),
}
"""Fields: the Avro type of each, and its kind in `tests.records.stated`."""
FORMS: Final[Mapping[str, Any]] = {
    "slashed": may(LOGICAL["timestamp"], format="d/M/yyyy HH:mm"),
    "seconds": may(LOGICAL["timestamp"], format="epoch-seconds"),
    "compact": may("date", format="yyyyMMdd"),
    "short": may("date", format="dd/MM/yy", pivot=1930),
    "midnight": may(LOGICAL["timestamp"], hour24=True),
    "price": may("decimal(9, 2)", decimal=",", thousands="."),
}
FORM_TEXTS: Final = """
    slashed 31/3/2024 09:05|slashed 2024-03-31T09:05Z|slashed 31/3/2024 9:05|seconds 1711886400.5|seconds 2024-03-31
    compact 20240331|compact 2024-03-31|compact 20240231|short 31/12/65|short 31/12/29|short 1/1/65
    midnight 2024-03-31T24:00Z|midnight 2024-03-31T24:01Z|price 1.299,90|price 1299,9|price 1.29,90|price 12.5|price ,5
"""
FORM_VALUES: Final[Mapping[str, Any]] = {
    "slashed 31/3/2024 09:05": datetime(2024, 3, 31, 9, 5, tzinfo=UTC),
    "seconds 1711886400.5": datetime(2024, 3, 31, 12, 0, 0, 500_000, tzinfo=UTC),
    "compact 20240331": date(2024, 3, 31),
    "short 31/12/65": date(1965, 12, 31),
    "short 31/12/29": date(2029, 12, 31),
    "midnight 2024-03-31T24:00Z": datetime(2024, 4, 1, tzinfo=UTC),
    "price 1.299,90": Decimal("1299.90"),
    "price 1299,9": Decimal("1299.90"),
    "price ,5": Decimal("0.50"),
}
"""Values of texts in declared formats, from the examples of docs/values.md. Other FORM_TEXTS are rejected."""
LITERALS: Final = """
    0 1 -1 -0 7 5.0 5.5 1e3 1E-2 1.10 19813 2932896 2932897 -719162 -719163 2147483648 9223372036854775807
    9223372036854775808 1711886400123456 253402300799999999 253402300800000000 0.1 1e38 1e39 1e308 1e309 true false
"""
NESTED: Final[tuple[Any, ...]] = (
    *([], {}, [Literal("1"), Literal("2.0"), "3", None], [Literal("1.5")], [[]], [Literal("1"), "x"], "[1, 2]", "[1,"),
    *({"a": "2024-02-29", "b": None}, {"a": "2023-02-29"}, '{"a": "2024-02-29"}', '{"a": NaN}', "[]", "{}"),
    *({"n": Literal("7")}, {"more": Literal("1.50"), "n": "7"}, {"n": Literal("7.5")}, '{"n": 7, "more": [1.50]}'),
)
BASE64: Final = ("YQ==", "YQ", "YR==", "YWJj", "YWJ j", "-_==", "Y", "YWJjZA==\n", "====", "+/+/", "YQ==YQ==")
UNDECLARED: Final[tuple[Any, ...]] = (
    *("a", "", " ü\n\u2028", "\x00", "\U0001f600", "\ud800", "1.50", Literal("1.50"), Literal("-0"), Literal("true")),
    *(None, [], [Literal("1e5"), {"a": None, "b": Literal("1")}], {"ä": {"y": "z"}}),
)
MORE: Final = "more"


@dataclass(frozen=True)
class Case:
    """A record: its `number`, and `value` as its member `name`. `expected` is the value of the field, or REFUSED."""

    number: int
    name: str
    value: Any
    expected: Any

    @property
    def reason(self) -> str:
        """Return the reason of its rejection, or "" if it is accepted."""
        if self.is_no_text:
            return "unparseable"
        if self.expected is not REFUSED:
            return ""
        return "not in enum" if self.name == "kind" else "wrong type"

    @property
    def is_no_text(self) -> bool:
        """Return whether the value is a text that JSON cannot have: with U+FFFF or half a surrogate pair."""
        return isinstance(self.value, str) and stated.of_text("string", self.value) is REFUSED

    @property
    def extra(self) -> str | None:
        """Return `_extra` of the record."""
        if self.name == MORE:
            return stated.compact({MORE: self.value})
        value = stated.read_json(self.value) if self.name == "part" else self.value
        more = {name: of for name, of in value.items() if name != "n"} if isinstance(value, dict) else None
        return stated.compact({"part": more}) if more and self.name == "part" else None

    @property
    def text(self) -> str:
        """Return the record as JSON."""
        is_ascii = self.number % 2 > 0 or self.is_no_text
        return f'{{"id":{self.number},"{self.name}":{stated.compact(self.value, is_ascii=is_ascii)}}}'


def cases(seed: int, many: int) -> list[Case]:
    """Return the table: `many` generated texts for each type beside all others."""
    chance = random.Random(seed)
    literals = [*map(Literal, LITERALS.split()), None]
    found: list[tuple[str, Any, Any]] = []
    for name, (_, kind) in PLAIN.items():
        values = [*literals, *NESTED, *chance.sample(texts.WORDS, min(many, len(texts.WORDS))), "a", "b"]
        values += chance.sample(texts.some(chance, many), many) if isinstance(kind, str) else []
        values += BASE64 if name == "raw" else ()
        found += [(name, value, stated.of_json(kind, value)) for value in values]
    for line in filter(None, map(str.strip, FORM_TEXTS.replace("\n", "|").split("|"))):
        name, _, text = line.partition(" ")
        found.append((name, text, FORM_VALUES.get(line, REFUSED)))
    found += [(MORE, value, None) for value in UNDECLARED]
    return [Case(number, *each) for number, each in enumerate(found, 1)]


def table_contract(name: str, **about: Any) -> dict[str, Any]:
    """Return a contract for the records of the table; `about` may have other `forms`, and more `fields`."""
    fields = {"id": "long", **{name: may(of) for name, (of, _) in PLAIN.items()}}
    fields |= about.pop("forms", FORMS) | about.pop("fields", {})
    return contract(name, fields, **{"buckets": 1, **about})
