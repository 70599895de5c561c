"""Grammar of numbers: exact values from texts, JSON numbers and typed values."""

from __future__ import annotations

import math
import re
import struct
from decimal import Context, Decimal
from typing import Final

from lake.contracts.literals import LONGEST, NUMBER, WHOLE
from lake.contracts.written_form import PLAIN, TextForm
from lake.records.raw_values import JsonNumber, Memo, RawValue

NAMED: Final = {
    sign + name: math.copysign(value, -1 if sign == "-" else 1)
    for sign in ("", "+", "-")
    for name, value in (("nan", math.nan), ("inf", math.inf), ("infinity", math.inf))
}
_EXACT: Final = Context(prec=80, traps=[])
"""Rounds no decimal of 38 digits; invalid operations give NaN."""


def exact(given: RawValue, form: TextForm = PLAIN) -> Decimal | None:
    match given:
        case bool():
            return None
        case JsonNumber():
            text: str | None = given
        case str():
            text = _with_plain_signs(given, form)
        case int():
            return Decimal(given)
        case float():
            return Decimal(repr(given)) if math.isfinite(given) else None
        case Decimal():
            return given if given.is_finite() else None
        case _:
            return None
    is_number = text is not None and len(text) <= LONGEST and NUMBER.fullmatch(text)
    return Decimal(text) if text is not None and is_number else None


def whole(given: RawValue, kind: str, form: TextForm = PLAIN) -> int | None:
    # A float has a shortest text, but beyond 2**53 its value is another whole number.
    number = Decimal(given) if isinstance(given, float) and math.isfinite(given) else exact(given, form)
    if number is None or (number and number.adjusted() > 18) or number != number.to_integral_value():
        return None
    value = int(number)
    return value if -(1 << WHOLE[kind]) <= value < 1 << WHOLE[kind] else None


def decimal(given: RawValue, precision: int, scale: int, form: TextForm = PLAIN) -> Decimal | None:
    number = exact(given, form)
    if number is None or (number and number.adjusted() >= precision - scale):
        return None
    value = number.quantize(Decimal((0, (1,), -scale)), context=_EXACT)
    if value != number:
        return None
    return value if value else abs(value)


def floating(given: RawValue, kind: str, form: TextForm = PLAIN) -> float | None:
    if isinstance(given, float):
        return given if kind == "double" else _single(given)
    if type(given) is str and (named := NAMED.get(given.lower())) is not None:
        return named
    number = exact(given, form)
    if number is None:
        return None
    value: float | None = float(number)
    if kind == "float" and value is not None:
        value = _single(_round_to_odd(number, value))
    return value if value is not None and math.isfinite(value) else None


def _round_to_odd(number: Decimal, near: float) -> float:
    """Return `near` or its neighbour, which shows the side of a tie of singles.

    So it is rounded only once (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    if number == near or struct.unpack("<q", struct.pack("<d", near))[0] & 1:
        return near
    return math.nextafter(near, math.inf if number > near else -math.inf)


def _single(value: float) -> float | None:
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return None
    return single


def _with_plain_signs(text: str, form: TextForm) -> str | None:
    if not form.numeric:
        return text
    if len(text) > LONGEST or not _pattern_of(form).fullmatch(text):
        return None
    return text.replace(form.thousands, "").replace(form.decimal, ".")


@Memo
def _pattern_of(form: TextForm) -> re.Pattern[str]:
    group, point = re.escape(form.thousands), re.escape(form.decimal)
    grouped = f"[0-9]{{1,3}}(?:{group}[0-9]{{3}})+|" if group else ""
    return re.compile(f"[+-]?(?:{grouped}[0-9]*)(?:{point}[0-9]*)?(?:[eE][+-]?[0-9]+)?")
