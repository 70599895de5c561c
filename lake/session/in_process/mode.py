"""Face of this package, without an import of Connect: choice of the engine, Unsupported, HoldsRows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Attach: TypeAlias = Callable[["duckdb.DuckDBPyConnection", str], AbstractContextManager[Any]]
"""Function that gives rows a name in a connection while a block runs."""


class Unsupported(Exception):
    """Raised for a query whose answer by DuckDB is not known to be Spark's."""


def unsupported(what: str) -> Unsupported:
    return Unsupported(f"only Spark evaluates {what}")


def reason(error: BaseException) -> str:
    """Return why DuckDB does not evaluate a query. Other messages than those of Unsupported may have values of rows."""
    return str(error) if isinstance(error, Unsupported) else f"{type(error).__name__} while DuckDB evaluated it"


class HoldsRows(Protocol):
    """Session of this process, as readers of tables see it: without importing Connect."""

    def of_arrow(self, rows: pa.Table) -> DataFrame: ...

    def held(self, schema: StructType, attach: Attach, rows: int) -> DataFrame:
        """Return a frame of the `rows` rows that `attach` names, which are read only if a query needs them."""


def in_process(spark: SparkSession) -> HoldsRows | None:
    return cast("HoldsRows", spark) if hasattr(spark, "of_arrow") else None


def uses_duckdb() -> bool:
    return _by_duckdb.get()


def only_spark(what: str) -> None:
    """Raise Unsupported if DuckDB is at work."""
    if uses_duckdb():
        raise unsupported(what)


def replaces_server() -> bool:
    """Return whether DuckDB is at work in place of a server of Spark Connect, which types some literals otherwise."""
    return _server.get()


_by_duckdb: Final[ContextVar[bool]] = ContextVar("_by_duckdb", default=False)
_server: Final[ContextVar[bool]] = ContextVar("_server", default=False)


@contextmanager
def by_duckdb(*, server: bool = False) -> Iterator[None]:
    """Let pyspark.sql.functions make expressions of Connect while the block runs, in its thread alone.

    Their types are those of an embedded session, or of a `server` of Spark Connect.
    """
    _patch_pyspark()
    tokens = _by_duckdb.set(True), _server.set(server)
    try:
        yield
    finally:
        _by_duckdb.reset(tokens[0])
        _server.reset(tokens[1])


@cache
def _patch_pyspark() -> None:
    """Let `is_remote` of pyspark.sql.utils answer for the calling context, instead of for the whole process.

    Methods of frames refuse lists without columns, which Connect's protocol takes for all columns, as its server does.
    """
    from pyspark.sql import utils
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.utils import is_remote

    vars(utils).update(is_remote=lambda: _by_duckdb.get() or is_remote())
    for name in ("dropna", "fillna", "join"):
        setattr(DataFrame, name, _refusing_empty_lists(getattr(DataFrame, name)))


def _refusing_empty_lists(method: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> DataFrame:
        lists = [given for given in (*args, *kwargs.values()) if isinstance(given, list | tuple)]
        if not all(lists) and not replaces_server():
            only_spark("a list without columns")
        return method(*args, **kwargs)

    return call
