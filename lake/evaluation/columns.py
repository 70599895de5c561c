"""Which columns of its inputs a table depends on, as Spark's plan says it, and where that is kept.

A table's head says of each input, in `columns`: {input: {"read": {column: type}, "unread": [column …]}}, what its
function was given when it was built, and what of that decides its rows. Until it is built anew the function is given
just these columns, so that one that hands all of them on goes on making the table's columns, whatever comes to the
input. What came since, and looks of use to the function, is `waiting` for `lake deploy`; the rest is `ignored`.

`handed_on` says which of the table's columns are columns of the input: {column of the table: column of the input}.
Spark itself tells: a column's metadata go with it as long as it is only selected or renamed, alone or within a struct,
and are lost to any expression over it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lake.declaration import Declaration
from lake.kinds.columns import visible
from lake.quoting import SPARK, quoted
from lake.store.table_head import HANDED_ON, Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Given: TypeAlias = Mapping[str, frozenset[str]]
"""What a function is given of each input: {input: columns}."""

WAITING, IGNORED = "waiting", "ignored"
TAG: Final = "lake_input_column"
CUT_SHORT: Final = re.compile(r"\.\.\. \d+ more fields")
SCAN: Final = "FileScan json"
PLACE: Final = re.compile(r"\b_(\d+)_(\d+)#\d+")


@dataclass(frozen=True)
class Analysed:
    """What the plan of a declaration shows: what it reads of each input, the columns it makes, {column: type}, and
    which of these are columns of an input, {input: {column: column of the input}}.
    """

    read: Given
    columns: Mapping[str, str]
    handed_on: Mapping[str, Mapping[str, str]]


def leaf(spark: SparkSession, types: Mapping[str, str], side: int) -> DataFrame:
    """A frame without rows, with columns of these `types`, of which a plan shows the ones that are read.

    It is a scan of no files: of a frame that Spark knows to be empty, it reads no column. Its visible columns are
    tagged as those of input number `side`.
    """
    from pyspark.sql import functions as F

    rows = no_files(spark, {f"_{side}_{number}": type_ for number, type_ in enumerate(types.values())})
    return tagged(rows.select(*[F.col(f"_{side}_{number}").alias(name) for number, name in enumerate(types)]), side)


def no_files(spark: SparkSession, types: Mapping[str, str]) -> DataFrame:
    """A frame of these columns that has no rows, which Spark does not know as long as it only plans."""
    placed = ", ".join(f"{quoted(name, SPARK)} {type_}" for name, type_ in types.items())
    return spark.read.schema(placed).format("json").load([])


def tagged(rows: DataFrame, side: int) -> DataFrame:
    """`rows` of input number `side`, whose visible columns say which they are."""
    from pyspark.sql import functions as F

    shown = set(visible(rows.columns))
    return rows.select(
        *[F.col(c).alias(c, metadata={TAG: [str(side), c]}) if c in shown else F.col(c) for c in rows.columns]
    )


def tags(schema: StructType) -> dict[str, tuple[int, str]]:
    """Which columns of a frame of this `schema` are columns of tagged inputs: {column: (input number, its column)}.

    Of a union, the tags are those of its first part alone.
    """
    by_name = {field.name: field.metadata[TAG] for field in schema if TAG in field.metadata}
    return {name: (int(side), column) for name, (side, column) in by_name.items()}


def read_of(plan: str, sides: Sequence[Sequence[str]]) -> list[frozenset[str]]:
    """Which columns of its leaves a physical plan scans; `sides` are the names of each leaf's columns.

    All of them where the plan does not show it.
    """
    scans = [line for line in plan.splitlines() if SCAN in line]
    if not scans or any(CUT_SHORT.search(line) for line in scans):
        return [frozenset(names) for names in sides]
    places = {(int(side), int(number)) for line in scans for side, number in PLACE.findall(line)}
    return [
        frozenset(name for number, name in enumerate(names) if (side, number) in places)
        for side, names in enumerate(sides)
    ]


def given(columns: Columns) -> Given:
    """What a function was given when its table was built."""
    return {name: frozenset({*types["read"], *types["unread"]}) for name, types in columns.items()}


def lost(columns: Columns, now: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What a table reads of inputs, and is not `now` as it was: {input: {column: type}}."""
    for name, types in now.items():
        for column, type_ in columns[name]["read"].items():
            if types.get(column) != type_:
                yield f"column {name}.{column}: {type_} → {types.get(column, 'none')}"


def withheld(declaration: Declaration, frames: Sequence[DataFrame], columns: Given) -> dict[str, list[str]]:
    """What a function that is given `columns` is not given of `frames`: {input: columns}."""
    return {
        source.name: [
            name for name in visible(frame.columns) if source.name in columns and name not in columns[source.name]
        ]
        for source, frame in zip(declaration.inputs, frames, strict=True)
    }


def without(
    declaration: Declaration, frames: Sequence[DataFrame], held: Mapping[str, Sequence[str]]
) -> list[DataFrame]:
    """`frames` without the columns that are `held` back."""
    return [
        frame.drop(*held[source.name]) if held[source.name] else frame
        for source, frame in zip(declaration.inputs, frames, strict=True)
    ]


def recorded(given: Mapping[str, Mapping[str, str]], shown: Analysed) -> dict[str, dict[str, Any]]:
    """What a head says where a function is `given` these columns, {input: {column: type}}, and its plan shows this."""
    return {
        name: {
            "read": {column: type_ for column, type_ in types.items() if column in shown.read[name]},
            "unread": [column for column in types if column not in shown.read[name]],
            HANDED_ON: dict(shown.handed_on.get(name, {})),
        }
        for name, types in given.items()
    }
