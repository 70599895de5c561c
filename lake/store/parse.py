"""From raw records to typed events: every field is read from its text, and the first that fails says why.

A record is read twice at most. The quick reading takes the contract's fields alone, with their types; it is trusted
where the record is one JSON object without anything else, repeated or unknown, and all types are right. The careful
reading takes the others apart as texts, keeps what the contract does not know as `_extra`, refuses what is not JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from lake.store.contracts import Contract
from lake.store.fields import Field
from lake.store.identity import bucket, identity, literal, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Why a record is not accepted: reasons of the quarantine, and blank lines, which are no records.
BLANK: Final = "blank line"
OVERSIZED: Final = "oversized"
UNPARSEABLE: Final = "unparseable"
MISSING: Final = "missing field"
WRONG_TYPE: Final = "wrong type"
NOT_IN_ENUM: Final = "not in enum"
OUT_OF_BOUNDS: Final = "out of bounds"
NULL_KEY: Final = "null key"
NULL_TIME: Final = "null event time"
AHEAD: Final = "too far ahead"
CONFLICT: Final = "conflict"
FILE: Final = "file"

PLACES: Final = ("_file", "_block", "_seq", "_raw")
QUICK_OPTIONS: Final = "map('allowSingleQuotes', 'false', 'allowNonNumericNumbers', 'false')"
QUICK_TYPES: Final = frozenset({"boolean", "int", "bigint", "float", "double", "string"})
EARLIEST, LATEST = "0001-01-01", "9999-12-31 23:59:59.999999"


def parse(records: DataFrame, contract: Contract, *, now: datetime, record_bytes: int) -> DataFrame:
    """The contract's columns of `records` (see `formats`), `_reason`, `_detail`, `_extra`, `_time`, `_bucket`, `_id`.

    A record is accepted where `_reason` is null; the others keep their text in `_raw`. `_id` is null as yet where an
    event is identified by its position.
    """
    fields = contract.fields
    read = (
        records.selectExpr("*", f"CASE WHEN {_readable(record_bytes)} THEN json_object_keys(_raw) END AS _keys")
        .selectExpr("*", f"{_quick(fields)} AS _tried")
        .selectExpr("*", "CASE WHEN _tried._corrupt_record IS NULL THEN _tried END AS _quick")
        .selectExpr("*", f"{_careful('string', record_bytes)} AS _careful")
    )
    texts = read.selectExpr(
        *PLACES,
        "_quick",
        "_careful",
        "_quick IS NULL AND _careful IS NULL AS _unread",
        "_keys",
        *(f"{_careful_text(field)} AS {_text_name(field)}" for field in fields),
    )
    typed = texts.selectExpr("*", *(f"{_typed(field)} AS {quoted(field.name)}" for field in fields)).selectExpr(
        "*", f"{_time(contract)} AS _time"
    )
    checks = [*_record_checks(record_bytes), *_field_checks(fields), *_event_checks(contract, now)]
    refusals = ", ".join(f"CASE WHEN {test} THEN struct('{reason}', {detail}) END" for test, reason, detail in checks)
    broadcast = f"CASE WHEN {_is_broadcast(contract)} THEN -1 ELSE {bucket(contract)} END"
    judged = typed.selectExpr("*", f"coalesce({refusals}) AS _refusal")
    return judged.selectExpr(
        *PLACES[:-1],
        "CASE WHEN _refusal IS NOT NULL THEN _raw END AS _raw",
        "_refusal.col1 AS _reason",
        "_refusal.col2 AS _detail",
        *(quoted(field.name) for field in fields),
        f"{_extra(fields, record_bytes)} AS _extra",
        "_time",
        f"CASE WHEN _refusal IS NULL THEN {broadcast} END AS _bucket",
        "cast(NULL AS string) AS _id" if contract.identity == "position" else f"{identity(contract)} AS _id",
    )


def value(field: Field, text: str) -> str:
    """SQL of the typed value of `field` in the SQL string `text`; null where it is none of that type."""
    kind = field.type
    if field.nested:
        parsed = f"from_json(concat('{{\"v\":', {text}, '}}'), 'v {kind}, _corrupt_record string')"
        return f"CASE WHEN {parsed}._corrupt_record IS NULL THEN {parsed}.v END"
    if kind == "binary":
        return f"try_to_binary({text}, 'base64')"
    if kind in {"int", "bigint"} or kind.startswith("decimal"):
        return _number(kind, text)
    if kind == "date" or kind.startswith("timestamp"):
        return _moment(kind, text, field.epoch or 1)
    return text if kind == "string" else f"try_cast({text} AS {kind})"


def _number(kind: str, text: str) -> str:
    """A whole number may have a point (5.0); a decimal must not have more digits than its type."""
    typed = f"try_cast({text} AS {kind})"
    if kind.startswith("decimal"):
        return f"CASE WHEN {typed} = try_cast({text} AS {_widest(kind)}) THEN {typed} END"
    exact = f"try_cast({text} AS decimal(38,10))"
    return f"coalesce({typed}, CASE WHEN {exact} = floor({exact}) THEN try_cast({exact} AS {kind}) END)"


def _moment(kind: str, text: str, epoch: int) -> str:
    """ISO text, or a whole number of days or of 1/`epoch` seconds since 1970; null outside the years 1 to 9999."""
    micros = f"timestamp_micros(try_multiply(try_cast({text} AS bigint), {1_000_000 // epoch}L))"
    since = f"date_from_unix_date(try_cast({text} AS int))" if kind == "date" else f"cast({micros} AS {kind})"
    found = f"CASE WHEN {text} RLIKE '^-?[0-9]+$' THEN {since} ELSE try_cast({text} AS {kind}) END"
    return f"CASE WHEN {found} BETWEEN {kind} '{EARLIEST}' AND {kind} '{LATEST}' THEN {found} END"


def _quick(fields: tuple[Field, ...]) -> str:
    """The contract's fields, or null where the record is not seen to be an object of these fields alone."""
    columns = [f"{quoted(name)} {_quick_type(field)}" for field in fields for name in field.names]
    schema = ", ".join([*columns, "_corrupt_record string"])
    known = f"array({_names(fields)})"
    return (
        f"CASE WHEN locate('}}', _raw) = length(rtrim(_raw))"
        f" AND (_keys = {known} OR size(array_intersect(_keys, {known})) = size(_keys))"
        f" THEN from_json(_raw, {literal(schema)}, {QUICK_OPTIONS}) END"
    )


def _careful(kind: str, record_bytes: int) -> str:
    """The record as a map to `kind` where there is no quick reading; null where it is not one JSON object.

    Parsers stop at the end of the first object; read as an array, whatever follows it is seen.
    """
    array = f"try_cast(try_parse_json(concat('[', _raw, ']')) AS array<map<string,{kind}>>)"
    return (
        f"CASE WHEN _quick IS NULL AND {_readable(record_bytes)} AND rtrim(_raw) LIKE '%}}' AND size({array}) = 1"
        f" THEN {array}[0] END"
    )


def _readable(record_bytes: int) -> str:
    return f"octet_length(_raw) <= {record_bytes} AND is_valid_utf8(_raw)"


def _names(fields: tuple[Field, ...]) -> str:
    return ", ".join(literal(name) for field in fields for name in field.names)


def _text_name(field: Field) -> str:
    return quoted(f"_text_{field.name}")


def _quick_type(field: Field) -> str:
    """The type by which a quick reading tells right from wrong; times are taken as text."""
    if field.type.startswith("decimal"):
        return _widest(field.type)
    return field.type if field.type in QUICK_TYPES else "string"


def _quick_text(field: Field) -> str:
    """What the quick reading found for `field`, under its name or a former one."""
    return _first(f"_quick.{quoted(name)}" for name in field.names)


def _careful_text(field: Field) -> str:
    """The text of `field` in a careful reading: under its name or a former one, or its default."""
    found = _first(f"_careful[{literal(name)}]" for name in field.names)
    default = "NULL" if field.default is None else literal(field.default)
    return f"CASE WHEN _careful IS NOT NULL THEN {_defaulted(field, found, default)} END"


def _typed(field: Field) -> str:
    """The value of `field` in either reading."""
    found = _quick_text(field)
    if field.type.startswith("decimal"):
        quick = f"CASE WHEN try_cast({found} AS {field.type}) = {found} THEN try_cast({found} AS {field.type}) END"
    else:
        quick = found if field.type in QUICK_TYPES else value(field, found)
    if field.default is not None:
        default = value(field, literal(field.default))
        quick = _defaulted(field, quick, f"CASE WHEN {found} IS NULL THEN {default} END")
    return f"CASE WHEN _careful IS NULL THEN {quick} ELSE {value(field, _text_name(field))} END"


def _defaulted(field: Field, found: str, default: str) -> str:
    """A default stands for an absent field; for a null one too where the field may not be null."""
    if field.default is None:
        return found
    if not field.nullable:
        return f"coalesce({found}, {default})"
    return f"CASE WHEN arrays_overlap(_keys, array({_names((field,))})) THEN {found} ELSE {default} END"


def _first(found: Iterable[str]) -> str:
    found = list(found)
    return found[0] if len(found) == 1 else f"coalesce({', '.join(found)})"


def _extra(fields: tuple[Field, ...], record_bytes: int) -> str:
    unknown = f"(name, _) -> name NOT IN ({_names(fields)})"
    whole = _careful("variant", record_bytes)
    return f"CASE WHEN size(map_filter(_careful, {unknown})) > 0 THEN to_json(map_filter({whole}, {unknown})) END"


def _record_checks(record_bytes: int) -> Iterator[tuple[str, str, str]]:
    size = "octet_length(_raw)"
    yield "trim(_raw) = ''", BLANK, "''"
    yield f"{size} > {record_bytes}", OVERSIZED, f"concat({size}, ' bytes, at most {record_bytes} are taken')"
    yield "NOT is_valid_utf8(_raw)", UNPARSEABLE, "'not valid UTF-8'"
    yield "_unread", UNPARSEABLE, "'not one JSON object'"


def _field_checks(fields: tuple[Field, ...]) -> Iterator[tuple[str, str, str]]:
    for field in fields:
        text = f"coalesce({_text_name(field)}, cast({_quick_text(field)} AS string))"
        column, name = quoted(field.name), field.name
        shown = f"concat({literal(name + ': ')}, substring({text}, 1, 200), "
        if not field.nullable:
            yield f"{column} IS NULL AND {text} IS NULL", MISSING, literal(name)
        yield f"{column} IS NULL AND {text} IS NOT NULL", WRONG_TYPE, f"{shown}{literal(' is not ' + field.type)})"
        if field.symbols:
            symbols = ", ".join(literal(symbol) for symbol in field.symbols)
            yield (
                f"{column} NOT IN ({symbols})",
                NOT_IN_ENUM,
                f"{shown}{literal(' is none of ' + ', '.join(field.symbols))})",
            )
        for bound, sign, words in ((field.minimum, "<", "below"), (field.maximum, ">", "above")):
            if bound is not None:
                limit = f"cast({literal(bound)} AS {field.type})"
                yield f"{column} {sign} {limit}", OUT_OF_BOUNDS, f"{shown}{literal(f' is {words} {bound}')})"


def _event_checks(contract: Contract, now: datetime) -> Iterator[tuple[str, str, str]]:
    for name in contract.key:
        yield f"{quoted(name)} IS NULL AND NOT {_is_broadcast(contract)}", NULL_KEY, literal(name)
    if contract.time is None:
        return
    yield "_time IS NULL", NULL_TIME, literal(contract.time)
    latest = f"timestamp '{(now + contract.max_ahead).isoformat()}'"
    yield (
        f"_time > {latest}",
        AHEAD,
        f"concat(_time, {literal(f' is more than {contract.max_ahead} ahead of its arrival')})",
    )


def _is_broadcast(contract: Contract) -> str:
    return f"coalesce({contract.broadcast}, false)" if contract.broadcast else "false"


def _time(contract: Contract) -> str:
    return f"cast({contract.time or 'NULL'} AS timestamp)"


def _widest(decimal: str) -> str:
    """The decimal type with as many whole digits as `decimal` and the most digits after the point."""
    precision, scale = (int(number) for number in decimal[len("decimal(") : -1].split(","))
    return f"decimal(38,{38 - (precision - scale)})"
