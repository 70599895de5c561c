"""Parquet files: values of every type that Arrow or DuckDB writes, names, bounds, and damaged files."""

from __future__ import annotations

import base64
import random
import string
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from lake.contracts.csv_options import DEFAULT_CSV
from lake.errors import Unavailable
from lake.records import parquet
from lake.records.raw_values import ColumnRecords, FileFault, OutsideCalendar, RawValue, as_list
from lake.records.read_tasks import read_file
from tests.bad_input import hostile
from tests.records.reading import outcomes

NOON = datetime(2024, 3, 31, 12, 0, 0, 123456)
MICROS = (NOON - datetime(1970, 1, 1)) // timedelta(microseconds=1)
ID = uuid.UUID(int=5)
PLAIN = {pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.date32()}
PLAIN |= {pa.timestamp("us"), pa.timestamp("us", "UTC")}


def stored(kind: pa.DataType, storage: Any, value: Any) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array([value, None], storage))


ARRAYS: Mapping[str, tuple[pa.Array, Any]] = {
    name: (pa.array([value, None], kind), given)
    for name, kind, value, given in (
        ("bool", pa.bool_(), True, True),
        *((str(kind), kind, -7, -7) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *((str(kind), kind, 200, 200) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        ("uint64 beyond int64", pa.uint64(), 2**64 - 1, 2**64 - 1),
        ("float16", pa.float16(), 0.1, 0.1),
        ("float32", pa.float32(), 0.1, 0.1),
        ("float32 tiny", pa.float32(), 1e-45, 1e-45),
        ("float64", pa.float64(), 0.1, 0.1),
        ("infinity", pa.float32(), float("-inf"), float("-inf")),
        ("text", pa.string(), "Zürich\0", "Zürich\0"),
        ("large text", pa.large_string(), "x", "x"),
        ("text view", pa.string_view(), "x", "x"),
        ("binary", pa.binary(), b"\xff", b"\xff"),
        ("large binary", pa.large_binary(), b"\xff", b"\xff"),
        ("binary view", pa.binary_view(), b"\xff", b"\xff"),
        ("fixed", pa.binary(2), b"\xff\x00", b"\xff\x00"),
        ("decimal32", pa.decimal32(5, 2), Decimal("1.50"), Decimal("1.50")),
        ("decimal64", pa.decimal64(12, 2), Decimal("1.50"), Decimal("1.50")),
        ("decimal128", pa.decimal128(38, 10), Decimal("-1.5"), Decimal("-1.5000000000")),
        ("decimal256", pa.decimal256(76, 2), Decimal("9" * 70 + ".25"), Decimal("9" * 70 + ".25")),
        ("date32", pa.date32(), date(1, 1, 1), date(1, 1, 1)),
        ("date64", pa.date64(), date(9999, 12, 31), date(9999, 12, 31)),
        ("distant date", pa.date32(), 10**9, OutsideCalendar("1000000000 days since 1970")),
        ("seconds", pa.timestamp("s"), MICROS // 10**6, NOON.replace(microsecond=0)),
        ("millis", pa.timestamp("ms"), MICROS // 1000, NOON.replace(microsecond=123000)),
        ("micros", pa.timestamp("us"), MICROS, NOON),
        ("nanos", pa.timestamp("ns"), MICROS * 1000 + 999, NOON),
        ("nanos before 1970", pa.timestamp("ns"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999)),
        ("instant", pa.timestamp("us", "UTC"), MICROS, NOON.replace(tzinfo=UTC)),
        ("zoned instant", pa.timestamp("ms", "Europe/Vienna"), 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ("instant of no zone", pa.timestamp("ns", "Nowhere/At all"), 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ("distant millis", pa.timestamp("ms"), 1 << 60, OutsideCalendar(f"{1 << 60} millis since 1970")),
        ("distant instant", pa.timestamp("us", "UTC"), 1 << 60, OutsideCalendar(f"{1 << 60} micros since 1970")),
        ("first instant", pa.timestamp("us"), -62_135_596_800_000_000, datetime(1, 1, 1)),
        ("time of seconds", pa.time32("s"), 1, time(0, 0, 1)),
        ("time of millis", pa.time32("ms"), 3_600_001, time(1, 0, 0, 1000)),
        ("time of micros", pa.time64("us"), 1, time(0, 0, 0, 1)),
        ("time of nanos", pa.time64("ns"), 1999, time(0, 0, 0, 1)),
        ("time after midnight", pa.time64("us"), 86_400_000_000, OutsideCalendar("86400000000 micros since midnight")),
        ("duration", pa.duration("ns"), 7, 7),
        ("null", pa.null(), None, None),
        ("list", pa.list_(pa.int8()), [1, None], [1, None]),
        ("large list", pa.large_list(pa.timestamp("ns")), [MICROS * 1000], [NOON]),
        ("fixed list", pa.list_(pa.float32(), 2), [0.1, 0.2], [0.1, 0.2]),
        ("list view", pa.list_view(pa.string()), ["x"], ["x"]),
        ("struct", pa.struct([("a", pa.date32()), ("b", pa.list_(pa.string()))]), {"a": 0, "b": ["x"]},
         {"a": date(1970, 1, 1), "b": ["x"]}),
        ("map", pa.map_(pa.string(), pa.decimal128(5, 2)), [("a", Decimal("1.50"))], {"a": Decimal("1.50")}),
        ("map of numbers", pa.map_(pa.int32(), pa.list_(pa.int32())), [(1, [2])], {"1": [2]}),
        ("map of dates", pa.map_(pa.date32(), pa.map_(pa.bool_(), pa.string())), [(0, [(True, "x")])],
         {"1970-01-01": {"true": "x"}}),
        ("map with a key twice", pa.map_(pa.int32(), pa.int32()), [(1, 2), (1, 3)], "a map with a key twice"),
    )
} | {
    "dictionary": (pa.array(["a", None]).dictionary_encode(), "a"),
    "dictionary of numbers": (pa.array([1, None]).dictionary_encode(), 1),
    "uuid": (stored(pa.uuid(), pa.binary(16), ID.bytes), str(ID)),
    "json": (stored(pa.json_(), pa.string(), '{"a":1}'), '{"a":1}'),
    "bool8": (stored(pa.bool8(), pa.int8(), 1), 1),
    "opaque": (stored(pa.opaque(pa.int32(), "x", "y"), pa.int32(), 1), 1),
    "tensor": (stored(pa.fixed_shape_tensor(pa.int32(), [2]), pa.list_(pa.int32(), 2), [1, 2]), [1, 2]),
    "list of uuid": (pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()),
                                              stored(pa.uuid(), pa.binary(16), ID.bytes),
                                              mask=pa.array([False, True])), [str(ID)]),
}  # fmt: skip
WAYS: Sequence[dict[str, Any]] = (
    {},
    {"use_dictionary": False, "data_page_version": "2.0", "compression": "zstd"},
    {"store_schema": False, "compression": "none"},
    {"write_page_checksum": True, "compression": "brotli", "use_byte_stream_split": False},
)


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    stream = BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


def rows(data: bytes, *, declared: Sequence[str] = (), record_bytes: int = 1 << 20) -> list[ColumnRecords]:
    """Return the parts of `read_file`, each column as a list."""
    parts = read_file(BytesIO(data), "a.parquet", DEFAULT_CSV, declared=declared, record_bytes=record_bytes)
    made = []
    for part in parts:
        assert isinstance(part, ColumnRecords)
        made.append(
            ColumnRecords(part.places, {name: as_list(column) for name, column in part.columns.items()}, part.broken)
        )
    return made


def columns(data: bytes, **more: Any) -> dict[str, list[RawValue]]:
    parts = rows(data, **more)
    return {name: [value for part in parts for value in part.columns[name]] for name in parts[0].columns}


def fault(data: bytes, **more: Any) -> str:
    with pytest.raises(FileFault) as raised:
        rows(data, **more)
    return str(raised.value)


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_parquet_returns_values_of_every_type(options: dict[str, Any]) -> None:
    found = {}
    for name, (array, _) in ARRAYS.items():
        [value, null] = columns(parquet_bytes(pa.table({"v": array}), **options))["v"]
        assert null is None
        found[name] = value
    expected = {name: given for name, (_, given) in ARRAYS.items()}
    assert found == expected
    assert {name: type(value) for name, value in found.items()} == {
        name: type(given) for name, given in expected.items()
    }


def test_parquet_returns_nan_of_floats() -> None:
    found = columns(parquet_bytes(pa.table({"a": pa.array([float("nan")], pa.float32()), "b": [float("nan")]})))
    assert [str(value) for values in found.values() for value in values] == ["nan", "nan"]


def test_parquet_keeps_only_arrays_of_plain_types() -> None:
    for array, given in ARRAYS.values():
        [part] = parquet.read(BytesIO(parquet_bytes(pa.table({"v": array}))), "a", record_bytes=1 << 20)
        column: Any = part.columns["v"]
        assert isinstance(column, list) or column.type in PLAIN or column.type.id == pa.decimal128(1).id
        assert as_list(column)[0] == given


def test_parquet_returns_texts_that_are_not_utf8_as_bytes() -> None:
    texts = pa.array([b"\xff", b"a", None]).view(pa.string())
    assert columns(parquet_bytes(pa.table({"v": texts}))) == {"v": [b"\xff", "a", None]}


def test_parquet_truncates_old_timestamps_of_twelve_bytes() -> None:
    times = pa.array([-1, MICROS * 1000 + 999], pa.timestamp("ns"))
    found = columns(parquet_bytes(pa.table({"v": times}), use_deprecated_int96_timestamps=True))
    assert found == {"v": [datetime(1969, 12, 31, 23, 59, 59, 999999), NOON]}


def test_parquet_warns_once_per_column_of_truncated_nanoseconds(caplog: pytest.LogCaptureFixture) -> None:
    cut = pa.array([1, None, 2] * 20_000, pa.timestamp("ns"))
    whole = pa.array([1000, None, 0] * 20_000, pa.timestamp("ns"))
    rows(parquet_bytes(pa.table({"cut": cut, "whole": whole, "s": pa.StructArray.from_arrays([cut], ["t"])})))
    assert sorted(caplog.messages) == [
        "a.parquet: the column cut has nanoseconds: its times are cut to microseconds",
        "a.parquet: the column s.t has nanoseconds: its times are cut to microseconds",
    ]


@pytest.mark.parametrize(
    ("query", "given"),
    [
        ("INTERVAL '1 month 2 days 3.25 seconds'", "P1M2DT3.250S"),
        ("[INTERVAL '1 month', NULL]", ["P1M0DT0.000S", None]),
        (f"'{ID}'::UUID", str(ID)),
        (f"MAP{{'{ID}'::UUID: 1}}", {str(ID): 1}),
        ("TIMETZ '01:02:03.5+02'", time(23, 2, 3, 500000)),
        ("TIMESTAMP_NS '2024-01-01 00:00:00.123456789'", datetime(2024, 1, 1, 0, 0, 0, 123456)),
        ("TIMESTAMPTZ '2024-01-01 00:00:00+02'", datetime(2023, 12, 31, 22, tzinfo=UTC)),
        ("'infinity'::TIMESTAMP", OutsideCalendar("9223372036854775807 micros since 1970")),
        ("'b'::ENUM('a', 'b')", "b"),
        ("'{\"a\": 1}'::JSON", '{"a": 1}'),
        ("'x'::BLOB", b"x"),
        ("170141183460469231731687303715884105727::HUGEINT", 2.0**127),
        ("{'a': [MAP{DATE '2024-01-01': 1::UTINYINT}]}", {"a": [{"2024-01-01": 1}]}),
        ("[]::INT[]", []),
    ],
)
def test_parquet_of_duckdb_returns_values(tmp_path: Path, query: str, given: RawValue) -> None:
    file = tmp_path / "a.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT {query} AS v, 1 AS k) TO '{file}'")
    assert columns(file.read_bytes()) == {"v": [given], "k": [1]}


def value_of(kind: pa.DataType, draw: random.Random) -> Any:
    """Return a value that is equal by `to_pylist` and `read`."""
    if draw.random() < 0.2:
        return None
    if pa.types.is_list(kind):
        return [value_of(kind.value_type, draw) for _ in range(draw.randrange(4))]
    if pa.types.is_struct(kind):
        return {part.name: value_of(part.type, draw) for part in kind}
    makers: dict[pa.DataType, Callable[[], RawValue]] = {
        pa.int32(): lambda: draw.randrange(-9, 9),
        pa.string(): lambda: "".join(draw.choices(string.printable + "é€😀", k=draw.randrange(6))),
        pa.binary(): lambda: draw.randbytes(draw.randrange(6)),
        pa.float64(): draw.random,
        pa.bool_(): lambda: draw.random() < 0.5,
        pa.date32(): lambda: date.fromordinal(draw.randrange(1, 3_652_059)),
        pa.timestamp("us"): lambda: NOON + timedelta(seconds=draw.randrange(-(10**10), 10**10)),
        pa.decimal128(9, 2): lambda: Decimal(draw.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
    }
    return makers[kind]()


def type_of(draw: random.Random, levels: int) -> pa.DataType:
    if levels and draw.random() < 0.5:
        if draw.random() < 0.5:
            return pa.list_(type_of(draw, levels - 1))
        return pa.struct([(name, type_of(draw, levels - 1)) for name in "abc"[: draw.randrange(1, 4)]])
    plain = [pa.int32(), pa.string(), pa.binary(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us")]
    return draw.choice([*plain, pa.decimal128(9, 2)])


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.long) for n in range(8, 200))])
def test_parquet_reads_generated_tables_like_arrow(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.choice([0, 1, 50, 500])
    kinds = {f"c{n}": type_of(draw, 3) for n in range(6)}
    arrays = [pa.array([value_of(kind, draw) for _ in range(count)], kind) for kind in kinds.values()]
    table = pa.table(arrays, names=[*kinds])
    data = parquet_bytes(table, row_group_size=draw.choice([7, 1000]), **(draw.choice(WAYS)))
    assert columns(data) == {name: table[name].to_pylist() for name in kinds}
    assert [place for part in rows(data) for place in part.places] == [*range(1, count + 1)]


def test_parquet_returns_its_columns_if_it_has_no_rows() -> None:
    assert rows(parquet_bytes(pa.table({"a": pa.array([], pa.int64())}))) == [ColumnRecords((), {"a": []})]
    assert rows(b"") == []


def same_names(*names: str) -> bytes:
    return parquet_bytes(pa.Table.from_arrays([pa.array([n]) for n in range(len(names))], names=[*names]))


def test_parquet_rejects_a_declared_column_that_exists_twice() -> None:
    assert fault(same_names("id", "x", "id"), declared=["id"]) == "two columns of one name: id"
    assert columns(same_names("id", "ID"), declared=["id"]) == {"id": [0], "ID": [1]}
    assert columns(same_names("id", "x", "X", "x"), declared=["id"]) == {"id": [0], "x": [1], "X": [2], "x_4": [3]}
    assert fault(same_names("id", "x", "x_3", "x_4", "x"), declared=["x_5", "id"]) == "two columns of one name: x"


def test_parquet_yields_texts_that_are_stored_once_in_pieces() -> None:
    noise = pa.array([random.Random(0).randbytes(400_000)] + [b""] * 2_999)
    again = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000, pa.int32()), pa.array(["x" * 4_000]))
    lists = pa.ListArray.from_arrays(pa.array(range(3_001), pa.int32()), again)
    parts = rows(parquet_bytes(pa.table({"n": noise, "t": again, "l": lists})))
    assert sum(len(part.places) for part in parts) == 3_000
    assert max(sum(len(str(text)) for text in part.columns["t"]) for part in parts) <= parquet.BATCH_BYTES
    assert {text for part in parts for text in part.columns["t"]} == {"x" * 4_000}


def hostile_files() -> Iterator[tuple[str, bytes]]:
    yield from ((what, data) for what, name, data in hostile.files(16 * 7_000) if name.endswith(".parquet"))
    fixed = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), pa.array([b"x" * 900], pa.binary(900)))
    yield "fixed bytes many times", parquet_bytes(pa.table({"v": fixed.dictionary_decode()}), compression="zstd")
    yield "wide fixed bytes", parquet_bytes(pa.table({"v": pa.array([b"x" * 200_000], pa.binary(200_000))}))
    deep = pa.array([1])
    for _ in range(120):
        deep = pa.StructArray.from_arrays([deep], ["a"])
    yield "levels", parquet_bytes(pa.table({"v": deep}))


@pytest.mark.parametrize(("what", "data"), [pytest.param(*file, id=file[0]) for file in hostile_files()])
def test_parquet_rejects_a_file_that_is_too_large(what: str, data: bytes) -> None:
    assert fault(data, record_bytes=7_000).startswith(("oversized: ", "Parquet schema too deeply nested")), what


class Kms(encryption.KmsClient):  # type: ignore[misc]
    """Keys that are not secret."""

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize("plain", [True, False])
def test_parquet_rejects_an_encrypted_file(plain: bool) -> None:
    factory = encryption.CryptoFactory(lambda _: Kms())
    how = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["a"]}, plaintext_footer=plain)
    keys = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    table = pa.table({"a": [1], "b": [2]})
    assert "encrypted" in fault(parquet_bytes(table, encryption_properties=keys))


def small(**options: Any) -> bytes:
    table = pa.table(
        {
            "k": range(5),
            "s": ["a", "bb", None, "a", "d"],
            "t": pa.array([1, 2, 3, 4, None], pa.timestamp("us", "UTC")),
            "m": pa.array(
                [[("a", [1])], [], None, [("b", None)], [("c", [2, 3])]], pa.map_(pa.string(), pa.list_(pa.int32()))
            ),
        }
    )
    return parquet_bytes(table, **{"store_schema": False} | options)


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (9, {}),
        (9, {"data_page_version": "2.0", "use_dictionary": False, "compression": "none"}),
        *(pytest.param(1, way, marks=pytest.mark.long) for way in WAYS),
    ],
    ids=str,
)
def test_parquet_reads_or_rejects_a_damaged_file(step: int, options: dict[str, Any]) -> None:
    data = small(**options)
    assert min(outcomes(rows, data, step, masks=(0x01, 0xFF)).values()) > 0
    for size in range(1, len(data), 7 * step):
        assert fault(data[:size])


def test_parquet_with_a_damaged_page_is_rejected() -> None:
    texts = [str(number) * 9 for number in range(60_000)]
    data = bytearray(parquet_bytes(pa.table({"v": texts}), row_group_size=20_000, write_page_checksum=True))
    data[-40_000] ^= 1
    assert "CRC" in fault(bytes(data))


def test_parquet_raises_the_error_of_a_storage() -> None:
    class Gone(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise Unavailable("the storage does not answer", fix="try again")

    with pytest.raises(Unavailable):
        next(read_file(Gone(small()), "a.parquet", DEFAULT_CSV, record_bytes=1 << 20))
