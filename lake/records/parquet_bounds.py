"""Bounds of Parquet files: what one may cost is judged by its metadata, then by the lengths of its texts.

A small file may stand for a large one: a text that is stored once in a dictionary may be meant a million times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.records.given import FileFault
from lake.records.packed import EXPANSION, OVERSIZED, check_columns, expands, line_bytes
from lake.records.parquet_footer import Chunk, RowGroup

ROWS: Final = 1_000_000
"""Rows that a file may have, however small it is."""
ROWS_A_BYTE: Final = 10
ROW_GROUP: Final = 1 << 30


class Bounds:
    """Limits of one file of `size` bytes with records of at most `record_bytes`."""

    def __init__(self, size: int, record_bytes: int) -> None:
        self.size = size
        self.longest = line_bytes(record_bytes)
        self.most = max(self.longest, EXPANSION * size)
        self._unpacked = 0

    def check_footer(self, columns: Sequence[pq.ColumnSchema], groups: Sequence[RowGroup]) -> None:
        """Raise FileFault if a file of these costs too much to decode."""
        check_columns(len(columns))
        largest = max((group.bytes for group in groups), default=0)
        if largest > ROW_GROUP:
            raise FileFault(f"{OVERSIZED}a row group of {largest:,} bytes, limit {ROW_GROUP:,}")
        values = [sum(chunk.values for chunk in chunks) for chunks in _by_column(columns, groups)]
        rows = max(sum(group.rows for group in groups), *values, 0)
        if rows > max(ROWS, ROWS_A_BYTE * self.size):
            raise FileFault(f"{OVERSIZED}{rows:,} values in a column of a file of {self.size:,} bytes")
        lengths = [max(column.length or 0, 0) for column in columns]  # 0 unless values have a fixed one
        if max(lengths, default=0) > self.longest:
            raise FileFault(f"{OVERSIZED}a column of {max(lengths):,} bytes a value")
        fixed = sum(length * count for length, count in zip(lengths, values, strict=True))
        unpacked = sum(group.bytes for group in groups)
        if max(unpacked, fixed) > self.most:
            raise FileFault(expands(self.size))

    def dictionaries(self, columns: Sequence[pq.ColumnSchema], groups: Sequence[RowGroup]) -> list[str]:
        """Return the columns of texts or bytes that may be long, or unpack to too much."""
        paths = []
        for column, chunks in zip(columns, _by_column(columns, groups), strict=True):
            meant = sum(chunk.values * chunk.bytes for chunk in chunks)
            stored = max((chunk.bytes for chunk in chunks), default=0)
            if column.physical_type == "BYTE_ARRAY" and (meant > self.most or stored > self.longest):
                paths.append(column.path)
        return paths

    def check(self, piece: pa.RecordBatch) -> None:
        """Raise FileFault if a file costs too much that has `piece` besides those before it."""
        if piece.num_rows == 1 and sum(map(unpacked_bytes, piece.columns)) > self.longest:
            raise FileFault(f"{OVERSIZED}a record of more than {self.longest:,} bytes")
        self._unpacked += sum(_bytes(leaf) for column in piece.columns for leaf in leaves(column) if _is_shared(leaf))
        if self._unpacked > self.most:
            raise FileFault(expands(self.size))


def _by_column(columns: Sequence[pq.ColumnSchema], groups: Sequence[RowGroup]) -> list[list[Chunk]]:
    if any(len(group.chunks) != len(columns) for group in groups):
        raise FileFault(f"a row group without each of its {len(columns):,} columns")
    return [[group.chunks[i] for group in groups] for i in range(len(columns))]


def unpacked_bytes(array: pa.Array) -> int:
    """Return the bytes of an array if no value of it is shared."""
    return sum(map(_bytes, leaves(array)))


def _is_shared(leaf: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(leaf.type))


def _bytes(leaf: pa.Array) -> int:
    if not _is_shared(leaf):
        return int(leaf.nbytes)
    lengths = pc.binary_length(leaf.dictionary).cast(pa.int64())
    return pc.sum(lengths.take(leaf.indices)).as_py() or 0


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of values in an array, however deep, without those that no record has."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from leaves(array.storage)
    elif pa.types.is_struct(kind):
        yield from (leaf for part in array.flatten() for leaf in leaves(part))
    elif pa.types.is_map(kind):
        yield from leaves(as_pairs(array))
    elif is_list(kind):
        yield from leaves(array.flatten())
    else:
        yield array


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of `kind` are lists."""
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    views = (pa.types.is_list_view, pa.types.is_large_list_view)
    return any(test(kind) for test in (*tests, *views))


def as_pairs(maps: pa.MapArray) -> pa.ListArray:
    """Return maps as lists of structs of a key and an item."""
    return maps.cast(pa.list_(pa.struct([maps.type.key_field, maps.type.item_field])))
