"""Assertions: a value is present, a command failed with a LakeError, no session is used."""

from __future__ import annotations

from typing import TypeVar, cast

from click.testing import Result
from pyspark.sql import SparkSession

from lake.errors import LakeError

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return the value, which must not be None."""
    assert value is not None
    return value


def fault(result: Result) -> LakeError:
    """Return the error of a command, which must be a LakeError."""
    assert isinstance(result.exception, LakeError), result.exception
    return result.exception


def no_spark() -> SparkSession:
    """Fail if a session is used."""
    return cast("SparkSession", None)


def spark_forbidden() -> SparkSession:
    """Fail if a session is requested."""
    raise AssertionError("this needs no Spark")
