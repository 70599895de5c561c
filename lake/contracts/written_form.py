"""How the text of a field is written where that is not the plain way: its attributes `format`, `decimal`, `thousands`.

    {"name": "at", "type": …timestamp-micros…, "format": "d/M/yyyy HH:mm"}        31/3/2024 09:05
    {"name": "price", "type": …decimal…, "decimal": ",", "thousands": "."}        1.234,50

A format has letters of Spark's datetime patterns. A time without an offset is UTC. A number of JSON or of Parquet is a
number already: `decimal` and `thousands` are for texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.errors import DeclarationError

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
"""The letters of a format, each with how many of it may stand side by side."""
EXAMPLE: Final = 'write it as "d/M/yyyy HH:mm" or "yyyyMMdd"'
DECIMALS: Final = (".", ",")
THOUSANDS: Final = (".", ",", "'", "\u2019", " ", "\u00a0", "\u202f", "_")
_PARTS: Final = re.compile(r"(?P<text>'[^']*')|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z'])")


@dataclass(frozen=True)
class Form:
    """How a value is written: a time by a `format`, "" for ISO 8601; a number with these signs."""

    format: str = ""
    decimal: str = "."
    thousands: str = ""

    @property
    def numeric(self) -> bool:
        """Whether numbers are written otherwise than JSON has them."""
        return (self.decimal, self.thousands) != (".", "")

    @property
    def plain(self) -> bool:
        """Whether nothing is said of it."""
        return not self.format and not self.numeric

    @property
    def words(self) -> str:
        """What is to be said of a text that is not written so; "" for a plain one."""
        if self.format:
            return f" in the format {self.format}"
        signs = [f"decimal {self.decimal!r}", *([f"thousands {self.thousands!r}"] if self.thousands else [])]
        return f" with {' and '.join(signs)}" if self.numeric else ""


PLAIN: Final = Form()


def form_of(field: str, ddl: str, attributes: Mapping[str, Any]) -> Form:
    """The form that the attributes of `field`, of the type `ddl`, declare. Raises DeclarationError, without a place."""
    kind = ddl.partition("(")[0].removesuffix("_ntz")
    for name, kinds, what in (
        ("format", TIMES, "dates and times"),
        ("decimal", NUMBERS, "numbers"),
        ("thousands", NUMBERS, "numbers"),
    ):
        if name in attributes and kind not in kinds:
            raise DeclarationError(f"field {field!r} of type {ddl} cannot have a {name}", fix=f"{name} is for {what}")
    if "format" in attributes:
        return Form(_format(field, attributes["format"]))
    form = Form(decimal=attributes.get("decimal", "."), thousands=attributes.get("thousands", ""))
    for name, sign, allowed in (("decimal", form.decimal, DECIMALS), ("thousands", form.thousands, ("", *THOUSANDS))):
        if sign not in allowed:
            raise DeclarationError(
                f"field {field!r} has an invalid {name}: {sign!r}", fix=f"use one of {', '.join(map(repr, allowed))}"
            )
    if form.decimal == form.thousands:
        other = next(sign for sign in DECIMALS if sign != form.thousands)
        raise DeclarationError(
            f"field {field!r} has {form.thousands!r} for both decimal and thousands", fix=f'add "decimal": "{other}"'
        )
    return form


def _format(field: str, given: Any) -> str:
    fault = next(_faults(given), "") if isinstance(given, str) else "not text"
    if fault:
        raise DeclarationError(f"field {field!r} has an invalid format {given!r}: {fault}", fix=EXAMPLE)
    return str(given)


def _faults(given: str) -> Iterator[str]:
    """What is wrong with a format."""
    parts = list(_PARTS.finditer(given))
    if "".join(part[0] for part in parts) != given:
        yield "a quote is not closed"
    runs = [part["letters"] for part in parts if part["letters"]]
    for run in runs:
        if run[0] not in LETTERS:
            yield f"{run[0]!r} is none of {' '.join(LETTERS)}; other letters stand in quotes, as in 'T'"
        elif len(run) not in LETTERS[run[0]]:
            yield f"{run[0]!r} cannot stand {len(run)} times side by side"
    others = "".join(part["other"] or "" for part in parts)
    if special := set(others) & set("{}#"):
        yield f"{min(special)!r} has a meaning of its own"
    if re.sub(r"[^\[\]]", "", others).replace("[]", ""):
        yield "brackets are not paired"
    letters = {run[0] for run in runs}
    if not ({"y", "M", "d"} <= letters or {"y", "D"} <= letters):
        yield "it lacks year, month or day"
    if "h" in letters and "a" not in letters:
        yield "'h' is the hour of half a day, and needs 'a'; the hour of a day is 'H'"
