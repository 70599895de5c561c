"""Choice of the engine: DuckDB in this process, or Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Attach: TypeAlias = Callable[["duckdb.DuckDBPyConnection", str], AbstractContextManager[Any]]
"""Function that gives rows a name in a connection while a block runs."""

CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"
"""Variable by which pyspark.sql.functions make expressions of Connect."""


class Unsupported(Exception):
    """Raised for a query whose answer by DuckDB is not known to be Spark's."""


def unsupported(what: str) -> Unsupported:
    return Unsupported(f"only Spark evaluates {what}")


class HoldsRows(Protocol):
    """Session of this process, as readers of tables see it: without importing Connect."""

    def of_arrow(self, rows: pa.Table) -> DataFrame:
        """Return a frame of these rows."""

    def held(self, schema: StructType, attach: Attach) -> DataFrame:
        """Return a frame of the rows that `attach` names, which are read only where a query needs them."""


def in_process(spark: SparkSession) -> HoldsRows | None:
    return cast("HoldsRows", spark) if hasattr(spark, "of_arrow") else None


def only_spark(what: str) -> None:
    """Raise Unsupported if DuckDB is at work."""
    if _Mode.connect:
        raise unsupported(what)


class _Mode:
    """Mode of pyspark.sql.functions, one for the whole process; threads in one mode keep those of the other waiting."""

    changed, connect, holders = threading.Condition(), False, 0


@contextmanager
def by_duckdb() -> Iterator[None]:
    """Let pyspark.sql.functions make expressions of Connect while the block runs."""
    with _functions(connect=True):
        yield


@contextmanager
def by_spark() -> Iterator[None]:
    """Let pyspark.sql.functions make expressions of Spark's session while the block runs."""
    with _functions(connect=False):
        yield


@contextmanager
def _functions(*, connect: bool) -> Iterator[None]:
    if CONNECT_MODE in os.environ and not _Mode.connect:  # of a server: its expressions are these
        yield
        return
    with _Mode.changed:
        _Mode.changed.wait_for(lambda: not _Mode.holders or _Mode.connect == connect)
        if not _Mode.holders and connect and CONNECT_MODE not in os.environ:
            os.environ[CONNECT_MODE] = "1"
            _Mode.connect = True
        _Mode.holders += 1
    try:
        yield
    finally:
        with _Mode.changed:
            _Mode.holders -= 1
            if not _Mode.holders and _Mode.connect:
                del os.environ[CONNECT_MODE]
                _Mode.connect = False
            _Mode.changed.notify_all()
