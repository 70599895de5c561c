"""Avro container files: values of every type, codecs, and damaged files."""

from __future__ import annotations

import json
import random
import warnings
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any

import avro.datafile
import avro.io
import avro.schema
import fastavro
import pyarrow as pa
import pytest

from lake.contracts.avro_text import parse
from lake.contracts.csv_options import DEFAULT_CSV
from lake.errors import Unavailable
from lake.records import avro as avro_files
from lake.records.avro_values import decoder
from lake.records.raw_values import ABSENT, ColumnRecords, FileFault, OutsideCalendar, RawValue
from lake.records.read_tasks import read_file
from tests.records.reading import outcomes

MICROS = 1_711_879_500_123_456
NOON = datetime(2024, 3, 31, 10, 5, 0, 123456)
ID = "0f0e0d0c-0b0a-0908-0706-050403020100"


def of(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


def record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "rows", "namespace": "a.b", "fields": fields}


def fixed(size: int, logical: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **({"logicalType": logical} if logical else {}), **more}


def unscaled(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big", signed=True)


CONNECT = "io.debezium.time."
VALUES: dict[str, tuple[Any, Any, RawValue]] = {
    "null": ("null", None, None),
    "least": ("long", -(1 << 63), -(1 << 63)),
    "most": ("long", (1 << 63) - 1, (1 << 63) - 1),
    "int": ("int", -7, -7),
    "flag": ("boolean", True, True),
    "single": ("float", 0.1, 0.1),
    "tiny": ("float", 1e-45, 1e-45),
    "double": ("double", 0.1, 0.1),
    "infinite": ("double", float("-inf"), float("-inf")),
    "text": ("string", 'Zürich "\n', 'Zürich "\n'),
    "bytes": ("bytes", b"\x00\xff", b"\x00\xff"),
    "fixed": (fixed(2), b"\x00\xff", b"\x00\xff"),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    "price": (of("bytes", "decimal", precision=9, scale=2), unscaled(-150, 2), Decimal("-1.50")),
    "cents": (of("bytes", "decimal", precision=9, scale=3), b"\x05", Decimal("0.005")),
    "fixed decimal": (fixed(5, "decimal", precision=9, scale=2), unscaled(-150, 5), Decimal("-1.50")),
    "long decimal": (of("bytes", "decimal", precision=76, scale=2), unscaled(-(10**76) + 1, 32),
                     Decimal("-" + "9" * 74 + ".99")),
    "huge decimal": (of("bytes", "decimal", precision=38, scale=2), b"\x01" * 65, "a decimal of 65 bytes"),
    "day": (of("int", "date"), -1, date(1969, 12, 31)),
    "distant day": (of("int", "date"), 10**9, OutsideCalendar("1000000000 days since 1970")),
    "millis": (of("long", "timestamp-millis"), -1, datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
    "micros": (of("long", "timestamp-micros"), MICROS, NOON.replace(tzinfo=UTC)),
    "nanos": (of("long", "timestamp-nanos"), MICROS * 1000 + 999, NOON.replace(tzinfo=UTC)),
    "nanos before 1970": (of("long", "timestamp-nanos"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    "local millis": (of("long", "local-timestamp-millis"), MICROS // 1000, NOON.replace(microsecond=123000)),
    "local micros": (of("long", "local-timestamp-micros"), MICROS, NOON),
    "local nanos": (of("long", "local-timestamp-nanos"), MICROS * 1000, NOON),
    "distant": (of("long", "timestamp-micros"), 1 << 62, OutsideCalendar(f"{1 << 62} micros since 1970")),
    "time of millis": (of("int", "time-millis"), 3_600_001, time(1, 0, 0, 1000)),
    "time of micros": (of("long", "time-micros"), 1, time(0, 0, 0, 1)),
    "time after midnight": (of("int", "time-millis"), 86_400_000, OutsideCalendar("86400000 millis since midnight")),
    "text id": (of("string", "uuid"), ID, ID),
    "fixed id": (fixed(16, "uuid"), bytes(range(15, -1, -1)), ID),
    "unknown logical type": (of("long", "parsecs"), 7, 7),
    "connect date": ({"type": "int", "connect.name": f"{CONNECT}Date"}, 0, date(1970, 1, 1)),
    "connect time": ({"type": "long", "connect.name": f"{CONNECT}MicroTimestamp"}, MICROS, NOON),
    "connect nanos": ({"type": "long", "connect.name": f"{CONNECT}NanoTimestamp"}, MICROS * 1000 + 1, NOON),
    "list": ({"type": "array", "items": of("int", "date")}, [0, 1], [date(1970, 1, 1), date(1970, 1, 2)]),
    "map": ({"type": "map", "values": ["null", "bytes"]}, {"a": b"x", "b": None}, {"a": b"x", "b": None}),
    "nested": (
        {"type": "record", "name": "N", "fields": [{"name": "d", "type": ["null", of("int", "date")]}]},
        {"d": 0},
        {"d": date(1970, 1, 1)},
    ),
    "one of many": (["null", "boolean", "long", "string", "bytes"], b"x", b"x"),
}  # fmt: skip


def plain(schema: Any) -> Any:
    """Return the schema without logical types, by which libraries write raw values."""
    if isinstance(schema, list):
        return [plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: plain(part) for name, part in schema.items() if name != "logicalType"}


def container(schema: Any, values: list[Any], codec: str = "null", *, every: int = 1 << 20) -> bytes:
    """Return a container file of raw values, with a block after each `every` of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full, raw = avro.schema.parse(json.dumps(schema)), avro.schema.parse(json.dumps(plain(schema)))
    stream = BytesIO()
    writer = avro.datafile.DataFileWriter(stream, avro.io.DatumWriter(), full, codec=codec)
    writer.datum_writer.writers_schema = raw
    for number, value in enumerate(values, 1):
        writer.append(value)
        if number % every == 0:
            writer.sync()
    writer.flush()
    return stream.getvalue()


def long(number: int) -> bytes:
    """Return a number as Avro encodes it."""
    number = (number << 1) ^ (number >> 63)
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def with_block(data: bytes, count: int, block: bytes) -> bytes:
    """Return a container file with one more block."""
    return data + long(count) + long(len(block)) + block + data[-16:]


def rows(data: bytes, *, record_bytes: int = 1 << 20) -> list[ColumnRecords]:
    parts = list(read_file(BytesIO(data), "a.avro", DEFAULT_CSV, record_bytes=record_bytes))
    assert all(isinstance(part, ColumnRecords) for part in parts)
    return [part for part in parts if isinstance(part, ColumnRecords)]


def read_records(data: bytes, **more: Any) -> tuple[list[dict[str, RawValue]], str]:
    """Return the records of a file, and the detail of a broken one at its end."""
    found: list[dict[str, RawValue]] = []
    detail = ""
    for part in rows(data, **more):
        for index, place in enumerate(part.places):
            row = {name: column[index] for name, column in part.columns.items()}
            if index in part.broken:
                detail = part.broken[index][0]
                assert set(row.values()) == {ABSENT}
            else:
                found.append(row)
            assert place == len(found) + bool(detail)
    return found, detail


def fault(data: bytes, **more: Any) -> str:
    with pytest.raises(FileFault) as raised:
        rows(data, **more)
    return str(raised.value)


@pytest.mark.parametrize("what", VALUES)
def test_avro_returns_values_of_every_type(what: str) -> None:
    kind, raw, given = VALUES[what]
    [row], detail = read_records(container(record(k=kind, n="int"), [{"k": raw, "n": 1}]))
    assert not detail
    assert row == {"k": given, "n": 1}
    assert type(row["k"]) is type(given)


def test_avro_returns_a_string_that_is_not_utf8_as_bytes() -> None:
    data = container(record(k="string"), [{"k": "é"}, {"k": "b"}]).replace("é".encode(), b"\xe9\xff")
    assert read_records(data) == ([{"k": b"\xe9\xff"}, {"k": "b"}], "")


def test_avro_returns_the_written_branch_of_a_union_of_like_types() -> None:
    schema = record(k=[of("int", "date"), of("long", "timestamp-micros"), "double", "float", fixed(1), "bytes"])
    written = long(0) + long(1), long(1) + long(1), long(4) + b"x", long(5) + long(1) + b"y"
    data = with_block(container(schema, []), len(written), b"".join(written))
    given = [date(1970, 1, 2), datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), b"x", b"y"]
    assert read_records(data) == ([{"k": value} for value in given], "")


def test_avro_reads_arrays_and_maps_in_blocks_of_declared_sizes() -> None:
    schema = record(a={"type": "array", "items": "int"}, m={"type": "map", "values": "int"})
    array = long(-2) + long(2) + long(1) + long(2) + long(1) + long(3) + long(0)
    pairs = [long(1) + name + long(7) for name in (b"x", b"y")]
    maps = long(-1) + long(3) + pairs[0] + long(1) + pairs[1] + long(0)
    data = with_block(container(schema, []), 1, array + maps)
    assert read_records(data) == ([{"a": [1, 2, 3], "m": {"x": 7, "y": 7}}], "")


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_avro_reads_codecs_of_fastavro(codec: str) -> None:
    stream = BytesIO()
    fastavro.writer(stream, record(k="string"), [{"k": str(n)} for n in range(9_999)], codec=codec, sync_interval=999)
    assert read_records(stream.getvalue()) == ([{"k": str(n)} for n in range(9_999)], "")


@pytest.mark.parametrize("codec", ["snappy", "zstandard"])
def test_avro_reads_codecs_of_other_writers(codec: str) -> None:
    block = long(3) + b"abc"
    packed = pa.compress(block, {"zstandard": "zstd"}.get(codec, codec), asbytes=True)
    checksum = zlib.crc32(block).to_bytes(4, "big") if codec == "snappy" else b""
    head = container(record(k="string"), []).replace(long(4) + b"null", long(len(codec)) + codec.encode())
    assert read_records(with_block(head, 1, packed + checksum)) == ([{"k": "abc"}], "")
    if codec == "snappy":
        _, detail = read_records(with_block(head, 1, packed + b"\0\0\0\0"))
        assert detail == "cannot be read after record 0: a block is not what its checksum says"


def test_avro_yields_at_most_ten_thousand_records_together() -> None:
    data = container(record(k="int"), [{"k": n} for n in range(25_000)], every=9_000)
    assert [len(part.places) for part in rows(data)] == [10_000, 10_000, 5_000]
    assert rows(container(record(k="int"), [])) == [ColumnRecords(range(1, 1), {"k": []})]
    assert rows(b"") == []


def test_avro_reads_the_records_before_a_broken_block_and_reports_its_fault() -> None:
    whole = container(record(k="string"), [{"k": str(n)} for n in range(30)], every=10)
    kept = [{"k": str(n)} for n in range(20)]
    assert read_records(whole[:-25]) == (kept, "cannot be read after record 20: a block of 30 bytes ends after 21")
    damaged = whole[:-30] + b"\xff" * 30
    assert read_records(damaged) == (
        kept,
        "cannot be read after record 20: a block does not end with the file's marker",
    )
    for block, words in (
        (long(3) + b"ab", "3 bytes where 2 are left"),
        (b"\x80", "the bytes end within a value"),
        (long(1) + b"ab", "a block has 1 bytes more than its 1 records"),
        (b"\xff" * 10 + b"\x01", "a number of more than 64 bits"),
        (b"\xff" * 1_000, "a number of more than 64 bits"),
    ):
        found, detail = read_records(with_block(container(record(k="string"), [{"k": "x"}]), 1, block))
        assert (found, detail.partition(": ")[2]) == (
            [{"k": "x"}, {"k": "a"}] if "more than its" in words else [{"k": "x"}],
            words,
        )


@pytest.mark.parametrize(
    ("kind", "block", "words"),
    [
        ("boolean", b"\x02", "a boolean that is 2"),
        (["null", "int"], long(2), "branch 2 of a union of 2"),
        (["null", "int"], long(-1), "branch -1 of a union of 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, long(1), "symbol 1 of an enum of 1"),
        ("bytes", long(-1), "-1 bytes where 0 are left"),
        ("double", b"1234", "the bytes end within a value"),
        ({"type": "array", "items": "boolean"}, long(1 << 60), "the bytes end within a value"),
        ({"type": "map", "values": "int"}, long(1) + long(1) + b"\xff\x01\x00", "'utf-8' codec can't decode"),
    ],
    ids=str,
)
def test_avro_reports_the_fault_of_bytes_that_are_no_value(kind: Any, block: bytes, words: str) -> None:
    found, detail = read_records(with_block(container(record(k=kind), []), 1, block))
    assert found == []
    assert detail.startswith(f"cannot be read after record 0: {words}")


def test_avro_breaks_a_record_that_is_nested_too_deep() -> None:
    schema = record(k=["null", "a.b.rows"])
    data = with_block(container(schema, []), 2, long(0) + long(1) * 100_000 + long(0))
    found, detail = read_records(data)
    assert found == [{"k": None}]
    assert detail.startswith("cannot be read after record 1: maximum recursion depth exceeded")


def doubled(times: int) -> dict[str, Any]:
    """Return an empty record of two records of two records, `times` levels deep."""
    made: dict[str, Any] = {"type": "record", "name": "D0", "fields": []}
    for number in range(1, times + 1):
        fields = [{"name": "a", "type": made}, {"name": "b", "type": f"D{number - 1}"}]
        made = {"type": "record", "name": f"D{number}", "fields": fields}
    return made


def test_avro_rejects_a_file_that_is_no_container_of_records() -> None:
    header = container(record(k="string"), [])
    deep = '{"type": "array", "items": ' * 5_000 + '"int"' + "}" * 5_000
    endless = "an Avro file with records or arrays of values without a size"
    for content, words in (
        (b"{}", "not an Avro container file that can be read: it does not begin as one"),
        (header[:30], "not an Avro container file that can be read: "),
        (header.replace(b"null", b"snip"), "its codec 'snip' is none of null, deflate"),
        (header.replace(b"avro.schema", b"avro.schemo"), "not an Avro container file that can be read: "),
        (b"Obj\x01" + long(1) + long(11) + b"avro.schema" + long(len(deep)) + deep.encode() + long(0), "recursion"),
        (container({"type": "array", "items": "int"}, []), "an Avro file of array values: records are read"),
        (container(record(), []), endless),
        (container(record(k={"type": "array", "items": "null"}), []), endless),
        (container(record(k={"type": "array", "items": doubled(3)}), []), endless),
        (container(record(k={"type": "array", "items": doubled(60)}), []), "oversized: 2,"),
    ):
        assert words in fault(content)


@pytest.mark.parametrize("codec", ["deflate", "bzip2"])
def test_avro_rejects_a_file_that_unpacks_to_too_much(codec: str) -> None:
    schema, little = record(k="string"), [{"k": "x" * 7_000}] * 2
    for bomb in (
        container(schema, [*little, {"k": "x" * 4_000_000}], codec),
        container(schema, little * 300, codec, every=2),
    ):
        words = f"oversized: unpacked, its {len(bomb):,} bytes are more than 100 times as many"
        assert fault(bomb, record_bytes=1000) == words
        assert rows(bomb)
    for sound in (container(schema, little, codec), bomb[:-40], bomb[:200] + b"\xff" * 9):
        assert rows(sound, record_bytes=1_000_000)


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "zstandard", "snappy"])
def test_avro_rejects_a_block_that_unpacks_to_too_much(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_files, "BLOCK_BYTES", 100_000)
    block = long(200_000) + b"x" * 200_000
    name = {"zstandard": "zstd"}.get(codec, codec)
    if codec in {"zstandard", "snappy"}:
        packed = pa.compress(block, name, asbytes=True) + b"1234"
        head = container(record(k="string"), []).replace(long(4) + b"null", long(len(codec)) + codec.encode())
        data = with_block(head, 1, packed)
    else:
        stream = BytesIO()
        fastavro.writer(stream, record(k="string"), [{"k": "x" * 200_000}], codec=codec)
        data = stream.getvalue()
    assert fault(data) == "oversized: a block unpacks to more than 100,000 bytes"


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_avro_reads_a_prefix_of_a_truncated_file(codec: str) -> None:
    values = [{"k": str(n), "n": None if n % 3 else n} for n in range(40)]
    data = container(record(k="string", n=["null", "long"]), values, codec, every=10)
    taken_whole = 0
    for size in range(1, len(data)):
        try:
            found, detail = read_records(data[:size])
        except FileFault:
            continue
        assert found == values[: len(found)]
        assert (len(found) % 10, bool(detail)) in {(0, True), (0, False)}
        taken_whole += not detail
    assert taken_whole == 4  # after each block but the last, and before the first


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_avro_reads_or_rejects_a_damaged_file(codec: str, step: int) -> None:
    kinds = {f"f{number}": kind for number, (kind, _, _) in enumerate(VALUES.values()) if "name" not in kind}
    row = {f"f{number}": raw for number, (_, raw, _) in enumerate(VALUES.values())}
    data = container(record(**kinds), [{name: row[name] for name in kinds}] * 3, codec, every=1)
    assert min(outcomes(rows, data, step, masks=(0x01, 0x80)).values()) > 0


def type_of(draw: random.Random, levels: int, names: list[str]) -> Any:
    if levels and draw.random() < 0.6:
        names.append(f"R{len(names)}")
        name = names[-1]
        match draw.randrange(4):
            case 0:
                return {"type": "array", "items": type_of(draw, levels - 1, names)}
            case 1:
                return {"type": "map", "values": type_of(draw, levels - 1, names)}
            case 2:
                return ["null", type_of(draw, 0, names)]
            case 3:
                fields = [{"name": part, "type": type_of(draw, levels - 1, names)} for part in "abc"]
                return {"type": "record", "name": name, "fields": fields}
    return draw.choice(["int", "long", "boolean", "double", "string", "bytes"])


def value_of(schema: Any, draw: random.Random) -> Any:
    if isinstance(schema, list):
        return draw.choice([None, value_of(schema[1], draw)])
    if isinstance(schema, dict):
        match schema["type"]:
            case "array":
                return [value_of(schema["items"], draw) for _ in range(draw.randrange(4))]
            case "map":
                return {f"k{n}": value_of(schema["values"], draw) for n in range(draw.randrange(4))}
        return {field["name"]: value_of(field["type"], draw) for field in schema["fields"]}
    makers: dict[str, Callable[[], RawValue]] = {
        "int": lambda: draw.randrange(-(1 << 31), 1 << 31),
        "long": lambda: draw.randrange(-(1 << 63), 1 << 63),
        "boolean": lambda: draw.random() < 0.5,
        "double": draw.random,
        "string": lambda: "".join(draw.choices("abcé€😀\0", k=draw.randrange(90))),
        "bytes": lambda: draw.randbytes(draw.randrange(90)),
    }
    return makers[schema]()


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(n, marks=pytest.mark.long) for n in range(10, 300))])
def test_avro_reads_generated_files_like_fastavro(seed: int) -> None:
    draw = random.Random(seed)
    schema = record(**{f"f{n}": type_of(draw, 3, [f"S{n}"] * (100 * n + 1)) for n in range(5)})
    values = [value_of(schema, draw) for _ in range(draw.choice([0, 1, 60]))]
    stream = BytesIO()
    fastavro.writer(stream, schema, values, codec=draw.choice(["null", "deflate"]), sync_interval=500)
    assert read_records(stream.getvalue()) == (values, "")


def test_avro_decodes_a_message_of_its_own() -> None:
    decode = decoder(parse(record(k="string", n=["null", "int"])))
    data = long(1) + b"x" + long(1) + long(7) + b"rest"
    value, end = decode(data, 0)
    assert (value, data[end:]) == ({"k": "x", "n": 7}, b"rest")


def test_avro_raises_the_error_of_a_storage() -> None:
    data = container(record(k="string"), [{"k": str(n)} for n in range(30)], every=10)

    class Gone(BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > len(data) // 2:
                raise Unavailable("the storage does not answer", fix="try again")
            return super().read(size)

    with pytest.raises(Unavailable):
        list(read_file(Gone(data), "a.avro", DEFAULT_CSV, record_bytes=1 << 20))
