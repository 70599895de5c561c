"""Text forms of a field: its attributes `format`, `pivot`, `hour24`, `decimal` and `thousands`.

A format has letters of Spark's datetime patterns, or is one of EPOCHS. A time without an offset is UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.errors import DeclarationError, did_you_mean

TIMES: Final = ("date", "timestamp")
NUMBERS: Final = ("int", "bigint", "float", "double", "decimal")
LETTERS: Final[Mapping[str, tuple[int, ...]]] = {
    "y": (1, 2, 4),
    "M": (1, 2, 3, 4),
    "d": (1, 2),
    "D": (1, 2, 3),
    "H": (1, 2),
    "h": (1, 2),
    "m": (1, 2),
    "s": (1, 2),
    "S": tuple(range(1, 10)),
    "a": (1,),
    "X": (1, 2, 3),
    "x": (1, 2, 3),
    "Z": (1, 2, 3),
}
EPOCHS: Final = ("epoch-days", "epoch-seconds", "epoch-millis", "epoch-micros", "epoch-nanos")
EXAMPLE: Final = 'write it as "d/M/yyyy HH:mm", "yyyyMMdd" or "epoch-seconds"'
WORDS: Final = ("MMM", "MMMM", "a")
ZONES: Final = "XxZ"
VARIABLE_LENGTH: Final = (*("y", "M", "d", "D", "DD", "H", "h", "m", "s"), *("S" * digits for digits in range(2, 10)))
"""Runs of letters that match a varying number of digits."""
PIVOT: Final = 2000
LAST_PIVOT: Final = 9900
SIGNS: Final = ("decimal", "thousands")
DECIMALS: Final = (".", ",")
THOUSANDS: Final = (".", ",", "'", "\u2019", " ", "\u00a0", "\u202f", "_")
PARTS: Final = re.compile(r"(?P<text>'[^']*')|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z'])")


@dataclass(frozen=True)
class TextForm:
    """Time in `format` ("": ISO 8601), or number with these signs.

    A two-digit year lies in the hundred years from `pivot`. If `hour24`, 24:00 ends a day.
    """

    format: str = ""
    decimal: str = "."
    thousands: str = ""
    pivot: int = PIVOT
    hour24: bool = False

    @property
    def numeric(self) -> bool:
        return (self.decimal, self.thousands) != (".", "")

    @property
    def plain(self) -> bool:
        return self == PLAIN

    @property
    def words(self) -> str:
        if self.format:
            return f" in the format {self.format}"
        signs = [f"decimal {self.decimal!r}", *([f"thousands {self.thousands!r}"] if self.thousands else [])]
        return f" with {' and '.join(signs)}" if self.numeric else ""


PLAIN: Final = TextForm()


def wrong_field(field: str, what: str, fix: str) -> DeclarationError:
    return DeclarationError(f"field {field!r} {what}", fix=fix)


def form_of(field: str, ddl: str, attributes: Mapping[str, Any]) -> TextForm:
    """Raises DeclarationError without a place."""
    kind = ddl.partition("(")[0].removesuffix("_ntz")
    of_times, of_numbers = dict.fromkeys(("format", "pivot", "hour24"), TIMES), dict.fromkeys(SIGNS, NUMBERS)
    for name, kinds in (of_times | of_numbers).items():
        what = "dates and times" if kinds is TIMES else "numbers"
        if name in attributes and kind not in kinds:
            raise wrong_field(field, f"of type {ddl} cannot have a {name}", f"{name} is for {what}")
    if kind in TIMES:
        text = _format(field, attributes["format"]) if "format" in attributes else ""
        return TextForm(text, pivot=_pivot(field, text, attributes), hour24=_hour24(field, ddl, text, attributes))
    form = TextForm(decimal=attributes.get("decimal", "."), thousands=attributes.get("thousands", ""))
    for name, sign, allowed in (("decimal", form.decimal, DECIMALS), ("thousands", form.thousands, ("", *THOUSANDS))):
        if sign not in allowed:
            fix = f"use one of {', '.join(map(repr, allowed))}"
            raise wrong_field(field, f"has an invalid {name}: {sign!r}", fix)
    if form.decimal == form.thousands:
        other = next(sign for sign in DECIMALS if sign != form.thousands)
        raise wrong_field(field, f"has {form.thousands!r} for both decimal and thousands", f'add "decimal": "{other}"')
    return form


def _format(field: str, given: Any) -> str:
    if given in EPOCHS:
        return str(given)
    fault = next(_format_faults(given), "") if isinstance(given, str) else "not text"
    if fault:
        fix = did_you_mean(given, EPOCHS) if str(given).startswith("epoch") else EXAMPLE
        raise wrong_field(field, f"has an invalid format {given!r}: {fault}", fix)
    return str(given)


def _ambiguities(parts: list[re.Match[str]]) -> Iterator[str]:
    variable_run = ""
    for part in parts:
        run, sign = part["letters"], part["other"]
        if sign not in {"[", "]"} and (not run or run in WORDS or run[0] in ZONES):
            variable_run = ""
        elif run and run in VARIABLE_LENGTH:
            if variable_run:
                yield f"{variable_run!r} and {run!r} cannot be told apart without a sign between them"
            variable_run = run


def _pivot(field: str, text: str, attributes: Mapping[str, Any]) -> int:
    pivot = attributes.get("pivot", PIVOT)
    if isinstance(pivot, bool) or not isinstance(pivot, int) or not 1 <= pivot <= LAST_PIVOT:
        fix = f"write the first of the hundred years that yy is one of, from 1 to {LAST_PIVOT}"
        raise wrong_field(field, f"has an invalid pivot: {pivot!r}", fix)
    if "pivot" in attributes and "yy" not in runs(text):
        raise wrong_field(field, "has a pivot, and no year of two digits", 'write a format with yy, as "dd/MM/yy"')
    return pivot


def _hour24(field: str, ddl: str, text: str, attributes: Mapping[str, Any]) -> bool:
    hour24 = attributes.get("hour24", False)
    if not isinstance(hour24, bool):
        raise wrong_field(field, f"has an invalid hour24: {hour24!r}", "use true or false")
    has_hour = any(run[0] == "H" for run in runs(text)) if text else ddl != "date"
    if hour24 and not has_hour:
        raise wrong_field(field, "has hour24, and no hour of a day", 'write a format with H, as "yyyy-MM-dd HH:mm"')
    return hour24


def runs(text: str) -> list[str]:
    return [] if text in EPOCHS else [part["letters"] for part in PARTS.finditer(text) if part["letters"]]


def _format_faults(given: str) -> Iterator[str]:
    parts = list(PARTS.finditer(given))
    if "".join(part[0] for part in parts) != given:
        yield "a quote is not closed"
    letter_runs = runs(given)
    for run in letter_runs:
        if run[0] not in LETTERS:
            yield f"{run[0]!r} is none of {' '.join(LETTERS)}; other letters stand in quotes, as in 'T'"
        elif len(run) not in LETTERS[run[0]]:
            yield f"{run[0]!r} cannot stand {len(run)} times side by side"
    yield from _ambiguities(parts)
    others = "".join(part["other"] or "" for part in parts)
    if special := set(others) & set("{}#"):
        yield f"{min(special)!r} has a meaning of its own"
    if re.sub(r"[^\[\]]", "", others).replace("[]", ""):
        yield "brackets are not paired"
    letters = {run[0] for run in letter_runs}
    if "y" not in letters:
        yield "it lacks a year"
    if "d" in letters and "M" not in letters:
        yield "it has a day, and no month, which is 'M'"
    if "m" in letters and not letters & {"H", "h"}:
        yield "it has minutes, 'm', and no hour; a month is 'M'"
    if "h" in letters and "a" not in letters:
        yield "'h' is the hour of half a day, and needs 'a'; the hour of a day is 'H'"
