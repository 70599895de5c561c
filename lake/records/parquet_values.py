"""Conversion of Parquet columns to raw values.

Plain types stay Arrow arrays: bool, int64, float64, string, binary, date32, timestamp("us"), timestamp("us", "UTC") and
decimal128. All others become lists. Floats of 32 and 16 bits become their shortest decimal, times are truncated to
microseconds, invalid UTF-8 becomes bytes, intervals ISO 8601 durations, map keys texts, extension types their storage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import UTC
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import numpy as np

from lake.lazy import pa, pc, pq
from lake.records import times
from lake.records.json_value import plain_text, uuid_text
from lake.records.raw_values import RawValue, as_list
from lake.records.times import NANOS

Values: TypeAlias = "pa.Array | list[RawValue]"
Convert: TypeAlias = Callable[[pa.Array], Values]
OnLoss: TypeAlias = Callable[[str], None]

UNITS: Final = {"s": "seconds", "ms": "millis", "us": "micros", "ns": "nanos"}
MAX_INT: Final = (1 << 63) - 1
PRECISION: Final = 38
TEXTS: Final = frozenset({pa.string(), pa.large_string(), pa.string_view()})
BYTES: Final = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
LISTS: Final = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)


def converter(kind: pa.DataType, columns: Iterator[pq.ColumnSchema], on_loss: OnLoss) -> Convert:
    """Return the converter of arrays of `kind`, stored in the next of `columns`.

    `on_loss` is called with a column's path whenever nanoseconds are truncated.
    """
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_converter(kind, columns, on_loss)
    if pa.types.is_struct(kind):
        return _struct_converter(kind, columns, on_loss)
    if pa.types.is_map(kind):
        parts = [converter(part, columns, on_loss) for part in (kind.key_type, kind.item_type)]
        return partial(_maps, *parts)
    if isinstance(kind, LISTS):
        return partial(_lists, converter(kind.value_type, columns, on_loss))
    if pa.types.is_dictionary(kind):
        values = converter(kind.value_type, columns, on_loss)
        return lambda array: values(array.dictionary_decode())
    return _leaf_converter(kind, next(columns), on_loss)


def _extension_converter(kind: pa.BaseExtensionType, columns: Iterator[pq.ColumnSchema], on_loss: OnLoss) -> Convert:
    if kind == pa.uuid():
        next(columns)
        return lambda array: _convert_each(array.storage, uuid_text)
    stored = converter(kind.storage_type, columns, on_loss)
    return lambda array: stored(array.storage)


def _struct_converter(kind: pa.StructType, columns: Iterator[pq.ColumnSchema], on_loss: OnLoss) -> Convert:
    names = [kind.field(i).name for i in range(kind.num_fields)]
    parts = [converter(kind.field(i).type, columns, on_loss) for i in range(kind.num_fields)]

    def structs(array: pa.Array) -> list[RawValue]:
        members = [as_list(part(array.field(i))) for i, part in enumerate(parts)]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*members, strict=True)]
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]

    return structs


def _lists(item: Convert, array: pa.Array) -> list[RawValue]:
    lengths = pc.list_value_length(array).to_pylist()
    items = list(as_list(item(array.flatten())))
    spans = pairwise(accumulate((length or 0 for length in lengths), initial=0))
    return [None if length is None else items[a:b] for length, (a, b) in zip(lengths, spans, strict=True)]


def _maps(key: Convert, item: Convert, array: pa.Array) -> list[RawValue]:
    def pairs(entries: pa.Array) -> list[RawValue]:
        keys, items = as_list(key(entries.field(0))), as_list(item(entries.field(1)))
        return [[plain_text(name), value] for name, value in zip(keys, items, strict=True)]

    return [_map(each) for each in _lists(pairs, _as_pairs(array))]


def _map(pairs: RawValue) -> RawValue:
    if not isinstance(pairs, list):
        return None
    members = {str(pair[0]): pair[1] for pair in pairs if isinstance(pair, list)}
    return members if len(members) == len(pairs) else "a map with a key twice"


def _leaf_converter(kind: pa.DataType, column: pq.ColumnSchema, on_loss: OnLoss) -> Convert:
    is_enum = column.logical_type.type == "ENUM"
    if kind in TEXTS or (kind in BYTES and is_enum):
        return _texts
    if kind in BYTES or pa.types.is_fixed_size_binary(kind):
        convert = _BYTES_CONVERTERS.get(column.logical_type.type) or _BYTES_CONVERTERS.get(column.converted_type)
        return partial(_convert_each, convert=convert) if convert else lambda array: array.cast(pa.binary())
    if pa.types.is_timestamp(kind):
        return partial(_timestamps, lambda: on_loss(column.path))
    if pa.types.is_time(kind):
        return partial(_times, lambda: on_loss(column.path))
    return _CONVERTERS.get(kind, _convert_other)


def _texts(array: pa.Array) -> Values:
    texts = array.cast(pa.string()) if array.type in TEXTS else array.cast(pa.binary()).view(pa.string())
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return _convert_each(texts.cast(pa.binary()), _text)
    return texts


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _interval(data: bytes) -> str:
    months, days, millis = struct.unpack("<III", data)
    return f"P{months}M{days}DT{millis // 1_000}.{millis % 1_000:03}S"


def _convert_each(array: pa.Array, convert: Callable[..., RawValue]) -> list[RawValue]:
    return [None if value is None else convert(value) for value in array.to_pylist()]


def _unsigned(array: pa.Array) -> Values:
    return array.cast(pa.int64()) if (pc.max(array).as_py() or 0) <= MAX_INT else array.to_pylist()


def _days(array: pa.Array) -> Values:
    days = array.cast(pa.date32()).cast(pa.int32())
    within = _is_within(days, times.FIRST_DAY, times.LAST_DAY)
    return array.cast(pa.date32()) if within else _convert_each(days, times.day_from_count)


def _timestamps(on_loss: Callable[[], None], array: pa.Array) -> Values:
    kind, counts = array.type, array.cast(pa.int64())
    first, last = (day * NANOS["days"] // NANOS[UNITS[kind.unit]] for day in (times.FIRST_DAY, times.LAST_DAY + 1))
    if not _is_within(counts, max(first, -MAX_INT), min(last - 1, MAX_INT)):
        return _convert_each(
            counts, partial(times.time_from_count, unit=UNITS[kind.unit], zone=UTC if kind.tz else None)
        )
    micros = _micros(counts, kind.unit, on_loss)
    return micros.cast(pa.timestamp("us", "UTC" if kind.tz else None))


def _micros(counts: pa.Array, unit: str, on_loss: Callable[[], None]) -> pa.Array:
    if unit != "ns":
        return pc.multiply(counts, NANOS[UNITS[unit]] // 1_000)
    toward_zero = pc.divide(counts, 1_000)
    rest = pc.subtract(counts, pc.multiply(toward_zero, 1_000))
    if pc.any(pc.not_equal(rest, 0)).as_py():
        on_loss()
    return pc.subtract(toward_zero, pc.less(rest, 0).cast(pa.int64()))


def _times(on_loss: Callable[[], None], array: pa.Array) -> Values:
    unit = array.type.unit
    counts = array.cast(pa.int32() if unit in {"s", "ms"} else pa.int64())
    if unit == "ns" and any(count % 1_000 for count in counts.to_pylist() if count):
        on_loss()
    return _convert_each(counts, partial(times.time_of_day_from_count, unit=UNITS[unit]))


def _convert_other(array: pa.Array) -> Values:
    kind = array.type
    if pa.types.is_decimal(kind):
        is_long = kind.precision > PRECISION
        return array.to_pylist() if is_long else array.cast(pa.decimal128(kind.precision, kind.scale))
    if pa.types.is_duration(kind):
        return array.cast(pa.int64())
    return [str(value) if value.is_valid else None for value in array]


def _is_within(counts: pa.Array, first: int, last: int) -> bool:
    bounds = pc.min_max(counts).as_py()
    return bounds["min"] is None or bool(first <= bounds["min"] and bounds["max"] <= last)


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from leaves(array.storage)
    elif pa.types.is_struct(kind):
        yield from (leaf for part in array.flatten() for leaf in leaves(part))
    elif pa.types.is_map(kind):
        yield from leaves(_as_pairs(array))
    elif isinstance(kind, LISTS):
        yield from leaves(array.flatten())
    else:
        yield array


def _as_pairs(maps: pa.MapArray) -> pa.ListArray:
    return maps.cast(pa.list_(pa.struct([maps.type.key_field, maps.type.item_field])))


_BYTES_CONVERTERS: Final = {"UUID": uuid_text, "INTERVAL": _interval}
_CONVERTERS: Final = {
    **dict.fromkeys((pa.bool_(), pa.int64(), pa.float64()), lambda array: array),
    **dict.fromkeys(
        (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()), lambda array: array.cast(pa.int64())
    ),
    pa.uint64(): _unsigned,
    pa.float32(): lambda array: array.cast(pa.string()).cast(pa.float64()),
    pa.float16(): lambda array: _convert_each(array, lambda value: float(str(np.float16(value)))),
    pa.date32(): _days,
    pa.null(): lambda array: array.to_pylist(),
}
