"""Functions of Python over Arrow get the values of this process's columns, and their results become such."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.session.in_process.python_functions import ARROW_FUNCTIONS
from lake.store.scan import to_arrow, to_frame
from lake.store.spark_upcast import by_python
from tests.in_process.rows import COLUMNS, all_rows, comparable_column, in_process


@pytest.mark.parametrize("name", COLUMNS)
def test_function_over_arrow_hands_on_the_values_of_each_type(name: str) -> None:
    rows = all_rows().select(["id", name])
    with by_duckdb():
        frame = to_frame(in_process(), rows)
        type_ = dict(frame.dtypes)[name]
        both = by_python(f"struct<`a b`: {type_}, c: array<{type_}>>", together, [name, name])
        made = to_arrow(
            frame.withColumn("made", both).selectExpr("id", f"`{name}`", "made.`a b` as a", "made.c[0] as c")
        )
    assert comparable_column(made["a"]) == comparable_column(made["c"]) == comparable_column(made[name])
    assert made[name].null_count < made.num_rows == rows.num_rows


def together(one: pa.Array, other: pa.Array) -> pa.Array:
    lists = pa.ListArray.from_arrays(pa.array(range(len(other) + 1), pa.int32()), other)
    return pa.StructArray.from_arrays([one, lists], names=["a b", "c"])


def test_function_over_arrow_is_evaluated_over_many_rows_and_in_every_query() -> None:
    rows = pa.table({"n": pa.array(range(300_000), pa.int64())})
    with by_duckdb():
        frame = to_frame(in_process(), rows).withColumn("n", by_python("bigint", lambda n: n, ["n"]))
        for _ in range(2):
            assert to_arrow(frame.where("n % 2 = 0"))["n"].to_pylist() == [*range(0, 300_000, 2)]


def test_failure_of_a_function_over_arrow_is_left_to_spark_without_its_values() -> None:
    def fail(values: pa.Array) -> pa.Array:
        raise ValueError(f"secret {values}")

    with by_duckdb():
        frame = to_frame(in_process(), pa.table({"x": [17]})).select(by_python("bigint", fail, ["x"]).alias("y"))
        with pytest.raises(Unsupported) as refused:
            frame.toArrow()
    assert str(refused.value) == "InvalidInputException while DuckDB evaluated it"


def test_function_over_arrow_is_forgotten_with_its_plan() -> None:
    gc.collect()
    before = len(ARROW_FUNCTIONS)
    with by_duckdb():
        frame = to_frame(in_process(), pa.table({"x": [1]})).select(by_python("int", lambda x: x, ["x"]).alias("y"))
        assert len(ARROW_FUNCTIONS) == before + 1
    del frame
    gc.collect()
    assert len(ARROW_FUNCTIONS) == before
