"""What the order of a log decides in a project's tables: between which events, and whether its batches do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyspark.errors import PySparkException

from lake.declaration import Declaration
from lake.errors import LakeError
from lake.evaluation.inputs import Inputs
from lake.kinds.columns import ORDER
from lake.testing.slices import ALL, Groups, Place

BATCHED: Final = ("_batch", "_arrival", "_offset", "_source", "_watermark")
"""The columns of a log that tell how its events came."""


def goes_by_batches(inputs: Inputs, declaration: Declaration) -> bool:
    """Whether a table goes by how its events came in files and batches: without the columns that tell, it cannot be."""
    contracts = inputs.project.contracts
    logs = [source.name for source in declaration.inputs if source.is_log]
    if declaration.kind.needs_time and any(contracts[stream].horizon for stream in logs):
        return True  # which producers come together, and who is closed, decides what is final
    frames = []
    for source in declaration.inputs:
        if source.table is not None and goes_by_batches(inputs, source.table):
            return True
        rows = inputs.nothing(source)
        if source.table is None:
            by_place = contracts[source.name].identity == "position"
            left = rows.drop(*BATCHED, *(["_id"] if by_place else []))
            rows = inputs.spark.createDataFrame([], left.schema)  # a filter on what was dropped alone finds it below
        frames.append(rows)
    try:
        return not all(side.schema for side in inputs.sides(declaration, frames))
    except (LakeError, PySparkException):
        return True


def order_decides(inputs: Inputs, tables: Iterable[Declaration]) -> Mapping[str, Groups]:
    """Of each stream that `tables` read, the groups of its events: its order decides nothing but within them."""
    decided: dict[str, dict[Place, frozenset[int]]] = {}
    for declaration in tables:
        logs = [(side, source.name) for side, source in enumerate(declaration.inputs) if source.is_log]
        decided |= {stream: {} for _, stream in logs if stream not in decided}
        deciding = [(side, stream) for side, stream in logs if declaration.kind.ordered_within(side)]
        sides = inputs.sides(declaration, [inputs.whole(s) for s in declaration.inputs]) if deciding else ()
        for side, stream in deciding:
            groups = ", ".join(_groups(declaration, side))
            place = [f"{ORDER}.{column}" for column in ("_batch", "_bucket", "_offset")]
            for row in sides[side].selectExpr(*place, f"array({groups}) as groups").toArrow().to_pylist():
                at = row["_batch"], row["_bucket"], row["_offset"]
                decided[stream][at] = decided[stream].get(at, frozenset()).union(row["groups"])
    return decided


def _groups(declaration: Declaration, side: int) -> Iterator[str]:
    """SQL of the groups of a prepared row. Two of one number only keep an order that decides nothing."""
    kind = declaration.kind
    for number, alike in enumerate(kind.ordered_within(side)):
        values = ", ".join([f"'{declaration.name} {side} {number}'", *alike])
        mine = f"xxhash64({values})" if alike else f"{ALL}L"
        yield f"if(coalesce({kind.broadcast or 'false'}, false), {ALL}L, {mine})"
