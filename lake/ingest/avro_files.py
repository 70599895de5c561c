"""Avro container files as lines of JSON, one a record, with every value as a contract reads it.

Decimals become their digits, times ISO 8601 cut to microseconds, bytes base64. What the schema of the file says counts,
whatever the unit of the contract's own type. A value that no contract can hold, as a date of the year 12000, becomes a
text that is refused with its record alone; where the file is broken, so is what comes after that place.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import uuid
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import avro.datafile
import avro.errors
import avro.io
import avro.schema

from lake.ingest import bounds

EPOCH: Final = datetime(1970, 1, 1)
UUID_BYTES: Final = 16
UNSCALED_BYTES: Final = 16  # of a decimal of 38 digits with its sign
MICROS: Final = {"millis": (1000, 1), "micros": (1, 1), "nanos": (1, 1000)}
"""By what a number of a unit is multiplied, and divided, to be microseconds."""
NUMBERS: Final = {"boolean": bool, "int": int, "long": int, "float": float, "double": float}
TEXTS: Final = {"bytes": bytes, "fixed": bytes, "string": str, "enum": str, "array": list, "map": dict, "record": dict}
PYTHON: Final[dict[str, type]] = {"null": type(None), **NUMBERS, **TEXTS}


def fault_of(path: Path) -> str:
    """Why a file cannot be read at all, "" where its header can."""
    try:
        with path.open("rb") as stream:
            reader = _reader(stream)
            avro.codecs.get_codec(reader.codec)
            schema = _schema(reader)
            if schema.type != "record":
                return f"an Avro file of {schema.type} values: records are read"
            if fault := bounds.fault_of_columns(_values_of(schema, {})):
                return fault
            return "an Avro file with arrays of values without a size" if _is_endless(schema, set()) else ""
    except Exception as error:  # whatever the library makes of bytes that are no header
        return f"not an Avro container file that can be read: {str(error) or type(error).__name__}"[:300]


def as_lines(path: Path, copy: Path, *, record_bytes: int) -> Path:
    """Writes the records of a file without a fault to `copy`.

    Where it cannot be read on, the last line says so; it is no JSON.
    """
    most = max(bounds.line_bytes(record_bytes), bounds.EXPANSION * path.stat().st_size)
    longest, taken = bounds.line_bytes(record_bytes), 0
    with NamedTemporaryFile(dir=copy.parent, delete=False) as new:
        for line in _lines(path):
            new.write(line[:longest] + b"\n")
            taken += len(line)
            if taken > most:
                new.write(f"the records of {path.name} are more than {most:,} bytes\n".encode())
                break
    return Path(new.name).rename(copy)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        number = 0
        try:
            reader = _reader(stream)
            schema = _schema(reader)
            for datum in reader:
                number += 1
                yield json.dumps(_value(schema, datum), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        except Exception as error:  # whatever the library makes of bytes that are no record
            said = " ".join((str(error) or type(error).__name__).split())[:200]
            yield f"cannot be read after record {number}: {said}".encode("utf-8", "replace")


def _reader(stream: Any) -> avro.datafile.DataFileReader:
    """A reader of plain values: what a logical type means is said by `_value`, and is no matter of whole records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
        reader = avro.datafile.DataFileReader(stream, avro.io.DatumReader())
        plain = avro.schema.parse(json.dumps(_without_logical_types(json.loads(reader.schema))))
    reader.datum_reader.writers_schema = plain
    return reader


def _schema(reader: avro.datafile.DataFileReader) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
        return avro.schema.parse(reader.schema)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: part if name in {"default", "doc", "symbols"} else _without_logical_types(part)
        for name, part in schema.items()
        if name != "logicalType"
    }


def _parts(schema: Any) -> list[Any]:
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


def _values_of(schema: Any, known: dict[int, int]) -> int:
    """How many values one of it has, an array's items and what is within itself counted once."""
    if id(schema) not in known:
        known[id(schema)] = 1
        known[id(schema)] = 1 + sum(_values_of(part, known) for part in _parts(schema))
    return known[id(schema)]


def _is_endless(schema: Any, known: set[int]) -> bool:
    """Whether an array in it may have any number of items in no bytes."""
    if id(schema) in known:
        return False
    known.add(id(schema))
    nothing = schema.type == "array" and _is_nothing(schema.items)
    return nothing or any(_is_endless(part, known) for part in _parts(schema))


def _is_nothing(schema: Any) -> bool:
    """Whether a value of it takes no bytes."""
    if schema.type == "record":
        return all(_is_nothing(field.type) for field in schema.fields)
    return bool(schema.type == "null" or (schema.type == "fixed" and schema.size == 0))


def _value(schema: Any, datum: Any) -> Any:
    """A plain value of `schema` as JSON has it."""
    make = _MADE.get(schema.type)
    return datum if make is None else make(schema, datum)


def _branch(schema: Any, datum: Any) -> Any:
    return _value(next(branch for branch in schema.schemas if _is_of(branch, datum)), datum)


def _is_of(schema: Any, datum: Any) -> bool:
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


def _record(schema: Any, datum: Any) -> Any:
    return {field.name: _value(field.type, datum[field.name]) for field in schema.fields}


def _array(schema: Any, datum: Any) -> Any:
    return [_value(schema.items, item) for item in datum]


def _map(schema: Any, datum: Any) -> Any:
    return {name: _value(schema.values, item) for name, item in datum.items()}


def _bytes(schema: Any, datum: bytes) -> str:
    logical = schema.get_prop("logicalType")
    if logical == "uuid" and len(datum) == UUID_BYTES:
        return str(uuid.UUID(bytes=datum))
    if logical != "decimal":
        return base64.b64encode(datum).decode()
    if len(datum) > UNSCALED_BYTES:
        return f"a decimal of {len(datum)} bytes"
    number, scale = int.from_bytes(datum, "big", signed=True), int(schema.get_prop("scale") or 0)
    digits = str(abs(number)).rjust(scale + 1, "0")
    point = len(digits) - scale
    return f"{'-' if number < 0 else ''}{digits[:point]}{'.' if scale else ''}{digits[point:]}"


def _counted(schema: Any, datum: int) -> int | str:
    return _whole(str(schema.get_prop("logicalType") or ""), datum)


def _whole(logical: str, datum: int) -> int | str:
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


def _double(_: Any, datum: float) -> float | str:
    """The number; what is none is a text."""
    return datum if math.isfinite(datum) else str(datum)


def _float(_: Any, datum: float) -> float | str:
    """The shortest number that 32 bits make the same of."""
    if not math.isfinite(datum):
        return str(datum)
    texts = (f"{datum:.{digits}g}" for digits in range(1, 10))
    return float(next((text for text in texts if struct.pack("f", float(text)) == struct.pack("f", datum)), datum))


_MADE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "union": _branch,
    "record": _record,
    "array": _array,
    "map": _map,
    "bytes": _bytes,
    "fixed": _bytes,
    "int": _counted,
    "long": _counted,
    "float": _float,
    "double": _double,
}
