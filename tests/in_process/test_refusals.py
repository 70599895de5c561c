"""Queries that Spark answers otherwise than DuckDB would, or not at all, are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from decimal import Decimal
from functools import reduce
from operator import or_

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake.engine.engines import duckdb_may_refuse
from lake.errors import DeclarationError, StorageError
from lake.kinds.grouped_map import by_key
from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import in_process

ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "x": ["a", "b", "c"],
        "flag": [True, False, True],
        "real": [0.0, -0.0, 1.5],
        "items": pa.array([[1, 2], [], None], pa.list_(pa.int32())),
        "part": [{"a": 1, "b": "x"}] * 3,
    }
)
TEXTS = (
    "collect_list(id)",
    "sort_array(collect_list(id) filter (where flag))",
    "collect_list(id) over (partition by flag)",
    "row_number() over (partition by flag)",
    "lag(id) over (partition by flag)",
    "min(id) ignore nulls",
    "array_distinct(array(real))",
    "1 /* of /* all */ */",
    "'${name}'",
    "count(*) filter",
    "lag(id) ignore",
    "transform(items, ID -> id + 1)",
    "transform(items, (v, i) -> v + i)",
    "transform(items, items, v -> v)",
    "transform(items, (1, v) -> v)",
    "transform(items, (part.a) -> 1)",
    "aggregate(items, 0, (a, b) -> a, a -> a, a -> a)",
    "map_zip_with(map(1, 1), map(1, 1), map(1, 1), (k, a, b) -> 1)",
    "date'2024-03-10' + interval 1 hourss",
    "date'2024-02-30'",
    "timestamp'2024-01-01 25:00:00'",
    "timestamp'2024-01-01 00:00:00+23:00'",
    "interval 1 day",
    "interval 1.5 day",
    "sum(if(id = 2, -6e37BD, 6e37BD))",
    "'\\012'",
    "id is null = flag",
    "id between 1 and 2 = true",
    "1.5 / null",
    "concat(x y)",
    "concat(x,)",
    "x in ()",
    "element_at(map(1, 'a', 1, 'b'), 1)",
    "no_such_function(id)",
    "long(id)",
    "integer(id)",
    "timestamp_ntz(timestamp'2024-01-01 00:00:00')",
    "void(null)",
    "element(array(1), 0)",
    "field(part, 'a')",
    "timestampadd(SECONDS, 1, timestamp'2024-03-10 00:00:00')",
    "substring(x, 1, id)",
    "-(9999999999999999999999999999999999 + cast(id as decimal(38, 0)))",
    "abs(-9999999999999999999999999999999999 - cast(id as decimal(38, 0)))",
    "1e400",
    "-1e400",
    "date_format(date'2024-03-10', 'yyyy\\'\\'MM')",
    "date_format(date'2024-03-10', '\\'o\\'\\'clock\\'')",
    "date_format(date'2024-03-10', 'yyyy\\'')",
    "to_date('2024-03-10', 'yyyy-MM-dd\\'')",
    "date_format(date'2024-03-10', 'yyyy[-MM]')",
    "date_format(date'2024-03-10', 'yyyy{MM}')",
    "date_format(date'2024-03-10', 'yyyy#MM')",
    "sort_array(collect_list(distinct id))",
    "to_date('2024-02-29 28', 'yyyy-MM-dd dd')",
    "to_timestamp(x, 'yyyy-MM-dd', 1)",
    "aggregate(collect_list(distinct id), 0L, (s, x) -> s + x)",
    "row_number() over (order by id rows between 1 preceding and 1 following)",
    "lag(id) over (order by id rows between unbounded preceding and current row)",
    "sum(id) over (order by id rows between 1 following and 1 preceding)",
    "sum(id) over (order by id rows between 2147483648 preceding and current row)",
    "ntile(2L) over (order by id)",
    "lag(id, '1') over (order by id)",
    "nth_value(id, 0) over (order by id)",
    "nth_value(id, null) over (order by id)",
    "first_value(distinct id) over (order by id)",
    "last(id, null) over (order by id)",
    "min(real)",
    "max(real) over (order by id)",
    "try_cast('٣e٣' as decimal(10, 0))",
    "to_json(named_struct('\x1f', id))",
    "try_add(cast(id as smallint), 1)",
    "try_subtract(shiftleft(1L, cast(id as int)), 2L)",
)
STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a star without a part": lambda rows: rows.selectExpr("* except (part.a)"),
    "a star without an unknown column": lambda rows: rows.selectExpr("* except (nope)"),
    "a star of an alias without a column": lambda rows: rows.alias("t").selectExpr("t.* except (x)"),
    "an aggregate of nothing": lambda rows: rows.agg(F.lit(1).alias("one")),
    "a dropped part": lambda rows: rows.drop(F.col("part.a")),
    "distinct fractions": lambda rows: rows.select("real").distinct(),
    "groups of fractions": lambda rows: rows.groupBy("real").agg(F.count("*").alias("n")),
    "a limit without an order": lambda rows: rows.limit(2),
    "a limit of grouped rows without an order": lambda rows: rows.groupBy("x").agg(F.count("*").alias("n")).limit(1),
    "a limit after an order and a selection": lambda rows: rows.sort(F.desc("id")).select("id").limit(2),
    "groups of a constant": lambda rows: rows.groupBy(F.lit(2).alias("two")).agg(F.count("*").alias("n")),
    "an order by a constant": lambda rows: rows.sort(F.lit(1)),
    "a filter by nothing": lambda rows: rows.where(F.lit(None)),
    "a star of an alias with a hidden column": lambda rows: (
        rows.alias("a").join(rows.select("id", "x").alias("b"), "id").select("b.*")
    ),
    "a renamed column by an alias": lambda rows: rows.alias("a").withColumnRenamed("x", "y").select("a.y"),
    "a join by a number": lambda rows: rows.join(rows.select(F.col("id").alias("other")), F.col("other")),
    "a text in place of numbers": lambda rows: rows.fillna({"id": "7"}),
    "numbers by column in place of texts": lambda rows: rows.fillna({"id": 1, "x": 7}),
    "rows with at least no value": lambda rows: rows.dropna(thresh=0),
    "rows without nulls in no column": lambda rows: rows.dropna(subset=[]),
    "rows with a value in no column": lambda rows: rows.na.drop("all", subset=()),
    "a number in place of nulls in no column": lambda rows: rows.fillna(7, []),
    "a text in place of nulls in no column": lambda rows: rows.na.fill("none", subset=[]),
    "rows distinct by no column": lambda rows: rows.dropDuplicates([]),
    "a join by no column": lambda rows: rows.join(rows.select(F.col("id").alias("other")), []),
    "no column": lambda rows: rows.select(),
    "no column in order": lambda rows: rows.sort("id").select([]),
    "rows without nulls in columns of one name": lambda rows: rows.crossJoin(rows.select("x")).dropna(),
    "a join by a column that a side lacks": lambda rows: _joined_by_x(rows.select("id").distinct(), rows),
    "names that are exchanged": lambda rows: rows.withColumnsRenamed({"id": "x", "x": "id"}),
}


LIMITED: dict[str, tuple[Callable[[DataFrame], DataFrame], int]] = {
    "no row": (lambda rows: rows.limit(0), 0),
    "all rows": (lambda rows: rows.limit(3), 3),
    "more than all rows": (lambda rows: rows.limit(4), 3),
    "some of equal rows": (lambda rows: rows.select(F.lit("a").alias("one")).limit(2), 2),
    "some rows without columns": (lambda rows: rows.select().limit(2), 2),
    "some rows in order": (lambda rows: rows.sort("id").limit(2), 2),
}


def _joined_by_x(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.join(right, left.x == right.id, "left_semi")


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_refused(text: str) -> None:
    with by_duckdb(), pytest.raises(Unsupported):
        to_arrow(to_frame(in_process(), ROWS).selectExpr(f"{text} as found"))


@pytest.mark.parametrize("name", STEPS)
def test_step_is_refused(name: str) -> None:
    with by_duckdb(), pytest.raises(Unsupported):
        to_arrow(STEPS[name](to_frame(in_process(), ROWS)))


@pytest.mark.parametrize("name", LIMITED)
def test_limit_is_answered_if_every_order_gives_the_same_rows(name: str) -> None:
    limited, number = LIMITED[name]
    with by_duckdb():
        rows = limited(to_frame(in_process(), ROWS))
        assert to_arrow(rows.agg(F.count("*").alias("n"))).to_pydict() == {"n": [number]}


@pytest.mark.parametrize("type_", [pa.int32(), pa.list_(pa.int32()), pa.list_(pa.float64())], ids=str)
def test_distinct_rows_are_left_to_spark_by_types_and_not_by_names(type_: pa.DataType) -> None:
    part = pa.struct([("float_count", type_), ("double", pa.string())])
    rows = pa.table({"part": pa.array([{"float_count": None, "double": "a"}] * 2, part)})
    has_float = "double" in str(type_)
    with by_duckdb(), pytest.raises(Unsupported, match="fractions") if has_float else nullcontext():
        assert to_arrow(to_frame(in_process(), rows).distinct()).num_rows == 1


def test_joins_by_name_one_after_another_keep_their_columns() -> None:
    with by_duckdb():
        session = in_process()
        first, second, third = (
            to_frame(session, pa.table({name: values, "id": [1, 2, 3]}))
            for name, values in {"x": ["a", "b", "c"], "y": ["p", "q", "r"], "z": ["u", "v", "w"]}.items()
        )
        found = to_arrow(first.join(second, "id").join(third, "id")).sort_by("id").to_pydict()
    assert found == {"id": [1, 2, 3], "x": ["a", "b", "c"], "y": ["p", "q", "r"], "z": ["u", "v", "w"]}


def test_rows_are_sorted_by_a_column_beside_one_called_c1() -> None:
    with by_duckdb():
        rows = to_frame(in_process(), pa.table({"c1": [1, 2, 3], "b": [3, 1, 2]}))
        assert to_arrow(rows.sort("b")).to_pydict() == {"c1": [2, 3, 1], "b": [1, 2, 3]}


def test_error_of_a_function_is_left_to_spark() -> None:
    """A function may need Spark's session, or make an expression that is too deep for this process."""
    with pytest.raises(Unsupported, match="AttributeError while"), duckdb_may_refuse():
        raise DeclarationError("the function fails") from AttributeError("'NoneType' object has no attribute 'sql'")
    with pytest.raises(DeclarationError), duckdb_may_refuse():
        raise DeclarationError("a column has changed")
    with pytest.raises(StorageError), duckdb_may_refuse():
        raise StorageError("a file is gone") from FileNotFoundError("a.parquet")


def _fail_with_its_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError(batch["x"].to_pylist())


FAILING: dict[str, Callable[[DataFrame], DataFrame]] = {
    "base64": lambda rows: rows.selectExpr("unbase64(x) as y"),
    "a number": lambda rows: rows.selectExpr("cast(x as int) as y"),
    "a time": lambda rows: rows.selectExpr("to_date(x, 'yyyy-MM-dd') as y"),
    "a raised error": lambda rows: rows.selectExpr("raise_error(x) as y"),
    "a Python function": lambda rows: by_key(rows, (), ["x"], _fail_with_its_value, rows.schema),
}


@pytest.mark.parametrize("name", FAILING)
def test_reason_for_spark_holds_no_value_of_a_row(name: str) -> None:
    with pytest.raises(Unsupported) as refused, duckdb_may_refuse():
        to_arrow(FAILING[name](to_frame(in_process(), pa.table({"x": ["secret-person="]}))))
    assert "while DuckDB evaluated it" in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("count", [10, 60, 600])
def test_long_conditions_are_answered_or_refused(count: int) -> None:
    with suppress(Unsupported), duckdb_may_refuse():
        rows = to_frame(in_process(), ROWS)
        assert to_arrow(rows.where(reduce(or_, [F.col("id") == n for n in range(count)]))).num_rows == 3
        assert to_arrow(rows.where(" or ".join(f"id = {n}" for n in range(count)))).num_rows == 3


def test_decimals_below_one_are_written_with_a_zero() -> None:
    values = [Decimal("0.50"), Decimal("-0.01"), Decimal("0.00"), None]
    with by_duckdb():
        rows = to_frame(in_process(), pa.table({"p": pa.array(values, pa.decimal128(2, 2))}))
        found = to_arrow(rows.selectExpr("cast(p as string) as text", "concat('<', p, '>') as more"))
    assert found["text"].to_pylist() == ["0.50", "-0.01", "0.00", None]
    assert found["more"].to_pylist() == ["<0.50>", "<-0.01>", "<0.00>", None]


def test_literal_beside_a_decimal_has_the_digits_that_it_shows() -> None:
    factors = ("5", "-5", "+5", "-(5)", "cast(5 as int)", "int(5)", "bigint(5)", "5L")
    with by_duckdb():
        rows = to_frame(in_process(), pa.table({"p": pa.array([Decimal("1.50")], pa.decimal128(4, 2))}))
        types = [rows.selectExpr(f"p * {factor} as x").schema["x"].dataType.simpleString() for factor in factors]
    assert types == [f"decimal({4 + digits + 1},2)" for digits in (1, 1, 10, 10, 10, 10, 20, 1)]


def test_sign_of_wide_decimals_changes() -> None:
    wide = "abs(-9999999999999999999999999999999998 - cast(1 as decimal(38, 0)))"
    with by_duckdb():
        found = to_arrow(to_frame(in_process(), ROWS).selectExpr("-cast(id as decimal(38, 6)) as x", f"{wide} as y"))
    assert found["x"].to_pylist() == [-1, -2, -3]
    assert {*found["y"].to_pylist()} == {10**34 - 1}


def test_constants_keep_all_digits() -> None:
    numbers = ("-12345678901234567890.123456789012345678", "-0.12345678901234567890123456789012345678", "-1e-38BD")
    with by_duckdb():
        found = to_arrow(
            to_frame(in_process(), ROWS).selectExpr(*(f"{text} as x{n}" for n, text in enumerate(numbers)))
        )
    assert [found[f"x{n}"][0].as_py() for n in range(3)] == [Decimal(text.removesuffix("BD")) for text in numbers]
