"""What tests insist on: that a value is there, that a command ended with an error of ours, that no session is used."""

from __future__ import annotations

from typing import TypeVar, cast

from click.testing import Result
from pyspark.sql import SparkSession

from lake.errors import LakeError

T = TypeVar("T")


def present(value: T | None) -> T:
    """What was looked for, and must not be None."""
    assert value is not None
    return value


def fault(result: Result) -> LakeError:
    """What a command ended with, which must be one of our own errors."""
    assert isinstance(result.exception, LakeError), result.exception
    return result.exception


def no_spark() -> SparkSession:
    """Where a session is asked for, and must not be used."""
    return cast("SparkSession", None)


def spark_forbidden() -> SparkSession:
    """Where no session may be asked for."""
    raise AssertionError("this needs no Spark")
