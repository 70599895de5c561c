"""Constants in Spark's SQL: numbers, texts, times and intervals; called by `syntax`.

Source: SqlBaseLexer.g4 of Spark 4.2.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.tree import Literal, decimal_literal
from lake.session.in_process.types import MICROSECONDS, WHOLE_DAYS

DAY, HOURS = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d{6})?(Z|[+-](0\d|1[0-7]):\d\d)?"
MONTHS: Final = {"month": 1, "year": 12}
ESCAPES: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "r": "\r", "t": "\t", "0": "\0", "b": "\b", "Z": "\x1a"}


def time(word: str, kind: str, text: str) -> Literal:
    form = DAY if word == "date" else f"{DAY}([T ]{HOURS})?"
    if kind != "text" or not re.fullmatch(form, text[1:-1]):
        raise unsupported(f"the {word} {text}")
    try:
        at = datetime.fromisoformat(text[1:-1])
    except ValueError as error:
        raise unsupported(f"the {word} {text}") from error
    if word == "date":
        return Literal(at.date(), T.DateType())
    return Literal(at if at.tzinfo else at.replace(tzinfo=UTC), T.TimestampType())


def interval(kind: str, text: str, unit: str) -> Literal:
    """Return months, or microseconds."""
    unit = unit.lower().removesuffix("s")
    number = text[1:-1] if kind == "text" else text
    form = r"-?\d+(\.\d{1,6})?" if unit == "second" else r"-?\d+"
    if kind not in ("text", "number") or unit not in {*MICROSECONDS, *MONTHS} or not re.fullmatch(form, number):
        raise unsupported(f"the interval {text} {unit}")
    if unit in MONTHS:
        return Literal(int(number) * MONTHS[unit], T.YearMonthIntervalType())
    type_ = WHOLE_DAYS if unit in ("day", "week") else T.DayTimeIntervalType()
    return Literal(int(Decimal(number) * MICROSECONDS[unit]), type_)


def number(text: str, sign: str = "") -> Literal:
    text = text.upper()
    if text.endswith("BD") or ("." in text and "E" not in text and text[-1] not in "DF"):
        return decimal_literal(Decimal(sign + text.removesuffix("BD")))
    if text.endswith("L"):
        return Literal(int(sign + text[:-1]), T.LongType())
    if not text.isdigit():
        if text[-1] in "FSY":
            raise unsupported(f"the number {text}")
        if math.isinf(value := float(sign + text.removesuffix("D"))):
            raise unsupported(f"the number {text}")
        return Literal(value, T.DoubleType())
    whole = int(sign + text)
    if not -(1 << 63) <= whole < 1 << 63:
        return decimal_literal(Decimal(whole))
    return Literal(whole, T.IntegerType() if -(1 << 31) <= whole < 1 << 31 else T.LongType())


def unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        if found[1] not in ESCAPES or (found[1] == "0" and found.string[found.end() : found.end() + 1].isdigit()):
            raise unsupported(f"the text {text}")
        return ESCAPES[found[1]]

    return re.sub(r"\\(.)", plain, text[1:-1], flags=re.DOTALL)
