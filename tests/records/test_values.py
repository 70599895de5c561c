"""Grammar of values: every type over generated texts, typed values, and the fixes that rejections name."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from lake.contracts import literals
from lake.contracts.fields import Field
from lake.contracts.written_form import TextForm
from lake.records import times as records_times
from lake.records.json_value import DEPTH, NotJson, decode, encode
from lake.records.raw_values import ABSENT, JsonNumber, OutsideCalendar, RawValue, WrongValue
from lake.records.values import excerpt, reader
from tests.records import stated, texts

REFUSED = stated.REFUSED
MICROS = {"timestamp": 1_000_000, "timestamp_ntz": 1_000_000}


def field(kind: str, **more: Any) -> Field:
    return Field("f", kind, epoch=MICROS.get(kind, 0), **more)


def read(of: Field, given: RawValue) -> Any:
    try:
        return reader(of)(given)
    except WrongValue:
        return REFUSED


def refusal(of: Field, given: RawValue) -> str:
    with pytest.raises(WrongValue) as raised:
        reader(of)(given)
    return str(raised.value)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of one type. NaN equals itself, and zero has a sign."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and repr(one) == repr(other))
    return type(one) is type(other) and one == other


def compare(kind: str, all_texts: list[str]) -> None:
    of = field(kind)
    for text in all_texts:
        expected, found = stated.of_text(kind, text), read(of, text)
        assert same(found, expected), (kind, text, expected, found)


@pytest.mark.turns(5)
@pytest.mark.parametrize("kind", texts.TYPES)
def test_value_is_the_stated_one_for_generated_texts(kind: str) -> None:
    compare(kind, texts.some(random.Random(kind), 1500))


@pytest.mark.long
@pytest.mark.parametrize("kind", texts.TYPES)
def test_value_is_the_stated_one_for_all_texts(kind: str) -> None:
    compare(kind, [*texts.numbers(), *texts.times(), *texts.WORDS])


@pytest.mark.parametrize("kind", ["float", "double"])
def test_number_is_rounded_once_near_ties(kind: str) -> None:
    mantissa, least, _ = stated.SINGLES[kind]
    chance = random.Random(kind)
    of = field(kind)
    for _ in range(300):
        power = chance.choice([least, least + 3, -60, -1, 0, 40])
        tie = Decimal(2 * chance.randrange(2 ** (mantissa - 1), 2**mantissa) + 1) * Decimal(2) ** (power - 1)
        digits = f"{tie:.900f}".rstrip("0") if abs(power) < 100 else f"{tie:.990e}"
        for text in (digits, digits + "0000001"):
            if "e" not in text and len(text) <= 1000:
                assert same(read(of, text), stated.of_text(kind, text)), text
    assert read(field("float"), "16777217") == 16777216.0
    assert read(field("float"), "16777217.000000001") == 16777218.0
    assert read(field("float"), "3.4028235677973367e38") is REFUSED


def test_number_of_json_is_read_as_written() -> None:
    for kind, given, expected in (
        ("string", JsonNumber("1.10"), "1.10"),
        ("string", JsonNumber("-0"), "-0"),
        ("int", JsonNumber("5.0"), 5),
        ("decimal(9,2)", JsonNumber("1e2"), Decimal("100.00")),
        ("boolean", JsonNumber("1"), True),
        ("boolean", JsonNumber("1.0"), REFUSED),
        ("boolean", 0, False),
        ("date", JsonNumber("19000"), date(2022, 1, 8)),
        ("date", JsonNumber("1.5"), REFUSED),
        ("date", 2_932_897, REFUSED),
        ("timestamp", JsonNumber("-1"), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("timestamp", 253402300800000000, REFUSED),
        ("timestamp_ntz", 1_000_000, datetime(1970, 1, 1, 0, 0, 1)),
        ("binary", JsonNumber("1234"), REFUSED),
        ("int", True, REFUSED),
        ("double", True, REFUSED),
        ("string", True, "true"),
        ("double", 2**63 + 1, float(2**63)),
    ):
        assert same(read(field(kind), given), expected), (kind, given)
    assert read(Field("f", "timestamp", epoch=1000), 1) == datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)


NOON = datetime(2024, 3, 31, 12, 0, 0, 5)
CEST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("int", 5.0, 5),
        ("int", 5.5, REFUSED),
        ("int", math.nan, REFUSED),
        ("bigint", Decimal("7.00"), 7),
        ("decimal(9,2)", 0.1, Decimal("0.10")),
        ("decimal(9,2)", 0.125, REFUSED),
        ("decimal(9,2)", Decimal("-0.00"), Decimal("0.00")),
        ("double", math.inf, math.inf),
        ("double", Decimal("0.1"), 0.1),
        ("float", 0.1, 0.10000000149011612),
        ("float", 1e39, REFUSED),
        ("string", 0.5, "0.5"),
        ("string", 7, "7"),
        ("string", Decimal("1E+2"), "100"),
        ("string", "ü".encode(), "ü"),
        ("string", b"\xff", REFUSED),
        ("string", NOON, "2024-03-31T12:00:00.000005"),
        ("string", NOON.replace(tzinfo=UTC), "2024-03-31T12:00:00.000005+00:00"),
        ("string", time(9, 5), "09:05:00"),
        ("string", date(2024, 3, 31), "2024-03-31"),
        ("string", [JsonNumber("1.10"), "ä", None, {"b": True, "a": []}], '[1.10,"ä",null,{"b":true,"a":[]}]'),
        ("date", date(2024, 3, 31), date(2024, 3, 31)),
        ("date", NOON, REFUSED),
        ("date", datetime(2024, 3, 31), date(2024, 3, 31)),
        ("date", datetime(2024, 3, 31, 2, tzinfo=CEST), date(2024, 3, 31)),
        ("timestamp", NOON, NOON.replace(tzinfo=UTC)),
        ("timestamp", NOON.replace(tzinfo=CEST), datetime(2024, 3, 31, 10, 0, 0, 5, tzinfo=UTC)),
        ("timestamp", datetime(1, 1, 1, tzinfo=CEST), REFUSED),
        ("timestamp", date(2024, 3, 31), datetime(2024, 3, 31, tzinfo=UTC)),
        ("timestamp_ntz", NOON, NOON),
        ("timestamp_ntz", NOON.replace(tzinfo=UTC), REFUSED),
        ("timestamp", time(9, 5), REFUSED),
        ("binary", b"\0\xff", b"\0\xff"),
        ("binary", "YQ==", b"a"),
        ("binary", "", b""),
        ("binary", "YQ", REFUSED),
        ("binary", "YR==", REFUSED),
        ("binary", "-_==", REFUSED),
        ("binary", "YQ==\n", REFUSED),
        ("int", None, None),
        ("int", ABSENT, None),
    ],
)
def test_typed_value_is_converted_without_loss(kind: str, given: RawValue, expected: Any) -> None:
    assert same(read(field(kind), given), expected)


INT, DAY = Field("item", "int"), Field("day", "date")
LIST = Field("f", "array<int>", parts=(INT,))
MAP = Field("f", "map<string,int>", parts=(INT,))
RECORD = Field("f", "struct<item:int,day:date>", parts=(INT, DAY))


@pytest.mark.parametrize(
    ("of", "given", "expected"),
    [
        (LIST, [1, JsonNumber("2.0"), "3", None], [1, 2, 3, None]),
        (LIST, '[1, "2"]', [1, 2]),
        (LIST, [1, "x"], REFUSED),
        (LIST, {"a": 1}, REFUSED),
        (LIST, "[1, 1.5]", REFUSED),
        (LIST, "[1", REFUSED),
        (LIST, JsonNumber("1"), REFUSED),
        (MAP, {"b": 1, "a": None}, [("b", 1), ("a", None)]),
        (MAP, '{"a": 1, "a": 1}', REFUSED),
        (MAP, '{"a": NaN}', REFUSED),
        (MAP, [1], REFUSED),
        (MAP, {"\ud800": 1}, REFUSED),
        (RECORD, {"item": 1, "day": "2024-02-29", "more": 1}, {"item": 1, "day": date(2024, 2, 29)}),
        (RECORD, {}, {"item": None, "day": None}),
        (RECORD, {"day": "2023-02-29"}, REFUSED),
    ],
)
def test_nested_value_is_read_part_by_part(of: Field, given: RawValue, expected: Any) -> None:
    assert same(read(of, given), expected)


MONEY = TextForm("", ",", ".")


@pytest.mark.parametrize(
    ("kind", "form", "given", "expected"),
    [
        ("decimal(12,2)", MONEY, "1.234.567,89", Decimal("1234567.89")),
        ("decimal(12,2)", MONEY, "-1234,5", Decimal("-1234.50")),
        ("decimal(12,2)", MONEY, "19.90", REFUSED),
        ("decimal(12,2)", MONEY, JsonNumber("19.90"), Decimal("19.90")),
        ("decimal(12,2)", MONEY, "1.2345", REFUSED),
        ("decimal(12,2)", MONEY, "1,234", REFUSED),
        ("bigint", TextForm("", ".", " "), "1 234 567", 1234567),
        ("bigint", TextForm("", ".", " "), "12 34", REFUSED),
        ("double", TextForm("", ","), "1,5e3", 1500.0),
        ("double", TextForm("", ","), "NaN", math.nan),
        ("double", TextForm("", ","), "1.5", REFUSED),
    ],
)
def test_number_has_the_signs_of_its_form(kind: str, form: TextForm, given: RawValue, expected: Any) -> None:
    assert same(read(field(kind, form=form), given), expected)


@pytest.mark.parametrize(
    ("kind", "given", "told"),
    [
        ("timestamp", "1711886400", 'is not timestamp ("format": "epoch-seconds" would read it)'),
        ("timestamp", "1711886400123", 'is not timestamp ("format": "epoch-millis" would read it)'),
        ("date", "20240331", 'is not date ("format": "yyyyMMdd" would read it)'),
        ("timestamp", "20240331120000", 'is not timestamp ("format": "yyyyMMddHHmmss" would read it)'),
        ("date", 20240331, 'is not date ("format": "yyyyMMdd" would read it)'),
        ("date", "31/12/65", 'is not date ("format": "d/M/yy" would read it)'),
        ("date", "1/2/65", 'is not date ("format": "d/M/yy" or "format": "M/d/yy" would read it)'),
        ("timestamp", "2024-03-31T24:00:00Z", 'is not timestamp ("hour24": true would read it)'),
        ("decimal(9,2)", "19,90", 'is not decimal(9,2) ("decimal": "," would read it)'),
        ("double", "1.234,50", 'is not double ("decimal": ",", "thousands": "." would read it)'),
        ("int", "1,234", 'is not int ("thousands": "," would read it)'),
        ("string", b"\xff", "is not string (not UTF-8, or U+FFFF, which is no character)"),
        ("string", OutsideCalendar("4000000 days since 1970"), "is not string"),
        ("string", "\ud800", "is not string (half a surrogate pair, or U+FFFF, which is no character)"),
        ("timestamp", "12:30:00", "is not timestamp"),
        (
            *("timestamp", "2024-07-01 12:00 BST"),
            "is not timestamp (BST is no zone: UTC, GMT, Z, offsets and regions such as Europe/London are)",
        ),
        ("timestamp", "2024-03-31Z", "is not timestamp"),
        ("date", "2024", 'is not date ("format": "yyyy" would read it)'),
        ("date", "2024-03", 'is not date ("format": "yyyy-MM" would read it)'),
        ("timestamp", "2024-183", 'is not timestamp ("format": "yyyy-DDD" would read it)'),
        ("date", "2024-03-31T00:00:00Z", 'is not date ("format": "yyyy-M-d\'T\'HH:mm:ssXXX" would read it)'),
        ("int", "", 'is not int ("null": [""] for CSV would read it as no value)'),
        ("int", "x", "is not int"),
        ("decimal(9,2)", "free", "is not decimal(9,2)"),
    ],
)
def test_rejection_names_the_attribute_that_would_read_the_value(kind: str, given: RawValue, told: str) -> None:
    assert refusal(field(kind), given) == told


def test_rejection_names_the_declared_form() -> None:
    assert refusal(field("date", form=TextForm("d/M/yyyy")), "2024-03-31") == "is not date in the format d/M/yyyy"
    assert refusal(field("timestamp_ntz", form=TextForm("d/M/yyyy HH:mm")), "31/3/2024 24:00") == (
        'is not timestamp_ntz in the format d/M/yyyy HH:mm ("hour24": true would read it)'
    )
    said = "is not double with decimal ',' and thousands '.'"
    assert refusal(field("double", form=MONEY), "1.5") == said


def test_rejection_reports_a_machine_without_time_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_times, "_regions", lambda _: frozenset())
    said = refusal(field("timestamp"), "2024-07-01 12:00 Europe/Vienna")
    assert said.endswith("(this machine has no database of time zones: install the Python package tzdata)")


def test_excerpt_is_the_beginning_of_a_value_as_shown() -> None:
    assert excerpt(JsonNumber("1.10")) == "1.10"
    assert excerpt(["x" * 300]) == '["' + "x" * 198
    assert excerpt(b"a\xff") == "a\\xff"
    assert [excerpt(""), excerpt(b""), excerpt(" ")] == ['""', '""', " "]


def test_json_keeps_digits_order_and_every_character() -> None:
    text = '{"b":[1.10,1e5,-0],"a":{"\\"":"ü\\n\u2028"},"c":[true,null,[]]}'
    assert encode(decode(text)) == text
    assert encode([math.nan, b"a", Decimal("1.50"), date(2024, 1, 1), 1.5]) == '["NaN","YQ==",1.50,"2024-01-01",1.5]'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1, "a": 2}', "duplicate field name"),
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[01]", "Expecting"),
        ("[1,]", "Expecting"),
        ('["\n"]', "Invalid control character"),
        ("[1] [2]", "Extra data"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), f"more than {DEPTH} levels"),
        ("\ufeff[]", "BOM"),
    ],
)
def test_json_rejects_a_text_that_is_no_json(text: str, told: str) -> None:
    with pytest.raises(NotJson, match=told):
        decode(text)


def test_json_counts_levels_and_no_brackets_in_texts() -> None:
    assert decode("[" * DEPTH + "]" * DEPTH)
    assert decode(f'["{"[" * (2 * DEPTH)}"]') == ["[" * (2 * DEPTH)]


@pytest.mark.parametrize("kind", ["int", "bigint", "decimal(38,9)", "date", "timestamp", "timestamp_ntz"])
def test_bounds_and_defaults_of_contracts_are_valid_texts_of_records(kind: str) -> None:
    taken = 0
    for text in [*texts.numbers(), *texts.times(), *texts.WORDS]:
        if (value := literals.read(kind, text)) is not None:
            taken += 1
            given = read(field(kind), text)
            assert given in {value, REFUSED} if kind.startswith("decimal") else given == value, text
    assert taken > 5


@pytest.mark.parametrize(("kind", "bits"), [("int", 31), ("bigint", 63)])
def test_literals_hold_the_least_and_the_greatest_whole_number_of_a_type(kind: str, bits: int) -> None:
    least, greatest = -(1 << bits), (1 << bits) - 1
    assert [literals.read(kind, str(number)) for number in (least, greatest)] == [least, greatest]
    assert [literals.read(kind, str(number)) for number in (least - 1, greatest + 1)] == [None, None]
