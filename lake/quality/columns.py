"""Columns in expectations: exact comparisons in DuckDB SQL, with values of a quality file and with each other.

A comparison with null is null, one with NaN false. Numbers compare as written, values compared with a float column
as the nearest value of its type, text by code points. A day compared with a time is its midnight; a time
without an offset is in the `zone` of the table's windows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from math import ceil, floor, inf, isfinite
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from lake.lazy import pa
from lake.text import literal, quoted

Key = Fraction | float | str
"""Exact value in Python: numbers, days and microseconds since 1970 as fractions; NaN and infinity as floats."""
Operator = Literal["=", "<", "<=", ">", ">="]

INTEGER, DECIMAL, FLOAT, TEXT, BOOLEAN, BINARY = "integer", "decimal", "float", "text", "boolean", "binary"
DATE, INSTANT, LOCAL, LIST, NESTED = "date", "timestamp", "timestamp_ntz", "array", "struct or map"
NUMBERS: Final = (INTEGER, DECIMAL, FLOAT)
EXACT: Final = (INTEGER, DECIMAL)
TIMES: Final = (DATE, INSTANT, LOCAL)
COMPARABLE: Final = (*NUMBERS, TEXT, BOOLEAN, *TIMES)
SCALAR: Final = (*COMPARABLE, BINARY)
EPOCH: Final = datetime(1970, 1, 1)
MOST_DIGITS: Final = 38
OPERATORS_BEYOND: Final[Mapping[tuple[Operator, bool], Operator]] = {
    ("<", True): "<",
    ("<=", True): "<",
    (">", True): ">=",
    (">=", True): ">=",
    ("<", False): "<=",
    ("<=", False): "<=",
    (">", False): ">",
    (">=", False): ">",
}
"""Comparisons with a number above (True) or below all finite floats become comparisons with infinity."""
FIXES: Final[Mapping[str, str]] = {
    **dict.fromkeys(NUMBERS, "write a number"),
    TEXT: "write text in quotes",
    BOOLEAN: "write true or false",
    DATE: "write a day: 2013-01-31",
    INSTANT: "write 2013-01-31, 2013-01-31T06:00 or 2013-01-31T06:00Z",
    LOCAL: "write 2013-01-31 or 2013-01-31T06:00, without an offset",
}


class UnsuitableExpectation(ValueError):
    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.fix = fix


@dataclass(frozen=True)
class ExpectationColumn:
    """Column, or `expression` over columns, with its Arrow type."""

    name: str
    type: pa.DataType
    zone: str = "UTC"
    expression: str = ""

    @property
    def sql(self) -> str:
        return self.expression or quoted(self.name)

    @property
    def kind(self) -> str:
        return _kind(self.type)

    @property
    def digits(self) -> tuple[int, int]:
        """Maximum digits before and after the decimal point."""
        if self.kind == DECIMAL:
            return self.type.precision - self.type.scale, self.type.scale
        return len(str(2**self.type.bit_width)), 0

    def require_kind(self, *kinds: str) -> ExpectationColumn:
        if self.kind not in kinds:
            names = f"{', '.join(kinds[:-1])} or {kinds[-1]}" if len(kinds) > 1 else kinds[0]
            raise UnsuitableExpectation(
                f"column {self.name} is of type {self.type}, not {names}", "cast the column in the job"
            )
        return self

    def key(self, value: Any, argument: str) -> Key:
        """Return an argument's value as this column compares it. Raises UnsuitableExpectation."""
        kind, key = self.require_kind(*COMPARABLE).kind, None
        if kind in NUMBERS:
            key = self._number(value)
        elif kind in TIMES and isinstance(value, str):
            key = self._moment(value)
        elif (kind == TEXT and isinstance(value, str)) or (kind == BOOLEAN and isinstance(value, bool)):
            key = value if isinstance(value, str) else Fraction(value)
        if key is None:
            a_kind = f"{'an' if kind == INTEGER else 'a'} {kind}"
            raise UnsuitableExpectation(f"{argument} {value!r} is not a valid value of {a_kind} column", FIXES[kind])
        return key

    def compare(self, operator: Operator, value: Any, argument: str) -> str:
        """Return SQL of the exact comparison with an argument's value; null for null."""
        key = self.key(value, argument)
        if isinstance(key, float):  # beyond all finite numbers
            if operator == "=":
                return self._constant(False)
            operator = OPERATORS_BEYOND[operator, key > 0]
        if self.kind not in EXACT:
            condition = f"{self.double if self.kind == FLOAT else self.sql} {operator} {self._literal(key)}"
            return f"({condition} AND NOT isnan({self.sql}))" if self.kind == FLOAT else f"({condition})"
        scaled = Fraction(key) * 10 ** self.digits[1]
        if operator == "=" and scaled.denominator > 1:
            return self._constant(False)
        unscaled = ceil(scaled) if operator in {"<", ">="} else floor(scaled)
        if abs(unscaled) >= 10 ** sum(self.digits):
            return self._constant((operator[0] == "<" and unscaled > 0) or (operator[0] == ">" and unscaled < 0))
        return f"({self.sql} {operator} {self._literal(Fraction(unscaled, 10 ** self.digits[1]))})"

    def one_of(self, values: Any, argument: str) -> str:
        if not isinstance(values, list):
            raise UnsuitableExpectation(f"{argument} {values!r} is not a list", "write [value, …]")
        keys = {self.key(value, argument) for value in values if value is not None}
        keys = {key for key in keys if not isinstance(key, float)}
        if self.kind in EXACT:
            keys = {key for key in keys if not (Fraction(key) * 10 ** self.digits[1]).denominator > 1}
            keys = {key for key in keys if abs(Fraction(key)) < 10 ** self.digits[0]}
        literals = ", ".join(sorted(map(self._literal, keys)))
        return f"({self.double if self.kind == FLOAT else self.sql} IN ({literals}))" if keys else self._constant(False)

    @property
    def double(self) -> str:
        return f"CAST({f'CAST({self.sql} AS VARCHAR)' if self.kind == DECIMAL else self.sql} AS DOUBLE)"

    def unscaled(self, scale: int) -> str:
        text = f"replace(CAST({self.sql} AS VARCHAR), '.', '')"
        return f"CAST({text} || '{'0' * (scale - self.digits[1])}' AS BIGNUM)"

    @property
    def key_sql(self) -> str:
        """SQL of a value that `read_key` turns into a Key."""
        match self.kind:
            case "date":
                return f"({self.sql} - DATE '1970-01-01')"
            case "timestamp" | "timestamp_ntz":
                return f"epoch_us({self.sql})"
            case "boolean":
                return f"CAST({self.sql} AS INTEGER)"
            case "float":
                return f"CAST({self.sql} AS DOUBLE)"
        return f"CAST({self.sql} AS VARCHAR)" if self.kind in EXACT else self.sql

    def read_key(self, value: Any) -> Key:
        if isinstance(value, float):
            return Fraction(value) if isfinite(value) else value
        return Fraction(value) if self.kind in EXACT or not isinstance(value, str) else value

    def display(self, key: Key | None) -> Any:
        if not isinstance(key, Fraction):
            return str(key) if isinstance(key, float) else key
        match self.kind:
            case "date":
                return str(EPOCH.date() + timedelta(days=int(key)))
            case "timestamp" | "timestamp_ntz":
                at = EPOCH + timedelta(microseconds=int(key))
                return str(at.replace(tzinfo=UTC) if self.kind == INSTANT else at)
            case "boolean":
                return bool(key)
            case "float":
                return float(key)
        return display(key)

    def _number(self, value: Any) -> Key | None:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
            return None
        number = exact(value)
        if self.kind != FLOAT:
            return number
        nearest = nearest_double(number)
        if self.type.bit_width == 32:
            nearest = _single(nearest)
        return Fraction(nearest) if isfinite(nearest) else nearest

    def _moment(self, text: str) -> Key | None:
        try:
            moment = date.fromisoformat(text) if self.kind == DATE else datetime.fromisoformat(text)
        except ValueError:
            return None
        if not isinstance(moment, datetime):
            return Fraction((moment - EPOCH.date()).days)
        if self.kind == LOCAL:
            return None if moment.tzinfo else Fraction((moment - EPOCH) // timedelta(microseconds=1))
        instant = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(self.zone))
        return Fraction((instant - EPOCH.replace(tzinfo=UTC)) // timedelta(microseconds=1))

    def _literal(self, key: Key) -> str:
        match self.kind:
            case "text":
                return literal(str(key))
            case "boolean":
                return str(bool(key)).lower()
            case "date":
                return f"(DATE '1970-01-01' + CAST({int(key)} AS INTEGER))"
            case "timestamp" | "timestamp_ntz":
                return f"make_timestamp{'tz' if self.kind == INSTANT else ''}({int(key)})"
            case "float":
                return f"CAST('{float(key)!r}' AS DOUBLE)"
        whole, scale = self.digits
        return (
            f"CAST('{_decimal_text(Fraction(key))}' AS {f'DECIMAL({whole + scale},{scale})' if scale else 'HUGEINT'})"
        )

    def _constant(self, value: bool) -> str:
        return f"(CASE WHEN {self.sql} IS NOT NULL THEN {str(value).lower()} END)"


def exact(value: float | Decimal | Fraction) -> Fraction:
    """Return a number as written: 0.1 is a tenth."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def nearest_double(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return inf if number > 0 else -inf


def display(key: Fraction) -> int | str:
    """Return a number for people and JSON."""
    return int(key) if key.denominator == 1 else _decimal_text(key)


def _decimal_text(key: Fraction) -> str:
    """Return digits, exact up to 100, else rounded to 28."""
    quotient = Context(prec=100).divide(key.numerator, Decimal(key.denominator))
    return format(quotient if Fraction(quotient) == key else Context(prec=28).plus(quotient), "f")


def _single(double: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", double))[0])
    except OverflowError:
        return double


def _kind(of: pa.DataType) -> str:
    import pyarrow.types as t

    tests = (
        (INTEGER, t.is_integer),
        (DECIMAL, t.is_decimal),
        (FLOAT, t.is_floating),
        (TEXT, lambda of: t.is_string(of) or t.is_large_string(of) or t.is_string_view(of)),
        (BOOLEAN, t.is_boolean),
        (BINARY, lambda of: t.is_binary(of) or t.is_large_binary(of)),
        (DATE, t.is_date),
        (INSTANT, lambda of: t.is_timestamp(of) and of.tz),
        (LOCAL, t.is_timestamp),
        (LIST, lambda of: t.is_list(of) or t.is_large_list(of)),
    )
    return next((kind for kind, is_kind in tests if is_kind(of)), NESTED)
