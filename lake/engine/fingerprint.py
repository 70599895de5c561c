"""The order-free fingerprint of rows: equal for equal rows in any order, spread over any files.

It is the number of rows and the sum of their 64-bit hashes (xxHash64, as Spark has it); two halves of the hash are
added up apart, so that no sum overflows below 2^31 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from lake.quoting import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HALF: Final = 32


def fingerprints(*frames: DataFrame) -> list[str]:
    """The fingerprints of `frames`, which have the same columns in any order, found in one job."""
    columns = frames[0].columns
    sums = [_sums(frame, columns, number) for number, frame in enumerate(frames)]
    summed = {row["number"]: row for row in reduce(lambda a, b: a.union(b), sums).collect()}
    return [_text(summed[number].asDict()) for number in range(len(frames))]


def _sums(rows: DataFrame, columns: Sequence[str], number: int) -> DataFrame:
    return rows.selectExpr(f"{_hash(rows, columns)} as _hash").selectExpr(
        f"{number} as number",
        "count(*) as rows",
        f"coalesce(sum(shiftrightunsigned(_hash, {HALF})), 0) as high",
        f"coalesce(sum(_hash & {2**HALF - 1}), 0) as low",
    )


def _hash(rows: DataFrame, columns: Sequence[str]) -> str:
    """SQL of a row's hash. Spark's hash passes nulls over, so where they are is hashed too, and nested text."""
    types = dict(rows.dtypes)
    parts = []
    for column in sorted(columns):
        nested = types[column].startswith(("array", "struct", "map"))
        name = quoted(column, SPARK)
        texts = [f"cast({name} as string)", f"to_json({name})"]  # each tells apart what the other does not
        parts += [*(texts if nested else [name]), f"isnull({name})"]
    return f"xxhash64({', '.join(parts)})"


def _text(sums: dict[str, int]) -> str:
    total = (sums["high"] << HALF) + sums["low"]
    return f"{sums['rows']}-{total % 2**64:016x}"
