"""Writer of Delta tables: one commit by delta-rs, which is read back after an error.

Over a network the response to a successful commit may be lost; a retry would find its number taken and blame another
writer, or append the rows twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from arro3.core import Table
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Schema, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from lake import cost
from lake.errors import LakeError, Unavailable
from lake.lazy import pa, pc
from lake.session.spark_session import first_line
from lake.store import truncated_commit
from lake.store.delta import Position, commits, exists, file_actions, new_writer, open_table
from lake.store.storage import Address
from lake.store.table_log import TableState, delta_table, metadata_of
from lake.store.table_logs import invalidate, table_log

Beaten = CommitFailedError
LOOKED_BACK: Final = 100
CHECKPOINT_EVERY: Final = 20
"""Commits between checkpoints: opening a table reads every commit since the last one, 0.4 ms each."""
STATISTICS, NO_STATISTICS = ColumnProperties(statistics_enabled="PAGE"), ColumnProperties(statistics_enabled="NONE")
FLOAT, NESTED = re.compile("float|double", re.IGNORECASE), re.compile("struct|list|array|map", re.IGNORECASE)
NEAR: Final = (datetime(1677, 9, 22, tzinfo=UTC), datetime(2262, 4, 11, tzinfo=UTC))
KEEP_LOGS: Final[Mapping[str, str | None]] = {
    "delta.checkpointInterval": f"{CHECKPOINT_EVERY}",
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
}
"""Old versions stay readable until `lake maintain` removes them."""


def create(path: Address, schema: Schema, properties: Mapping[str, str | None], **how: Any) -> None:
    how |= {"mode": "ignore", "configuration": {**KEEP_LOGS, **properties}}
    try:
        with table_log(path).target() as (url, options):
            DeltaTable.create(url, schema, storage_options=options, **how)
    except TableNotFoundError:  # Spark's checksums of lost commits are left
        log = path / "_delta_log"
        for entry in log.list():
            if entry.name.endswith(".crc"):
                (log / entry.name).delete()
        DeltaTable.create(path.url, schema, storage_options=path.storage.options, **how)
        invalidate(path)
    except Exception:
        if not exists(path):
            raise


def write(to: Address | DeltaTable, rows: pa.Table | Table, position: Position, **how: Any) -> None:
    """Write `rows` in one commit with `position`; the default of the options `how` is to append.

    The commit may exist although an error is raised: the caller reads back. Raises Beaten if a table at an address is
    not just before `position`.
    """
    how = {"mode": "append", "commit_properties": position.commit_properties, **how}
    how["writer_properties"] = _properties(rows.schema, rows.num_rows, rows.nbytes)
    if isinstance(to, DeltaTable):
        write_deltalake(to, rows, **how)
    else:
        _write(to, rows, how, position)


def _write(path: Address, rows: pa.Table | Table, how: dict[str, Any], position: Position | None = None) -> None:
    log = table_log(path)
    if log.newest() is None:
        with log.target() as (url, options):
            write_deltalake(url, rows, storage_options=options, **how)
    else:
        with log.committing(reads=False) as table:
            if position is not None:
                must_precede(table, position)
            write_deltalake(table, rows, **how)


def set_truncated_aside(path: Address) -> None:
    version = truncated_commit.truncated_version(path)
    if version is not None:
        # If the table's past was deleted up to that version, only its checkpoint holds the state.
        is_first = bool(
            version > 0 and truncated_commit.checkpoints(path, version) and open_table(path, version - 1) is None
        )
        truncated_commit.set_aside(path, version, empty=is_first)


def writer_properties(
    table: DeltaTable, compression: str = "SNAPPY", level: int | None = None
) -> WriterProperties | None:
    """Return the properties by which deltalake rewrites rows of `table`, None if its own are right.

    Row groups have at most ROW_GROUP bytes. Floats get no statistics: these would leave NaN out, and readers, Spark
    among them, skip files and row groups by them.
    """
    return _properties(table.schema(), *rows_and_bytes(table), compression, level)


def rows_and_bytes(table: TableState) -> tuple[int, int]:
    """Return rows and bytes of the files of `table` that have statistics."""
    files = file_actions(table).select(["num_records", "size_bytes"]).drop_null()
    rows, size = (pc.sum(column).as_py() or 0 for column in files.columns)
    return rows, size


def _properties(
    schema: Any, rows: int, size: int, compression: str = "SNAPPY", level: int | None = None
) -> WriterProperties | None:
    how = _statistics(schema)
    if size > cost.ROW_GROUP:
        how["max_row_group_size"] = max(1, cost.ROW_GROUP * rows // size)
        how["dictionary_page_size_limit"] = cost.DICTIONARY
    if not how:
        return None
    # Without a compression, it is off.
    return WriterProperties(compression=compression, compression_level=level, **how)  # type: ignore[arg-type]


def _statistics(schema: Any) -> dict[str, Any]:
    """Return properties that leave out the statistics of floats. Members cannot be named, only all but some columns.

    Types are compared as texts: `schema` is of pyarrow, arro3 or deltalake.
    """
    kinds = {field.name: str(field.type) for field in getattr(schema, "fields", schema)}
    floats = [name for name, kind in kinds.items() if FLOAT.search(kind)]
    if any(NESTED.search(kinds[name]) for name in floats):
        others = [name for name, kind in kinds.items() if name not in floats and not NESTED.search(kind)]
        return {"default_column_properties": NO_STATISTICS, "column_properties": dict.fromkeys(others, STATISTICS)}
    return {"column_properties": dict.fromkeys(floats, NO_STATISTICS)} if floats else {}


def add(path: Address, rows: pa.Table | Table, **how: Any) -> None:
    """Append `rows` in one commit without a position, in one attempt. Raises as `read_back` does."""
    writer = new_writer()
    how |= {"commit_properties": CommitProperties(custom_metadata=_anonymous(writer), max_commit_retries=0)}
    how |= {"mode": "append", "writer_properties": _properties(rows.schema, rows.num_rows, rows.nbytes)}
    with read_back(path, writer):
        _write(path, rows, how)


@contextmanager
def changing(
    path: Address, again: Position | None = None, *, goes_back: bool = False
) -> Iterator[tuple[DeltaTable, CommitProperties]]:
    """Yield the table and the properties for one commit that changes it and repeats the position `again`.

    Not for appends, see `add`. `goes_back` allows restoring an older version. Raises as `read_back` does.
    """
    writer = again.writer if again else new_writer()
    metadata = {"userMetadata": again.metadata} if again else _anonymous(writer)
    table_at = nullcontext(delta_table(path)) if goes_back else table_log(path).committing(reads=True)
    with read_back(path, writer), table_at as table:
        yield table, CommitProperties(custom_metadata=metadata)


def _anonymous(writer: str) -> dict[str, str]:
    return {"userMetadata": json.dumps({"writer": writer})}


@contextmanager
def read_back(path: Address, writer: str, refused: Callable[[Exception], LakeError] | None = None) -> Iterator[None]:
    """Run the block, which commits as `writer`. Ignore its error if the commit is in the log afterwards.

    Raises the error that `refused` returns, by default Unavailable, if it is not there because its number was taken.
    """
    try:
        yield
    except Exception as error:
        invalidate(path)
        if is_committed(path, writer):
            return
        if not isinstance(error, Beaten):
            raise
        taken = Unavailable(
            f"{path.name} took no commit: {first_line(error)}",
            where=str(path),
            fix="run the command again: it starts from the table's new state",
        )
        raise (refused(error) if refused else taken) from error
    if not table_log(path).knows(writer):
        invalidate(path)


def is_committed(path: Address, writer: str) -> bool:
    """Return whether a recent commit is by `writer`. Raises Unavailable if the newest commits cannot be read."""
    try:
        return any(metadata_of(commit).get("writer") == writer for commit in islice(commits(path), LOOKED_BACK))
    except Exception as error:
        raise Unavailable(
            f"{path.name}: whether a commit is there cannot be read: {first_line(error)}",
            where=str(path),
            fix="run the command again: it goes on from what is there",
        ) from error


def must_precede(table: TableState, position: Position) -> None:
    """Raise Beaten if the state `table` is not the one just before `position`."""
    at = table.transaction_version(position.app)
    if (at or 0) != position.txn - 1:
        raise Beaten(f"{position.app} is at transaction {at}; cannot commit {position.txn}")


def may_have_far_times(table: TableState) -> bool:
    """Return whether the statistics of its files fail to show that all times of `table` are within NEAR.

    Spark wrote INT96 until this project set another type. delta-rs reads it as 64-bit nanoseconds, so it alters what is
    before 1677 or after 2262; DuckDB and Spark read it right.
    """
    names = [*_times(pa.schema(table.schema()))]
    if not names:
        return False
    files = file_actions(table)
    return any(_is_far(files, name) for name in names)


def _times(fields: pa.Schema | pa.StructType, within: str = "") -> Iterator[str]:
    """Yield the dotted names of columns with instants. Lists and maps have no statistics; local times were no INT96."""
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _times(field.type, f"{within}{field.name}.")
        elif "tz=" in str(field.type):
            yield f"{within}{field.name}"


def _is_far(files: pa.Table, name: str) -> bool:
    columns = [f"{kind}.{name}" for kind in ("min", "max", "null_count")]
    if not {*columns} <= {*files.column_names}:
        return bool(files.num_rows)
    least, greatest, nulls = (files.column(column) for column in columns)
    has_values = pc.fill_null(pc.less(nulls, files.column("num_records")), True)
    is_near = pc.and_(*(pc.fill_null(test, False) for test in (pc.greater(least, NEAR[0]), pc.less(greatest, NEAR[1]))))
    return bool(pc.any(pc.and_(has_values, pc.invert(is_near))).as_py())
