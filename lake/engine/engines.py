"""The two engines of an evaluation: DuckDB in this process, and Spark."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from lake.config import Settings
from lake.errors import DeclarationError, LakeError
from lake.kinds.sql_errors import causes
from lake.session import SessionFactory
from lake.session.in_process.mode import Unsupported, by_duckdb, reason
from lake.session.warm_server import uses_server
from lake.store.duckdb_tables import in_process_session
from lake.store.table_head import DUCKDB, SPARK

if TYPE_CHECKING:
    from lake.engine.inputs import Evaluation

R = TypeVar("R")


@contextmanager
def duckdb_may_refuse(settings: Settings | None = None) -> Iterator[None]:
    """Evaluate the block by DuckDB, in place of the Spark of `settings` (default: an embedded one).

    Raises Unsupported if it fails and Spark may succeed: for an unknown function, and for any exception of a job's
    function, which may need a session of Spark or be too deep an expression for this process. Errors of tables and
    files are raised as they are.
    """
    try:
        with by_duckdb(server=settings is not None and uses_server(settings)):
            yield
    except Exception as error:
        from pyspark.errors import PySparkException

        refused = next((cause for cause in causes(error) if not isinstance(cause, LakeError)), None)
        is_of_tables = isinstance(error, LakeError) and not isinstance(error, DeclarationError)
        if refused is None or (is_of_tables and not isinstance(refused, Unsupported | PySparkException)):
            raise
        raise Unsupported(reason(refused)) from error


def by_either(settings: Settings, connect: SessionFactory, work: Callable[[SessionFactory], R]) -> R:
    """Return the result of `work`, which reads only, by DuckDB in this process; by Spark if DuckDB cannot."""
    try:
        with duckdb_may_refuse(settings):
            session = in_process_session()
            return work(lambda: session)
    except Unsupported:
        return work(connect)


def by_rows(
    evaluation: Evaluation, rows: int, find: Callable[[Evaluation], R], *, limit: int = sys.maxsize
) -> tuple[R, str, Exception | None]:
    """Return the result of `find`, its engine, and why DuckDB could not evaluate few rows, if so.

    DuckDB evaluates at most `limit` rows, and at most the setting `in_process_rows` (0: none), Spark the rest.
    """
    settings = evaluation.inputs.project.settings
    why, limit = None, min(limit, settings.in_process_rows)
    if rows <= limit and limit > 0:
        try:
            with duckdb_may_refuse(settings):
                return find(evaluation.in_process), DUCKDB, None
        except Unsupported as error:
            why = error
    return find(evaluation), SPARK, why
