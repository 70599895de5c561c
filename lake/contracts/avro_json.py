"""Values of Avro as JSON that a contract reads.

Decimals become their digits, times ISO 8601 cut to microseconds, bytes base64. What the schema of the writer says
counts, whatever the unit of the contract's own type. A value that no contract can hold, as a date of the year 12000,
becomes a text that is refused with its record alone.

The values are read by a schema `without_logical_types`, so that no library makes its own of them: some round decimals,
and stop at times before the year 1. Of Connect's names, which its converter writes as "connect.name", those of
Debezium's times count as logical types do.
"""

from __future__ import annotations

import base64
import math
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

Make: TypeAlias = Callable[[Any], Any]

EPOCH: Final = datetime(1970, 1, 1)
UUID_BYTES: Final = 16
UNSCALED_BYTES: Final = 16  # of a decimal of 38 digits with its sign
MICROS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}
"""By what a number of a unit is multiplied, and divided, to be microseconds."""
CONNECT: Final = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "local-timestamp-millis",
    "io.debezium.time.MicroTimestamp": "local-timestamp-micros",
    "io.debezium.time.NanoTimestamp": "local-timestamp-nanos",
}
NUMBERS: Final = {"boolean": bool, "int": int, "long": int, "float": float, "double": float}
TEXTS: Final = {"bytes": bytes, "fixed": bytes, "string": str, "enum": str, "array": list, "map": dict, "record": dict}
PYTHON: Final[dict[str, type]] = {"null": type(None), **NUMBERS, **TEXTS}


def without_logical_types(schema: Any) -> Any:
    """A schema, as JSON, by which plain values are read."""
    if isinstance(schema, list):
        return [without_logical_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: part if name in {"default", "doc", "symbols"} else without_logical_types(part)
        for name, part in schema.items()
        if name != "logicalType"
    }


def parts(schema: Any) -> list[Any]:
    """The schemas that `schema` is made of."""
    match schema.type:
        case "array":
            return [schema.items]
        case "map":
            return [schema.values]
        case "record":
            return [field.type for field in schema.fields]
        case "union":
            return list(schema.schemas)
    return []


def is_endless(schema: Any, ancestors: set[int] | None = None) -> bool:
    """Whether an array in it may have any number of items in no bytes."""
    ancestors = set() if ancestors is None else ancestors
    if id(schema) in ancestors:
        return False
    ancestors.add(id(schema))
    nothing = schema.type == "array" and _is_nothing(schema.items)
    return nothing or any(is_endless(part, ancestors) for part in parts(schema))


def _is_nothing(schema: Any) -> bool:
    """Whether a value of it takes no bytes."""
    if schema.type == "record":
        return all(_is_nothing(field.type) for field in schema.fields)
    return bool(schema.type == "null" or (schema.type == "fixed" and schema.size == 0))


def maker(schema: Any) -> Make:
    """What makes JSON of a plain value of `schema`, one of the package avro's."""
    return _maker(schema, {})


def _maker(schema: Any, made: dict[int, Make]) -> Make:
    """As `maker`; `made` are those of records, which may be within themselves."""
    of = _MAKERS.get(schema.type)
    return _same if of is None else of(schema, made)


def _same(datum: Any) -> Any:
    return datum


def _of_array(schema: Any, made: dict[int, Make]) -> Make:
    item = _maker(schema.items, made)
    return lambda datum: [item(each) for each in datum]


def _of_map(schema: Any, made: dict[int, Make]) -> Make:
    value = _maker(schema.values, made)
    return lambda datum: {name: value(each) for name, each in datum.items()}


def _of_number(schema: Any, _: dict[int, Make]) -> Make:
    logical = str(schema.get_prop("logicalType") or CONNECT.get(schema.get_prop("connect.name"), ""))
    return (lambda datum: counted(logical, datum)) if logical else _same


def _of_record(schema: Any, made: dict[int, Make]) -> Make:
    if id(schema) not in made:
        fields: list[tuple[str, Make]] = []
        made[id(schema)] = lambda datum: {name: make(datum[name]) for name, make in fields}
        fields += [(field.name, _maker(field.type, made)) for field in schema.fields]
    return made[id(schema)]


def _of_union(schema: Any, made: dict[int, Make]) -> Make:
    branches = [(branch, _maker(branch, made)) for branch in schema.schemas]
    values = [(branch, make) for branch, make in branches if branch.type != "null"]
    if len(values) == 1 and len(branches) == 2:
        make = values[0][1]
        return lambda datum: None if datum is None else make(datum)
    return lambda datum: next(make for branch, make in branches if is_of(branch, datum))(datum)


def is_of(schema: Any, datum: Any) -> bool:
    """Whether a plain value is one of `schema`, a branch of a union."""
    kind: Any = PYTHON[schema.type]
    right: bool = isinstance(datum, bool) == (schema.type == "boolean") and isinstance(datum, kind)
    match schema.type:
        case "enum":
            right = right and datum in schema.symbols
        case "fixed":
            right = right and len(datum) == schema.size
        case "record":
            right = right and set(datum) == {field.name for field in schema.fields}
    return bool(right)


def _of_bytes(schema: Any, _: dict[int, Make]) -> Make:
    logical, scale = schema.get_prop("logicalType"), int(schema.get_prop("scale") or 0)
    if logical == "decimal":
        return lambda datum: _decimal(datum, scale)
    if logical == "uuid" and schema.type == "fixed" and schema.size == UUID_BYTES:
        return lambda datum: str(uuid.UUID(bytes=datum))
    return lambda datum: base64.b64encode(datum).decode()


def _decimal(datum: bytes, scale: int) -> str:
    if len(datum) > UNSCALED_BYTES:
        return f"a decimal of {len(datum)} bytes"
    number = int.from_bytes(datum, "big", signed=True)
    digits = str(abs(number)).rjust(scale + 1, "0")
    point = len(digits) - scale
    return f"{'-' if number < 0 else ''}{digits[:point]}{'.' if scale else ''}{digits[point:]}"


def counted(logical: str, datum: int) -> int | str:
    """A number, or what it counts since 1970 or midnight."""
    local = logical.startswith("local-")
    kind, _, unit = logical.removeprefix("local-").partition("-")
    try:
        if logical == "date":
            return (date(1970, 1, 1) + timedelta(days=datum)).isoformat()
        if kind in {"timestamp", "time"} and unit in MICROS:
            times, over = MICROS[unit]
            moment = EPOCH + timedelta(microseconds=datum * times // over)
            if kind == "time":
                return moment.time().isoformat()
            return moment.isoformat() if local else moment.replace(tzinfo=UTC).isoformat()
    except OverflowError:
        return f"{datum} {unit or 'days'} since 1970"
    return datum


def _double(datum: float) -> float | str:
    """The number; what is none is a text."""
    return datum if math.isfinite(datum) else str(datum)


def _float(datum: float) -> float | str:
    """The shortest number that 32 bits make the same of."""
    if not math.isfinite(datum):
        return str(datum)
    texts = (f"{datum:.{digits}g}" for digits in range(1, 10))
    return float(next((text for text in texts if struct.pack("f", float(text)) == struct.pack("f", datum)), datum))


_MAKERS: Final[dict[str, Callable[[Any, dict[int, Make]], Make]]] = {
    "union": _of_union,
    "record": _of_record,
    "array": _of_array,
    "map": _of_map,
    "bytes": _of_bytes,
    "fixed": _of_bytes,
    "int": _of_number,
    "long": _of_number,
    "float": lambda *_: _float,
    "double": lambda *_: _double,
}
