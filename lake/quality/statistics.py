"""Exact statistics of whole columns, by Great Expectations' metric names.

DuckDB counts, sorts and adds integers, and can spill; Python adds the partial results as fractions. A statistic of
floats is rounded once, to the nearest double. If a value is NaN, the statistic is NaN, which no bounds contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any, Final

from lake.quality.columns import (
    COMPARABLE,
    DECIMAL,
    FLOAT,
    MOST_DIGITS,
    NUMBERS,
    SCALAR,
    ExpectationColumn,
    Key,
    exact,
    nearest_double,
)

if TYPE_CHECKING:
    import duckdb

LIMB: Final = 10**19
"""Two smaller values multiply to at most 38 digits, which fit DuckDB's HUGEINT."""
HALF: Final = Fraction(1, 2)
IQR: Final = "iqr"


@dataclass(frozen=True)
class PowerSums:
    """Count, sum and sum of squares of the finite values; and the values that are not finite."""

    count: int
    sum: Fraction
    squares: Fraction
    not_finite: frozenset[float]

    @property
    def total(self) -> Key:
        return sum(self.not_finite) if self.not_finite else self.sum

    @property
    def mean(self) -> Key | None:
        return self.total if self.not_finite else self.sum / self.count if self.count else None

    @property
    def deviation(self) -> Key | None:
        """Sample standard deviation to 60 digits, None for fewer than two values."""
        if self.not_finite or self.count < 2:
            return nan if self.not_finite else None
        variance = (self.squares - self.sum**2 / self.count) / (self.count - 1)
        digits = Context(prec=60)
        return Fraction(digits.sqrt(digits.divide(variance.numerator, Decimal(variance.denominator))))


@dataclass(frozen=True)
class ColumnValues:
    con: duckdb.DuckDBPyConnection
    source: str
    column: ExpectationColumn
    where: str

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        values = (
            f"SELECT {self.column.sql} AS v FROM {self.source} WHERE {self.where} AND {self.column.sql} IS NOT NULL"
        )
        return self.con.execute(f"WITH v AS ({values}) {query}").fetchall()

    @cached_property
    def value(self) -> ExpectationColumn:
        return replace(self.column, expression="v")

    @cached_property
    def count(self) -> int:
        return int(self.rows("SELECT count(*) FROM v")[0][0])

    @cached_property
    def distinct(self) -> int:
        self.column.require_kind(*SCALAR)
        return int(self.rows("SELECT count(*) FROM (SELECT DISTINCT v FROM v)")[0][0])

    @property
    def has_no_nan(self) -> bool:
        return self.column.kind != FLOAT or not self.rows("SELECT 1 FROM v WHERE isnan(v) LIMIT 1")

    def extreme(self, function: str) -> Key | None:
        if not self.has_no_nan:
            return nan
        sql = replace(self.value, expression=f"{function}(v)").key_sql
        [(value,)] = self.rows(f"SELECT {sql} FROM v")
        return None if value is None else self.value.read_key(value)

    def most_common(self) -> list[Key]:
        found = self.rows(
            f"""SELECT {self.value.key_sql} FROM (SELECT v, rank() OVER (ORDER BY n DESC) AS place FROM
                (SELECT v, count(*) AS n FROM v GROUP BY v)) WHERE place = 1 ORDER BY v"""
        )
        return [self.value.read_key(value) for (value,) in found]

    def count_outside(self, values: Any) -> int:
        test = self.value.one_of(values, "value_set")
        return int(self.rows(f"SELECT count(*) FROM (SELECT DISTINCT v FROM v WHERE NOT {test})")[0][0])

    def missing_values(self, values: Any) -> list[Any]:
        test = self.value.one_of(values, "value_set")
        rows = self.rows(f"SELECT {self.value.key_sql} FROM v WHERE {test} GROUP BY v")
        known = {self.value.read_key(v) for (v,) in rows}
        return [v for v in values if v is not None and self.column.key(v, "value_set") not in known]

    def values_at(self, ranks: Sequence[int]) -> list[Key]:
        places = sorted(set(ranks))
        found = self.rows(
            f"""SELECT {self.value.key_sql} FROM (SELECT v, row_number() OVER (ORDER BY v) - 1 AS place FROM v)
                WHERE place IN ({", ".join(map(str, places))}) ORDER BY place"""
        )
        by_place = dict(zip(places, (self.value.read_key(value) for (value,) in found), strict=True))
        return [by_place[rank] for rank in ranks]

    def quantile(self, share: float) -> Key | None:
        """Return the least value that at least this `share` of the values do not exceed."""
        if not self.count or not self.has_no_nan:
            return nan if self.count else None
        return self.values_at([max(ceil(exact(share) * self.count) - 1, 0)])[0]

    def interpolated_quantile(self, share: Fraction) -> Key | None:
        if not self.count or not self.has_no_nan:
            return nan if self.count else None
        position = share * (self.count - 1)
        low, high = self.values_at([floor(position), ceil(position)])
        if not (isinstance(low, Fraction) and isinstance(high, Fraction)):
            return low if low == high else nan
        return self.round_to_double(low + (position - floor(position)) * (high - low))

    def power_sums(self) -> PowerSums:
        """Add up m * base**e exactly, m split at LIMB: the bits of a double give m and e, a decimal has m digits."""
        if self.column.require_kind(*NUMBERS).kind == FLOAT:
            found = self.rows("SELECT DISTINCT CAST(v AS DOUBLE) FROM v WHERE NOT isfinite(v)")
            special = frozenset(nan if isnan(value) else value for (value,) in found)
            bits = "SELECT CAST(CAST(CAST(v AS DOUBLE) AS BIT) AS BIGINT) AS b FROM v WHERE isfinite(v)"
            mantissas = f"""SELECT greatest((b >> 52) & 2047, 1) - 1075 AS e, CAST(if(b < 0, -1, 1) AS HUGEINT)
                * ((b & {2**52 - 1}) + if((b >> 52) & 2047 > 0, {2**52}, 0)) AS m FROM ({bits})"""
            base = Fraction(2)
        else:
            special, base = frozenset(), Fraction(10)
            mantissas = f"SELECT {-self.column.digits[1]} AS e, {self._unscaled} AS m FROM v"
        halves = f"SELECT e, m // {LIMB} AS a, m % {LIMB} AS b FROM ({mantissas})"
        sums = ", ".join(f"sum({x} // {LIMB}), sum({x} % {LIMB})" for x in ("a", "b", "(a * a)", "(a * b)", "(b * b)"))
        count, total, squares = 0, Fraction(0), Fraction(0)
        for e, n, *parts in self.rows(f"SELECT e, count(*), {sums} FROM ({halves}) GROUP BY e"):
            a, b, aa, ab, bb = (int(parts[k]) * LIMB + int(parts[k + 1]) for k in range(0, 10, 2))
            count += n
            total += (a * LIMB + b) * base**e
            squares += (aa * LIMB**2 + 2 * ab * LIMB + bb) * base ** (2 * e)
        return PowerSums(count, total, squares, special)

    def outlier_bounds(self, kwargs: Mapping[str, Any]) -> tuple[Fraction | None, Fraction | None, bool]:
        """Return (low, high, inclusive); None is no bound."""
        finite = replace(self, where=f"{self.where} AND isfinite({self.column.sql})")
        values = finite if self.column.require_kind(*NUMBERS).kind == FLOAT else self
        if "threshold" not in kwargs and kwargs.get("method", IQR) == IQR:
            low, high = (values.interpolated_quantile(Fraction(share, 4)) for share in (1, 3))
            if not (isinstance(low, Fraction) and isinstance(high, Fraction)):
                return None, None, True
            distance = exact(kwargs.get("multiplier", 1.5)) * (high - low)
            return low - distance, high + distance, True
        sums = values.power_sums()
        mean, deviation = sums.sum / max(sums.count, 1), sums.deviation
        distance = exact(kwargs.get("threshold", kwargs.get("multiplier", 1.5))) * Fraction(deviation or 0)
        if "threshold" in kwargs:  # a z-score, which is none if all values are the same
            distance = abs(distance) if kwargs["double_sided"] else distance
            low = mean - distance if kwargs["double_sided"] else None
            return (low, mean + distance, False) if deviation else (None, None, False)
        if deviation is None:
            return None, None, True
        return mean - max(distance, Fraction(0)), mean + max(distance, Fraction(0)), distance <= 0

    def round_to_double(self, key: Key | None) -> Key | None:
        if key is None or self.column.kind != FLOAT or not isinstance(key, Fraction):
            return key
        double = nearest_double(key)
        return Fraction(double) if isfinite(double) else double

    @property
    def _unscaled(self) -> str:
        whole, scale = self.column.digits
        if self.column.kind != DECIMAL:
            return "CAST(v AS HUGEINT)"
        if whole + 2 * scale + 1 > MOST_DIGITS:
            return "CAST(replace(CAST(v AS VARCHAR), '.', '') AS HUGEINT)"
        return f"CAST(v * CAST({10**scale} AS DECIMAL({scale + 1},0)) AS HUGEINT)"


METRICS: Final[Mapping[str, Callable[[ColumnValues, Mapping[str, Any]], Any]]] = {
    "column.min": lambda values, _: values.extreme("min"),
    "column.max": lambda values, _: values.extreme("max"),
    "column.sum": lambda values, _: values.round_to_double(values.power_sums().total),
    "column.mean": lambda values, _: values.round_to_double(values.power_sums().mean),
    "column.median": lambda values, _: values.interpolated_quantile(HALF),
    "column.standard_deviation": lambda values, _: values.round_to_double(values.power_sums().deviation),
    "column.quantile_values": lambda values, kwargs: [
        values.quantile(share) for share in kwargs["quantile_ranges"]["quantiles"]
    ],
    "column.most_common_value": lambda values, _: values.most_common(),
    "column.distinct_values.count": lambda values, _: Fraction(values.distinct),
    "column.unique_proportion": lambda values, _: Fraction(values.distinct, max(values.count, 1)),
    "column.distinct_values.not_in_set.count": lambda values, kwargs: values.count_outside(kwargs["value_set"]),
    "column.distinct_values.missing_from_column.count": lambda values, kwargs: len(
        values.missing_values(kwargs["value_set"])
    ),
}
COUNTS: Final = frozenset({"column.distinct_values.count", "column.unique_proportion", "column.non_null_proportion"})
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("column.sum", "column.mean", "column.median", "column.standard_deviation"), NUMBERS),
    **dict.fromkeys(("column.distinct_values.count", "column.unique_proportion"), SCALAR),
    **dict.fromkeys(("column.min", "column.max", "column.quantile_values", "column.most_common_value"), COMPARABLE),
}
"""Kinds of columns that a metric accepts; any if it is not listed."""
OUTSIDE: Final = ("column.distinct_values.not_in_set.count", "column.distinct_values.not_in_set")
ABSENT: Final = ("column.distinct_values.missing_from_column.count", "column.distinct_values.missing_from_column")
JUDGED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "expect_column_distinct_values_to_be_in_set": OUTSIDE,
    "expect_column_distinct_values_to_contain_set": ABSENT,
    "expect_column_distinct_values_to_equal_set": (*OUTSIDE, *ABSENT),
    "expect_column_max_to_be_between": ("column.max",),
    "expect_column_mean_to_be_between": ("column.mean",),
    "expect_column_median_to_be_between": ("column.median",),
    "expect_column_min_to_be_between": ("column.min",),
    "expect_column_most_common_value_to_be_in_set": ("column.most_common_value",),
    "expect_column_proportion_of_non_null_values_to_be_between": ("column.non_null_proportion",),
    "expect_column_proportion_of_unique_values_to_be_between": ("column.unique_proportion",),
    "expect_column_quantile_values_to_be_between": ("column.quantile_values",),
    "expect_column_stdev_to_be_between": ("column.standard_deviation",),
    "expect_column_sum_to_be_between": ("column.sum",),
    "expect_column_unique_value_count_to_be_between": ("column.distinct_values.count",),
    "expect_column_to_exist": ("table.columns",),
    "expect_table_column_count_to_be_between": ("table.column_count",),
    "expect_table_column_count_to_equal": ("table.column_count",),
    "expect_table_columns_to_match_ordered_list": ("table.columns",),
    "expect_table_columns_to_match_set": ("table.columns",),
    "expect_table_row_count_to_be_between": ("table.row_count",),
    "expect_table_row_count_to_equal": ("table.row_count",),
    "unexpected_rows_expectation": ("unexpected_rows_query.table", "unexpected_rows_query.row_count"),
}
