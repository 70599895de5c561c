"""Parquet files as columns of records (see `parquet_values` for what is given for each type)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lake.records.given import FileFault, Rows
from lake.records.parquet_bounds import Bounds, unpacked_bytes
from lake.records.parquet_footer import RowGroup, row_groups
from lake.records.parquet_values import Convert, converter

AT_ONCE: Final = 10_000
BYTES_AT_ONCE: Final = 8 << 20


def read(stream: BinaryIO, name: str, *, declared: Collection[str] = (), record_bytes: int) -> Iterator[Rows]:
    """Yield the records of the Parquet file `name`, all its columns, even if there are no records.

    The file is decoded before the first is yielded: if it is damaged, the library's error is raised and no record is
    taken. Raises FileFault if it is too large when it is unpacked, or has one of `declared` twice.
    """
    yield from _ParquetFile(stream, name, declared, record_bytes).rows()


class _ParquetFile:
    def __init__(self, stream: BinaryIO, name: str, declared: Collection[str], record_bytes: int) -> None:
        self._name = name
        bounds = Bounds(stream.seek(0, 2), record_bytes)
        stream.seek(0)
        schema = pq.read_metadata(stream).schema
        self._columns = [schema.column(i) for i in range(len(schema))]
        groups = row_groups(stream)
        _check(bounds.fault_of_footer(self._columns, groups))
        stream.seek(0)
        self._file = pq.ParquetFile(
            stream,
            read_dictionary=bounds.dictionaries(self._columns, groups),
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
            pre_buffer=False,
        )
        self._at_once = _rows_at_once(groups)
        self._names = _names(self._file.schema_arrow.names, declared)
        for piece in self._pieces():
            _check(bounds.fault_of(piece))
        self._cut = set[str]()

    def rows(self) -> Iterator[Rows]:
        """Yield its records."""
        stored = iter(self._columns)
        converters = [converter(column.type, stored, self._warn) for column in self._file.schema_arrow]
        number = 0
        for piece in self._pieces():
            yield self._rows(piece, converters, number + 1)
            number += piece.num_rows
        if not number:
            yield Rows((), {name: [] for name in self._names})

    def _rows(self, piece: pa.RecordBatch, converters: Sequence[Convert], first: int) -> Rows:
        columns = [convert(column) for convert, column in zip(converters, piece.columns, strict=True)]
        return Rows(range(first, first + piece.num_rows), dict(zip(self._names, columns, strict=True)))

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        for batch in self._file.iter_batches(batch_size=self._at_once):
            yield from _pieces(batch)

    def _warn(self, path: str) -> None:
        if path not in self._cut:
            self._cut.add(path)
            logging.getLogger("lake").warning(
                "%s: the column %s has nanoseconds: its times are cut to microseconds", self._name, path
            )


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


def _check(fault: str) -> None:
    if fault:
        raise FileFault(fault)
