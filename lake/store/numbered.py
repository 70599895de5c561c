"""Commits to a log or a derived table: numbered, by one writer at a time, proved by reading them back."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lake.errors import StorageError, Unavailable
from lake.quoting import SPARK, quoted
from lake.session import first_line
from lake.store import delta
from lake.store.delta import Position
from lake.store.table_logs import invalidate
from lake.store.warehouse import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"

# Spark's MERGE takes its transaction from session settings, so one MERGE runs at a time.
_statement = threading.Lock()


@contextmanager
def only_writer(at: Location, position: Position, beaten: Unavailable) -> Iterator[None]:
    """Lets a commit pass only on top of the position it was made for. Raises `beaten` where another was first, and
    StorageError where delta-rs takes no commit to the table at all. An error of a commit that is there does not count.

    delta-rs does not compare transaction numbers, and Spark's MERGE skips a taken one in silence: so they are compared
    here first. Between this and the commit itself stand the lease and Delta's own conflict detection.
    """
    if delta.standing(at.path, at.app).txn != position.txn - 1:
        raise beaten
    before = delta.newest_version(at.path)
    try:
        yield
    except Exception as error:
        invalidate(at.path)
        if delta.landed(at.path, position.writer):
            return
        refused = isinstance(error, delta.Beaten)
        if (refused or "Concurrent" in f"{type(error).__name__} {error}") and delta.newest_version(at.path) != before:
            raise beaten from error
        if refused:
            raise StorageError(
                f"{at.path.name} takes no commit: {first_line(error)}",
                where=str(at.path),
                fix="another tool enabled a table feature that Headwater cannot write: disable it, or restore a backup",
            ) from error
        raise
    delta.known_or_moved(at.path, position.writer)


def proven(at: Location, position: Position, beaten: Unavailable) -> Position:
    """Reads the head back, which must be the position just committed; raises `beaten` where it is not."""
    head = delta.head(at.path, at.app)
    if head is None or head.metadata != position.metadata:
        raise beaten
    return head


def alter(spark: SparkSession, at: Location, *changes: str) -> None:
    """Makes `changes` of ALTER TABLE, none of which touches a row: each commit repeats the position."""
    standing = delta.standing(at.path, at.app)
    for change in changes:
        again = standing.again()
        said = {METADATA: again.metadata} if standing.data else {}
        with delta.read_back(at.path, again.writer), session_settings(spark, said):
            spark.sql(f"ALTER TABLE delta.{quoted(at.path.spark, SPARK)} {change}").collect()


@contextmanager
def session_settings(spark: SparkSession, options: Mapping[str, str]) -> Iterator[None]:
    """Lets one statement at a time run with `options`, which no reader's option can say."""
    with _statement:
        for key, value in options.items():
            spark.conf.set(key, value)
        try:
            yield
        finally:
            for key in options:
                spark.conf.unset(key)
