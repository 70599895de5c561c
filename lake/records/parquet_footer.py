"""Sizes that the footer of a Parquet file declares, by https://github.com/apache/parquet-format, parquet.thrift.

pyarrow ends the process when it is asked for a column chunk whose metadata is damaged or encrypted. Here that is
an error like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final, TypeAlias

from lake.records.given import FileFault

Thrift: TypeAlias = "bool | int | bytes | list[Thrift] | dict[int, Thrift]"
Fields: TypeAlias = "dict[int, Thrift]"

END_BYTES: Final = 8
"""The length of the footer, and the magic bytes."""
ROW_GROUPS: Final = 4
CHUNKS, GROUP_BYTES, GROUP_ROWS = 1, 2, 3
CHUNK_METADATA, CHUNK_ENCRYPTION = 3, 8
VALUES, CHUNK_BYTES = 5, 6
BINARY, STRUCT = 8, 12
BOOLEANS, INTEGERS, LISTS = (1, 2), (4, 5, 6), (9, 10)
SIZES: Final = {1: 1, 2: 1, 3: 1, 7: 8}
"""Bytes of booleans in lists, of bytes and of doubles."""
LONG_LIST: Final = 15


@dataclass(frozen=True)
class Chunk:
    """A column of a row group: its values, and their bytes as they are encoded, unpacked."""

    values: int
    bytes: int


@dataclass(frozen=True)
class RowGroup:
    """A row group; `bytes` are those of all its chunks."""

    rows: int
    bytes: int
    chunks: tuple[Chunk, ...]


def row_groups(stream: BinaryIO) -> list[RowGroup]:
    """Return the row groups of the file in `stream`. Raises FileFault if a column is encrypted."""
    size = stream.seek(0, 2)
    stream.seek(size - END_BYTES)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(size - END_BYTES - length)
    footer, _ = _struct(stream.read(length), 0)
    return [_row_group(group) for group in _structs(footer[ROW_GROUPS])]


def _row_group(group: Fields) -> RowGroup:
    chunks = tuple(map(_chunk, _structs(group[CHUNKS])))
    return RowGroup(_integer(group[GROUP_ROWS]), _integer(group[GROUP_BYTES]), chunks)


def _chunk(chunk: Fields) -> Chunk:
    metadata = chunk.get(CHUNK_METADATA)
    if CHUNK_ENCRYPTION in chunk or not isinstance(metadata, dict):
        raise FileFault("its columns are encrypted")
    return Chunk(_integer(metadata[VALUES]), _integer(metadata[CHUNK_BYTES]))


def _integer(value: Thrift) -> int:
    if not isinstance(value, int) or value < 0:
        raise FileFault(f"a footer with {value!r} for a size")
    return value


def _structs(value: Thrift) -> list[Fields]:
    if not isinstance(value, list):
        raise FileFault(f"a footer with {value!r} for a list")
    return [part for part in value if isinstance(part, dict)]


def _struct(data: bytes, at: int) -> tuple[Fields, int]:
    """Return the fields by their numbers of the struct in `data` that begins `at`, and where it ends.

    Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
    """
    fields: Fields = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _signed(data, at)
        if head & 15 in BOOLEANS:
            fields[number] = head & 15 == 1
        else:
            fields[number], at = _value(data, at, head & 15)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Thrift, int]:
    if kind in INTEGERS:
        return _signed(data, at)
    if kind == STRUCT:
        return _struct(data, at)
    if kind in LISTS:
        return _list(data, at)
    if kind == BINARY:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    if kind in SIZES:
        return data[at : at + SIZES[kind]], at + SIZES[kind]
    raise FileFault(f"a footer with a value of the unknown kind {kind}")


def _list(data: bytes, at: int) -> tuple[Thrift, int]:
    head, at = data[at], at + 1
    size = head >> 4
    if size == LONG_LIST:
        size, at = _varint(data, at)
    parts: list[Thrift] = []
    for _ in range(size):
        part, at = _value(data, at, head & 15)
        parts.append(part)
    return parts, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
