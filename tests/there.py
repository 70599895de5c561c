"""What a test has made, and may rely on; what it makes do without."""

from __future__ import annotations

from typing import TypeVar, cast

from click.testing import Result
from pyspark.sql import SparkSession

from lake.errors import LakeError

T = TypeVar("T")


def there(found: T | None) -> T:
    """What was looked for, and must be there."""
    assert found is not None
    return found


def fault(result: Result) -> LakeError:
    """What a command ended with, which must be one of our own errors."""
    assert isinstance(result.exception, LakeError), result.exception
    return result.exception


def no_spark() -> SparkSession:
    """Where a session is asked for, and must not be used."""
    return cast("SparkSession", None)
