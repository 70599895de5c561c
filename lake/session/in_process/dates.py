"""Spark's functions of dates and times that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.casts import cast, units_before
from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import plus_or_minus
from lake.session.in_process.signatures import Function, constant, keyword, require, typed
from lake.session.in_process.types import DATE, INT, LONG, MICROSECONDS, NTZ, TEXT, TIMESTAMP, Value, is_integer
from lake.text import literal

UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
DATE_PARTS: Final = ("year", "quarter", "month", "day", "dayofyear", "weekofyear")
FORMATS: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "%g"}
SHAPES: Final = {"yyyy": "[1-9][0-9]{3}"}
PART_ALIASES: Final = {"week": "weekofyear", "doy": "dayofyear"}
FORMAT: Final = re.compile(r"'([^']*)'|([A-Za-z]+)|([^A-Za-z']+)")
"""Parts of a format of times: quoted text, a field, or other characters."""
RESERVED: Final = re.compile(r"''|[][{}#]")
"""Quotes as text, optional parts, and reserved characters."""
FINITE: Final = "CASE WHEN isfinite({0}) THEN {0} WHEN ({0}) IS NOT NULL THEN error('an infinite date') END"
TIMES: Final = (DATE, TIMESTAMP, NTZ)


def _local(at: Value) -> str:
    """Return the SQL of the wall clock in UTC of a time, or of a text that is one."""
    require(at.type in {*TIMES, TEXT})
    return cast(cast(at, TIMESTAMP), NTZ).sql


def _clock(value: Value, _: Value) -> str:
    """Return the SQL of an argument as the wall clock in UTC, or as a day."""
    require(value.type in TIMES)
    return cast(value, NTZ).sql if value.type == TIMESTAMP else value.sql


def _clock_of_time(value: Value, first: Value) -> str:
    require(value.type != DATE)
    return _clock(value, first)


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a format of times as (letters, ""), or as ("", text or signs). Raises Unsupported."""
    if RESERVED.search(pattern) or pattern.count("'") % 2:
        raise unsupported(f"the format {pattern}")
    for written, letters, signs in FORMAT.findall(pattern):
        yield letters, written or signs


def date_format(values: Sequence[Value]) -> Value:
    at, pattern = values
    form = ""
    for letters, signs in _parts(constant(pattern)):
        fields = [found[0] for found in re.finditer(r"(\w)\1*", letters)]
        if unknown := [field for field in fields if field not in FORMATS]:
            raise unsupported(f"the format {unknown[0]}")
        form += "".join(map(FORMATS.__getitem__, fields)) + signs.replace("%", "%%")
    local = _local(at)
    four_digits = f"WHEN year({local}) BETWEEN 1000 AND 9999 THEN strftime({local}, {literal(form)})"
    return Value(f"CASE {four_digits} WHEN {local} IS NOT NULL THEN error('a year') END", TEXT)


def parse_time(type_: T.DataType) -> Function:
    """Return a function of a time, or of a text in a constant format of fields of a fixed size."""

    def compute(values: Sequence[Value]) -> Value:
        of, *format_ = values
        require(len(format_) <= 1)
        if not format_ or of.type in TIMES:
            return cast(of, type_)
        require(of.type == TEXT)
        shape = form = ""
        for letters, signs in _parts(constant(format_[0])):
            if (letters and letters not in FORMATS) or not signs.isascii():
                raise unsupported(f"the format {constant(format_[0])}")
            shape += SHAPES.get(letters, f"[0-9]{{{len(letters)}}}") if letters else re.escape(signs)
            form += FORMATS.get(letters, "") or signs.replace("%", "%%")
        fields = re.findall("%[A-Za-z]", form.replace("%%", ""))  # Spark compares fields that are written twice
        if not {"%Y", "%m", "%d"} <= {*fields} or len({*fields}) < len(fields):
            raise unsupported(f"the format {constant(format_[0])}")
        read = cast(Value(f"strptime({of.sql}, {literal(form)})", NTZ), type_).sql
        known = f"WHEN regexp_full_match({of.sql}, {literal(shape)}) THEN {read}"
        return Value(f"CASE {known} WHEN {of.sql} IS NOT NULL THEN error('a time') END", type_)

    return compute


def from_unixtime(values: Sequence[Value]) -> Value:
    seconds, *format_ = values
    at = FUNCTIONS["timestamp_seconds"]([seconds])
    return date_format([at, *(format_ or [Value("'yyyy-MM-dd HH:mm:ss'", TEXT, is_literal=True)])])


def part_of_time(values: Sequence[Value]) -> Value:
    name, at = values
    part = constant(name).lower()
    require(PART_ALIASES.get(part, part) in {*DATE_PARTS, *UNITS[-3:-1]})
    return FUNCTIONS[PART_ALIASES.get(part, part)]([at])


def add_units(unit: str, values: Sequence[Value]) -> Value:
    number, at = values
    unit = unit.lower()
    require(unit in MICROSECONDS and is_integer(number.type) and at.type in {TIMESTAMP, NTZ})
    micros = f"CAST({number.sql} AS BIGINT) * {MICROSECONDS[unit]}"
    return plus_or_minus("+")([at, Value(micros, T.DayTimeIntervalType())])


def interval(values: Sequence[Value]) -> Value:
    """Return the microseconds of literal seconds: other parts are zero."""
    *parts, seconds = values
    require(all(value.sql == "0" for value in parts) and seconds.is_literal)
    return Value(f"CAST({seconds.sql} * 1000000 AS BIGINT)", T.DayTimeIntervalType(), is_literal=True)


FUNCTIONS: Final[dict[str, Function]] = {
    "date_trunc": typed(
        "(CAST(date_trunc({0}, {1}) AS TIMESTAMP) AT TIME ZONE 'UTC')",
        *(TIMESTAMP, keyword(*UNITS), lambda value, _: _local(value)),
    ),
    "trunc": typed("CAST(date_trunc({1}, {0}) AS DATE)", DATE, DATE, keyword(*UNITS[:4])),
    "date_format": date_format,
    **{part: typed(f"CAST({part}({{0}}) AS INTEGER)", INT, _clock) for part in DATE_PARTS},
    **{part: typed(f"CAST({part}({{0}}) AS INTEGER)", INT, _clock_of_time) for part in UNITS[-3:]},
    "dayofmonth": typed("CAST(day({0}) AS INTEGER)", INT, _clock),
    "dayofweek": typed("CAST(dayofweek({0}) + 1 AS INTEGER)", INT, _clock),
    "weekday": typed("CAST(isodow({0}) - 1 AS INTEGER)", INT, _clock),
    "unix_micros": typed("epoch_us({0})", LONG, TIMESTAMP),
    "timestamp_micros": typed("make_timestamptz({0})", TIMESTAMP, LONG),
    "timestamp_millis": typed("make_timestamptz({0} * 1000)", TIMESTAMP, LONG),
    "timestamp_seconds": typed("make_timestamptz({0} * 1000000)", TIMESTAMP, LONG),
    "unix_date": typed("CAST({0} - DATE '1970-01-01' AS INTEGER)", INT, DATE),
    "date_from_unix_date": typed(FINITE.format("DATE '1970-01-01' + {0}"), DATE, INT),
    "date_add": typed(FINITE.format("{0} + {1}"), DATE, DATE, INT),
    "date_sub": typed(FINITE.format("{0} - {1}"), DATE, DATE, INT),
    **dict.fromkeys(("datediff", "date_diff"), typed("CAST({0} - {1} AS INTEGER)", INT, DATE, DATE)),
    "to_date": parse_time(DATE),
    "to_timestamp": parse_time(TIMESTAMP),
    **dict.fromkeys(("unix_timestamp", "to_unix_timestamp"), typed("(epoch_us({0}) // 1000000)", LONG, TIMESTAMP)),
    "unix_seconds": typed(units_before(1_000_000), LONG, TIMESTAMP),
    "unix_millis": typed(units_before(1_000), LONG, TIMESTAMP),
    "from_unixtime": from_unixtime,
    "make_date": typed("make_date({0}, {1}, {2})", DATE, INT, INT, INT),
    "dayname": typed("left(dayname({0}), 3)", TEXT, DATE),
    "monthname": typed("left(monthname({0}), 3)", TEXT, DATE),
    **dict.fromkeys(("date_part", "datepart", "extract"), part_of_time),
    "add_months": typed("CAST({0} + to_months({1}) AS DATE)", DATE, DATE, INT),
    "last_day": typed("last_day({0})", DATE, DATE),
    "make_dt_interval": interval,
}
