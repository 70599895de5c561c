"""Parquet files as columns of records (see `parquet_values` for what is given for each type)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lake.records.given import FileFault, Rows
from lake.records.parquet_bounds import Bounds, unpacked_bytes
from lake.records.parquet_footer import RowGroup, row_groups
from lake.records.parquet_values import converter

AT_ONCE: Final = 10_000
BYTES_AT_ONCE: Final = 8 << 20


def read(stream: BinaryIO, name: str, *, declared: Collection[str] = (), record_bytes: int) -> Iterator[Rows]:
    """Yield the records of the Parquet file `name`, all its columns, even if there are no records.

    Raises the library's error if the file is damaged, FileFault if it is too large when it is unpacked, or has one of
    `declared` twice.
    """
    bounds = Bounds(stream.seek(0, 2), record_bytes)
    stream.seek(0)
    schema = pq.read_metadata(stream).schema
    columns = [schema.column(i) for i in range(len(schema))]
    groups = row_groups(stream)
    bounds.check_footer(columns, groups)
    stream.seek(0)
    file = pq.ParquetFile(
        stream,
        read_dictionary=bounds.dictionaries(columns, groups),
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
        pre_buffer=False,
    )

    @cache
    def warn(path: str) -> None:
        message = "%s: the column %s has nanoseconds: its times are cut to microseconds"
        logging.getLogger("lake").warning(message, name, path)

    names, stored, first = _names(file.schema_arrow.names, declared), iter(columns), 1
    converters = [converter(column.type, stored, warn) for column in file.schema_arrow]
    for batch in file.iter_batches(batch_size=_rows_at_once(groups)):
        for piece in _pieces(batch):
            bounds.check(piece)
            values = [convert(column) for convert, column in zip(converters, piece.columns, strict=True)]
            yield Rows(range(first, first + piece.num_rows), dict(zip(names, values, strict=True)))
            first += piece.num_rows
    if first == 1:
        yield Rows((), {name: [] for name in names})


def _rows_at_once(groups: Sequence[RowGroup]) -> int:
    """Return how many rows are BYTES_AT_ONCE by the largest mean of a row group, AT_ONCE at most."""
    most = max((group.bytes // max(group.rows, 1) for group in groups), default=0)
    return max(1, min(AT_ONCE, BYTES_AT_ONCE // max(most, 1)))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide `batch` until a piece is a row, or has BYTES_AT_ONCE at most without its dictionaries."""
    half = batch.num_rows // 2
    if half and sum(map(unpacked_bytes, batch.columns)) > BYTES_AT_ONCE:
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))
    else:
        yield batch


def _names(columns: Sequence[str], declared: Collection[str]) -> list[str]:
    """Return the names of columns; of one that is there again, with its number behind it.

    Raises FileFault if it is one of `declared`, or the number makes it one or the name of another.
    """
    names: dict[str, None] = {}
    for number, column in enumerate(columns, 1):
        name = f"{column}_{number}" if column in names else column
        if name != column and (column in declared or name in columns or name in declared):
            raise FileFault(f"two columns of one name: {column}")
        names[name] = None
    return [*names]
