"""Oracle of expectations: Python's fractions, floats and `re`, without DuckDB, pandas and Spark."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations
from typing import Any, Final

import pyarrow as pa

Row = Mapping[str, Any]
EXTREME: Final = 10**38 - 1
NAN: Final = math.nan
NUMBERS: Final = ("tiny", "whole", "money", "wide", "long", "single", "double")
FLOATS: Final = ("single", "double")
TIMES: Final = ("day", "instant", "local")
TYPES: Final[Mapping[str, pa.DataType]] = {
    "tiny": pa.int8(),
    "whole": pa.int64(),
    "money": pa.decimal128(10, 2),
    "wide": pa.decimal128(38, 10),
    "long": pa.decimal128(38, 0),
    "single": pa.float32(),
    "double": pa.float64(),
    "words": pa.string(),
    "flag": pa.bool_(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "instant": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "listed": pa.list_(pa.int64()),
    "nested": pa.struct([("x", pa.int64())]),
}
VALUES: Final[Mapping[str, Sequence[Any]]] = {
    "tiny": [-128, -1, 0, 0, 1, 127],
    "whole": [-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1],
    "money": [*map(Decimal, ("-99999999.99", "-0.35", "0.00", "0.35", "9.95", "99999999.99"))],
    "wide": [Decimal(f"{n}E-10") for n in (-EXTREME, -3500000000, 0, 3500000001, 99500000000, EXTREME)],
    "long": [*map(Decimal, (-EXTREME, -1, 0, 1, 10, EXTREME))],
    "single": [-math.inf, -0.0, 0.0, NAN, struct.unpack("f", struct.pack("f", 0.1))[0], math.inf],
    "double": [-1e308, -0.0, 0.0, 0.35, NAN, NAN],
    "words": ["", "A", "a1", "it's", "é\U0001f600", "2024-02-29"],
    "flag": [True, False, True, True, False, False],
    "raw": [b"", b"a", b"\x00\xff", b"ab", b"b", b"b"],
    "day": [date(1, 1, 1), date(1970, 1, 1), date(2024, 1, 31), *[date(2024, 2, 1)] * 2, date(9999, 12, 31)],
    "instant": [
        datetime(2024, 1, 31, h, m, s, us) for h, m, s, us in ((0, 0, 0, 0), (22, 59, 59, 999999), (23, 0, 0, 0))
    ]
    + [datetime(1, 1, 2), datetime(2024, 2, 1), datetime(9999, 12, 30)],
    "local": [datetime(2024, 1, 31, h) for h in (0, 22, 23)] + [datetime(1, 1, 1), datetime(2024, 2, 1)] * 2,
    "listed": [[], [1], [None, 2], [1, 2, 3], [1], []],
    "nested": [{"x": 1}, {"x": None}] * 3,
}
"""The values of columns, each followed by a null."""


class Refused(Exception):
    """Expectation unsuited to the types of its columns."""


def rows() -> list[dict[str, Any]]:
    """Return two rows for each place, the second with its columns reversed, and one of nulls."""
    places = range(7)
    columns = {name: [*values, None] for name, values in VALUES.items()}
    return [
        {"id": 7 * turn + place} | {name: columns[name][(place + turn * n) % 7] for n, name in enumerate(columns)}
        for turn in (0, 1)
        for place in places
    ]


def table(some: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist([*map(dict, some)], pa.schema([("id", pa.int64()), *TYPES.items()]))


def number(column: str, given: Any) -> Any:
    """Return a number of a quality file as a value of the column: exact, or the nearest float."""
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        raise Refused
    exact = Decimal(str(given))
    if column not in FLOATS:
        return Fraction(exact)
    if math.isinf(nearest := float(exact)):
        return Fraction(exact)
    return struct.unpack("f", struct.pack("f", nearest))[0] if column == "single" and abs(nearest) < 1e38 else nearest


def written(column: str, given: Any) -> Any:
    """Return a value of a quality file as one of the column."""
    if column in NUMBERS:
        return number(column, given)
    if column in TIMES and isinstance(given, str):
        try:
            if column == "day":
                return date.fromisoformat(given)
            at = datetime.fromisoformat(given)
        except ValueError:
            raise Refused from None
        if at.tzinfo and column == "local":
            raise Refused
        return at.replace(tzinfo=None) - (at.utcoffset() or timedelta())
    if isinstance(given, bool if column == "flag" else str) and column in {"flag", "words"}:
        return given
    raise Refused


def value(column: str, held: Any) -> Any:
    """Return a stored value as a comparable one."""
    return Fraction(held) if column in NUMBERS and column not in FLOATS and held is not None else held


def code_points(held: Any) -> Any:
    return [*map(ord, held)] if isinstance(held, str) else held


def less(a: Any, b: Any) -> bool:
    return bool(code_points(a) < code_points(b))


def bounds_sql(held: Any, kwargs: Mapping[str, Any], column: str) -> bool:
    held, met = value(column, held), True
    for end in ("min", "max"):
        if kwargs.get(f"{end}_value") is not None:
            bound = written(column, kwargs[f"{end}_value"])
            low, high = (bound, held) if end == "min" else (held, bound)
            met &= less(low, high) or (low == high and not kwargs.get(f"strict_{end}"))
    return met


def length(column: str, held: Any) -> int:
    if column not in {"words", "raw", "listed"}:
        raise Refused
    return len(held)


def matches(column: str, held: Any, pattern: str) -> bool:
    if column not in {"words", "tiny", "whole"}:
        raise Refused
    return re.search(pattern, str(held), re.ASCII) is not None


def compared(a: tuple[str, Any], b: tuple[str, Any]) -> tuple[Any, Any]:
    """Return two stored values as they are compared: beside a float, both are doubles."""
    (a_column, x), (b_column, y) = a, b
    if {a_column, b_column} <= {*NUMBERS}:
        as_double = a_column in FLOATS or b_column in FLOATS
        return tuple(v if v is None else float(v) if as_double else Fraction(v) for v in (x, y))  # type: ignore[return-value]
    if TYPES[a_column] != TYPES[b_column] or a_column in {"listed", "nested"}:
        raise Refused
    return x, y


def equal(a: tuple[str, Any], b: tuple[str, Any]) -> bool:
    x, y = compared(a, b)
    return bool(x == y) if x is not None and y is not None else x is y


def same(a: tuple[str, Any], b: tuple[str, Any]) -> bool:
    return equal(a, b) or all(isinstance(held, float) and math.isnan(held) for held in compared(a, b))


def greater(a: tuple[str, Any], b: tuple[str, Any], or_equal: bool) -> bool:
    x, y = compared(a, b)
    if x is None or y is None:
        return or_equal and x is y
    return less(y, x) or (or_equal and x == y)


def adds_up(cells: Sequence[tuple[str, Any]], given: Any) -> bool:
    if any(column not in NUMBERS for column, _ in cells):
        raise Refused
    as_double = any(column in FLOATS for column, _ in cells)
    wanted = number("double" if as_double else "long", given)
    if any(held is None for _, held in cells):
        return False
    total: Any = None
    for _, held in cells:
        part = float(held) if as_double else Fraction(held)
        total = part if total is None else total + part
    return bool(total == wanted)


def meets(type_: str, kwargs: Mapping[str, Any], row: Row) -> bool:  # noqa: PLR0911, PLR0912  one branch a type
    """Return whether a considered row meets an expectation."""
    column = str(kwargs.get("column"))
    held = row.get(column)
    cells = [(name, row[name]) for name in kwargs.get("column_list", ())]
    pair = [(str(kwargs[name]), row[kwargs[name]]) for name in ("column_A", "column_B") if name in kwargs]
    match type_.removeprefix("expect_"):
        case "column_values_to_not_be_null":
            return held is not None
        case "column_values_to_be_null":
            return held is None
        case "column_values_to_be_between":
            return bounds_sql(held, kwargs, column)
        case "column_values_to_be_in_set":
            return value(column, held) in [written(column, given) for given in kwargs["value_set"] if given is not None]
        case "column_values_to_not_be_in_set":
            return not meets("expect_column_values_to_be_in_set", kwargs, row)
        case "column_value_lengths_to_be_between":
            return bounds_sql(length(column, held), kwargs, "long")
        case "column_value_lengths_to_equal":
            return bool(length(column, held) == number("long", kwargs["value"]))
        case "column_values_to_match_regex":
            return matches(column, held, kwargs["regex"])
        case "column_values_to_not_match_regex":
            return not matches(column, held, kwargs["regex"])
        case "column_values_to_match_regex_list":
            found = [matches(column, held, pattern) for pattern in kwargs["regex_list"]]
            return all(found) if kwargs.get("match_on") == "all" else any(found)
        case "column_values_to_not_match_regex_list":
            found = [matches(column, held, pattern) for pattern in kwargs["regex_list"]]
            return not any(found)
        case "column_values_to_match_strftime_format":
            if column != "words":
                raise Refused
            return held == "2024-02-29"
        case "column_pair_values_a_to_be_greater_than_b":
            return greater(pair[0], pair[1], kwargs.get("or_equal", False))
        case "column_pair_values_to_be_equal":
            return equal(pair[0], pair[1])
        case "column_pair_values_to_be_in_set":
            listed = [
                [None if given is None else written(name, given) for (name, _), given in zip(pair, pairs, strict=True)]
                for pairs in kwargs["value_pairs_set"]
            ]
            return [value(*cell) for cell in pair] in listed
        case "multicolumn_sum_to_equal":
            return adds_up(cells, kwargs["sum_total"])
        case "multicolumn_values_to_be_equal":
            found = [equal(cells[0], other) for other in cells[1:]]
            return all(found)
        case "select_column_values_to_be_unique_within_record":
            found = [same(a, b) for a, b in combinations(cells, 2)]
            return not any(found)
    raise AssertionError(type_)


def considers(type_: str, kwargs: Mapping[str, Any], row: Row) -> bool:
    if "column" in kwargs:
        return type_.endswith("_null") or row[kwargs["column"]] is not None
    names = kwargs.get("column_list") or [kwargs["column_A"], kwargs["column_B"]]
    nulls = [row[name] is None for name in names]
    ignored = kwargs.get("ignore_row_if", "all_values_are_missing").partition("_")[0]
    return not (all(nulls) if ignored in {"both", "all"} else any(nulls) if ignored in {"either", "any"} else False)


def failing(type_: str, kwargs: Mapping[str, Any], some: Sequence[Row]) -> list[int] | None:
    """Return the ids of rows that fail, or None if the column types are unsuited."""
    probe = {"id": -1, **{name: values[0] for name, values in VALUES.items()}}
    try:
        if type_ in UNIQUE:
            return repeated(kwargs, some)
        meets(type_, kwargs, probe)
        return [row["id"] for row in some if considers(type_, kwargs, row) and not meets(type_, kwargs, row)]
    except Refused:
        return None


UNIQUE: Final = ("expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique")


def canonical(held: Any) -> Any:
    return "NaN" if isinstance(held, float) and math.isnan(held) else held + 0 if isinstance(held, float) else held


def repeated(kwargs: Mapping[str, Any], some: Sequence[Row]) -> list[int]:
    names = kwargs.get("column_list") or [kwargs["column"]]
    if {"listed", "nested"} & {*names}:
        raise Refused
    keys = {row["id"]: tuple(canonical(row[name]) for name in names) for row in some}
    keys = {row: key for row, key in keys.items() if any(held is not None for held in key)}
    counts = Counter(keys.values())
    return [row for row, key in keys.items() if counts[key] > 1]


def deviation(values: Sequence[Fraction]) -> Fraction:
    mean = sum(values, Fraction(0)) / len(values)
    variance = sum(((v - mean) ** 2 for v in values), Fraction(0)) / (len(values) - 1)
    with localcontext(prec=60):
        return Fraction((Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt())


def statistics(values: Sequence[Fraction]) -> dict[str, Fraction]:
    """Return the statistics of exact numbers by their name in expectations."""
    ordered, n = sorted(values), len(values)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "sum": sum(values, Fraction(0)),
        "mean": sum(values, Fraction(0)) / n,
        "median": (ordered[(n - 1) // 2] + ordered[n // 2]) / 2,
        "stdev": deviation(values),
    }
