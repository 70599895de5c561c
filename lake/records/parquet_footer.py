"""Sizes in the footer of a Parquet file, by https://github.com/apache/parquet-format, parquet.thrift.

pyarrow crashes the process if it is asked for a column chunk with damaged or encrypted metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Final, TypeAlias

from lake.records.raw_values import FileFault

Thrift: TypeAlias = "bool | int | bytes | list[Thrift] | dict[int, Thrift]"
Fields: TypeAlias = "dict[int, Thrift]"

END_BYTES: Final = 8
ROW_GROUPS: Final = 4
CHUNKS, GROUP_BYTES, GROUP_ROWS = 1, 2, 3
CHUNK_METADATA, CHUNK_ENCRYPTION = 3, 8
VALUES, CHUNK_BYTES = 5, 6


@dataclass(frozen=True)
class Chunk:
    """Column chunk: number of values, and their encoded, decompressed bytes."""

    values: int
    bytes: int


@dataclass(frozen=True)
class RowGroup:
    """Row group; `bytes` is the sum of its chunks."""

    rows: int
    bytes: int
    chunks: tuple[Chunk, ...]


def row_groups(stream: BinaryIO) -> list[RowGroup]:
    """Return the row groups of a file. Raises FileFault if a column is encrypted."""
    size = stream.seek(0, 2)
    stream.seek(size - END_BYTES)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(size - END_BYTES - length)
    footer = _CompactProtocol(stream.read(length)).struct()
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


class _CompactProtocol:
    """Decoder of https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> Fields:
        fields: Fields = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            is_boolean = head & 15 in {1, 2}
            fields[number] = head & 15 == 1 if is_boolean else self._value(head & 15)
        return fields

    def _value(self, kind: int) -> Thrift:
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
