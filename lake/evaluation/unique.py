"""One row of an identity: what every kind promises of a table, tried on rows before they are committed.

Two would be one to a MERGE: which of them stays would be chance, and no later change could name either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lake.declaration import Declaration
from lake.errors import LakeError
from lake.kinds.raised import causes, raised, raising
from lake.quoting import SPARK, quoted
from lake.store.small import connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TWICE: Final = "several rows of one identity: "


def check_unique(declaration: Declaration, rows: pa.Table) -> None:
    """Raises LakeError where two of `rows`, all that some keys of the table are to have, are of one identity."""
    identity = list(declaration.kind.identity)
    if rows.num_rows < 2:
        return
    names = ", ".join(map(quoted, identity))
    flat = not any(pa.types.is_nested(rows.schema.field(name).type) for name in identity)  # what Arrow groups by
    if flat and rows.select(identity).group_by(identity).aggregate([]).num_rows == rows.num_rows:
        return
    with connection() as con:
        con.register("rows", rows)
        query = f"SELECT {names} FROM rows GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1"
        if twice := con.sql(query).to_arrow_table().to_pylist():
            raise Twice(declaration, twice[0])


def unique(rows: DataFrame, identity: Sequence[str]) -> DataFrame:
    """`rows`, of which whatever reads them fails where two are of one identity: see `fault_of`."""
    from pyspark.sql import functions as F

    by = [quoted(name, SPARK) for name in identity]
    several = F.expr(f"count(*) over (partition by {', '.join(by)})")
    counted = rows.withColumn("_rows_of_identity", several)
    return counted.where(f"if(_rows_of_identity > 1, {raising(_TWICE, identity)}, true)").drop("_rows_of_identity")


class Twice(LakeError):
    """Several rows of one `identity`."""

    def __init__(self, declaration: Declaration, identity: Mapping[str, Any]) -> None:
        what = ", ".join(f"{name}={'null' if value is None else value}" for name, value in identity.items())
        super().__init__(
            f"{declaration.name}: several rows have the identity {what}: nothing was committed",
            where=declaration.where,
            fix="extend the kind's identity or id until it is unique, return only one of them, or void their events",
        )
        self.identity = identity


def fault_of(declaration: Declaration, error: Exception) -> Twice | None:
    """What to say where `error` is that of a frame that was to be `unique`."""
    if twice := next((cause for cause in causes(error) if isinstance(cause, Twice)), None):
        return twice
    told = raised(_TWICE, error)
    return Twice(declaration, told[1]) if told else None
