"""What one file may cost, judged before Spark reads it: text by its bytes, Parquet by its metadata, Avro
by its blocks.

Whoever reads a file holds a line of it, a page, or a row group: these have a most. A small file may stand for a large
one (gzip, dictionaries, what repeats), so how many times its own size it may become has a most, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.store.storage.objects import Object

OVERSIZED: Final = "oversized: "
TOO_LONG: Final = "characters per column"
"""What Spark says of a column of CSV that is longer than a line may be, as one is whose quote is not closed."""
RECORDS_A_LINE: Final = 16
"""A longer line than so many of the longest record is not read; of shorter ones that are too long, the record goes."""
EXPANSION: Final = 100
"""How many times its size a file may be when it is unpacked."""
ROWS_A_BYTE: Final = 10
ROWS: Final = 1_000_000
"""Rows that Parquet may have, however small it is."""
ROW_GROUP: Final = 1 << 30
COLUMNS: Final = 5000
DEPTH: Final = 100
HEADER: Final = 1 << 20
CHUNK: Final = 1 << 20
Content = Path | Object
"""What is read of: a file of this machine, or an object."""
TEXTS: Final = frozenset({"NONE", "STRING", "ENUM", "JSON", "BSON"})


def line_bytes(record_bytes: int) -> int:
    """The most bytes of a line."""
    return RECORDS_A_LINE * record_bytes


def fault_of_text(stream: BinaryIO, *, size: int, record_bytes: int, whole: bool) -> str:
    """Why text is not to be read by Spark, "" where it may be. `size` is that of its file; all is read, in chunks.

    A `whole` text is one record.
    """
    most = line_bytes(record_bytes)
    taken = run = 0
    while chunk := stream.read(max(1, min(CHUNK, most // 2))):
        taken += len(chunk)
        ends = [] if whole else _ends(chunk)
        longest = run + (min(ends) if ends else len(chunk))
        run = len(chunk) - max(ends) - 1 if ends else longest
        if longest > most:
            return f"{OVERSIZED}{'one record' if whole else 'a line'} of more than {most:,} bytes"
        if taken > max(most, EXPANSION * size):
            return expands(size)
    return ""


def _ends(chunk: bytes) -> list[int]:
    """The first and the last ends of lines in a chunk, of either kind."""
    return [at for end in (b"\n", b"\r") for at in (chunk.find(end), chunk.rfind(end)) if at >= 0]


def fault_of_columns(count: int) -> str:
    """Why a file with `count` columns is not to be read, "" where it may be."""
    return f"{OVERSIZED}{count:,} columns, limit {COLUMNS:,}" if count > COLUMNS else ""


def parquet(path: Content) -> Path | BinaryIO:
    """A Parquet file as Arrow reads it."""
    return path if isinstance(path, Path) else path.open()


def fault_of_parquet(path: Content, *, record_bytes: int) -> str:
    """Why a Parquet file is not to be read by Spark, "" where it may be."""
    size, metadata = path.stat().st_size, pq.read_metadata(parquet(path))
    if fault := fault_of_columns(metadata.num_columns):
        return fault
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    if any(path.count(".") > DEPTH for path in paths):
        return f"{OVERSIZED}more than {DEPTH} levels of columns"
    values, unpacked = [0] * metadata.num_columns, 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        unpacked += group.total_byte_size
        if group.total_byte_size > ROW_GROUP:
            return f"{OVERSIZED}a row group of {group.total_byte_size:,} bytes, limit {ROW_GROUP:,}"
        for i in range(metadata.num_columns):
            values[i] += group.column(i).num_values
    rows = max(metadata.num_rows, *values, 0)
    if rows > max(ROWS, ROWS_A_BYTE * size):
        return f"{OVERSIZED}{rows:,} values in a column of a file of {size:,} bytes"
    most = max(line_bytes(record_bytes), EXPANSION * size)
    if unpacked > most:
        return expands(size)
    return _fault_of_texts(path, metadata, most=most, longest=line_bytes(record_bytes), size=size)


def _fault_of_texts(path: Content, metadata: pq.FileMetaData, *, most: int, longest: int, size: int) -> str:
    """A text that stands once in a dictionary may be meant a million times. What Arrow cannot read is for Spark."""
    columns = _texts(metadata, most, longest)
    if not columns:
        return ""
    taken = 0
    with suppress(pa.ArrowException, OSError):
        for batch in pq.ParquetFile(parquet(path), read_dictionary=columns).iter_batches(columns=columns):
            for text in (leaf for column in batch.columns for leaf in _leaves(column)):
                lengths = pc.binary_length(text.dictionary)
                if (pc.max(lengths).as_py() or 0) > longest:
                    return f"{OVERSIZED}a text of more than {longest:,} bytes"
                taken += pc.sum(lengths.cast(pa.int64()).take(text.indices)).as_py() or 0
                if taken > most:
                    return expands(size)
    return ""


def _texts(metadata: pq.FileMetaData, most: int, longest: int) -> list[str]:
    """The columns of texts that may become more than `most` bytes, as if each were all that is stored, or are long."""
    columns = []
    for i in range(metadata.num_columns):
        column = metadata.schema.column(i)
        if column.physical_type == "BYTE_ARRAY" and column.logical_type.type in TEXTS:
            chunks = [metadata.row_group(number).column(i) for number in range(metadata.num_row_groups)]
            stored = [chunk.total_uncompressed_size for chunk in chunks]
            meant = [chunk.num_values * chunk.total_uncompressed_size for chunk in chunks]
            if sum(meant) > most or max(stored, default=0) > longest:
                columns.append(column.path)
    return columns


def _leaves(array: pa.Array) -> Iterator[pa.DictionaryArray]:
    """The texts within an array, however deep."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield array
    elif pa.types.is_struct(kind):
        yield from (leaf for field in array.flatten() for leaf in _leaves(field))
    elif pa.types.is_map(kind):
        yield from (leaf for part in (array.keys, array.items) for leaf in _leaves(part))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(array.flatten())


def expands(size: int) -> str:
    """What to say of a file of `size` bytes that is much larger when it is unpacked."""
    return f"{OVERSIZED}unpacked, its {size:,} bytes are more than {EXPANSION} times as many"
