"""Columns by which kinds and the engine communicate, the places that order rows, and helpers for columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lake.errors import DeclarationError
from lake.lazy import Column, DataFrame, F, T, Window
from lake.text import SPARK, quoted

# Columns that the engine adds to a function's input and reads from its output.
ORDER: Final = "_order"  # struct, totally ordered: (batch, arrival, bucket, offset) of an event, or a row's identity
SIGN: Final = "_sign"  # int: +1 for an added row, -1 for a deleted one
TIME: Final = "_time"  # timestamp: event time; absent over derived tables
WATERMARK: Final = "_watermark"  # timestamp: greatest event time of earlier batches; absent over derived tables
DELIVERED: Final = "_delivered"  # struct, see lake.kinds.snapshots; over logs with rejected records, if a kind needs it
CARRIED: Final = (ORDER, SIGN, TIME, WATERMARK, DELIVERED)

# Column of `absorb`: true if the key must be evaluated again.
AGAIN: Final = "_again"

AT: Final = "_at"  # state: the place of the row that gave a table's row
STORED_ORDER: Final = f"struct({ORDER}._batch, {ORDER}._arrival)"
FLOATS: Final = ("float", "double")


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple. Raises DeclarationError for other values."""
    columns = (given,) if isinstance(given, str) else given
    if not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns):
        raise DeclarationError(f"expected names of columns, found {given!r}", fix='write "a" or ("a", "b")')
    return tuple(columns)


def as_sql(*names: str) -> tuple[str, ...]:
    return tuple(f"`{name}`" for name in names)


def partition_by(columns: Iterable[str]) -> str:
    return f"partition by {', '.join(as_sql(*columns)) or 'null'}"


def check_not_returned(reserved: Iterable[str], rows: DataFrame, kind: str) -> None:
    for column in reserved:
        if column in rows.columns:
            what = f"the function returns a column {column!r}, which {kind} itself adds"
            raise DeclarationError(what, fix="rename it")


def visible(columns: Iterable[str]) -> list[str]:
    return [column for column in columns if not column.startswith("_")]


def same(left: DataFrame, right: DataFrame, columns: Sequence[str]) -> Column:
    """Return a join condition: `columns` of both frames are equal, nulls included."""
    condition = F.lit(True)
    for column in columns:
        condition = condition & left[column].eqNullSafe(right[column])
    return condition


def digest(rows: DataFrame, columns: Iterable[str]) -> str:
    """Return SQL of 32 hexadecimal digits of the SHA-256 of an encoding of the values of `columns`.

    The encoding marks nulls and prefixes lengths, so no two lists of values share one. Nested values are written as
    text and as JSON: text does not distinguish ["a, b"] from ["a", "b"], and JSON has no microseconds.
    """
    types = dict(rows.dtypes)
    texts = [f"cast(`{column}` as string)" for column in columns]
    texts += [f"to_json(`{column}`)" for column in columns if types[column].startswith(("array<", "struct<", "map<"))]
    parts = (f"coalesce(concat(length({text}), ':', {text}), '-')" for text in texts)
    return f"left(sha2(concat({', '.join(parts)}), 256), 32)"


def place(*sequence: str) -> str:
    """Return SQL of a row's place: a struct of `sequence` and log order; a null is older than any value."""
    return f"struct({', '.join(f'`{column}`' for column in (*sequence, ORDER))})"


def with_stored_order(rows: DataFrame) -> DataFrame:
    """Reduce the order of a log's rows to that of state, (batch, arrival), which is unique in its log."""
    is_log = "_arrival" in rows.select(f"{ORDER}.*").columns
    return rows.withColumn(ORDER, F.expr(STORED_ORDER)) if is_log else rows


def in_log_order(rows: DataFrame) -> bool:
    """Return whether `rows` come from a log, where later rows are newer."""
    return "_batch" in rows.select(f"{ORDER}.*").columns


def newest(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    order = Window.partitionBy(*key).orderBy(F.desc(ORDER))
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")


def with_one_zero(rows: DataFrame) -> DataFrame:
    """Replace -0.0 by 0.0, in nested values too; columns keep their metadata."""
    if not any(kind in type_ for _, type_ in rows.dtypes for kind in FLOATS):
        return rows
    columns = []
    for field in rows.schema:
        name = quoted(field.name, SPARK)
        value = one_zero(name, field.dataType)
        columns.append(F.col(name) if value == name else F.expr(value).alias(field.name, metadata=field.metadata))
    return rows.select(*columns)


def one_zero(value: str, type_: T.DataType, depth: int = 0) -> str:
    """Return SQL of `value` with one zero; unchanged without floats. Spark makes no map with a key -0.0."""
    item = f"v{depth}"
    if isinstance(type_, T.FloatType | T.DoubleType):
        return f"({value} + cast(0 as {type_.simpleString()}))"
    if isinstance(type_, T.ArrayType):
        inner = one_zero(item, type_.elementType, depth + 1)
        return value if inner == item else f"transform({value}, {item} -> {inner})"
    if isinstance(type_, T.MapType):
        inner = one_zero(item, type_.valueType, depth + 1)
        return value if inner == item else f"transform_values({value}, (k{depth}, {item}) -> {inner})"
    if isinstance(type_, T.StructType):
        parts = {part.name: f"{value}.{quoted(part.name, SPARK)}" for part in type_}
        inners = {part.name: one_zero(parts[part.name], part.dataType, depth) for part in type_}
        fields = ", ".join(f"{sql} as {quoted(name, SPARK)}" for name, sql in inners.items())
        return value if inners == parts else f"if({value} is null, null, struct({fields}))"
    return value
