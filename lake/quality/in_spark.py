"""DuckDB's SQL over rows of Spark: the same text judges them on the executors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.store.versions import by_duckdb, by_python

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def evaluated(sql: str, columns: Sequence[str], type_: str) -> Column:
    """Return what DuckDB's `sql` makes of each row, by those `columns` of it; `type_` is Spark's."""
    return by_python(type_, partial(_evaluated, sql, tuple(columns)), columns)


def _evaluated(sql: str, names: Sequence[str], *columns: pa.Array) -> pa.Array:
    return by_duckdb(f"SELECT {sql} AS result FROM rows", names, columns)["result"].combine_chunks()


def schema(rows: DataFrame) -> pa.Schema:
    """Return the columns of rows of Spark as Arrow types."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(rows.schema, timezone="UTC")
