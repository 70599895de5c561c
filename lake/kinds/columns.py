"""Columns by which kinds and the engine communicate, and helpers for columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from lake.errors import DeclarationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns that the engine adds to a function's input and reads from its output.
ORDER: Final = "_order"  # struct, totally ordered: (batch, arrival, bucket, offset) of an event, or a row's identity
SIGN: Final = "_sign"  # int: +1 for an added row, -1 for a deleted one
TIME: Final = "_time"  # timestamp: event time; absent over derived tables
WATERMARK: Final = "_watermark"  # timestamp: greatest event time of earlier batches; absent over derived tables
DELIVERED: Final = "_delivered"  # struct, see lake.kinds.snapshots; over logs with rejected records, if a kind needs it
CARRIED: Final = (ORDER, SIGN, TIME, WATERMARK, DELIVERED)

# Column of `absorb`: true if the key must be evaluated again.
AGAIN: Final = "_again"


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return column names as a tuple, from one name or several. Raises DeclarationError for other values."""
    columns = (given,) if isinstance(given, str) else given
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise DeclarationError(f"expected names of columns, found {given!r}", fix='write "a" or ("a", "b")')
    return tuple(columns)


def as_sql(*names: str) -> tuple[str, ...]:
    """Quote column names as SQL."""
    return tuple(f"`{name}`" for name in names)


def check_not_returned(reserved: Iterable[str], rows: DataFrame, kind: str) -> None:
    """Raise DeclarationError if `rows` have one of the columns that the kind adds."""
    for column in reserved:
        if column in rows.columns:
            what = f"the function returns a column {column!r}, which {kind} itself adds"
            raise DeclarationError(what, fix="rename it")


def visible(columns: Iterable[str]) -> list[str]:
    """Return the columns that readers see."""
    return [column for column in columns if not column.startswith("_")]


def same(left: DataFrame, right: DataFrame, columns: Sequence[str]) -> Column:
    """Return a join condition: `columns` of both frames are equal, nulls included."""
    from pyspark.sql import functions as F

    condition = F.lit(True)
    for column in columns:
        condition = condition & left[column].eqNullSafe(right[column])
    return condition


def digest(rows: DataFrame, columns: Iterable[str]) -> str:
    """Return SQL for an identifier of the values of `columns`: 32 hexadecimal digits of the SHA-256 of an encoding.

    The encoding marks nulls and prefixes lengths, so no two lists of values share one. Nested values are written as
    text and as JSON: text does not distinguish ["a, b"] from ["a", "b"], and JSON has no microseconds.
    """
    types = dict(rows.dtypes)
    texts = [f"cast(`{column}` as string)" for column in columns]
    texts += [f"to_json(`{column}`)" for column in columns if types[column].startswith(("array<", "struct<", "map<"))]
    parts = (f"coalesce(concat(length({text}), ':', {text}), '-')" for text in texts)
    return f"left(sha2(concat({', '.join(parts)}), 256), 32)"
