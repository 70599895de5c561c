"""Hints in rejections: the attribute of a field by which the contract would read the value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final

from lake.contracts.fields import Field
from lake.contracts.written_form import NUMBERS, TextForm
from lake.records import time_format, times
from lake.records.memo import Memo
from lake.records.raw_values import JsonNumber, RawValue

LONGEST: Final = 40
MOST_HINTS: Final = 2
EPOCHS: Final = {10: "epoch-seconds", 13: "epoch-millis", 16: "epoch-micros", 19: "epoch-nanos"}
"""Unit by number of digits, for counts from 2001 to 2286."""
DATES: Final = (
    *("yyyyMMdd", "d/M/yyyy", "M/d/yyyy", "yyyy/M/d", "yyyy-M-d", "d.M.yyyy", "d-M-yyyy", "d MMM yyyy", "d-MMM-yyyy"),
    *("d/M/yy", "M/d/yy", "d.M.yy", "d-M-yy", "d-MMM-yy"),
)
HOURS: Final = (
    *("", "HHmm", "HHmmss", "'T'HHmmss", "'T'HHmmssX", " HH:mm", " HH:mm:ss", " h:mm a", " h:mm:ss a"),
    *("'T'HH:mm", "'T'HH:mm:ss", "'T'HH:mm:ssXXX"),
)
FORMATS: Final = ("yyyy", "yyyy-MM", "yyyy-DDD", *(date + hour for date in DATES for hour in HOURS))
_ABBREVIATION: Final = re.compile(r"(.*:[0-9.]+) ?([A-Za-z][A-Za-z0-9]*)")
_MAY_BE_NUMBER: Final = re.compile("[+-]?[0-9.,' ]*[,' ][0-9.,' ]*(?:[eE][+-]?[0-9]+)?")
SIGNS: Final = ((",", ""), (".", ","), (",", "."), (".", "'"), (".", " "), (",", " "))


def hint(field: Field, given: RawValue, reads: Callable[[Field, RawValue], bool]) -> str:
    """Return the end of a rejection, ` ("format": … would read it)`; "" if no attribute helps.

    `reads` returns whether a field would read the value.
    """
    if field.type == "string":
        unreadable = "not UTF-8" if isinstance(given, bytes) else "half a surrogate pair"
        return f" ({unreadable}, or U+FFFF, which is no character)"
    if type(given) is int:
        given = JsonNumber(given)
    if given == "":
        return ' ("null": [""] for CSV would read it as no value)'
    if not isinstance(given, str) or len(given) > LONGEST:
        return ""
    named = [attribute for attribute, declared in _candidates(field, given) if reads(declared, given)][:MOST_HINTS]
    if named:
        return f" ({' or '.join(named)} would read it)"
    return _zone_hint(given, lambda text: reads(field, text)) if field.type == "timestamp" and field.form.plain else ""


def _zone_hint(text: str, reads: Callable[[str], bool]) -> str:
    if times.region(text) and not times.regions():
        return " (this machine has no database of time zones: install the Python package tzdata)"
    found = _ABBREVIATION.fullmatch(text)
    if found is None or not reads(found[1]):
        return ""
    return f" ({found[2]} is no zone: UTC, GMT, Z, offsets and regions such as Europe/London are)"


def _candidates(field: Field, text: str) -> Iterator[tuple[str, Field]]:
    kind, is_text = field.type.partition("(")[0], type(text) is str
    if "24:00" in text and (kind.startswith("timestamp") or field.form.format):
        yield '"hour24": true', replace(field, form=replace(field.form, hour24=True))
    if not field.form.plain:
        return
    if kind == "date" or kind.startswith("timestamp"):
        for form in _formats(text):
            yield f'"format": "{form}"', replace(field, form=TextForm(form))
    if kind in NUMBERS and is_text and _MAY_BE_NUMBER.fullmatch(text):
        for decimal, thousands in (signs for signs in SIGNS if signs[1] in text):
            declared = [f'"decimal": "{decimal}"'] if decimal != "." else []
            declared += [f'"thousands": "{thousands}"'] if thousands else []
            yield ", ".join(declared), replace(field, form=TextForm(decimal=decimal, thousands=thousands))


def _formats(text: str) -> Iterator[str]:
    count = re.fullmatch(r"-?([0-9]+)(?:\.[0-9]+)?", text)
    if count and (unit := EPOCHS.get(len(count[1]))):
        yield unit
    yield from _matching(re.sub("[0-9]", "9", text))


@Memo
def _matching(shape: str) -> list[str]:
    return [form for form in _FORMATS_BY_SIGNS.get(_signs(shape), ()) if time_format.matches(form, shape)]


def _signs(text: str) -> str:
    return re.sub("[0-9A-Za-z']+", "", text)


_FORMATS_BY_SIGNS: Final = {signs: [*forms] for signs, forms in groupby(sorted(FORMATS, key=_signs), _signs)}
