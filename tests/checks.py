"""Assertions: a value is present, a command printed JSON or failed with a LakeError, no session is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar, cast

from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import lake
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


def answer(project: Path, *words: str) -> Any:
    """Return the JSON that a command prints."""
    done = CliRunner().invoke(lake, [*words, "--project", str(project), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def no_spark() -> SparkSession:
    """Fail if a session is used."""
    return cast("SparkSession", None)


def spark_forbidden() -> SparkSession:
    """Fail if a session is requested."""
    raise AssertionError("this needs no Spark")
