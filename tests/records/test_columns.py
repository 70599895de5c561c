"""Columns cast by Arrow, compared with the grammar of single values."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lake
from lake.contracts.fields import Field
from lake.contracts.written_form import TextForm
from lake.records import columns
from lake.records.columns import arrow_type, column
from lake.records.raw_values import ABSENT, JsonNumber, RawValue, WrongValue
from lake.records.values import excerpt, reader
from tests.records import texts

KINDS = (*texts.TYPES, "binary")
EPOCHS = {"timestamp": 1_000_000, "timestamp_ntz": 1_000}


def field(kind: str, **more: Any) -> Field:
    return Field("f", kind, epoch=EPOCHS.get(kind, 0), **more)


def one_by_one(of: Field, given: Sequence[RawValue]) -> tuple[pa.Array, dict[int, str]]:
    """Return the column by the grammar, without casts of Arrow."""
    values, wrong = [], {}
    for index, each in enumerate(given):
        try:
            values.append(reader(of)(each))
        except WrongValue as refusal:
            values.append(None)
            wrong[index] = f"f: {excerpt(each)} {refusal}"
    return pa.array(values, arrow_type(of)), wrong


def compare(of: Field, given: Sequence[RawValue]) -> None:
    """Compare the column, and again without its rejected values, which Arrow casts whole."""
    expected, wrong = one_by_one(of, given)
    found, told = column(of, given)
    assert told == wrong
    assert found.type == arrow_type(of)
    assert text_of(found) == text_of(expected)
    right = [each for index, each in enumerate(given) if index not in wrong]
    if wrong and right:
        compare(of, right)


def text_of(values: pa.Array) -> list[str]:
    """Return values as texts, so that -0.0 differs from 0.0 and NaN equals itself."""
    return [repr(value) for value in values.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_column_of_texts_is_read_as_each_text_alone(kind: str) -> None:
    given: list[RawValue] = [*texts.some(random.Random(kind), 500), None, ABSENT, None]
    compare(field(kind), given)
    compare(field(kind), [None if text is ABSENT else text for text in given])


PLAIN: dict[str, Callable[[random.Random], str]] = {
    "int": lambda chance: str(chance.randrange(-(10**8), 10**8)),
    "bigint": lambda chance: str(chance.randrange(-(10**17), 10**17)),
    "double": lambda chance: repr(
        chance.choice([chance.random(), chance.uniform(-1e20, 1e20), chance.random() / 1e30])
    ),
    "float": lambda chance: f"{chance.randrange(2**25)}.{chance.randrange(10**9)}",
    "decimal(9,2)": lambda chance: f"{chance.randrange(10**7)}.{chance.randrange(100)}",
    "decimal(2,2)": lambda chance: f"-0.{chance.randrange(100)}",
    "decimal(38,10)": lambda chance: f"{chance.randrange(10**28)}.{chance.randrange(10**10)}",
    "date": lambda chance: f"{chance.randrange(1, 9999):04}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}",
}


@pytest.mark.parametrize("kind", PLAIN)
def test_column_of_plain_texts_is_read_as_each_text_alone(kind: str) -> None:
    chance = random.Random(kind)
    compare(field(kind), [PLAIN[kind](chance) for _ in range(500)])


@pytest.mark.parametrize("zone", ["", "Z", "+02:00", "-17:59"])
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_column_of_plain_times_is_read_as_each_time_alone(kind: str, zone: str) -> None:
    chance = random.Random(zone)
    days = [PLAIN["date"](chance) for _ in range(300)]
    hours = [chance.choice(["T12:30:15", " 00:00", "T23:59:59.999999", "T01:02:03.5"]) for _ in days]
    compare(field(kind), [f"{day}{hour}{zone}" for day, hour in zip(days, hours, strict=True)])


TYPED: tuple[Any, ...] = (
    *(0, 1, -1, 7, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**18, 719162, 2932896, 2932897),
    *(-719162, -719163, 253402300799999999, 253402300800000000, -62135596800000000, -62135596800000001),
    *(True, False, 0.0, -0.0, 1.0, 1.5, 0.1, float("nan"), float("inf"), 1e39, 1e308),
    *(Decimal("1.10"), Decimal("-0.00"), Decimal("1E+3"), Decimal("1E-20"), Decimal("NaN"), Decimal(10) ** 37),
    *(
        JsonNumber("1"),
        JsonNumber("1.0"),
        JsonNumber("-0"),
        JsonNumber("1e400"),
        JsonNumber("19000"),
        JsonNumber("2024"),
    ),
    *(b"", b"\xff", b"text", date(2024, 2, 29), datetime(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4)),
    *(datetime(2024, 2, 29, tzinfo=UTC), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    *("1", "true", "2024-02-29", "", [], [1], {}),
    {"a": JsonNumber("1.10")},
)


ARRAYS = (
    pa.array([1, None, -(2**31)], pa.int64()),
    pa.array([2**53 + 1, 2**31], pa.int64()),
    pa.array([0.1, 1.0, None, float("nan"), float("inf")], pa.float64()),
    pa.array([1e39], pa.float64()),
    pa.array([True, None]),
    pa.array(["1", "true", "2024-02-29", None, "\uffff"]),
    pa.array(["a", None]),
    pa.array([b"a", b"\xff", None]),
    pa.array([date(2024, 2, 29), None]),
    pa.array([datetime(2024, 2, 29), None], pa.timestamp("us")),
    pa.array([datetime(2024, 2, 29, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
    pa.array([Decimal("1.50"), Decimal("1.001")], pa.decimal128(20, 3)),
    pa.array([Decimal("0.50"), Decimal("-0.25")], pa.decimal128(38, 10)),
    pa.array([], pa.string()),
)


@pytest.mark.parametrize("kind", KINDS)
def test_column_of_typed_values_is_read_as_each_value_alone(kind: str) -> None:
    """Compare all values, those of each type, and those of each pair of types."""
    of = field(kind)
    by_type: dict[type, list[RawValue]] = {}
    for each in TYPED:
        by_type.setdefault(type(each), []).append(each)
    compare(of, [*TYPED, None, ABSENT])
    for one in by_type.values():
        compare(of, [*one, None])
        for other in by_type.values():
            compare(of, [*one[:3], *other[:3]])


def test_column_of_counts_is_read_at_the_ends_of_the_years() -> None:
    ends = {
        "date": (-719162, 2932896),
        "timestamp": (-62135596800000000, 253402300799999999),
        "timestamp_ntz": (-62135596800000, 253402300799999),
    }
    for kind, (first, last) in ends.items():
        values, wrong = column(field(kind), [first, last])
        assert not wrong
        assert [value.year for value in values.to_pylist()] == [1, 9999]
        assert [*column(field(kind), [first - 1, 0, last + 1])[1]] == [0, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_column_of_parquet_is_read_as_each_value_alone(kind: str) -> None:
    of = field(kind)
    for given in ARRAYS:
        expected, wrong = one_by_one(of, given.to_pylist())
        found, told = column(of, given)
        assert (text_of(found), told, found.type) == (text_of(expected), wrong, arrow_type(of)), given


@pytest.mark.parametrize("kind", ["string", "int", "double", "float", "decimal(9,2)", "boolean", "date"])
def test_column_of_json_with_numbers_of_both_kinds_is_read_as_each_alone(kind: str) -> None:
    given: list[RawValue] = [
        1,
        JsonNumber("1.5"),
        None,
        "7",
        ABSENT,
        2**70,
        JsonNumber("-0.0"),
        0,
        "x",
        JsonNumber("1e2"),
        True,
    ]
    compare(field(kind), given)
    compare(field(kind), given[:-1])
    compare(field(kind), given[:2])


FORMED: dict[str, tuple[TextForm, list[RawValue]]] = {
    "date": (TextForm("d/M/yyyy"), ["31/3/2024", "31/2/2024", "2024-03-31", JsonNumber("5")]),
    "timestamp": (TextForm("epoch-seconds"), ["1711886400", 5, JsonNumber("1.5"), "1e3", "x"]),
    "decimal(9,2)": (TextForm("", ",", "."), ["1.234,5", "1234,5", JsonNumber("1.5"), "1.5", 7]),
    "timestamp_ntz": (TextForm(hour24=True), ["2024-03-31T24:00", "2024-03-31T12:00", "2024-03-31T24:01"]),
}


@pytest.mark.parametrize("kind", FORMED)
def test_column_in_a_form_is_read_as_each_value_alone(kind: str) -> None:
    form, given = FORMED[kind]
    compare(field(kind, form=form), [*given, *given, None])


PARTS = (Field("item", "int"), Field("day", "date"))
NESTED = Field(
    "f",
    "map<string,struct<items:array<int>,day:date>>",
    parts=(
        Field(
            "value",
            "struct<items:array<int>,day:date>",
            parts=(Field("items", "array<int>", parts=PARTS[:1]), PARTS[1]),
        ),
    ),
)


def test_column_of_nested_values_has_the_types_of_its_parts() -> None:
    given: list[RawValue] = [
        {"a": {"items": [1, None, "2"], "day": "2024-02-29"}, "b": None},
        None,
        '{"c": {}}',
        {"d": 1},
    ]
    values, wrong = column(NESTED, given)
    assert values.to_pylist() == [
        [("a", {"items": [1, None, 2], "day": date(2024, 2, 29)}), ("b", None)],
        None,
        [("c", {"items": None, "day": None})],
        None,
    ]
    assert wrong == {3: f'f: {{"d":1}} is not {NESTED.type}'}


def test_column_without_values_is_null_in_its_type() -> None:
    for of in map(field, KINDS):
        for given in ([], [None], [ABSENT, None]):
            values, wrong = column(of, given)
            assert (values.to_pylist(), values.type, wrong) == ([None] * len(given), arrow_type(of), {})


def test_column_of_plain_values_is_made_without_reading_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_reader(of: Field) -> None:
        raise AssertionError(of.type)

    monkeypatch.setattr(columns, "reader", no_reader)
    chance = random.Random(1)
    for kind, make in PLAIN.items():
        given: list[RawValue] = [make(chance) for _ in range(20)]
        column(field(kind), [text for text in given if kind != "date" or "0100" < str(text) < "9900"])
    for kind in ("timestamp", "timestamp_ntz"):
        column(field(kind), ["2024-02-28T12:30:15.123", "2024-02-28", None])
        column(field(kind), [1, 2, None])
    for kind, plain in (("int", 1), ("double", 1.5), ("boolean", True), ("string", "a"), ("date", 5), ("binary", b"a")):
        column(field(kind), [plain, None, ABSENT])


REMOTE = """
import sys, pickle
read, given = pickle.loads(open(sys.argv[1], "rb").read())
values, wrong = read(given)
assert not [name for name in sys.modules if name.partition(".")[0] == "lake"]
print(values.to_pylist(), wrong)
"""


def test_column_is_read_by_a_process_that_has_no_lake(tmp_path: Path) -> None:
    """Executors of Spark receive the package by value, without the caches of this process."""
    of = field("timestamp", form=TextForm("d/M/yyyy"))
    column(of, ["1/2/2024", "x"])
    cloudpickle: Any = import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(lake)
    try:
        pickled = cloudpickle.dumps((lambda given: column(of, given), ["1/2/2024", "2024"]))
    finally:
        cloudpickle.unregister_pickle_by_value(lake)
    (tmp_path / "read.pkl").write_bytes(pickled)
    command = [sys.executable, "-I", "-c", REMOTE, str(tmp_path / "read.pkl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "datetime.datetime(2024, 2, 1, 0, 0" in done.stdout
    assert "{1: 'f: 2024 is not timestamp in the format d/M/yyyy'}" in done.stdout
