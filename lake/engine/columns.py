"""Input columns that a table depends on, as Spark's plan shows them and its head records them.

A head records in `columns` {input: {"read": {column: type}, "unread": [column …]}}: the columns that the function got
when the table was built, and gets until the next build. New columns that it would read are `waiting` for `lake deploy`,
the others `ignored`. `handed_on` maps columns of the table to unchanged columns of the input: Spark keeps the metadata
of a column that is only selected or renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lake.kinds.columns import visible
from lake.lazy import DataFrame, F, SparkSession
from lake.project.declaration import Declaration
from lake.store.table_head import HANDED_ON, Columns
from lake.text import SPARK, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Given: TypeAlias = Mapping[str, frozenset[str]]
WAITING, IGNORED = "waiting", "ignored"
TAG: Final = "lake_input_column"
CUT_SHORT: Final = re.compile(r"\.\.\. \d+ more fields")
SCAN: Final = "FileScan json"
PLACE: Final = re.compile(r"\b_(\d+)_(\d+)#\d+")


@dataclass(frozen=True)
class Analysed:
    """`read`: columns read of each input. `columns` of the table: {column: type}.

    `handed_on`: {input: {column of the table: unchanged column of the input}}.
    """

    read: Given
    columns: Mapping[str, str]
    handed_on: Mapping[str, Mapping[str, str]]


def leaf_frame(spark: SparkSession, types: Mapping[str, str], side: int) -> DataFrame:
    """Return a frame without rows whose plan shows the columns that are read, tagged with `side`.

    It scans no files: Spark reads no column of a frame that it knows to be empty.
    """
    rows = without_files(spark, {f"_{side}_{number}": type_ for number, type_ in enumerate(types.values())})
    return tagged(rows.select(*[F.col(f"_{side}_{number}").alias(name) for number, name in enumerate(types)]), side)


def without_files(spark: SparkSession, types: Mapping[str, str]) -> DataFrame:
    """Return a frame without rows that Spark does not know to be empty."""
    schema = ", ".join(f"{quoted(name, SPARK)} {type_}" for name, type_ in types.items())
    return spark.read.schema(schema).format("json").load([])


def tagged(rows: DataFrame, side: int) -> DataFrame:
    tagged_columns = set(visible(rows.columns))
    return rows.select(
        *[F.col(c).alias(c, metadata={TAG: [str(side), c]}) if c in tagged_columns else F.col(c) for c in rows.columns]
    )


def tags(schema: StructType) -> dict[str, tuple[int, str]]:
    """Return the tagged columns: {column: (input number, its column)}; of a union those of its first part."""
    by_name = {field.name: field.metadata[TAG] for field in schema if TAG in field.metadata}
    return {name: (int(side), column) for name, (side, column) in by_name.items()}


def scanned_columns(plan: str, sides: Sequence[Sequence[str]]) -> list[frozenset[str]]:
    """Return the columns of each `leaf_frame` that a plan scans; all if the plan does not show them."""
    scans = [line for line in plan.splitlines() if SCAN in line]
    if not scans or any(CUT_SHORT.search(line) for line in scans):
        return [frozenset(names) for names in sides]
    places = {(int(side), int(number)) for line in scans for side, number in PLACE.findall(line)}
    return [
        frozenset(name for number, name in enumerate(names) if (side, number) in places)
        for side, names in enumerate(sides)
    ]


def given_columns(columns: Columns) -> Given:
    return {name: frozenset({*types["read"], *types["unread"]}) for name, types in columns.items()}


def lost_columns(columns: Columns, now: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield columns read by a table that are missing or changed `now`, {input: {column: type}}."""
    for name, types in now.items():
        for column, type_ in columns[name]["read"].items():
            if types.get(column) != type_:
                yield f"column {name}.{column}: {type_} → {types.get(column, 'none')}"


def withheld(declaration: Declaration, frames: Sequence[DataFrame], columns: Given) -> dict[str, list[str]]:
    return {
        source.name: [
            name for name in visible(frame.columns) if source.name in columns and name not in columns[source.name]
        ]
        for source, frame in zip(declaration.inputs, frames, strict=True)
    }


def drop_withheld(
    declaration: Declaration, frames: Sequence[DataFrame], held: Mapping[str, Sequence[str]]
) -> list[DataFrame]:
    return [
        frame.drop(*held[source.name]) if held[source.name] else frame
        for source, frame in zip(declaration.inputs, frames, strict=True)
    ]


def head_columns(inputs: Mapping[str, Mapping[str, str]], analysed: Analysed) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "read": {column: type_ for column, type_ in types.items() if column in analysed.read[name]},
            "unread": [column for column in types if column not in analysed.read[name]],
            HANDED_ON: dict(analysed.handed_on.get(name, {})),
        }
        for name, types in inputs.items()
    }
