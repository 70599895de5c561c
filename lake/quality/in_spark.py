"""DuckDB's SQL over rows of Spark: the same text judges them on the executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.quoting import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def evaluated(rows: DataFrame, sql: str, columns: Sequence[str], type_: str) -> Column:
    """Return what DuckDB's `sql` says of each of the `rows`, by those `columns` of them; `type_` is Spark's."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    names, connections = list(columns), list[Any]()  # the function goes to the executors as it is: they have no lake

    def evaluate(*arrays: pa.Array) -> pa.Array:
        import duckdb

        if not connections:
            connections.append(duckdb.default_connection().cursor())
            connections[0].execute("SET threads = 1; SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        connections[0].register("rows", pa.Table.from_arrays(list(arrays), names))
        result = connections[0].sql(f"SELECT {sql} AS result FROM rows").to_arrow_table()["result"]
        return result.combine_chunks()

    arguments = [F.col(quoted(name, SPARK)) for name in names]
    made: Callable[..., Column] = arrow_udf(type_)(evaluate)  # type: ignore[call-overload]
    return made(*arguments)


def schema(rows: DataFrame) -> pa.Schema:
    """Return the columns of rows of Spark as Arrow types."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema, timezone="UTC")
