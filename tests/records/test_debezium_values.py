"""Values in Debezium messages, with and without a schema, compared with a second statement of their meaning."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from math import floor
from typing import Any, Final

import pytest

from lake.contracts.contract import Contract, read_contract
from lake.records.raw_values import TextRecords
from lake.records.reader import RecordReader

CONNECT, TIME, DATA = "org.apache.kafka.connect.data", "io.debezium.time", "io.debezium.data"
REFUSED: Final = "refused"
EPOCH: Final = datetime(1970, 1, 1)


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "logicalType": name}


MILLIS, MICROS = logical("long", "timestamp-millis"), logical("long", "timestamp-micros")
LOCAL, DATE = logical("long", "local-timestamp-micros"), logical("int", "date")


def unscaled(number: int) -> str:
    """Return a decimal as Kafka Connect writes it: the unscaled value in two's complement, as base64."""
    return b64encode(number.to_bytes((number.bit_length() + 8) // 8, signed=True)).decode()


def column(semantic: str | None = None, kind: str = "int64", **parameters: str) -> dict[str, Any]:
    return {"type": kind, "optional": True, "name": semantic, "field": "v", "parameters": parameters or None}


def contract_of(kind: Any, encoding: str | None = None) -> Contract:
    written = {"encoding": encoding} if encoding else {}
    fields = [{"name": "id", "type": "int"}, {"name": "v", "type": ["null", kind], **written}]
    lake = {"key": ["id"], "envelope": "debezium"}
    record = {"type": "record", "name": "rows", "doc": "A row.", "lake": lake, "fields": fields}
    return read_contract(json.dumps(record), file="schemas/rows.avsc")


def message(given: Any, described: Mapping[str, Any] | None) -> bytes:
    change = {"op": "c", "before": None, "after": {"id": 1, "v": given}, "source": {}}
    if described is None:
        return json.dumps(change).encode()
    row = {"type": "struct", "field": "after", "fields": [{"type": "int32", "field": "id"}, described]}
    return json.dumps({"schema": {"type": "struct", "fields": [row]}, "payload": change}).encode()


def read(contract: Contract, *texts: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        RecordReader(contract, 1 << 20).read(TextRecords(range(len(texts)), texts), {}).to_pylist()
    )
    return rows


DAY, SECOND = date(2020, 7, 17), datetime(2020, 7, 17, 18, 0, 22)
MICRO = datetime(2020, 7, 17, 18, 0, 22, 123456)
DAYS, MS, US, NS = 18460, 1595008822000, 1595008822123456, 1595008822123456789
BIG = 10**38 - 1
# (type, encoding in the contract, column of the schema, value in the message, expected value)
ENCODED: list[tuple[Any, str | None, Mapping[str, Any] | None, Any, Any]] = [
    (decimal(10, 4), "base64", None, unscaled(1234567), Decimal("123.4567")),
    (decimal(10, 4), "base64", None, unscaled(-1), Decimal("-0.0001")),
    (decimal(10, 4), "base64", None, "1234", Decimal("-265.8824")),
    (decimal(10, 4), "base64", None, 123.4567, Decimal("123.4567")),
    (decimal(38, 0), "base64", None, unscaled(BIG), Decimal(BIG)),
    (decimal(38, 0), "base64", None, unscaled(-BIG), Decimal(-BIG)),
    (decimal(38, 0), "base64", None, unscaled(BIG + 1), REFUSED),
    (decimal(20, 0), "base64", None, "AP//////////", Decimal(2**64 - 1)),
    (decimal(10, 4), "base64", column(kind="string"), "12.50", Decimal("12.5")),
    (decimal(10, 4), "base64", column(kind="bytes"), unscaled(5), Decimal("0.0005")),
    (decimal(10, 4), None, column(f"{CONNECT}.Decimal", "bytes", scale="2"), unscaled(-346), Decimal("-3.46")),
    (decimal(10, 4), None, column(f"{CONNECT}.Decimal", "bytes", scale="4"), 12345.11, Decimal("12345.11")),
    (decimal(10, 4), None, column(f"{CONNECT}.Decimal", "bytes"), unscaled(5), Decimal("0.0005")),
    (decimal(10, 1), None, column(f"{CONNECT}.Decimal", "bytes", scale="4"), unscaled(1234567), REFUSED),
    (decimal(10, 4), None, column(kind="string"), "1234", Decimal(1234)),
    (decimal(10, 4), None, None, {"scale": 2, "value": unscaled(346)}, Decimal("3.46")),
    (decimal(10, 4), None, None, {"scale": 2}, REFUSED),
    (decimal(10, 4), None, None, "12.50", Decimal("12.5")),
    (decimal(10, 4), None, None, 12.5, Decimal("12.5")),
    (decimal(10, 4), "base64", None, "not base64!", REFUSED),
    ("string", None, column(f"{CONNECT}.Decimal", "bytes"), unscaled(5), REFUSED),
    ("string", None, column(f"{CONNECT}.Decimal", "bytes", scale="1000000000"), unscaled(5), REFUSED),
    ("string", None, column(f"{CONNECT}.Decimal", "bytes", scale="2"), "not base64!", REFUSED),
    ("string", None, column(f"{CONNECT}.Decimal", "bytes", scale="2"), unscaled(10**1200), REFUSED),
    (DATE, None, None, DAYS, DAY),
    (DATE, "millis", None, MS, DAY),
    (DATE, None, column(f"{TIME}.Timestamp"), MS, DAY),
    (DATE, None, None, "2020-07-17", DAY),
    (DATE, None, None, "18460", REFUSED),
    (DATE, None, column(f"{TIME}.IsoDate", "string"), "2020-07-17Z", DAY),
    (DATE, None, column(f"{TIME}.IsoTimestamp", "string"), "2020-07-17T00:00:00Z", DAY),
    (DATE, None, column(f"{TIME}.IsoTimestamp", "string"), "2020-07-17T00:00:01Z", REFUSED),
    (DATE, None, column(f"{TIME}.ZonedTimestamp", "string"), "2020-07-17T00:00:00.000000Z", DAY),
    (DATE, None, column(f"{TIME}.ZonedTimestamp", "string"), "2020-07-17T00:00:00.000001Z", REFUSED),
    (DATE, None, column(f"{TIME}.ZonedTimestamp", "string"), "2020-07-17T18:00:22+00:00", REFUSED),
    (MICROS, None, column(f"{TIME}.Timestamp"), MS, SECOND),
    (MICROS, None, column(f"{CONNECT}.Timestamp"), MS, SECOND),
    (MILLIS, None, column(f"{TIME}.MicroTimestamp"), US, MICRO),
    (MICROS, "millis", column(f"{TIME}.NanoTimestamp"), NS, MICRO),
    (MICROS, None, column(f"{TIME}.Date", "int32"), DAYS, datetime(2020, 7, 17)),
    (MICROS, None, column(f"{TIME}.ZonedTimestamp", "string"), "2020-07-17T20:00:22+02:00", SECOND),
    (MICROS, None, None, US, MICRO),
    (MICROS, "millis", None, MS, SECOND),
    (MICROS, "millis", None, str(MS), SECOND),
    (MICROS, "millis", None, "2020-07-17T18:00:22Z", SECOND),
    (MICROS, "nanos", None, NS, MICRO),
    (MICROS, "nanos", None, -1, datetime(1969, 12, 31, 23, 59, 59, 999999)),
    (MICROS, "days", None, 10**15, REFUSED),
    (MICROS, None, None, str(MS), REFUSED),
    (LOCAL, None, column(f"{TIME}.ZonedTimestamp", "string"), "2020-07-17T18:00:22.123456Z", MICRO),
    (LOCAL, None, column(f"{TIME}.ZonedTimestamp", "string"), "2020-07-17T18:00:22+02:00", REFUSED),
    ("long", None, column(f"{TIME}.MicroTime"), 64822000000, 64822000000),
    ("bytes", None, column(kind="bytes"), "EAE=", b"\x10\x01"),
    ("bytes", "hex", None, "1001", b"\x10\x01"),
    ("bytes", "hex", None, "100", REFUSED),
    ("boolean", None, column(kind="int16"), 1, True),
    ("double", None, None, 123.102, 123.102),
    ("string", None, None, {"k": [1, 2.5]}, '{"k":[1,2.5]}'),
    ("string", None, column(f"{DATA}.Json", "string"), '{"k": "v"}', '{"k": "v"}'),
    ({"type": "array", "items": "string"}, None, None, ["a", None], ["a", None]),
]


@pytest.mark.parametrize("case", ENCODED, ids=lambda case: f"{case[3]}"[:30])
def test_encoded_value_is_decoded_by_its_encoding(
    case: tuple[Any, str | None, Mapping[str, Any] | None, Any, Any],
) -> None:
    kind, encoding, described, given, expected = case
    if isinstance(expected, datetime) and kind in (MILLIS, MICROS):
        expected = expected.replace(tzinfo=UTC)
    [row] = read(contract_of(kind, encoding), message(given, described))
    assert (row["_reason"], row["v"]) == ("wrong type", None) if expected == REFUSED else (None, expected)


@pytest.mark.parametrize(
    ("kind", "encoding", "described", "given", "detail"),
    [
        (decimal(10, 4), None, None, "ALxhTg==", '"encoding": "base64" would read it; texts of digits were taken'),
        (decimal(10, 4), "base64", None, "x!", "v: x! (base64) is not decimal(10,4)"),
        (MICROS, None, None, "1711886400", '"encoding": "millis" would read it; or days, micros, nanos'),
        ("bytes", None, None, "deadbeef0a", 'v: deadbeef0a is not binary ("encoding": "hex" would read it)'),
        (MICROS, "days", None, 10**15, "v: 1000000000000000 (days) is not timestamp"),
        (MICROS, None, column(f"{TIME}.MicroTime"), 5, "v: 5 (io.debezium.time.MicroTime) is not timestamp"),
    ],
)
def test_rejection_names_the_encoding(kind: Any, encoding: Any, described: Any, given: Any, detail: str) -> None:
    [row] = read(contract_of(kind, encoding), message(given, described))
    assert row["_reason"] == "wrong type"
    assert detail in row["_detail"]


# Meaning of a value: ("number", unscaled, scale, base64), ("moment", count, nanoseconds, unit),
# ("time", count, nanoseconds) or ("year", year).
Meaning = tuple[Any, ...]
NANOS: Final = {"days": 86400 * 10**9, "millis": 10**6, "micros": 10**3, "nanos": 1}
COUNTS: Final = (0, 1, -1, 18460, 86_399_999, -86_400_001, US, MS, NS, 2**31, 2**62, -(2**62))
TYPES: Final[Mapping[str, Any]] = {
    "string": "string",
    "int": "int",
    "bigint": "long",
    "double": "double",
    "decimal": decimal(12, 3),
    "boolean": "boolean",
    "binary": "bytes",
    "date": DATE,
    "timestamp": MICROS,
    "in millis": MILLIS,
    "local": LOCAL,
}


def samples() -> list[tuple[Mapping[str, Any], Any, Meaning]]:
    """Return columns of a schema, each with a value and its meaning."""
    made: list[tuple[Mapping[str, Any], Any, Meaning]] = []
    for number in (0, 1, -1, 12345, -12345, 10**17, 10**40):
        for scale in (0, 2, -2, 7):
            text = unscaled(number)
            described = column(f"{CONNECT}.Decimal", "bytes", scale=str(scale))
            made.append((described, text, ("number", number, scale, text)))
            pair = {"scale": scale, "value": text}
            made.append((column(f"{DATA}.VariableScaleDecimal", "struct"), pair, ("number", number, scale, "")))
    kinds = [(f"{CONNECT}.Date", "days"), (f"{CONNECT}.Timestamp", "millis"), (f"{TIME}.Date", "days")]
    kinds += [(f"{TIME}.{prefix}Timestamp", unit) for prefix, unit in (("", "millis"), ("Micro", "micros"))]
    kinds += [(f"{TIME}.NanoTimestamp", "nanos")]
    made += [(column(name), n, ("moment", n, n * NANOS[unit], unit)) for name, unit in kinds for n in COUNTS]
    kinds = [(f"{CONNECT}.Time", "millis"), (f"{TIME}.Time", "millis"), (f"{TIME}.MicroTime", "micros")]
    kinds += [(f"{TIME}.NanoTime", "nanos")]
    made += [(column(name), n, ("time", n, n * NANOS[unit])) for name, unit in kinds for n in COUNTS]
    made += [(column(f"{TIME}.Year", "int32"), year, ("year", year)) for year in (2024, 1, 987)]
    return made


def expected_value(kind: str, meaning: Meaning) -> Any:
    """Return the value of a field of a type for a value with this meaning."""
    if meaning[0] == "number":
        _, number, scale, text = meaning
        return b64decode(text) if kind == "binary" and text else number_as(kind, number, scale)
    if kind == "string":
        return text_of(meaning)
    if kind in {"int", "bigint", "double", "decimal", "boolean"}:
        return whole_as(kind, meaning[1])
    if kind == "binary" or meaning[0] != "moment":
        return REFUSED
    return moment_as(kind, meaning[2])


def number_as(kind: str, number: int, scale: int) -> Any:
    value = Fraction(number) / Fraction(10) ** scale
    if kind == "string":
        sign, digits = "-" * (number < 0), str(abs(number) * 10 ** max(-scale, 0)).zfill(max(scale, 0) + 1)
        return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale > 0 else digits)
    if kind == "double":
        return float(value)
    if kind == "decimal":
        thousandths = value * 1000
        is_exact = thousandths.denominator == 1 and abs(thousandths) < 10**12
        return Decimal(int(thousandths)).scaleb(-3) if is_exact else REFUSED
    if kind in {"int", "bigint"} and value.denominator == 1:
        return whole_as(kind, int(value))
    return REFUSED


def whole_as(kind: str, number: int) -> Any:
    match kind:
        case "int" | "bigint":
            limit = 2**31 if kind == "int" else 2**63
            return number if -limit <= number < limit else REFUSED
        case "double":
            return float(number)
        case "decimal":
            return Decimal(number) if abs(number) < 10**9 else REFUSED
    return bool(number) if number in (0, 1) else REFUSED


def moment_as(kind: str, nanos: int) -> Any:
    with suppress(OverflowError):
        moment = EPOCH + timedelta(microseconds=floor(Fraction(nanos, 1000)))
        return moment.date() if kind == "date" else moment if kind == "local" else moment.replace(tzinfo=UTC)
    return REFUSED


def text_of(meaning: Meaning) -> str:
    if meaning[0] == "year":
        return f"{meaning[1]:04d}"
    seconds, nanos = divmod(abs(meaning[2]) if meaning[0] == "time" else meaning[2], 10**9)
    millis, micros = f"{nanos:09d}"[:3], f"{nanos:09d}"[:6]
    fraction = f"{nanos:09d}" if nanos % 1000 else micros if nanos % 10**6 else millis
    fraction = f".{fraction}" if nanos else ""
    if meaning[0] == "time":
        return f"{'-' * (meaning[2] < 0)}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
    try:
        moment = EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return REFUSED
    clock = f"T{moment.hour:02d}:{moment.minute:02d}:{moment.second:02d}{fraction}"
    return moment.date().isoformat() + (clock if meaning[3] != "days" else "")


def without_schema(kind: str, given: Any) -> Any:
    """Return the value of a field for a value without a schema."""
    if isinstance(given, dict):
        text = json.dumps(given, separators=(",", ":"))
        number = int.from_bytes(b64decode(given["value"]), signed=True)
        return text if kind == "string" else number_as(kind, number, given["scale"]) if kind == "decimal" else REFUSED
    if isinstance(given, str):
        return given if kind == "string" else b64decode(given) if kind == "binary" else REFUSED
    if kind == "string":
        return str(given)
    unit = {"date": "days", "in millis": "millis", "timestamp": "micros", "local": "micros"}.get(kind)
    return moment_as(kind, given * NANOS[unit]) if unit else REFUSED if kind == "binary" else whole_as(kind, given)


@pytest.mark.parametrize("kind", TYPES)
def test_semantic_types_of_a_schema_are_used_for_every_field_type(kind: str) -> None:
    texts, expected = [], []
    for described, given, meaning in samples():
        texts += [message(given, described), message(given, None)]
        expected += [expected_value(kind, meaning), without_schema(kind, given)]
    rows = read(contract_of(TYPES[kind]), *texts)
    found = [row["v"] if row["_reason"] is None else REFUSED for row in rows]
    wrong = [case for case in zip(texts, expected, found, strict=True) if case[1] != case[2]]
    assert wrong == []


def test_semantic_types_are_used_within_nested_columns() -> None:
    inner = {
        "type": "record",
        "name": "inner",
        "fields": [{"name": "at", "type": MICROS}, {"name": "n", "type": "string"}],
    }
    kind = {"type": "array", "items": {"type": "map", "values": inner}}
    at, number = column(f"{TIME}.Timestamp"), column(f"{CONNECT}.Decimal", "bytes", scale="1")
    members = [at | {"field": "at"}, number | {"field": "n"}, number | {"field": "more"}]
    described = {
        "type": "array",
        "field": "v",
        "items": {"type": "map", "values": {"type": "struct", "fields": members}},
    }
    record = {"at": MS, "n": unscaled(15), "more": unscaled(-15)}
    for given in ([{"k": record}, None], json.dumps([{"k": record}, None])):
        [row] = read(contract_of(kind), message(given, described))
        assert row["v"] == [[("k", {"at": SECOND.replace(tzinfo=UTC), "n": "1.5"})], None]
        assert json.loads(row["_extra"]) == {"v": {"0": {"k": {"more": "-1.5"}}}}
    [wrong] = read(contract_of(kind), message([{"k": record | {"n": "!"}}], described))
    assert wrong["_detail"].endswith("(base64) is not string")


def test_undeclared_column_is_kept_as_its_schema_describes_it() -> None:
    described = column(f"{CONNECT}.Decimal", "bytes", scale="2") | {"field": "w"}
    text = message(1, described).replace(b'"v": 1', b'"w": "MDk="')
    [row] = read(contract_of("string"), text)
    assert json.loads(row["_extra"]) == {"w": "123.45"}
