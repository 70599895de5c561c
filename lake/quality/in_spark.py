"""DuckDB SQL over Spark rows, evaluated on the executors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.store.spark_upcast import by_duckdb, by_python

if TYPE_CHECKING:
    from pyspark.sql import Column


def evaluate_sql(sql: str, columns: Sequence[str], type_: str) -> Column:
    """Return a Spark column with the result of DuckDB's `sql` over `columns`."""
    return by_python(type_, partial(_evaluate_batch, sql, tuple(columns)), columns)


def _evaluate_batch(sql: str, names: Sequence[str], *columns: pa.Array) -> pa.Array:
    return by_duckdb(f"SELECT {sql} AS result FROM rows", names, columns)["result"].combine_chunks()
