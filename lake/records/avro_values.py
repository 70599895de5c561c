"""Decoder of Avro's binary encoding to raw values (https://avro.apache.org/docs/1.12.0/specification/, "Binary
encoding" and "Logical types").

Connect's names of Debezium times ("connect.name") count as logical types. A string that is not UTF-8 becomes NotText,
and a date outside the years 1 to 9999 OutsideCalendar. No field accepts these, so only their record is rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC
from decimal import Context, Decimal
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from avro.schema import ArraySchema, EnumSchema, FixedSchema, MapSchema, RecordSchema, Schema, UnionSchema

from lake.records import times
from lake.records.json_value import uuid_text
from lake.records.raw_values import RawValue

Decode: TypeAlias = Callable[[bytes, int], tuple[RawValue, int]]

UUID_BYTES: Final = 16
UNSCALED_BYTES: Final = 64  # of a decimal; 38 digits need 16
LONG_BITS: Final = 64
LONG_BYTES: Final = 10
DIGITS: Final = Context(prec=1000)
UNITS: Final = ("millis", "micros", "nanos")
TIME_CONVERTERS: Final[dict[str, Callable[..., RawValue]]] = {
    "timestamp": partial(times.time_from_count, zone=UTC),
    "local-timestamp": partial(times.time_from_count, zone=None),
    "time": times.time_of_day_from_count,
}
LOGICAL_TYPES_OF_CONNECT: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
}


class NotText(bytes):
    """Bytes of a string that is not UTF-8."""


def parts(schema: Schema) -> list[Schema]:
    match schema:
        case ArraySchema():
            return [schema.items]
        case MapSchema():
            return [schema.values]
        case RecordSchema():
            return [field.type for field in schema.fields]
        case UnionSchema():
            return list(schema.schemas)
    return []


def is_endless(schema: Schema, visited: set[int] | None = None) -> bool:
    """Return whether an array in it may have any number of items in no bytes."""
    visited = set() if visited is None else visited
    if id(schema) in visited:
        return False
    visited.add(id(schema))
    has_empty_items = isinstance(schema, ArraySchema) and has_no_bytes(schema.items)
    return has_empty_items or any(is_endless(part, visited) for part in parts(schema))


def has_no_bytes(schema: Schema) -> bool:
    if isinstance(schema, RecordSchema):
        return all(has_no_bytes(field.type) for field in schema.fields)
    return schema.type == "null" or (isinstance(schema, FixedSchema) and schema.size == 0)


def decoder(schema: Schema, known: dict[int, Decode] | None = None) -> Decode:  # noqa: PLR0911 one type after the other
    """Return a decoder, which may raise any exception. `schema` must not be endless. `known`: decoders of records."""
    records = {} if known is None else known
    match schema:
        case RecordSchema():
            return _record_decoder(schema, records)
        case UnionSchema():
            return partial(_union, [decoder(branch, records) for branch in schema.schemas])
        case ArraySchema():
            return partial(_array, decoder(schema.items, records))
        case MapSchema():
            return partial(map_of, decoder(schema.values, records))
        case EnumSchema():
            return partial(_enum, list(schema.symbols))
        case FixedSchema():
            return _bytes_decoder(schema, partial(_fixed, schema.size), schema.size)
        case _ if schema.type == "bytes":
            return _bytes_decoder(schema, read_bytes, None)
        case _ if schema.type in {"int", "long"}:
            return _integer_decoder(schema)
    return _PRIMITIVES[schema.type]


def _record_decoder(schema: RecordSchema, records: dict[int, Decode]) -> Decode:
    if id(schema) not in records:
        fields: list[tuple[str, Decode]] = []
        records[id(schema)] = partial(_decode_members, fields)
        fields += [(field.name, decoder(field.type, records)) for field in schema.fields]
    return records[id(schema)]


def _decode_members(fields: list[tuple[str, Decode]], data: bytes, at: int) -> tuple[RawValue, int]:
    members: dict[str, RawValue] = {}
    for name, decode in fields:
        members[name], at = decode(data, at)
    return members, at


def _integer_decoder(schema: Schema) -> Decode:
    logical = schema.get_prop("logicalType") or LOGICAL_TYPES_OF_CONNECT.get(str(schema.get_prop("connect.name")), "")
    if logical == "date":
        return partial(_converted, read_long, times.day_from_count)
    kind, _, unit = str(logical).rpartition("-")
    if kind in TIME_CONVERTERS and unit in UNITS:
        return partial(_converted, read_long, partial(TIME_CONVERTERS[kind], unit=unit))
    return read_long


def _bytes_decoder(schema: Schema, read: Decode, size: int | None) -> Decode:
    logical, scale = schema.get_prop("logicalType"), schema.get_prop("scale") or 0
    if logical == "decimal" and isinstance(scale, int):
        return partial(_converted, read, partial(_decimal, scale))
    if logical == "uuid" and size == UUID_BYTES:
        return partial(_converted, read, uuid_text)
    return read


def _decimal(scale: int, data: bytes) -> Decimal | str:
    if len(data) > UNSCALED_BYTES:
        return f"a decimal of {len(data)} bytes"
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, DIGITS)


def _converted(read: Decode, convert: Callable[..., RawValue], data: bytes, at: int) -> tuple[RawValue, int]:
    value, at = read(data, at)
    return convert(value), at


def read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    number, shift = byte & 127, 7
    while byte > 127 and shift < 7 * LONG_BYTES:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
    if byte > 127 or number >> LONG_BITS:
        raise ValueError("a number of more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise ValueError(f"a boolean that is {byte}")
    return byte == 1, at + 1


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    return _fixed(size, data, at)


def _fixed(size: int, data: bytes, at: int) -> tuple[bytes, int]:
    end = at + size
    if not at <= end <= len(data):
        raise ValueError(f"{size} bytes where {len(data) - at} are left")
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str | bytes, int]:
    text, at = read_bytes(data, at)
    try:
        return text.decode(), at
    except UnicodeDecodeError:
        return NotText(text), at


def _enum(symbols: list[str], data: bytes, at: int) -> tuple[str, int]:
    number, at = read_long(data, at)
    if not 0 <= number < len(symbols):
        raise ValueError(f"symbol {number} of an enum of {len(symbols)}")
    return symbols[number], at


def _union(branches: list[Decode], data: bytes, at: int) -> tuple[RawValue, int]:
    number, at = read_long(data, at)
    if not 0 <= number < len(branches):
        raise ValueError(f"branch {number} of a union of {len(branches)}")
    return branches[number](data, at)


def _array(item: Decode, data: bytes, at: int) -> tuple[RawValue, int]:
    items: list[RawValue] = []
    size, at = _block_size(data, at)
    while size:
        for _ in range(size):
            value, at = item(data, at)
            items.append(value)
        size, at = _block_size(data, at)
    return items, at


def map_of(value: Decode, data: bytes, at: int) -> tuple[dict[str, RawValue], int]:
    members: dict[str, RawValue] = {}
    size, at = _block_size(data, at)
    while size:
        for _ in range(size):
            name, at = read_bytes(data, at)
            members[name.decode()], at = value(data, at)
        size, at = _block_size(data, at)
    return members, at


def _block_size(data: bytes, at: int) -> tuple[int, int]:
    size, at = read_long(data, at)
    if size < 0:
        _, at = read_long(data, at)
    return abs(size), at


_PRIMITIVES: Final[dict[str, Decode]] = {
    "null": lambda _, at: (None, at),
    "boolean": _boolean,
    "float": lambda data, at: (float(str(np.float32(struct.unpack_from("<f", data, at)[0]))), at + 4),
    "double": lambda data, at: (struct.unpack_from("<d", data, at)[0], at + 8),
    "string": _string,
}
