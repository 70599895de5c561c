"""Parquet files by cases: encodings, compressions, pages, row groups, physical types, old annotations, nulls.

Source: the ideas of the format's own test files, with files that Arrow writes. Types are those of test_parquet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.records.test_parquet import columns, parquet_bytes

NUMBERS: Mapping[str, pa.Array] = {
    str(kind): pa.array([0, 1, None, 127, 100, 3] * 50, kind)
    for kind in (pa.int32(), pa.int64(), pa.uint32(), pa.date32(), pa.timestamp("us"), pa.time64("us"))
}
FLOATS: Mapping[str, pa.Array] = {
    str(kind): pa.array([0.5, -1.25, None, 4096.0, 0.0, 7.0] * 50, kind) for kind in (pa.float32(), pa.float64())
}
TEXTS: Mapping[str, pa.Array] = {
    str(kind): pa.array(["abc", "abd", None, "", "ab", "x" * 300] * 50).cast(kind)
    for kind in (pa.string(), pa.binary())
}
FIXED: Mapping[str, pa.Array] = {
    "fixed": pa.array([b"abcd", b"abce", None, b"\0\0\0\0", b"zzzz", b"abcd"] * 50, pa.binary(4)),
    "decimal": pa.array([Decimal("-1.50"), Decimal(2), None, Decimal("0.01"), 0, 7] * 50, pa.decimal128(38, 2)),
}
NESTED: Mapping[str, pa.Array] = {
    name: pa.array([*values, None] * 50, kind)
    for name, kind, values in (
        ("lists of lists", pa.list_(pa.list_(pa.int32())), [[], [[]], [None], [[1, None], [], None], [[2]]]),
        ("lists of structs", pa.list_(pa.struct([("a", pa.string())])), [[], [None], [{"a": None}, {"a": "x"}]]),
        ("structs of lists", pa.struct([("a", pa.list_(pa.int8()))]), [{"a": None}, {"a": []}, {"a": [1, None]}]),
        ("structs of structs", pa.struct([("a", pa.struct([("b", pa.string())]))]),
         [{"a": None}, {"a": {"b": None}}, {"a": {"b": "x"}}]),
    )
}  # fmt: skip
MAPS: Mapping[str, tuple[pa.DataType, Sequence[Any], Sequence[Any]]] = {
    "maps of maps": (pa.map_(pa.string(), pa.map_(pa.string(), pa.int32())),
                     [[], [("a", None)], [("a", []), ("b", [("c", 1), ("d", None)])]],
                     [{}, {"a": None}, {"a": {}, "b": {"c": 1, "d": None}}]),
    "maps of lists of structs": (pa.map_(pa.string(), pa.list_(pa.struct([("x", pa.int32())]))),
                                 [[("a", [{"x": None}, None])], [("b", [])]], [{"a": [{"x": None}, None]}, {"b": []}]),
    "lists of maps": (pa.list_(pa.map_(pa.string(), pa.string())), [[None, [], [("a", "b")]]],
                      [[None, {}, {"a": "b"}]]),
}  # fmt: skip
ENCODINGS: Sequence[tuple[str, Mapping[str, pa.Array]]] = (
    ("PLAIN", {**NUMBERS, **FLOATS, **TEXTS, **FIXED}),
    ("RLE", {"bool": pa.array([True, True, None, False] * 75)}),
    ("DELTA_BINARY_PACKED", NUMBERS),
    ("DELTA_LENGTH_BYTE_ARRAY", TEXTS),
    ("DELTA_BYTE_ARRAY", {**TEXTS, **FIXED}),
    ("BYTE_STREAM_SPLIT", {**NUMBERS, **FLOATS, **FIXED}),
)


def chunks(data: bytes) -> Iterator[Any]:
    """Yield the metadata of each column of each row group."""
    footer = pq.ParquetFile(BytesIO(data)).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    yield from (group.column(number) for group in groups for number in range(group.num_columns))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(("encoding", "arrays"), ENCODINGS, ids=[encoding for encoding, _ in ENCODINGS])
def test_parquet_returns_values_of_every_encoding(encoding: str, arrays: Mapping[str, pa.Array], version: str) -> None:
    by_column = dict.fromkeys(arrays, encoding)
    options = {"data_page_version": version, "use_dictionary": False, "data_page_size": 64, "write_batch_size": 10}
    data = parquet_bytes(pa.table(arrays), column_encoding=by_column, row_group_size=120, **options)
    assert {encoding in chunk.encodings for chunk in chunks(data)} == {True}
    assert columns(data) == {name: array.to_pylist() for name, array in arrays.items()}


@pytest.mark.parametrize("compression", ["NONE", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD"])
def test_parquet_returns_values_of_every_compression(compression: str) -> None:
    data = parquet_bytes(pa.table({**NUMBERS, **TEXTS}), compression=compression, row_group_size=70)
    assert {chunk.compression for chunk in chunks(data)} == {compression.replace("NONE", "UNCOMPRESSED")}
    assert columns(data) == {name: array.to_pylist() for name, array in {**NUMBERS, **TEXTS}.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"row_group_size": 7, "data_page_size": 16, "write_batch_size": 3},
        {"data_page_version": "2.0", "data_page_size": 16, "write_batch_size": 3, "use_dictionary": False},
        {"dictionary_pagesize_limit": 16, "data_page_size": 16, "write_batch_size": 3},
        {"use_compliant_nested_type": False, "store_schema": False},
        {"version": "1.0", "store_schema": False, "write_statistics": False},
        {"write_page_index": True, "write_page_checksum": True},
    ],
    ids=str,
)
def test_parquet_returns_nested_values_in_pages_and_row_groups(options: dict[str, Any]) -> None:
    arrays = {**NESTED, **{name: pa.array([*values, None] * 50, kind) for name, (kind, values, _) in MAPS.items()}}
    given = {name: array.to_pylist() for name, array in NESTED.items()}
    given |= {name: [*members, None] * 50 for name, (_, _, members) in MAPS.items()}
    for name, array in arrays.items():
        assert columns(parquet_bytes(pa.table({"v": array}), **options)) == {"v": given[name]}, name


@pytest.mark.parametrize(
    ("precision", "as_integer", "physical"),
    [
        *((digits, True, "INT32") for digits in (1, 9)),
        *((digits, True, "INT64") for digits in (10, 18)),
        *((digits, True, "FIXED_LEN_BYTE_ARRAY") for digits in (19, 38)),
        *((digits, False, "FIXED_LEN_BYTE_ARRAY") for digits in (1, 9, 10, 18)),
    ],
)
def test_parquet_returns_decimals_of_every_physical_type(precision: int, as_integer: bool, physical: str) -> None:
    most = Decimal(f"{'9' * (precision - 1)}.9")
    values = [most, most.copy_negate(), None, Decimal("0.0"), Decimal("0.1")]
    data = parquet_bytes(
        pa.table({"v": pa.array(values, pa.decimal128(precision, 1))}), store_decimal_as_integer=as_integer
    )
    assert [chunk.physical_type for chunk in chunks(data)] == [physical]
    assert columns(data) == {"v": values}


def test_parquet_returns_columns_without_nulls_and_of_nulls_alone() -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), ("b", pa.string()), ("c", pa.null())])
    data = parquet_bytes(pa.table({"a": [1, 2, 3], "b": pa.nulls(3, pa.string()), "c": pa.nulls(3)}, schema=schema))
    assert columns(data) == {"a": [1, 2, 3], "b": [None] * 3, "c": [None] * 3}


def test_parquet_reads_rows_of_row_groups_if_some_are_empty() -> None:
    stream, schema = BytesIO(), pa.schema([("a", pa.int32())])
    with pq.ParquetWriter(stream, schema) as writer:
        for values in ([], [1, 2], [], [3], []):
            writer.write_table(pa.table({"a": values}, schema=schema))
    assert pq.ParquetFile(stream).num_row_groups > 2
    assert columns(stream.getvalue()) == {"a": [1, 2, 3]}


def annotated(array: pa.Array, physical: int, converted: int, *, is_decimal: bool = False) -> bytes:
    """Return a file whose column v has a type as old writers annotate it, without logical type (parquet.thrift)."""
    data = parquet_bytes(pa.table({"v": array}), store_schema=False, use_dictionary=False, compression="none")
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]
    plain = bytes([0x15, 2 * physical, 0x25, 2, 0x18, 1, ord("v")])  # the physical type, optional, the name
    of_decimal = bytes([0x15, 4, 0x15, 18]) if is_decimal else b""  # a scale of 2, a precision of 9
    assert footer.count(plain + b"\0") == 1
    changed = footer.replace(plain + b"\0", plain + bytes([0x25, 2 * converted]) + of_decimal + b"\0")
    return data[: -8 - len(footer)] + changed + len(changed).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize(
    ("name", "converted", "kind", "stored", "given"),
    [
        ("DATE", 6, pa.int32(), 1, date(1970, 1, 2)),
        ("TIME_MILLIS", 7, pa.int32(), 1, time(0, 0, 0, 1000)),
        ("TIME_MICROS", 8, pa.int64(), 1, time(0, 0, 0, 1)),
        ("TIMESTAMP_MILLIS", 9, pa.int64(), 1, datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        ("TIMESTAMP_MICROS", 10, pa.int64(), -1, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ("UINT_8", 11, pa.int32(), 255, 255),
        ("UINT_16", 12, pa.int32(), 65535, 65535),
        ("UINT_32", 13, pa.int32(), -1, 2**32 - 1),
        ("UINT_64", 14, pa.int64(), -1, 2**64 - 1),
        *((f"INT_{bits}", 15 + n, pa.int32(), -7, -7) for n, bits in enumerate((8, 16, 32))),
        ("INT_64", 18, pa.int64(), -7, -7),
        *((name, number, pa.binary(), b"{}", "{}") for name, number in (("UTF8", 0), ("ENUM", 4), ("JSON", 19))),
        ("BSON", 20, pa.binary(), b"\x05\0\0\0\0", b"\x05\0\0\0\0"),
        ("DECIMAL", 5, pa.int32(), -150, Decimal("-1.50")),
        ("DECIMAL", 5, pa.int64(), 999_999_999, Decimal("9999999.99")),
        ("DECIMAL", 5, pa.binary(), b"\x96", Decimal("-1.06")),
        ("DECIMAL", 5, pa.binary(), b"\x00\x00\x96", Decimal("1.50")),
    ],
)
def test_parquet_returns_values_of_types_of_old_writers(
    name: str, converted: int, kind: pa.DataType, stored: Any, given: Any
) -> None:
    physical = {pa.int32(): 1, pa.int64(): 2, pa.binary(): 6}[kind]
    data = annotated(pa.array([stored, None], kind), physical, converted, is_decimal=name == "DECIMAL")
    assert pq.ParquetFile(BytesIO(data)).schema.column(0).converted_type == name
    [value, null] = columns(data)["v"]
    assert (value, type(value), null) == (given, type(given), None)
