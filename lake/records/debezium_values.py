"""Values of Debezium's semantic types, in the form that a contract's types read. Times without a zone are UTC.

The schema describes columns as Kafka Connect does: {"type": "int64", "name": "io.debezium.time.MicroTimestamp",
"parameters": …, "fields": …, "items": …, "values": …}; {} without a schema. Sources: Debezium's documentation, "Data
type mappings" and "Temporal types" of each connector; Kafka's JsonConverter.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final, TypeAlias

from lake.contracts.fields import Field
from lake.contracts.reasons import Reason
from lake.records.json_value import parse_if_json, plain_text
from lake.records.raw_values import ABSENT, JsonNumber, RawValue, WrongValue
from lake.records.times import EPOCH, NANOS, from_count
from lake.records.values import excerpt, in_base64, in_hex

Convert: TypeAlias = Callable[[RawValue], RawValue]
"""Converter of a value other than null. Raises WrongValue, whose text follows the value in a detail."""

CONNECT, TIME = "org.apache.kafka.connect.data", "io.debezium.time"
YEAR: Final = f"{TIME}.Year"
TIMESTAMP_UNITS: Final[Mapping[str, str]] = {
    f"{CONNECT}.Date": "days",
    f"{CONNECT}.Timestamp": "millis",
    f"{TIME}.Date": "days",
    f"{TIME}.Timestamp": "millis",
    f"{TIME}.MicroTimestamp": "micros",
    f"{TIME}.NanoTimestamp": "nanos",
}
TIME_OF_DAY_UNITS: Final[Mapping[str, str]] = {
    f"{CONNECT}.Time": "millis",
    f"{TIME}.Time": "millis",
    f"{TIME}.MicroTime": "micros",
    f"{TIME}.NanoTime": "nanos",
}
NOT_TIMESTAMPS: Final = (*TIME_OF_DAY_UNITS, YEAR, f"{TIME}.MicroDuration", f"{TIME}.NanoDuration")
UTC_TEXTS: Final = (f"{TIME}.IsoDate", f"{TIME}.IsoTimestamp", f"{TIME}.ZonedTimestamp")
WHOLE: Final = re.compile(r"-?[0-9]{1,30}")
UTC_ZONE: Final = re.compile(r"(Z|[+-]00:?00)$")


def _time_converter(field: Field, semantic: str) -> Convert | None:
    unit = TIMESTAMP_UNITS.get(semantic) or field.encoding
    if semantic in NOT_TIMESTAMPS:
        return partial(_reject, field.type, semantic)
    if semantic in UTC_TEXTS:
        return None if field.type == "timestamp" and not semantic.endswith("Date") else _without_utc
    return partial(_timestamp, field, unit) if unit else partial(_reject_digits, field.type)


def whole_number(given: RawValue) -> int | None:
    if isinstance(given, str):
        return int(given) if WHOLE.fullmatch(given) else None
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _reject(kind: str, semantic: str, _: RawValue) -> RawValue:
    raise WrongValue(f"({semantic}) is not {kind}")


def _reject_digits(kind: str, given: RawValue) -> RawValue:
    if type(given) is str and WHOLE.fullmatch(given):
        raise WrongValue(f'is not {kind} ("encoding": "millis" would read it; or days, micros, nanos)')
    return given


def _without_utc(given: RawValue) -> RawValue:
    return UTC_ZONE.sub("", given) if type(given) is str else given


def _timestamp(field: Field, unit: str, given: RawValue) -> RawValue:
    count = whole_number(given)
    if count is None:
        return given
    if from_count(count, unit) is None:
        raise WrongValue(f"({unit}) is not {field.type}")
    if field.type == "date":
        return count * NANOS[unit] // NANOS["days"]
    micros = count * NANOS[unit] // 1_000
    own, rest = divmod(micros * (field.epoch or 1), 10**6)
    if not rest:
        return own
    return _iso(micros * 1_000) + ("Z" if field.type == "timestamp" else "")


def _count_as_text(unit: str, text: Callable[[int], str], given: RawValue) -> RawValue:
    count = whole_number(given)
    if count is None:
        return given
    try:
        return text(count * NANOS[unit])
    except OverflowError:
        raise WrongValue(f"({unit}) is not string") from None


def _year(given: RawValue) -> RawValue:
    count = whole_number(given)
    return given if count is None else f"{count:04}"


def _day(nanos: int) -> str:
    return _iso(nanos)[:10]


def _iso(nanos: int) -> str:
    seconds, fraction = divmod(nanos, 10**9)
    return (EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(fraction)


def _time_of_day(nanos: int) -> str:
    seconds, fraction = divmod(abs(nanos), 10**9)  # a time of MySQL may be negative, and longer than a day
    minutes, second = divmod(seconds, 60)
    sign = "-" if nanos < 0 else ""
    return f"{sign}{minutes // 60:02}:{minutes % 60:02}:{second:02}{_fraction(fraction)}"


def _fraction(nanos: int) -> str:
    if not nanos:
        return ""
    digits = f"{nanos:09}"
    return f".{digits.removesuffix('000').removesuffix('000')}"


Schema: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, RawValue]

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
VARIABLE_SCALE_DECIMAL: Final = "io.debezium.data.VariableScaleDecimal"

MOST_DIGITS: Final = 1_000
NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def converter(field: Field, schema: Schema) -> Convert | None:
    kind = field.type.partition("(")[0]
    if field.nested:
        return _nested_converter(field, schema)
    if kind == "string":
        return _text_converter(schema)
    if kind in {"int", "bigint", "float", "double", "decimal"}:
        return _number_converter(field, schema)
    if kind in {"date", "timestamp", "timestamp_ntz"}:
        return _time_converter(field, _semantic(schema))
    if kind == "binary":
        return _from_hex if field.encoding == "hex" else _reject_hex
    return None


def _undeclared_converter(schema: Schema) -> Convert | None:
    return converter(_undeclared_field(schema), schema)


def _decimal_digits(text: RawValue, scale: int | None) -> str:
    """Return the digits of a decimal whose unscaled value is base64 in two's complement. Raises ValueError."""
    raw = base64.b64decode(text, validate=True) if type(text) is str else b""
    if scale is None or not 0 < len(raw) <= MOST_DIGITS // 3 or abs(scale) > MOST_DIGITS:
        raise ValueError(text)
    number = Decimal(int.from_bytes(raw, "big", signed=True))
    return plain_text(number.scaleb(-scale, Context(prec=MOST_DIGITS)))


def _member_schemas(schema: Schema) -> dict[str, Schema]:
    fields = schema.get("fields")
    described = [member for member in fields if isinstance(member, dict)] if isinstance(fields, list) else []
    return {str(member.get("field")): member for member in described}


def _undeclared_field(schema: Schema) -> Field:
    match schema.get("type"):
        case "struct" if _semantic(schema) != VARIABLE_SCALE_DECIMAL:
            parts = (replace(_undeclared_field(member), name=name) for name, member in _member_schemas(schema).items())
            return Field("", "struct<>", parts=tuple(parts))
        case "array":
            return Field("", "array<>", parts=(_undeclared_field(_part(schema, "items")),))
        case "map":
            return Field("", "map<>", parts=(_undeclared_field(_part(schema, "values")),))
    return Field("", "string")


def _semantic(schema: Schema) -> str:
    name = schema.get("name")
    return name if isinstance(name, str) else ""


def _part(schema: Schema, name: str) -> Schema:
    part = schema.get(name)
    return part if isinstance(part, dict) else {}


def _scale(schema: Schema) -> int | None:
    return whole_number(_part(schema, "parameters").get("scale"))


def _decimal_converter(kind: str, scale: int | None) -> Convert:
    def convert(given: RawValue) -> RawValue:
        if isinstance(given, JsonNumber) or not isinstance(given, str | dict):
            return given
        try:
            if isinstance(given, dict):  # of a variable scale
                return _decimal_digits(given.get("value"), whole_number(given.get("scale")))
            return _decimal_digits(given, scale)
        except ValueError:
            raise WrongValue(f"(base64) is not {kind}") from None

    return convert


def _number_converter(field: Field, schema: Schema) -> Convert | None:
    is_decimal = field.type.startswith("decimal")
    own_scale = int(field.type[:-1].partition(",")[2]) if is_decimal else None
    semantic, kind = _semantic(schema), schema.get("type")
    if semantic == DECIMAL:
        scale = _scale(schema)
        return _decimal_converter(field.type, own_scale if scale is None else scale)
    if semantic == VARIABLE_SCALE_DECIMAL:
        return _decimal_converter(field.type, None)
    if not is_decimal:
        return None
    if field.encoding == "base64" and kind in {None, "bytes", "struct"}:
        return _decimal_converter(field.type, own_scale)
    return partial(_plain_decimal, field.type, own_scale)


def _plain_decimal(kind: str, scale: int | None, given: RawValue) -> RawValue:
    if isinstance(given, dict):
        return _decimal_converter(kind, scale)(given)
    if type(given) is not str or NUMBER.fullmatch(given):
        return given
    try:
        _decimal_digits(given, scale)
    except ValueError:
        return given
    way = '"encoding": "base64" would read it; texts of digits were taken as numbers'
    raise WrongValue(f"is not {kind} ({way})")


def _text_converter(schema: Schema) -> Convert | None:
    semantic = _semantic(schema)
    if semantic in {DECIMAL, VARIABLE_SCALE_DECIMAL}:
        return _decimal_converter("string", _scale(schema) if semantic == DECIMAL else None)
    if unit := TIMESTAMP_UNITS.get(semantic):
        return partial(_count_as_text, unit, _day if unit == "days" else _iso)
    if unit := TIME_OF_DAY_UNITS.get(semantic):
        return partial(_count_as_text, unit, _time_of_day)
    return _year if semantic == YEAR else None


def _from_hex(given: RawValue) -> RawValue:
    value = in_hex(given)
    if value is None:
        raise WrongValue("(hex) is not binary")
    return value


def _reject_hex(given: RawValue) -> RawValue:
    if in_base64(given) is None and in_hex(given):
        raise WrongValue('is not binary ("encoding": "hex" would read it)')
    return given


def _nested_converter(field: Field, schema: Schema) -> Convert | None:
    described = _member_schemas(schema)
    if field.type.startswith("struct"):
        own = {part.name: converter(part, described.get(part.name, {})) for part in field.parts}
        others = {name: _undeclared_converter(member) for name, member in described.items() if name not in own}
        return _members_converter(own | others)
    (part,) = field.parts
    if field.type.startswith("map") and schema.get("type") == "struct":
        return _members_converter({name: converter(part, member) for name, member in described.items()})
    convert = converter(part, _part(schema, "items" if field.type.startswith("array") else "values"))
    return partial(_convert_items, convert) if convert else None


def _members_converter(converts: Mapping[str, Convert | None]) -> Convert | None:
    parts = {name: convert for name, convert in converts.items() if convert}
    return partial(_convert_members, parts) if parts else None


def _convert_members(parts: Mapping[str, Convert], given: RawValue) -> RawValue:
    record = parse_if_json(given)
    if not isinstance(record, dict):
        return given
    return {name: _converted(parts.get(name), value) for name, value in record.items()}


def _convert_items(convert: Convert, given: RawValue) -> RawValue:
    match parse_if_json(given):
        case list(items):
            return [_converted(convert, item) for item in items]
        case dict(items):
            return {key: _converted(convert, item) for key, item in items.items()}
    return given


def _converted(convert: Convert | None, given: RawValue) -> RawValue:
    return given if convert is None or given is None else convert(given)


class NoChange(Exception):
    """The message is no change; `verdict` is the reason and the detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.verdict = (reason, detail)


class RowConverter:
    def __init__(self, schema: Schema, of_row: list[Field], of_path: list[Field]) -> None:
        described = _member_schemas(schema)
        declared = {name: field for field in of_row for name in field.names}
        converts = {name: converter(field, described.get(name, {})) for name, field in declared.items()}
        converts |= {name: _undeclared_converter(column) for name, column in described.items() if name not in declared}
        self._converts = [(name, declared.get(name), convert) for name, convert in converts.items() if convert]
        at_path: dict[tuple[str, ...], Schema] = {}
        for image in ("before", "after"):
            at_path |= {(image,): schema} | {(image, name): column for name, column in described.items()}
        self._at_paths = {field.name: converter(field, at_path.get(field.path, {})) for field in of_path}

    def converted(self, row: Row) -> Row:
        if not self._converts:
            return row
        row = dict(row)
        for name, declared, convert in self._converts:
            if (given := row.get(name)) is not None:
                row[name] = _convert_field(declared, convert, given)
        return row

    def at_path(self, field: Field, change: Row) -> RawValue:
        given: RawValue = change
        for name in field.path:
            given = given.get(name, ABSENT) if isinstance(given, dict) else ABSENT
        convert = self._at_paths[field.name]
        return given if convert is None or given is None or given is ABSENT else _convert_field(field, convert, given)


def _convert_field(field: Field | None, convert: Convert, given: RawValue) -> RawValue:
    """Return the value as it is if no `field` declares it and it cannot be converted."""
    try:
        return convert(given)
    except WrongValue as wrong:
        if field is None:
            return given
        raise NoChange(Reason.WRONG_TYPE, f"{field.name}: {excerpt(given)} {wrong}") from None


def row_schema(schema: RawValue) -> Schema:
    images = _member_schemas(schema) if isinstance(schema, dict) else {}
    return next((images[name] for name in ("before", "after") if _member_schemas(images.get(name, {}))), {})
