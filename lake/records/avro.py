"""Reader of Avro container files (https://avro.apache.org/docs/1.12.0/specification/, "Object Container Files")."""

from __future__ import annotations

import bz2
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final, TypeAlias

import avro.schema

from lake.contracts.avro_text import parse
from lake.lazy import pa
from lake.records.avro_values import LONG_BYTES, decoder, has_no_bytes, is_endless, map_of, parts, read_bytes, read_long
from lake.records.decompression import EXPANSION, OVERSIZED, check_columns, expansion_fault, line_bytes
from lake.records.raw_values import ABSENT, ColumnRecords, FileFault, RawValue, first_line, is_caused_by_content

BLOCK_BYTES: Final = 200 << 20
CHECKSUM_BYTES: Final = 4
MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
HEADER_BYTES: Final = 4 << 20
BATCH_RECORDS: Final = 10_000
BATCH_BYTES: Final = 8 << 20
BATCH_VALUES: Final = 1_000_000

Unpack: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True)
class _Container:
    stream: BinaryIO
    schema: avro.schema.RecordSchema
    unpack: Unpack
    sync: bytes
    begin: int

    def blocks(self, record_bytes: int) -> Iterator[tuple[int, bytes]]:
        file_bytes = self.stream.seek(0, 2)
        budget = max(line_bytes(record_bytes), EXPANSION * file_bytes)
        self.stream.seek(self.begin)
        while head := self.stream.read(2 * LONG_BYTES):
            count, at = read_long(head, 0)
            size, at = read_long(head, at)
            if count < 0 or not 0 <= size <= BLOCK_BYTES:
                raise ValueError(f"a block of {count} records in {size} bytes")
            self.stream.seek(at - len(head), 1)
            data = self.stream.read(size)
            if len(data) < size:
                raise ValueError(f"a block of {size} bytes ends after {len(data)}")
            if self.stream.read(SYNC_BYTES) != self.sync:
                raise ValueError("a block does not end with the file's marker")
            records = self.unpack(data)
            budget -= len(records)
            if budget < 0:
                raise FileFault(expansion_fault(file_bytes))
            yield count, records


def read(stream: BinaryIO, *, record_bytes: int) -> Iterator[ColumnRecords]:
    """Yield the records of a container file; one part with all columns if there are none.

    If a block is damaged, the last record is broken. Raises FileFault for an invalid header, and for blocks that
    decompress to too many bytes.
    """
    stream.seek(0)
    try:
        container = _container(stream)
    except FileFault:
        raise
    except Exception as error:  # of any kind, for an invalid header
        if not is_caused_by_content(error):
            raise
        raise FileFault(f"not an Avro container file that can be read: {_reason(error)}") from error
    yield from _RecordDecoder(container.schema).decode(container.blocks(record_bytes))


class _RecordDecoder:
    def __init__(self, schema: avro.schema.RecordSchema) -> None:
        self._names = [field.name for field in schema.fields]
        self._decoders = [decoder(field.type) for field in schema.fields]
        self._batch_records = max(1, min(BATCH_RECORDS, BATCH_VALUES // len(self._names)))
        self._rows: list[list[RawValue]] = []
        self._yielded = 0

    def decode(self, blocks: Iterator[tuple[int, bytes]]) -> Iterator[ColumnRecords]:
        try:
            for count, data in blocks:
                yield from self._decode_block(count, data)
        except FileFault:
            raise
        except Exception as error:  # of any kind, for damaged records
            if not is_caused_by_content(error):
                raise
            detail = f"cannot be read after record {self._yielded + len(self._rows)}: {_reason(error)}"
            index = len(self._rows)
            self._rows.append([ABSENT] * len(self._names))
            yield self._next_batch({index: (detail, detail)})
        else:
            if self._rows or not self._yielded:
                yield self._next_batch({})

    def _decode_block(self, count: int, data: bytes) -> Iterator[ColumnRecords]:
        at = begin = 0
        for _ in range(count):
            row = []
            for decode in self._decoders:
                value, at = decode(data, at)
                row.append(value)
            self._rows.append(row)
            if len(self._rows) >= self._batch_records or at - begin > BATCH_BYTES:
                yield self._next_batch({})
                begin = at
        if at != len(data):
            raise ValueError(f"a block has {len(data) - at} bytes more than its {count} records")

    def _next_batch(self, broken: Mapping[int, tuple[str, str]]) -> ColumnRecords:
        rows, self._rows = self._rows, []
        first, self._yielded = self._yielded + 1, self._yielded + len(rows)
        columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in self._names)
        return ColumnRecords(range(first, self._yielded + 1), dict(zip(self._names, columns, strict=True)), broken)


def _container(stream: BinaryIO) -> _Container:
    head = stream.read(HEADER_BYTES)
    if not head.startswith(MAGIC):
        raise ValueError("it does not begin as one")
    metadata, end = map_of(read_bytes, head, len(MAGIC))
    schema = parse(json.loads(_text(metadata["avro.schema"])), validate_names=False)
    codec = _text(metadata.get("avro.codec") or b"null")
    if codec not in UNPACK:
        raise ValueError(f"its codec {codec!r} is none of {', '.join(UNPACK)}")
    if not isinstance(schema, avro.schema.RecordSchema):
        raise FileFault(f"an Avro file of {schema.type} values: records are read")
    check_columns(_count_columns(schema, {}))
    if has_no_bytes(schema) or is_endless(schema):
        raise FileFault("an Avro file with records or arrays of values without a size")
    begin = end + SYNC_BYTES
    if len(head) < begin:
        raise ValueError("it ends within its header")
    return _Container(stream, schema, UNPACK[codec], head[end:begin], begin)


def _text(value: object) -> str:
    if not isinstance(value, bytes):
        raise ValueError("it has no schema")
    return value.decode()


def _count_columns(schema: avro.schema.Schema, counts: dict[int, int]) -> int:
    if id(schema) not in counts:
        counts[id(schema)] = 1
        counts[id(schema)] = 1 + sum(_count_columns(part, counts) for part in parts(schema))
    return counts[id(schema)]


def _reason(error: Exception) -> str:
    if isinstance(error, IndexError | struct.error):
        return "the bytes end within a value"
    return first_line(error)


def _snappy(data: bytes) -> bytes:
    packed, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    size = shift = 0
    for byte in packed[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > BLOCK_BYTES:
        raise _oversized_block()
    unpacked: bytes = pa.decompress(packed, size, "snappy", asbytes=True)
    if zlib.crc32(unpacked) != int.from_bytes(checksum, "big"):
        raise ValueError("a block is not what its checksum says")
    return unpacked


def _bounded(data: bytes) -> bytes:
    if len(data) > BLOCK_BYTES:
        raise _oversized_block()
    return data


def _oversized_block() -> FileFault:
    return FileFault(f"{OVERSIZED}a block unpacks to more than {BLOCK_BYTES:,} bytes")


UNPACK: Final[Mapping[str, Unpack]] = {
    "null": lambda data: data,
    "deflate": lambda data: _bounded(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, BLOCK_BYTES + 1)),
    "snappy": _snappy,
    "zstandard": lambda data: _bounded(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read(BLOCK_BYTES + 1)),
    "bzip2": lambda data: _bounded(bz2.BZ2Decompressor().decompress(data, BLOCK_BYTES + 1)),
    "xz": lambda data: _bounded(lzma.LZMADecompressor().decompress(data, BLOCK_BYTES + 1)),
}
