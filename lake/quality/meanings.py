"""Meanings of expectations about single rows: one table of DuckDB's SQL, for the gate and for parking.

A row fails if the expectation considers it and the condition is not true for it; a condition that is null is not true.
An expectation about one column considers rows in which it is not null, one about several those that `ignore_row_if`
leaves. For uniqueness and equality of columns null is one value. For uniqueness NaN is one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

import duckdb

from lake.duck import connect
from lake.quality.columns import (
    BINARY,
    EXACT,
    FLOAT,
    INTEGER,
    LIST,
    MOST_DIGITS,
    NUMBERS,
    SCALAR,
    TEXT,
    Column,
    Operator,
    Unsuitable,
)
from lake.quoting import literal

if TYPE_CHECKING:
    import pyarrow as pa

IGNORED: Final[Mapping[str, str]] = {
    "both_values_are_missing": "AND",
    "all_values_are_missing": "AND",
    "either_value_is_missing": "OR",
    "any_value_is_missing": "OR",
    "neither": "",
    "never": "",
}
"""The operator that joins the tests of single columns for null into the test of an ignored row."""
OPERATORS: Final[Mapping[str, str]] = {"==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
CONDITION: Final = "row_condition"


@dataclass(frozen=True)
class Terms:
    """An expectation's arguments, and the columns of the table that it judges."""

    kwargs: Mapping[str, Any]
    columns: Mapping[str, Column]

    @property
    def column(self) -> Column:
        return self.columns[str(self.kwargs["column"])]

    @property
    def pair(self) -> tuple[Column, Column]:
        return self.columns[str(self.kwargs["column_A"])], self.columns[str(self.kwargs["column_B"])]

    @property
    def listed(self) -> list[Column]:
        return [self.columns[str(name)] for name in self.kwargs["column_list"]]

    @property
    def looked_at(self) -> list[Column]:
        """The columns by whose nulls a row is ignored."""
        return (
            [self.column] if "column" in self.kwargs else self.listed if "column_list" in self.kwargs else [*self.pair]
        )

    @property
    def where(self) -> str:
        """The SQL of the rows that `row_condition` leaves."""
        condition = self.kwargs.get(CONDITION)
        return "true" if condition is None else f"coalesce({_condition(condition, self.columns)}, false)"

    def considered(self, type_: str) -> str:
        """The SQL of the rows that an expectation of this type considers, of those that `row_condition` leaves."""
        if type_ in OF_NULLS:
            return "true"
        nulls = [f"{column.sql} IS NULL" for column in self.looked_at]
        default = "both_values_are_missing" if "column_A" in self.kwargs else "all_values_are_missing"
        ignored = self.kwargs.get("ignore_row_if", default)
        if ignored not in IGNORED:
            raise Unsuitable(f"ignore_row_if {ignored!r} is unknown", f"use one of {', '.join(IGNORED)}")
        return f"NOT ({f' {joined} '.join(nulls)})" if (joined := IGNORED[ignored]) else "true"


def fails(type_: str, terms: Terms) -> str:
    """Return the SQL of whether a row fails an expectation of a type in MEETS; never null."""
    return f"({terms.where} AND {terms.considered(type_)} AND NOT coalesce({MEETS[type_](terms)}, false))"


def columns_of(schema: pa.Schema, zone: str | None) -> dict[str, Column]:
    """Return the columns of a table, by name; times without an offset are in `zone`."""
    return {field.name: Column(field.name, field.type, zone or "UTC") for field in schema}


def within(column: Column, kwargs: Mapping[str, Any]) -> str:
    """Return the SQL of whether a value is within the bounds among arguments."""
    tests = [
        column.compare(f"{sign}{'' if kwargs.get(f'strict_{end}') else '='}", kwargs[f"{end}_value"], f"{end}_value")  # type: ignore[arg-type]
        for end, sign in (("min", ">"), ("max", "<"))
        if kwargs.get(f"{end}_value") is not None
    ]
    return " AND ".join(tests) or "true"


def _bounded(column: Column, kwargs: Mapping[str, Any]) -> str:
    low, high = (kwargs.get(name) for name in ("min_value", "max_value"))
    if low is not None and high is not None:
        least, most = column.key(low, "min_value"), column.key(high, "max_value")
        if least > most:  # type: ignore[operator]  # keys of one column
            raise Unsuitable("min_value cannot be greater than max_value", "exchange them")
    return within(column, kwargs)


def pattern_fault(kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return why a regular expression or a time format among arguments cannot be used, and the fix."""
    regular = "regular expressions are RE2's, without look-around and references to groups"
    patterns = [kwargs.get("regex"), *(kwargs.get("regex_list") or ())]
    formats = [kwargs.get("strftime_format")]
    for query, texts, fix in (
        ("regexp_matches('', ?)", patterns, regular),
        ("try_strptime('', ?)", formats, "time formats are DuckDB's: %Y-%m-%d %H:%M:%S"),
    ):
        for text in (text for text in texts if isinstance(text, str)):
            try:
                connect().execute(f"SELECT {query}", [text]).fetchall()
            except duckdb.Error as error:
                return f"{text!r} cannot be used: {str(error).splitlines()[0].partition(': ')[2]}", fix
    return None


def _lengths(terms: Terms) -> Column:
    import pyarrow as pa

    column, sql = terms.column.must_be(TEXT, BINARY, LIST), terms.column.sql
    length = {TEXT: f"length({sql})", BINARY: f"octet_length({sql})", LIST: f"len({sql})"}[column.kind]
    return Column(f"length of {column.name}", pa.int64(), expression=length)


def _matches(column: Column, pattern: str) -> str:
    column.must_be(TEXT, INTEGER)
    return f"regexp_matches(CAST({column.sql} AS VARCHAR), {literal(pattern)})"


def _any_or_all(terms: Terms) -> str:
    joined = {"any": " OR ", "all": " AND "}.get(terms.kwargs.get("match_on") or "any")
    if joined is None:
        raise Unsuitable(f"match_on {terms.kwargs['match_on']!r} is unknown", "use any or all")
    return f"({joined.join(_matches(terms.column, pattern) for pattern in terms.kwargs['regex_list'])})"


def _greater(terms: Terms) -> str:
    a, b = terms.pair
    if terms.kwargs.get("or_equal"):
        return f"({pair(a, '>=', b)} OR ({a.sql} IS NULL AND {b.sql} IS NULL))"
    return pair(a, ">", b)


def _equal(a: Column, b: Column) -> str:
    return f"coalesce({pair(a, '=', b)}, {a.sql} IS NULL AND {b.sql} IS NULL)"


def _one_of_pairs(terms: Terms) -> str:
    def is_one(column: Column, value: Any) -> str:
        return f"{column.sql} IS NULL" if value is None else column.compare("=", value, "value_pairs_set")

    a, b = terms.pair
    listed = [f"({is_one(a, x)} AND {is_one(b, y)})" for x, y in terms.kwargs["value_pairs_set"]]
    return f"({' OR '.join(listed) or 'false'})"


def _distinct(terms: Terms) -> str:
    return " AND ".join(f"NOT {same(a, b)}" for a, b in combinations(terms.listed, 2)) or "true"


def _strftime(terms: Terms) -> str:
    column, form = terms.column.must_be(TEXT), literal(terms.kwargs["strftime_format"])
    return f"try_strptime({column.sql}, {form}) IS NOT NULL"


def pair(a: Column, operator: Operator, b: Column) -> str:
    """Return the SQL of a comparison of two columns. Raises Unsuitable if their types have no common order."""
    if FLOAT in {a.kind, b.kind} and {a.kind, b.kind} <= {*NUMBERS}:
        return f"({a.double} {operator} {b.double} AND NOT isnan({a.double}) AND NOT isnan({b.double}))"
    if {a.kind, b.kind} <= {*EXACT}:
        left, right = common([a, b])
        return f"({left} {operator} {right})"
    if a.must_be(*SCALAR).kind != b.must_be(*SCALAR).kind:
        raise Unsuitable(
            f"column {a.name} is of type {a.type}, and {b.name} of type {b.type}", "cast one of them in the job"
        )
    return f"({a.sql} {operator} {b.sql})"


def same(a: Column, b: Column) -> str:
    """Return the SQL of whether two columns have one value, of which null and NaN are one each."""
    nan = f" OR (isnan({a.double}) AND isnan({b.double}))" if FLOAT in {a.kind, b.kind} else ""
    return f"coalesce({pair(a, '=', b)}{nan}, {a.sql} IS NULL AND {b.sql} IS NULL)"


def total(columns: list[Column], value: Any, argument: str) -> str:
    """Return the SQL of whether columns add up to the written `value`: doubles in their order if one is a float."""
    import pyarrow as pa

    if any(column.must_be(*NUMBERS).kind == FLOAT for column in columns):
        added = " + ".join(column.double for column in columns)
        return Column("sum", pa.float64(), expression=f"({added})").compare("=", value, argument)
    scale = max(column.digits[1] for column in columns)
    scaled = Fraction(Column("sum", pa.decimal128(MOST_DIGITS, scale)).key(value, argument)) * 10**scale
    if scaled.denominator > 1:
        return "false"
    return f"({' + '.join(column.unscaled(scale) for column in columns)} = CAST('{int(scaled)}' AS BIGNUM))"


def common(columns: list[Column]) -> list[str]:
    """Return the SQL of integers and decimals in one type that has all their digits."""
    whole, scale = (max(column.digits[part] for column in columns) for part in (0, 1))
    if whole + scale > MOST_DIGITS:
        return [column.unscaled(scale) for column in columns]
    return [f"CAST({column.sql} AS DECIMAL({whole + scale},{scale}))" for column in columns]


MEETS: Final[Mapping[str, Callable[[Terms], str]]] = {
    "expect_column_values_to_not_be_null": lambda terms: f"{terms.column.sql} IS NOT NULL",
    "expect_column_values_to_be_null": lambda terms: f"{terms.column.sql} IS NULL",
    "expect_column_values_to_be_between": lambda terms: _bounded(terms.column, terms.kwargs),
    "expect_column_values_to_be_in_set": lambda terms: terms.column.one_of(terms.kwargs["value_set"], "value_set"),
    "expect_column_values_to_not_be_in_set": lambda terms: (
        f"NOT {terms.column.one_of(terms.kwargs['value_set'], 'value_set')}"
    ),
    "expect_column_value_lengths_to_be_between": lambda terms: _bounded(_lengths(terms), terms.kwargs),
    "expect_column_value_lengths_to_equal": lambda terms: _lengths(terms).compare("=", terms.kwargs["value"], "value"),
    "expect_column_values_to_match_regex": lambda terms: _matches(terms.column, terms.kwargs["regex"]),
    "expect_column_values_to_not_match_regex": lambda terms: f"NOT {_matches(terms.column, terms.kwargs['regex'])}",
    "expect_column_values_to_match_regex_list": _any_or_all,
    "expect_column_values_to_not_match_regex_list": lambda terms: " AND ".join(
        f"NOT {_matches(terms.column, pattern)}" for pattern in terms.kwargs["regex_list"]
    ),
    "expect_column_values_to_match_strftime_format": _strftime,
    "expect_column_pair_values_a_to_be_greater_than_b": _greater,
    "expect_column_pair_values_to_be_equal": lambda terms: _equal(*terms.pair),
    "expect_column_pair_values_to_be_in_set": _one_of_pairs,
    "expect_multicolumn_sum_to_equal": lambda terms: total(terms.listed, terms.kwargs["sum_total"], "sum_total"),
    "expect_multicolumn_values_to_be_equal": lambda terms: " AND ".join(
        _equal(terms.listed[0], other) for other in terms.listed[1:]
    ),
    "expect_select_column_values_to_be_unique_within_record": _distinct,
}
"""The condition on a row that is considered, by the type of an expectation."""
OF_NULLS: Final = frozenset({"expect_column_values_to_not_be_null", "expect_column_values_to_be_null"})


def _condition(condition: Any, columns: Mapping[str, Column]) -> str:
    """Return the SQL of a `row_condition`; null is neither true nor false in it."""
    match condition:
        case {"type": "and" | "or" as joined, "conditions": [*parts]}:
            return f"({f' {joined.upper()} '.join(_condition(part, columns) for part in parts) or 'true'})"
        case {"type": "nullity", "column": {"name": name}, "is_null": bool(is_null)}:
            return f"({columns[name].sql} IS {'' if is_null else 'NOT '}NULL)"
        case {"type": "comparison", "column": {"name": name}, "operator": operator, "parameter": value}:
            column = columns[name]
            if operator in {"IN", "NOT_IN"}:
                return f"{'NOT ' * (operator == 'NOT_IN')}{column.one_of(value, CONDITION)}"
            if operator == "!=":
                return f"NOT {column.compare('=', value, CONDITION)}"
            if operator in OPERATORS:
                return column.compare(OPERATORS[operator], value, CONDITION)  # type: ignore[arg-type]
    fix = 'write {"type": "comparison", "column": {"name": "…"}, "operator": "==", "parameter": …}'
    raise Unsuitable(f"{CONDITION} {condition!r} is unknown", fix)
