"""What differs between a table's rows and the rows it should have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lake.kinds.kind import same
from lake.store.commit import CHANGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare(rows: DataFrame, old: DataFrame, identity: Sequence[str]) -> DataFrame:
    """The rows to insert, update and delete so that `old` becomes `rows`: the columns of `rows`, and CHANGE.

    Both sides have the same columns and at most one row per `identity`. A deleted row shows its old values.
    """
    from pyspark.sql import functions as F

    new, there = rows.withColumn("_new", F.lit(True)), old.withColumn("_there", F.lit(True))
    joined = new.join(there, same(new, there, identity), "full_outer")
    differs = F.lit(False)
    for column in rows.columns:
        if column not in identity:
            differs = differs | ~new[column].eqNullSafe(there[column])
    gone = new["_new"].isNull()
    change = F.when(gone, "delete").when(there["_there"].isNull(), "insert").when(differs, "update")
    images = [F.when(gone, there[c]).otherwise(new[c]).alias(c) for c in rows.columns]
    return joined.select(*images, change.alias(CHANGE)).where(f"{CHANGE} is not null")
