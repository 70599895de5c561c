"""Reader of Parquet files as columns of records.

Its cost is checked by metadata, then by lengths of texts: a small file may expand a lot, since a text stored once in a
dictionary may occur a million times.

Sizes are decoded from the footer (https://github.com/apache/parquet-format, parquet.thrift): pyarrow crashes the
process if it is asked for a column chunk with damaged or encrypted metadata.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, Final

from lake.lazy import pa, pc, pq
from lake.records.decompression import EXPANSION, OVERSIZED, check_columns, expansion_fault, line_bytes
from lake.records.parquet_values import converter, leaves
from lake.records.raw_values import ColumnRecords, FileFault

BATCH_RECORDS: Final = 10_000
BATCH_BYTES: Final = 8 << 20
MOST_ROWS: Final = 1_000_000
ROWS_PER_BYTE: Final = 10
ROW_GROUP_BYTES: Final = 1 << 30

END_BYTES: Final = 8
ROW_GROUPS: Final = 4
CHUNKS, GROUP_BYTES, GROUP_ROWS = 1, 2, 3
CHUNK_METADATA, CHUNK_ENCRYPTION = 3, 8
VALUES, CHUNK_BYTES = 5, 6


def read(stream: BinaryIO, name: str, *, declared: Collection[str] = (), record_bytes: int) -> Iterator[ColumnRecords]:
    """Yield the records of the Parquet file `name`; one part with all columns if there are none.

    Raises the library's error if it is damaged, FileFault if it expands too much or has one of `declared` twice.
    """
    limits = ParquetLimits(stream.seek(0, 2), record_bytes)
    stream.seek(0)
    schema = pq.read_metadata(stream).schema
    columns = [schema.column(i) for i in range(len(schema))]
    groups = row_groups(stream)
    limits.check_footer(columns, groups)
    stream.seek(0)
    file = pq.ParquetFile(
        stream,
        read_dictionary=limits.dictionaries(columns, groups),
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
    for batch in file.iter_batches(batch_size=_batch_records(groups)):
        for piece in _pieces(batch):
            limits.check_batch(piece)
            values = [convert(column) for convert, column in zip(converters, piece.columns, strict=True)]
            yield ColumnRecords(range(first, first + piece.num_rows), dict(zip(names, values, strict=True)))
            first += piece.num_rows
    if first == 1:
        yield ColumnRecords((), {name: [] for name in names})


def _batch_records(groups: Sequence[RowGroup]) -> int:
    record_bytes = max((group.bytes // max(group.rows, 1) for group in groups), default=0)
    return max(1, min(BATCH_RECORDS, BATCH_BYTES // max(record_bytes, 1)))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    half = batch.num_rows // 2
    if half and sum(map(unpacked_bytes, batch.columns)) > BATCH_BYTES:
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))
    else:
        yield batch


def _names(columns: Sequence[str], declared: Collection[str]) -> list[str]:
    names: dict[str, None] = {}
    for number, column in enumerate(columns, 1):
        name = f"{column}_{number}" if column in names else column
        if name != column and (column in declared or name in columns or name in declared):
            raise FileFault(f"two columns of one name: {column}")
        names[name] = None
    return [*names]


class ParquetLimits:
    """Limits of a file of `size` bytes with records of at most `record_bytes`.

    `check_batch` adds up the decoded texts of all batches. `dictionaries` are columns that may be too large decoded.
    """

    def __init__(self, size: int, record_bytes: int) -> None:
        self.size = size
        self.record_limit = line_bytes(record_bytes)
        self.file_limit = max(self.record_limit, EXPANSION * size)
        self._dictionary_bytes = 0

    def check_footer(self, columns: Sequence[pq.ColumnSchema], groups: Sequence[RowGroup]) -> None:
        check_columns(len(columns))
        largest = max((group.bytes for group in groups), default=0)
        if largest > ROW_GROUP_BYTES:
            raise FileFault(f"{OVERSIZED}a row group of {largest:,} bytes, limit {ROW_GROUP_BYTES:,}")
        values = [sum(chunk.values for chunk in chunks) for chunks in _by_column(columns, groups)]
        rows = max(sum(group.rows for group in groups), *values, 0)
        if rows > max(MOST_ROWS, ROWS_PER_BYTE * self.size):
            raise FileFault(f"{OVERSIZED}{rows:,} values in a column of a file of {self.size:,} bytes")
        lengths = [max(column.length or 0, 0) for column in columns]  # 0 for variable lengths
        if max(lengths, default=0) > self.record_limit:
            raise FileFault(f"{OVERSIZED}a column of {max(lengths):,} bytes a value")
        fixed = sum(length * count for length, count in zip(lengths, values, strict=True))
        unpacked = sum(group.bytes for group in groups)
        if max(unpacked, fixed) > self.file_limit:
            raise FileFault(expansion_fault(self.size))

    def dictionaries(self, columns: Sequence[pq.ColumnSchema], groups: Sequence[RowGroup]) -> list[str]:
        paths = []
        for column, chunks in zip(columns, _by_column(columns, groups), strict=True):
            decoded = sum(chunk.values * chunk.bytes for chunk in chunks)
            stored = max((chunk.bytes for chunk in chunks), default=0)
            if column.physical_type == "BYTE_ARRAY" and (decoded > self.file_limit or stored > self.record_limit):
                paths.append(column.path)
        return paths

    def check_batch(self, piece: pa.RecordBatch) -> None:
        if piece.num_rows == 1 and sum(map(unpacked_bytes, piece.columns)) > self.record_limit:
            raise FileFault(f"{OVERSIZED}a record of more than {self.record_limit:,} bytes")
        self._dictionary_bytes += sum(
            _bytes(leaf) for column in piece.columns for leaf in leaves(column) if pa.types.is_dictionary(leaf.type)
        )
        if self._dictionary_bytes > self.file_limit:
            raise FileFault(expansion_fault(self.size))


def _by_column(columns: Sequence[pq.ColumnSchema], groups: Sequence[RowGroup]) -> list[list[Chunk]]:
    if any(len(group.chunks) != len(columns) for group in groups):
        raise FileFault(f"a row group without each of its {len(columns):,} columns")
    return [[group.chunks[i] for group in groups] for i in range(len(columns))]


def unpacked_bytes(array: pa.Array) -> int:
    return sum(map(_bytes, leaves(array)))


def _bytes(leaf: pa.Array) -> int:
    if not pa.types.is_dictionary(leaf.type):
        return int(leaf.nbytes)
    lengths = pc.binary_length(leaf.dictionary).cast(pa.int64())
    return pc.sum(lengths.take(leaf.indices)).as_py() or 0


@dataclass(frozen=True)
class Chunk:
    values: int
    bytes: int


@dataclass(frozen=True)
class RowGroup:
    rows: int
    bytes: int
    chunks: tuple[Chunk, ...]


def row_groups(stream: BinaryIO) -> list[RowGroup]:
    """Return the row groups of a file whose footer the library can read. Raises FileFault if a column is encrypted."""
    size = stream.seek(0, 2)
    stream.seek(size - END_BYTES)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(size - END_BYTES - length)
    footer = _CompactProtocol(stream.read(length)).struct()
    return [_row_group(group) for group in footer[ROW_GROUPS]]


def _row_group(group: dict[int, Any]) -> RowGroup:
    return RowGroup(_size(group[GROUP_ROWS]), _size(group[GROUP_BYTES]), tuple(map(_chunk, group[CHUNKS])))


def _chunk(chunk: dict[int, Any]) -> Chunk:
    metadata = chunk.get(CHUNK_METADATA)
    if CHUNK_ENCRYPTION in chunk or not isinstance(metadata, dict):
        raise FileFault("its columns are encrypted")
    return Chunk(_size(metadata[VALUES]), _size(metadata[CHUNK_BYTES]))


def _size(value: int) -> int:
    if value < 0:
        raise FileFault(f"a footer with {value} for a size")
    return value


class _CompactProtocol:
    """Decoder of https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            is_boolean = head & 15 in {1, 2}
            fields[number] = head & 15 == 1 if is_boolean else self._value(head & 15)
        return fields

    def _value(self, kind: int) -> Any:
        match kind:
            case 1 | 2 | 3:  # a byte, or a boolean in a list
                return self._bytes(1)
            case 4 | 5 | 6:
                return self._signed()
            case 7:  # a double
                return self._bytes(8)
            case 8:
                return self._bytes(self._varint())
            case 9 | 10:
                head = self._byte()
                size = self._varint() if head >> 4 == 15 else head >> 4
                return [self._value(head & 15) for _ in range(size)]
            case 12:
                return self.struct()
        raise FileFault(f"a footer with a value of the unknown kind {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def _signed(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) > 127:
            number |= (byte & 127) << shift
            shift += 7
        return number | byte << shift
