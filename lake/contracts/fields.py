"""Field of a contract, and its types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import avro.schema

from lake.contracts import literals
from lake.contracts.declared_text import json_text, parse_json
from lake.contracts.written_form import PLAIN, TextForm, form_of, wrong_field
from lake.errors import DeclarationError, did_you_mean
from lake.text import quoted

PRIMITIVES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
    "fixed": "binary",
}
LOGICAL: Final[Mapping[tuple[str, str], str]] = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
    ("long", "local-timestamp-millis"): "timestamp_ntz",
    ("long", "local-timestamp-micros"): "timestamp_ntz",
    ("string", "uuid"): "string",
}
ATTRIBUTES: Final = frozenset(
    {"text_only", "unit", "minimum", "maximum", "personal", "aliases", "transport", "from", "pattern", "encoding"}
    | {"format", "pivot", "hour24", "decimal", "thousands"}
)
AVRO: Final = {"name", "type", "doc", "default", "order", "aliases"}
EPOCHS: Final[Mapping[str, int]] = {"timestamp-millis": 1_000, "timestamp-micros": 1_000_000}
TIMES: Final = ("days", "millis", "micros", "nanos")
ENCODINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "decimal": ("base64",),
    "date": TIMES,
    "timestamp": TIMES,
    "timestamp_ntz": TIMES,
    "binary": ("base64", "hex"),
}
UNCHANGED: Final = ("unchanged",)
"""Path of the field that lists columns that a change message lacks because they did not change."""
FILE: Final = "file"
FILE_FACTS: Final = ("file.name", "file.time")
NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
NAMED: Final = "use letters from a to z, digits and _, and no digit at the beginning"
RECURSIVE: Final = "use a record with a fixed depth, or a string with JSON: a column's type is finite"
ORDERED: Final = ("int", "bigint", "float", "double", "decimal", "date", "timestamp")
DUCKDB: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}


@dataclass(frozen=True)
class Field:
    """Field of an event. `type` is Spark DDL; `minimum` and `maximum` are inclusive, as SQL-castable text.

    - `default`: text of an absent field (JSON if nested); None for null.
    - `epoch`: units per second if integers since 1970 are accepted, else 0.
    - `path`: place of the value in an envelope, () for the row's column; or, if `is_fact`, a fact of the record's file
      or source, such as ("file", "name").
    - `encoding`: form of the value in an envelope; `form`: form of its text.
    - `transport`: it may differ between an event and its re-delivery.
    - `parts`: an array's item, a map's value, a record's fields. A missing part is null, even with a default.
    """

    name: str
    type: str
    nullable: bool = False
    has_default: bool = False
    default: str | None = None
    doc: str = ""
    unit: str = ""
    aliases: tuple[str, ...] = ()
    minimum: str | None = None
    maximum: str | None = None
    symbols: tuple[str, ...] = ()
    personal: bool = False
    epoch: int = 0
    transport: bool = False
    text_only: bool = False
    parts: tuple[Field, ...] = ()
    path: tuple[str, ...] = ()
    is_fact: bool = False
    pattern: str = ""
    encoding: str = ""
    form: TextForm = PLAIN
    line: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def shared(self) -> bool:
        """True if it has only few values, so that many people share each."""
        return self.type == "boolean" or bool(self.symbols)

    @property
    def of_file(self) -> bool:
        return self.path[:1] == (FILE,)

    @property
    def nested(self) -> bool:
        return self.type.startswith(("array<", "map<", "struct<"))

    @property
    def leaves(self) -> tuple[Field, ...]:
        return tuple(leaf for part in self.parts for leaf in part.leaves) if self.nested else (self,)


def read_field(field: avro.schema.Field, *, line: int, has_envelope: bool) -> Field:
    """Raises DeclarationError without a place."""
    schema, nullable = _unwrap(field.type)
    typed = _typed(field.name, schema)
    ddl = typed.type
    extra: Mapping[str, Any] = field.other_props
    if unknown := sorted(set(extra) - ATTRIBUTES):
        fix = did_you_mean(unknown[0], ATTRIBUTES | AVRO)
        raise wrong_field(field.name, f"has an unknown attribute {unknown[0]!r}", fix)
    bounds = {end: _bound(field.name, ddl, end, extra[end]) for end in ("minimum", "maximum") if end in extra}
    _check_order(field.name, ddl, bounds)
    _check_flags(field.name, ddl, extra)
    symbols = tuple(schema.symbols) if schema.type == "enum" else ()
    if field.has_default:
        _check_default(field.name, ddl, nullable, symbols, field.default)
    path = _path(field.name, extra["from"]) if "from" in extra else ()
    is_fact = bool(path) and not has_envelope
    return replace(
        typed,
        nullable=nullable,
        has_default=field.has_default,
        default=_text(field.default) if field.has_default else None,
        doc=str(field.doc or ""),
        unit=str(extra.get("unit") or ""),
        aliases=_aliases(field.name, extra.get("aliases", [])),
        symbols=symbols,
        personal=bool(extra.get("personal", False)),
        transport=bool(extra.get("transport", is_fact)),
        text_only=bool(extra.get("text_only", False)),
        path=path,
        is_fact=is_fact,
        pattern=_pattern(field.name, path, extra["pattern"]) if "pattern" in extra else "",
        form=form_of(field.name, ddl, extra),
        encoding=_encoding(field.name, ddl, extra["encoding"]) if "encoding" in extra else "",
        line=line,
        minimum=bounds.get("minimum"),
        maximum=bounds.get("maximum"),
    )


def _check_flags(field: str, ddl: str, extra: Mapping[str, Any]) -> None:
    for flag in ("personal", "transport", "text_only"):
        if not isinstance(extra.get(flag, False), bool):
            raise DeclarationError(f"field {field!r}: invalid {flag} {extra[flag]!r}", fix="use true or false")
    if extra.get("text_only") and ddl != "string":
        raise wrong_field(field, f"of type {ddl} cannot be text_only", "text_only is for strings")


def _unwrap(schema: Any) -> tuple[Any, bool]:
    if schema.type == "null":
        raise DeclarationError("a field cannot be of type null only", fix='use a union such as ["null", "string"]')
    if schema.type != "union":
        return schema, False
    branches = [branch for branch in schema.schemas if branch.type != "null"]
    if len(branches) != 1:
        raise DeclarationError(
            f"a union of {len(branches)} types is not supported: {', '.join(branch.type for branch in branches)}",
            fix='use one type, or ["null", one type] for a field that may be absent',
        )
    return branches[0], len(schema.schemas) > 1


def _typed(name: str, schema: Any, outer: frozenset[str] = frozenset()) -> Field:
    """`outer` are the names of the records around `schema`."""
    schema, nullable = _unwrap(schema)
    match schema.type:
        case "array":
            item = _typed("item", schema.items, outer)
            return Field(name, f"array<{item.type}>", nullable, parts=(item,))
        case "map":
            value = _typed("value", schema.values, outer)
            return Field(name, f"map<string,{value.type}>", nullable, parts=(value,))
        case "record":
            if schema.fullname in outer:
                raise DeclarationError(f"record {schema.name!r} contains itself", fix=RECURSIVE)
            for field in schema.fields:  # the avro package only checks names of types
                if not NAME.fullmatch(field.name):
                    raise DeclarationError(f"member {field.name!r} has an invalid name", fix=NAMED)
            around = outer | {schema.fullname}
            members = ((_typed(field.name, field.type, around), field.has_default) for field in schema.fields)
            parts = tuple(replace(part, has_default=has_default) for part, has_default in members)
            ddl = f"struct<{','.join(f'{part.name}:{part.type}' for part in parts)}>"
            return Field(name, ddl, nullable, parts=parts)
    logical = str(schema.get_prop("logicalType") or "")
    return Field(name, _ddl(schema), nullable, epoch=EPOCHS.get(logical.removeprefix("local-"), 0))


def _ddl(schema: Any) -> str:
    logical = schema.get_prop("logicalType")
    if schema.type in {"bytes", "fixed"} and logical == "decimal":
        precision, scale = schema.get_prop("precision"), schema.get_prop("scale") or 0
        if not (type(precision) is type(scale) is int and 0 <= scale <= precision <= 38):
            fix = "use 0 <= scale <= precision <= 38"
            raise DeclarationError(f"decimal({precision}, {scale}) is not a valid type", fix=fix)
        return f"decimal({precision},{scale})"
    if logical is None:
        return PRIMITIVES[schema.type]
    known = LOGICAL.get((schema.type, str(logical)))
    if known is None:
        fix = f"known: {', '.join([f'{kind} {name}' for kind, name in LOGICAL])}, bytes decimal"
        raise DeclarationError(f"logical type {logical!r} of {schema.type!r} is not supported", fix=fix)
    return known


def _bound(field: str, ddl: str, end: str, value: Any) -> str:
    if not ddl.startswith(ORDERED) or ddl == "timestamp_ntz":
        raise wrong_field(field, f"of type {ddl} cannot have a {end}", "bounds are for numbers and times")
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise DeclarationError(f"field {field!r}: invalid {end} {value!r}", fix="write a number, or a time as text")
    if literals.read(ddl, str(value)) is None:
        raise DeclarationError(f"field {field!r}: {end} {value!r} is not a valid {ddl}", fix=literals.example(ddl))
    return str(value)


def _check_order(field: str, ddl: str, bounds: Mapping[str, str]) -> None:
    low, high = (literals.read(ddl, bounds[end]) if end in bounds else None for end in ("minimum", "maximum"))
    if low is not None and high is not None and low > high:
        raise DeclarationError(
            f"the minimum of field {field!r}, {bounds['minimum']}, is above its maximum, {bounds['maximum']}",
            fix="no value would be accepted; swap them",
        )


def _check_default(field: str, ddl: str, nullable: bool, symbols: Sequence[str], default: Any) -> None:
    what = f"the default of field {field!r} is {json_text(default)}"
    if default is None and not nullable:
        fix = 'make its type ["null", …], or give a value'
        raise DeclarationError(f"{what}, but the field is not nullable", fix=fix)
    if default is not None and symbols and default not in symbols:
        fix = did_you_mean(str(default), symbols)
        raise DeclarationError(f"{what}, which is not one of {', '.join(symbols)}", fix=fix)
    if default is not None and not literals.fits(ddl, default):
        raise DeclarationError(f"{what}, which is not a valid {ddl}", fix=literals.example(ddl))


def wrong_default(field: Field) -> Iterator[tuple[str, str]]:
    """Yield (fault, fix) of values in a default that are not of their type. Stored contracts may have such defaults."""
    if not field.nested or field.default is None:
        return
    for part, value in _values_by_part(field, parse_json(field.default, where=field.name)):
        if value is not None and not literals.fits(part.type, value):
            what = f"the default of field {field.name!r} has {json_text(value)}, which is not a valid {part.type}"
            yield what, literals.example(part.type)


def _values_by_part(field: Field, value: Any) -> Iterator[tuple[Field, Any]]:
    """Yield the single values in `value`, and a value that lacks the field's nesting, each with its part."""
    if field.type.startswith("array<") and isinstance(value, list):
        parts = [(field.parts[0], item) for item in value]
    elif field.type.startswith("map<") and isinstance(value, dict):
        parts = [(field.parts[0], item) for item in value.values()]
    elif field.type.startswith("struct<") and isinstance(value, dict):
        parts = [(part, value.get(part.name)) for part in field.parts]
    else:
        yield field, value
        return
    for part, item in parts:
        yield from _values_by_part(part, item)


def _aliases(field: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise DeclarationError(f"field {field!r}: invalid aliases {given!r}", fix="write a list of its former names")
    return tuple(given)


def _path(field: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, str) or not re.fullmatch(r"[^.'\"\\\[\]]+(\.[^.'\"\\\[\]]+)*", given):
        raise wrong_field(field, f"has an invalid path: {given!r}", 'write a path such as "op" or "source.lsn"')
    return tuple(given.split("."))


def _pattern(field: str, path: tuple[str, ...], given: Any) -> str:
    if path != (FILE, "name"):
        raise wrong_field(field, "has a pattern", 'patterns are for "from": "file.name"')
    try:
        groups = re.compile(given).groups
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        what = f"has an invalid pattern {given!r}: {error}"
        raise wrong_field(field, what, r'write one such as "_(\d{8})\.csv"') from None
    if groups > 1:
        fix = "put one group around the part; others are (?:…)"
        raise wrong_field(field, f"has a pattern of {groups} groups", fix)
    return str(given)


def _encoding(field: str, ddl: str, given: Any) -> str:
    encodings = ENCODINGS.get(ddl.partition("(")[0], ())
    if given not in encodings:
        fix = did_you_mean(str(given), encodings) if encodings else "encodings are for decimals, times and bytes"
        raise wrong_field(field, f"of type {ddl} has an invalid encoding: {given!r}", fix)
    return str(given)


def _text(default: Any) -> str | None:
    if default is None or isinstance(default, str):
        return default
    return json_text(default)


def duckdb_type(field: Field) -> str:
    if field.type.startswith("array"):
        return f"{duckdb_type(field.parts[0])}[]"
    if field.type.startswith("map"):
        return f"MAP(VARCHAR, {duckdb_type(field.parts[0])})"
    if field.nested:
        return f"STRUCT({', '.join(f'{quoted(part.name)} {duckdb_type(part)}' for part in field.parts)})"
    return DUCKDB.get(field.type, field.type.upper())
