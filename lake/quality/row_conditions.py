"""Conditions of expectations about single rows in DuckDB SQL, for gate and parking.

A row fails if it is considered and the condition is false or null. With one column, rows with null are not considered;
with several, `ignore_row_if` decides. Nulls are equal to each other; NaNs too, for uniqueness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import combinations
from typing import Any, Final

import duckdb

from lake.lazy import Column, pa
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
    ExpectationColumn,
    Operator,
    UnsuitableExpectation,
)
from lake.session.duck import connect
from lake.text import literal

IGNORED: Final[Mapping[str, str]] = {
    "both_values_are_missing": "AND",
    "all_values_are_missing": "AND",
    "either_value_is_missing": "OR",
    "any_value_is_missing": "OR",
    "neither": "",
    "never": "",
}
"""{`ignore_row_if`: operator that joins the tests for null of the columns}."""
OPERATORS: Final[Mapping[str, str]] = {"==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
CONDITION: Final = "row_condition"


@dataclass(frozen=True)
class ExpectationTerms:
    kwargs: Mapping[str, Any]
    columns: Mapping[str, ExpectationColumn]

    @property
    def column(self) -> ExpectationColumn:
        return self.columns[str(self.kwargs["column"])]

    @property
    def pair(self) -> tuple[ExpectationColumn, ExpectationColumn]:
        return self.columns[str(self.kwargs["column_A"])], self.columns[str(self.kwargs["column_B"])]

    @property
    def column_list(self) -> list[ExpectationColumn]:
        names = self.kwargs["column_list"]
        if not isinstance(names, list) or not names:
            raise UnsuitableExpectation(f"column_list {names!r} names no columns", 'write ["column", "column", …]')
        return [self.columns[str(name)] for name in names]

    @property
    def checked_columns(self) -> list[ExpectationColumn]:
        if "column" in self.kwargs:
            return [self.column]
        return self.column_list if "column_list" in self.kwargs else [*self.pair]

    @property
    def where(self) -> str:
        condition = self.kwargs.get(CONDITION)
        return "true" if condition is None else f"coalesce({_row_condition_sql(condition, self.columns)}, false)"

    def considered(self, type_: str) -> str:
        """Return the SQL condition for considered rows among those of `where`."""
        if type_ in NULL_TYPES:
            return "true"
        nulls = [f"{column.sql} IS NULL" for column in self.checked_columns]
        default = "both_values_are_missing" if "column_A" in self.kwargs else "all_values_are_missing"
        ignored = self.kwargs.get("ignore_row_if", default)
        if ignored not in IGNORED:
            raise UnsuitableExpectation(f"ignore_row_if {ignored!r} is unknown", f"use one of {', '.join(IGNORED)}")
        return f"NOT ({f' {joined} '.join(nulls)})" if (joined := IGNORED[ignored]) else "true"


def failure_sql(type_: str, terms: ExpectationTerms) -> str:
    """Return the SQL condition of failing rows, never null; `type_` is in ROW_CONDITIONS."""
    return f"({terms.where} AND {terms.considered(type_)} AND NOT coalesce({ROW_CONDITIONS[type_](terms)}, false))"


def expectation_columns(schema: pa.Schema, zone: str | None) -> dict[str, ExpectationColumn]:
    """Times without an offset are in `zone`."""
    return {field.name: ExpectationColumn(field.name, field.type, zone or "UTC") for field in schema}


def bounds_sql(column: ExpectationColumn, kwargs: Mapping[str, Any]) -> str:
    tests = [
        column.compare(f"{sign}{'' if kwargs.get(f'strict_{end}') else '='}", kwargs[f"{end}_value"], f"{end}_value")  # type: ignore[arg-type]
        for end, sign in (("min", ">"), ("max", "<"))
        if kwargs.get(f"{end}_value") is not None
    ]
    return " AND ".join(tests) or "true"


def _between_sql(column: ExpectationColumn, kwargs: Mapping[str, Any]) -> str:
    low, high = (kwargs.get(name) for name in ("min_value", "max_value"))
    if low is not None and high is not None:
        least, most = column.key(low, "min_value"), column.key(high, "max_value")
        if least > most:  # type: ignore[operator]  # keys of one column
            raise UnsuitableExpectation("min_value cannot be greater than max_value", "exchange them")
    return bounds_sql(column, kwargs)


def pattern_fault(kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (reason, fix) for an invalid regular expression or time format."""
    regular = "regular expressions are RE2's, without look-around and references to groups"
    listed = kwargs.get("regex_list")
    patterns = [kwargs.get("regex"), *(listed if isinstance(listed, list) else ())]
    formats = [kwargs.get("strftime_format")]
    for query, texts, fix in (
        ("regexp_matches('', ?)", patterns, regular),
        ("try_strptime('', ?)", formats, "time formats are DuckDB's: %Y-%m-%d %H:%M:%S"),
    ):
        for text in (text for text in texts if isinstance(text, str)):
            if why := _why_it_fails(query, text):
                return f"{text!r} cannot be used: {why}", fix
    return None


@lru_cache(maxsize=1024)
def _why_it_fails(query: str, text: str) -> str:
    try:
        with connect() as con:
            con.execute(f"SELECT {query}", [text]).fetchall()
    except duckdb.Error as error:
        return str(error).splitlines()[0].partition(": ")[2]
    return ""


def _length_column(terms: ExpectationTerms) -> ExpectationColumn:
    column, sql = terms.column.require_kind(TEXT, BINARY, LIST), terms.column.sql
    length = {TEXT: f"length({sql})", BINARY: f"octet_length({sql})", LIST: f"len({sql})"}[column.kind]
    return ExpectationColumn(f"length of {column.name}", pa.int64(), expression=length)


def _match_sql(column: ExpectationColumn, pattern: str) -> str:
    column.require_kind(TEXT, INTEGER)
    return f"regexp_matches(CAST({column.sql} AS VARCHAR), {literal(pattern)})"


def _match_list_sql(terms: ExpectationTerms) -> str:
    joined = {"any": " OR ", "all": " AND "}.get(terms.kwargs.get("match_on") or "any")
    if joined is None:
        raise UnsuitableExpectation(f"match_on {terms.kwargs['match_on']!r} is unknown", "use any or all")
    return f"({joined.join(_listed_matches(terms))})"


def _listed_matches(terms: ExpectationTerms) -> list[str]:
    patterns = terms.kwargs["regex_list"]
    if not isinstance(patterns, list) or not patterns:
        raise UnsuitableExpectation(f"regex_list {patterns!r} has no patterns", 'write ["pattern", "pattern", …]')
    return [_match_sql(terms.column, pattern) for pattern in patterns]


def _greater_sql(terms: ExpectationTerms) -> str:
    a, b = terms.pair
    if terms.kwargs.get("or_equal"):
        return f"({_comparison_sql(a, '>=', b)} OR ({a.sql} IS NULL AND {b.sql} IS NULL))"
    return _comparison_sql(a, ">", b)


def _equal_or_null_sql(a: ExpectationColumn, b: ExpectationColumn) -> str:
    return f"coalesce({_comparison_sql(a, '=', b)}, {a.sql} IS NULL AND {b.sql} IS NULL)"


def _pair_in_set_sql(terms: ExpectationTerms) -> str:
    def is_one(column: ExpectationColumn, value: Any) -> str:
        return f"{column.sql} IS NULL" if value is None else column.compare("=", value, "value_pairs_set")

    a, b = terms.pair
    listed = [f"({is_one(a, x)} AND {is_one(b, y)})" for x, y in terms.kwargs["value_pairs_set"]]
    return f"({' OR '.join(listed) or 'false'})"


def _all_equal_sql(terms: ExpectationTerms) -> str:
    first, *others = terms.column_list
    return " AND ".join(_equal_or_null_sql(first, other) for other in others) or "true"


def _distinct_sql(terms: ExpectationTerms) -> str:
    return " AND ".join(f"NOT {_equality_sql(a, b)}" for a, b in combinations(terms.column_list, 2)) or "true"


def _strftime_sql(terms: ExpectationTerms) -> str:
    column, form = terms.column.require_kind(TEXT), literal(terms.kwargs["strftime_format"])
    return f"try_strptime({column.sql}, {form}) IS NOT NULL"


def _comparison_sql(a: ExpectationColumn, operator: Operator, b: ExpectationColumn) -> str:
    if FLOAT in {a.kind, b.kind} and {a.kind, b.kind} <= {*NUMBERS}:
        return f"({a.double} {operator} {b.double} AND NOT isnan({a.double}) AND NOT isnan({b.double}))"
    if {a.kind, b.kind} <= {*EXACT}:
        left, right = _in_common_type([a, b])
        return f"({left} {operator} {right})"
    if a.require_kind(*SCALAR).kind != b.require_kind(*SCALAR).kind:
        raise UnsuitableExpectation(
            f"column {a.name} is of type {a.type}, and {b.name} of type {b.type}", "cast one of them in the job"
        )
    return f"({a.sql} {operator} {b.sql})"


def _equality_sql(a: ExpectationColumn, b: ExpectationColumn) -> str:
    nan = f" OR (isnan({a.double}) AND isnan({b.double}))" if FLOAT in {a.kind, b.kind} else ""
    return f"coalesce({_comparison_sql(a, '=', b)}{nan}, {a.sql} IS NULL AND {b.sql} IS NULL)"


def _sum_equals_sql(terms: ExpectationTerms) -> str:
    """Doubles are added in column order if one column is a float."""
    columns, total = terms.column_list, (terms.kwargs["sum_total"], "sum_total")
    if any(column.require_kind(*NUMBERS).kind == FLOAT for column in columns):
        added = " + ".join(column.double for column in columns)
        return ExpectationColumn("sum", pa.float64(), expression=f"({added})").compare("=", *total)
    scale = max(column.digits[1] for column in columns)
    scaled = Fraction(ExpectationColumn("sum", pa.decimal128(MOST_DIGITS, scale)).key(*total)) * 10**scale
    if scaled.denominator > 1:
        return "false"
    return f"({' + '.join(column.unscaled(scale) for column in columns)} = CAST('{int(scaled)}' AS BIGNUM))"


def _in_common_type(columns: list[ExpectationColumn]) -> list[str]:
    whole, scale = (max(column.digits[part] for column in columns) for part in (0, 1))
    if whole + scale > MOST_DIGITS:
        return [column.unscaled(scale) for column in columns]
    return [f"CAST({column.sql} AS DECIMAL({whole + scale},{scale}))" for column in columns]


ROW_CONDITIONS: Final[Mapping[str, Callable[[ExpectationTerms], str]]] = {
    "expect_column_values_to_not_be_null": lambda terms: f"{terms.column.sql} IS NOT NULL",
    "expect_column_values_to_be_null": lambda terms: f"{terms.column.sql} IS NULL",
    "expect_column_values_to_be_between": lambda terms: _between_sql(terms.column, terms.kwargs),
    "expect_column_values_to_be_in_set": lambda terms: terms.column.one_of(terms.kwargs["value_set"], "value_set"),
    "expect_column_values_to_not_be_in_set": lambda terms: (
        f"NOT {terms.column.one_of(terms.kwargs['value_set'], 'value_set')}"
    ),
    "expect_column_value_lengths_to_be_between": lambda terms: _between_sql(_length_column(terms), terms.kwargs),
    "expect_column_value_lengths_to_equal": lambda terms: _length_column(terms).compare(
        "=", terms.kwargs["value"], "value"
    ),
    "expect_column_values_to_match_regex": lambda terms: _match_sql(terms.column, terms.kwargs["regex"]),
    "expect_column_values_to_not_match_regex": lambda terms: f"NOT {_match_sql(terms.column, terms.kwargs['regex'])}",
    "expect_column_values_to_match_regex_list": _match_list_sql,
    "expect_column_values_to_not_match_regex_list": lambda terms: " AND ".join(
        f"NOT {match}" for match in _listed_matches(terms)
    ),
    "expect_column_values_to_match_strftime_format": _strftime_sql,
    "expect_column_pair_values_a_to_be_greater_than_b": _greater_sql,
    "expect_column_pair_values_to_be_equal": lambda terms: _equal_or_null_sql(*terms.pair),
    "expect_column_pair_values_to_be_in_set": _pair_in_set_sql,
    "expect_multicolumn_sum_to_equal": _sum_equals_sql,
    "expect_multicolumn_values_to_be_equal": _all_equal_sql,
    "expect_select_column_values_to_be_unique_within_record": _distinct_sql,
}
NULL_TYPES: Final = frozenset({"expect_column_values_to_not_be_null", "expect_column_values_to_be_null"})


def _row_condition_sql(condition: Any, columns: Mapping[str, ExpectationColumn]) -> str:
    match condition:
        case {"type": "and" | "or" as joined, "conditions": [*parts]}:
            return f"({f' {joined.upper()} '.join(_row_condition_sql(part, columns) for part in parts) or 'true'})"
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
    raise UnsuitableExpectation(f"{CONDITION} {condition!r} is unknown", fix)


def evaluate_sql(sql: str, columns: Sequence[str], type_: str) -> Column:
    """Return a column of a frame: DuckDB's `sql` over `columns`."""
    from lake.store.spark_upcast import by_python  # with Arrow

    return by_python(type_, partial(_evaluate_batch, sql, tuple(columns)), columns)


def _evaluate_batch(sql: str, names: Sequence[str], *columns: pa.Array) -> pa.Array:
    from lake.store.spark_upcast import by_duckdb

    return by_duckdb(f"SELECT {sql} AS result FROM rows", names, columns)["result"].combine_chunks()
