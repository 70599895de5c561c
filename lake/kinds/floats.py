"""One zero among floats: 0.0 for -0.0, which compares equal but has another text and another sign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

FLOATS: Final = ("float", "double")


def with_one_zero(rows: DataFrame) -> DataFrame:
    """Replace -0.0 by 0.0, in nested values too; columns keep their metadata."""
    from pyspark.sql import functions as F

    if not any(kind in type_ for _, type_ in rows.dtypes for kind in FLOATS):
        return rows
    columns = []
    for field in rows.schema:
        name = quoted(field.name, SPARK)
        value = one_zero(name, field.dataType)
        as_is = value == name
        columns.append(F.col(name) if as_is else F.expr(value).alias(field.name, metadata=field.metadata))
    return rows.select(*columns)


def one_zero(value: str, type_: DataType, depth: int = 0) -> str:
    """Return SQL of `value` with one zero; unchanged if its type has no floats. Spark makes no map with a key -0.0."""
    from pyspark.sql import types as T

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
