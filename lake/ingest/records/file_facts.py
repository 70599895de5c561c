"""Facts about a record as fields of it: its file's name, or a part of that, and its time; what its source says of it.

Those of a file are what the log's progress remembers of it, so that a record which comes back from quarantine, or a
batch that is made again, has the same ones. The name is without its folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from lake.contracts.contract import Contract
from lake.contracts.event_id import quoted
from lake.contracts.fields import Field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
FileOf = tuple[str, str, int | None]
"""A file: the last part of its `_file`, or all of it for a quarantined record; its name; its time in nanoseconds."""
NAME: Final = "_of"
LAST: Final = "url_decode(replace(substring_index(_file, '/', -1), '+', '%2B'))"
FILE: Final = f"if(startswith(_file, 'quarantine:'), _file, {LAST})"


def fields_of(contract: Contract) -> list[Field]:
    """The fields that are facts of files."""
    return [field for field in contract.fields if field.of_file]


SOURCE: Final = "_facts"
"""The column map<string,string> of records that came by a source which says something of each."""


def column(field: Field) -> str:
    """The column of records that has the text of such a field."""
    return quoted(_column(field))


def columns(contract: Contract) -> set[str]:
    """The names of the columns that `with_facts` adds to records."""
    return {_column(field) for field in contract.fields if field.is_fact}


def with_facts(spark: SparkSession, records: DataFrame, contract: Contract, files: Iterable[FileOf]) -> DataFrame:
    """`records` with the facts of their `files` and of their source, where the contract has any."""
    from pyspark.sql import functions as F

    from lake.store.scan import to_frame

    of_record = [field for field in contract.fields if field.is_fact and not field.of_file]
    of_source = F.col(SOURCE) if SOURCE in records.columns else F.lit(None).cast("map<string,string>")
    for field in of_record:
        records = records.withColumn(_column(field), of_source[".".join(field.path)])
    fields = fields_of(contract)
    if not fields:
        return records
    rows = [
        {NAME: last, **{_column(field): _text(field, name, mtime) for field in fields}} for last, name, mtime in files
    ]
    schema = pa.schema([(name, pa.string()) for name in (NAME, *map(_column, fields))])
    facts = F.broadcast(to_frame(spark, pa.Table.from_pylist(rows, schema)))
    return records.join(facts, F.expr(f"{FILE} = {NAME}"), "left").drop(NAME)


def _column(field: Field) -> str:
    return f"_fact_{field.name}"


def _text(field: Field, name: str, mtime: int | None) -> str | None:
    if field.path[-1] == "time":
        return None if mtime is None else _time(mtime)
    if not field.pattern:
        return name
    part = re.search(field.pattern, name)
    return part and part[part.re.groups]


def _time(nanoseconds: int) -> str | None:
    try:
        return (EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat()
    except OverflowError:
        return None
