"""Dates and times in the formats of contracts: every letter, optional parts, and conflicts."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from lake.contracts.fields import Field
from lake.contracts.written_form import LETTERS, TextForm
from lake.records.raw_values import JsonNumber, RawValue, WrongValue
from lake.records.values import reader

REFUSED = "refused"


def read(kind: str, form: TextForm, given: RawValue) -> Any:
    try:
        return reader(Field("f", kind, form=form))(given)
    except WrongValue:
        return REFUSED


CASES: list[tuple[str, str, Any]] = [
    ("d/M/yyyy HH:mm[:ss]", "31/3/2024 09:05", datetime(2024, 3, 31, 9, 5)),
    ("d/M/yyyy HH:mm[:ss]", "01/12/1999 23:59:59", datetime(1999, 12, 1, 23, 59, 59)),
    ("d/M/yyyy HH:mm[:ss]", "31/2/2024 09:05", REFUSED),
    ("d/M/yyyy HH:mm[:ss]", " 1/12/1999 23:59:59", REFUSED),
    ("d/M/yyyy HH:mm[:ss]", "1/12/1999 23:59\n", REFUSED),
    ("d/M/yyyy HH:mm", "1/12/1999 24:00", REFUSED),
    ("d/M/yyyy HH:mm:ss", "1/12/1999 23:59:60", REFUSED),
    ("d/M/yyyy", "\u0661/1/2024", REFUSED),
    ("d/M/yyyy", "1/1/0000", REFUSED),
    ("d/M/yyyy", "001/1/2024", REFUSED),
    ("d/M/y", "1/1/987", datetime(987, 1, 1)),
    ("yyyyMMdd'T'HHmmss.SSSSSSXXX", "20240331T090500.123456+02:00", datetime(2024, 3, 31, 7, 5, 0, 123456)),
    ("yyyyMMdd'T'HHmmss.SSSSSSXXX", "20240331T090500", REFUSED),
    ("yyyy-MM-dd HH:mm:ss.SSSSSSSSS", "2024-03-31 09:05:00.1234567", datetime(2024, 3, 31, 9, 5, 0, 123456)),
    ("yyyy-MM-dd HH:mm:ss,SSS", "2024-03-31 09:05:00,12", datetime(2024, 3, 31, 9, 5, 0, 120000)),
    ("yyyyMMddHHmmssSSS", "20240331090500012", datetime(2024, 3, 31, 9, 5, 0, 12000)),
    ("yyyyMMddHHmmssSSS", "2024033109050012", REFUSED),
    ("yyyy-MM-dd HH:mm:ssXX", "2024-03-31 09:05:00Z", datetime(2024, 3, 31, 9, 5)),
    ("yyyy-MM-dd HH:mm:ssX", "2024-03-31 09:05:00-0330", datetime(2024, 3, 31, 12, 35)),
    ("yyyy-MM-dd HH:mm:ssx", "2024-03-31 09:05:00Z", REFUSED),
    ("yyyy-MM-dd HH:mm:ssZ", "2024-03-31 09:05:00+1801", REFUSED),
    ("yyyy-MM-dd HH:mm:ssZ", "0001-01-01 00:00:00+0100", REFUSED),
    ("dd MMM yyyy hh:mm a", "31 Mar 2024 09:05 PM", datetime(2024, 3, 31, 21, 5)),
    ("dd MMM yyyy hh:mm a", "31 MAR 2024 12:05 am", datetime(2024, 3, 31, 0, 5)),
    ("dd MMM yyyy hh:mm a", "31 Mrz 2024 09:05 PM", REFUSED),
    ("dd MMM yyyy hh:mm a", "31 Mar 2024 13:05 PM", REFUSED),
    ("dd MMM yyyy", "1 Mar 2024", REFUSED),
    ("d MMM yyyy", "1 \u017fep 2024", REFUSED),
    ("d MMMM yyyy", "1 september 2024", datetime(2024, 9, 1)),
    ("d MMMM yyyy", "1 sep 2024", REFUSED),
    ("d/M/yyyy HH:mm a", "1/1/2024 13:00 PM", datetime(2024, 1, 1, 13)),
    ("d/M/yyyy HH:mm a", "1/1/2024 13:00 AM", REFUSED),
    ("yyyyDDD", "2024366", datetime(2024, 12, 31)),
    ("yyyyDDD", "2023366", REFUSED),
    ("yyyy-D", "2024-60", datetime(2024, 2, 29)),
    ("yyyy-MM-dd (D)", "2024-02-29 (60)", datetime(2024, 2, 29)),
    ("yyyy-MM-dd (D)", "2024-02-29 (61)", REFUSED),
    ("yyyy[-MM][-dd]", "2024", datetime(2024, 1, 1)),
    ("yyyy[-MM][-dd]", "2024-03", datetime(2024, 3, 1)),
    ("[yyyy]-MM-dd", "-03-01", REFUSED),
    ("[yyyy-]MM'T''x'dd y", "03T'x31 2024", datetime(2024, 3, 31)),
    ("[yyyy-]MM'T''x'dd y", "2024-03T'x31 2024", datetime(2024, 3, 31)),
    ("[yyyy-]MM'T''x'dd y", "2023-03T'x31 2024", REFUSED),
    ("dMMyyyy", "1032024", datetime(2024, 3, 1)),
    ("yyyy.MM.dd", "2024x03x31", REFUSED),
    ("dd/MM/yy", "31/12/65", datetime(2065, 12, 31)),
    ("dd/MM/yy", "31/12/00", datetime(2000, 12, 31)),
    ("dd/MM/yy", "31/12/2024", REFUSED),
]


@pytest.mark.parametrize(("text_format", "text", "expected"), CASES)
def test_text_is_read_in_its_format(text_format: str, text: str, expected: Any) -> None:
    form = TextForm(text_format)
    zoned = expected if expected is REFUSED else expected.replace(tzinfo=UTC)
    assert read("timestamp", form, text) == zoned
    assert read("timestamp_ntz", form, text) == expected
    assert read("date", form, text) == (expected if expected is REFUSED else expected.date())


def test_format_of_a_contract_reads_texts_that_are_written_in_it() -> None:
    """Write texts by Python's own strftime."""
    letters = {
        "yyyy": "%Y",
        "MM": "%m",
        "MMM": "%b",
        "MMMM": "%B",
        "dd": "%d",
        "DDD": "%j",
        "HH": "%H",
        "hh": "%I",
        "mm": "%M",
        "ss": "%S",
        "SSSSSS": "%f",
        "a": "%p",
        "Z": "%z",
    }
    assert {run[0] for run in letters} <= {*LETTERS}
    chance = random.Random(1)
    for _ in range(300):
        at = datetime(1, 1, 2) + timedelta(microseconds=chance.randrange(9998 * 365 * 86_400_000_000))
        names = ["dd", "yyyy", "DDD", chance.choice(["MM", "MMM", "MMMM"]), "ss", "mm", "SSSSSS", "Z"]
        names += chance.choice([["HH"], ["hh", "a"]])
        chance.shuffle(names)
        signs = [chance.choice(["/", "-", " ", "'T'", ".", "''", "':'"]) for _ in names]
        form = "".join(f"{name}{sign}" for name, sign in zip(names, signs, strict=True))
        plain = "".join(
            f"{letters[name]}{sign[1:-1] or chr(39) if sign[0] == chr(39) else sign}"
            for name, sign in zip(names, signs, strict=True)
        )
        text = at.replace(tzinfo=UTC).strftime(plain.replace("%Y", f"{at.year:04}"))
        assert read("timestamp_ntz", TextForm(form), text) == at, (form, text)


def test_pivot_is_the_first_of_the_hundred_years_of_two_digits() -> None:
    for pivot, text, year in ((1930, "30", 1930), (1930, "29", 2029), (1999, "99", 1999), (1999, "98", 2098)):
        form = TextForm("dd/MM/yy", pivot=pivot)
        assert read("date", form, f"31/12/{text}") == date(year, 12, 31)


def test_hour_24_is_the_end_of_a_day_if_declared() -> None:
    form = TextForm("yyyy-MM-dd HH:mm", hour24=True)
    assert read("timestamp_ntz", form, "2024-03-31 24:00") == datetime(2024, 4, 1)
    assert read("timestamp_ntz", form, "2024-03-31 23:59") == datetime(2024, 3, 31, 23, 59)
    assert read("date", form, "2024-12-31 24:00") == date(2025, 1, 1)
    for wrong in ("2024-03-31 24:01", "2024-03-31 25:00", "9999-12-31 24:00"):
        assert read("timestamp_ntz", form, wrong) == REFUSED
    iso = TextForm(hour24=True)
    assert read("timestamp", iso, "2024-03-31T24:00:00.000Z") == datetime(2024, 4, 1, tzinfo=UTC)
    assert read("timestamp", iso, "2024-03-31T24:00:00+02:00") == datetime(2024, 3, 31, 22, tzinfo=UTC)
    assert read("timestamp", iso, "2024-03-31T24:00:00.0000001Z") == REFUSED


@pytest.mark.parametrize(
    ("unit", "given", "expected"),
    [
        ("days", "19813", datetime(2024, 3, 31)),
        ("days", 19813, datetime(2024, 3, 31)),
        ("days", "19813.5", REFUSED),
        ("seconds", "1711886400", datetime(2024, 3, 31, 12)),
        ("seconds", "+1711886400.0000019", datetime(2024, 3, 31, 12, 0, 0, 1)),
        ("seconds", JsonNumber("-0.0000001"), datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("seconds", 1711886400.5, datetime(2024, 3, 31, 12, 0, 0, 500000)),
        ("seconds", "9999999999999", REFUSED),
        ("seconds", "1e999", REFUSED),
        ("seconds", " 1", REFUSED),
        ("seconds", "2024-03-31", REFUSED),
        ("seconds", True, REFUSED),
        ("millis", "1711886400123", datetime(2024, 3, 31, 12, 0, 0, 123000)),
        ("millis", "1.5", REFUSED),
        ("micros", "1", datetime(1970, 1, 1, 0, 0, 0, 1)),
        ("nanos", "-1", datetime(1969, 12, 31, 23, 59, 59, 999999)),
    ],
)
def test_count_since_1970_is_read_in_its_unit(unit: str, given: RawValue, expected: Any) -> None:
    form = TextForm(f"epoch-{unit}")
    assert read("timestamp_ntz", form, given) == expected
    is_midnight = isinstance(expected, datetime) and expected.hour == 0 and expected.microsecond == 0
    assert read("date", form, given) == (expected.date() if is_midnight else REFUSED)


def test_number_is_read_by_its_digits_and_a_typed_time_unchanged() -> None:
    form = TextForm("yyyyMMdd")
    assert read("date", form, JsonNumber("20240229")) == date(2024, 2, 29)
    assert read("date", form, 20240229) == date(2024, 2, 29)
    assert read("date", form, JsonNumber("1711875900000")) == REFUSED
    assert read("date", form, date(2024, 2, 29)) == date(2024, 2, 29)
    assert read("date", form, datetime(2024, 2, 29, 1)) == REFUSED
