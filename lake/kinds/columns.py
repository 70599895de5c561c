"""The columns through which kind and engine speak, and what all kinds do with columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from lake.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns that the engine adds to a function's input and finds again in its output.
ORDER: Final = "_order"  # struct, totally ordered: of an event (batch, arrival, bucket, offset), or a row's identity
SIGN: Final = "_sign"  # int: +1 a row that is there, -1 one that is gone
TIME: Final = "_time"  # timestamp: event time; absent over derived tables
WATERMARK: Final = "_watermark"  # timestamp: greatest event time of earlier batches; absent over derived tables
DELIVERED: Final = (
    "_delivered"  # struct, see lake.kinds.snapshots; only for kinds that heed refusals, over logs that have any
)
CARRIED: Final = (ORDER, SIGN, TIME, WATERMARK, DELIVERED)

# The column by which `absorb` says that a key must be evaluated again.
AGAIN: Final = "_again"


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Column names as a tuple, from one name or several. Raises DeclarationError for what is neither."""
    columns = (given,) if isinstance(given, str) else given
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise DeclarationError(f"expected names of columns, found {given!r}", fix='write "a" or ("a", "b")')
    return tuple(columns)


def as_sql(*names: str) -> tuple[str, ...]:
    """The SQL of columns."""
    return tuple(f"`{name}`" for name in names)


def visible(columns: Iterable[str]) -> list[str]:
    """The columns that readers see."""
    return [column for column in columns if not column.startswith("_")]


def same(left: DataFrame, right: DataFrame, columns: Sequence[str]) -> Column:
    """The null-safe equality of `columns` of two frames, as a join condition."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for column in columns:
        condition = condition & left[column].eqNullSafe(right[column])
    return condition


def digest(rows: DataFrame, columns: Iterable[str]) -> str:
    """SQL for an identifier of the values of `columns` of `rows`: 32 hexadecimal digits of the SHA-256 of an encoding.

    The encoding marks nulls and writes each value's length before it, so that no two lists of values share one. What
    is nested is written twice: its text does not tell ["a, b"] from ["a", "b"], JSON has no microseconds.
    """
    types = dict(rows.dtypes)
    texts = [f"cast(`{column}` as string)" for column in columns]
    texts += [f"to_json(`{column}`)" for column in columns if types[column].startswith(("array<", "struct<", "map<"))]
    parts = (f"coalesce(concat(length({text}), ':', {text}), '-')" for text in texts)
    return f"left(sha2(concat({', '.join(parts)}), 256), 32)"
