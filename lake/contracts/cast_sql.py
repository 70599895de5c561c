"""The typed value of a field in the text that a record has for it, and the encodings that such a text comes in.

By itself a decimal's text is its digits, a time's is ISO 8601 or a whole number since 1970 in the unit of its logical
type, cut to microseconds; bytes are base64. A field's `encoding`, or what a message says of itself, tells otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from lake.contracts.digits import marked, unmarked
from lake.contracts.event_id import literal, quoted
from lake.contracts.fields import Field

FORMED: Final = "_formed"
BLANKS: Final = r"' \t\r\n'"
EARLIEST, LATEST = "0001-01-01", "9999-12-31 23:59:59.999999"
UNSCALED_BYTES: Final = 16  # of a decimal of 38 digits with its sign
DIGITS: Final = 1000
EXPONENT: Final = r"[eE][-+]?0*+\p{Nd}{4}"
"""A decimal is made of all the digits that a text stands for: 1e99999999 is minutes of work, and so are a million."""
FRACTION: Final = r"\.(\p{Nd}*)"
SHIFT: Final = r"[eE](.*)$"
WHOLE: Final[Mapping[str, str]] = {"int": "decimal(10,0)", "bigint": "decimal(19,0)"}
MICROS: Final[Mapping[str, str]] = {
    "days": "try_multiply(n, 86400000000L)",
    "millis": "try_multiply(n, 1000L)",
    "micros": "n",
    "nanos": "(n - pmod(n, 1000L)) div 1000L",
}


def value(field: Field, text: str) -> str:
    """SQL of the typed value of `field` in the SQL string `text`; null where it is none of that type."""
    kind = field.type
    if field.encoding:
        text = decoded(field, text, literal(field.encoding))
    if field.nested:
        given = f"try_cast(try_parse_json(concat('[', {marked(text)}, ']')) AS array<variant>)"
        return _let("_0", given, f"cast(CASE WHEN size(_0) = 1 THEN {_nested(field, '_0[0]', 1)} END AS {kind})")
    if kind == "binary":
        return f"try_to_binary({text}, 'base64')"
    if kind in {"int", "bigint"} or kind.startswith("decimal"):
        return _number(kind, text)
    if kind == "date" or kind.startswith("timestamp"):
        return _moment(kind, text, field.epoch or 1)
    if kind in {"float", "double"}:
        number = f"try_cast({text} AS {kind})"
        return f"CASE WHEN abs({number}) < double('Infinity') OR NOT {text} RLIKE '[0-9]' THEN {number} END"
    return text if kind == "string" else f"try_cast({text} AS {kind})"


def _nested(field: Field, given: str, depth: int) -> str:
    """SQL of the typed value of `field` in the variant `given`, all numbers of which are marked.

    Null where it, or anything in it, is given and is not of its type.
    """
    if not field.nested:
        return value(field, unmarked(f"cast({given} AS string)"))
    source, item, typed = (f"_{name}{depth}" for name in ("source", "item", "typed"))

    def read(part: Field, variant: str) -> str:
        """A struct of the value and of whether it is wrong."""
        is_given = f"{variant} IS NOT NULL AND NOT is_variant_null({variant})"
        return _let("v", _nested(part, variant, depth + 1), f"struct(v AS v, v IS NULL AND {is_given} AS wrong)")

    if field.type.startswith("array"):
        (part,) = field.parts
        cast = f"transform({source}, {item} -> {read(part, item)})"
        kind, wrong, right = "array<variant>", f"exists({typed}, e -> e.wrong)", f"transform({typed}, e -> e.v)"
    elif field.type.startswith("map"):
        (part,) = field.parts
        cast = f"transform_values({source}, (k, {item}) -> {read(part, item)})"
        kind = "map<string,variant>"
        wrong, right = f"exists(map_values({typed}), e -> e.wrong)", f"transform_values({typed}, (k, e) -> e.v)"
    else:
        names = [quoted(part.name) for part in field.parts]
        reads = (read(part, f"{source}[{literal(part.name)}]") for part in field.parts)
        cast = f"struct({', '.join(f'{sql} AS {name}' for sql, name in zip(reads, names, strict=True))})"
        kind, wrong = "map<string,variant>", " OR ".join(f"{typed}.{name}.wrong" for name in names) or "false"
        right = f"struct({', '.join(f'{typed}.{name}.v AS {name}' for name in names)})"
    checked = _let(typed, cast, f"CASE WHEN NOT ({wrong}) THEN {right} END")
    return _let(source, f"try_cast({given} AS {kind})", f"CASE WHEN {source} IS NOT NULL THEN {checked} END")


def plain_form(field: Field, text: str) -> str:
    """SQL of the plain text of what `text` is, written as the form of `field` says.

    What is not written so becomes that text in quotes, which is no value of the type.
    """
    if field.form.plain:
        return text
    plain = _time_written(field) if field.form.format else _number_written(field)
    undone = f"concat('\\'', {FORMED}, '\\'')"
    return f"CASE WHEN {text} IS NOT NULL THEN {_let(FORMED, text, f'coalesce({plain}, {undone})')} END"


def _time_written(field: Field) -> str:
    """The ISO 8601 text of a time in a format, cut to microseconds; the session's zone is UTC."""
    moment = f"try_to_timestamp(btrim({FORMED}, {BLANKS}), {literal(field.form.format)})"
    return f"cast({f'cast({moment} AS date)' if field.type == 'date' else moment} AS string)"


def _number_written(field: Field) -> str:
    """The digits of a number with signs of its own; groups of thousands are whole, or there are none."""
    group, point = re.escape(field.form.thousands), re.escape(field.form.decimal)
    grouped = rf"[0-9]{{1,3}}(?:{group}[0-9]{{3}})++|" if group else ""
    number = rf"^[-+]?(?:{grouped}[0-9]*+)(?:{point}[0-9]++)?(?:[eE][-+]?[0-9]++)?$"
    digits = f"btrim({FORMED}, {BLANKS})"
    plain = f"replace({digits}, {literal(field.form.thousands)}, '')" if group else digits
    return f"CASE WHEN {digits} RLIKE {literal(number)} THEN replace({plain}, {literal(field.form.decimal)}, '.') END"


def defaulted(field: Field, sql: str, default: str) -> str:
    """A default stands for an absent field, one not in `_keys`; for a null one too where the field may not be null."""
    if field.default is None:
        return sql
    if not field.nullable:
        return f"coalesce({sql}, {default})"
    names = ", ".join(literal(name) for name in field.names)
    return f"CASE WHEN arrays_overlap(_keys, array({names})) THEN {sql} ELSE {default} END"


def widest(decimal: str) -> str:
    """The decimal type with as many whole digits as `decimal` and the most digits after the point."""
    precision, scale = _digits(decimal)
    return f"decimal(38,{38 - (precision - scale)})"


def places(decimal: str) -> int:
    """The digits after the point of a decimal type."""
    return _digits(decimal)[1]


def decoded(field: Field, text: str, encoding: str, scale: str | None = None) -> str:
    """SQL of the plain text that `text` stands for in `encoding` (SQL of its name; of none where that is null).

    `scale` is SQL of a decimal's digits after the point, by default those of its type. What cannot be decoded becomes
    a text that says so and is no value of the type.
    """
    if field.type.startswith("decimal"):
        plain = _unscaled(text, f"coalesce({scale or 'NULL'}, {places(field.type)})")
    elif field.type == "binary":
        plain = f"CASE {encoding} WHEN 'hex' THEN base64(try_to_binary({text}, 'hex')) ELSE {text} END"
    else:
        plain = f"CASE WHEN {text} RLIKE '^-?[0-9]+$' THEN {_since(text, encoding)} ELSE {text} END"
    undone = f"concat({text}, ' (', {encoding}, ')')"
    return f"CASE WHEN {encoding} IS NULL THEN {text} ELSE coalesce({plain}, {undone}) END"


def _unscaled(text: str, scale: str) -> str:
    """The digits of a decimal: base64 of its unscaled value in two's complement, or that in a struct with its scale.

    A negative number is -1 - the number with all bits flipped, which is never out of range.
    """
    pair = f"from_json({text}, 'scale int, value string')"
    either = f"CASE WHEN {text} LIKE '{{%' THEN {pair} ELSE named_struct('scale', {scale}, 'value', {text}) END"
    hexed = "named_struct('scale', u.scale, 'hex', hex(try_to_binary(u.value, 'base64')))"
    negative = "b.hex >= '8'"
    flipped = "translate(b.hex, '0123456789ABCDEF', 'FEDCBA9876543210')"
    wide = f"lpad(if({negative}, {flipped}, b.hex), {2 * UNSCALED_BYTES}, '0')"
    high, low = (f"cast(conv(substring(w, {start}, 16), 16, 10) AS decimal(20,0))" for start in (1, 17))
    size = _let("w", wide, f"try_add(try_multiply({high}, 18446744073709551616BD), {low})")
    whole = f"cast(try_add({size}, if({negative}, 1BD, 0BD)) AS string)"
    padded = _let("d", whole, "lpad(d, greatest(length(d), b.scale + 1), '0')")
    pointed = _let("p", padded, "concat(left(p, length(p) - b.scale), '.', right(p, b.scale))")
    fits = f"length(b.hex) BETWEEN 2 AND {2 * UNSCALED_BYTES} AND b.scale BETWEEN 0 AND 38"
    number = f"CASE WHEN {fits} THEN concat(if({negative}, '-', ''), {pointed}) END"
    return _let("u", either, _let("b", hexed, number))


def _since(text: str, unit: str) -> str:
    """The ISO 8601 text of a whole number of `unit` since 1970."""
    micros = " ".join(f"WHEN '{name}' THEN {sql}" for name, sql in MICROS.items())
    return _let("n", f"try_cast({text} AS bigint)", f"cast(timestamp_micros(CASE {unit} {micros} END) AS string)")


def _let(name: str, bound: str, body: str) -> str:
    """SQL of `body`, in which `name` stands for the value of `bound`, computed once."""
    return f"transform(array({bound}), {name} -> {body})[0]"


def _digits(decimal: str) -> tuple[int, int]:
    """Precision and scale of a decimal type."""
    precision, scale = decimal[len("decimal(") : -1].split(",")
    return int(precision), int(scale)


def _number(kind: str, text: str) -> str:
    """A whole number may have a point (5.0).

    A cast rounds, so the digits of the text are counted; an exponent moves its point.
    """
    exact = WHOLE.get(kind, kind)
    wide = f"try_cast({text} AS {widest(exact)})"
    after = f"length(regexp_extract({text}, {literal(FRACTION)}, 1))"
    shift = f"try_cast(regexp_extract({text}, {literal(SHIFT)}, 1) AS int)"
    beyond = rf"\.\p{{Nd}}{{{places(exact)}}}0*+\p{{Nd}}"
    kept = (
        f"CASE WHEN {text} RLIKE {literal(SHIFT)} THEN {after} - {shift} <= {places(widest(exact))}"
        f" ELSE NOT {text} RLIKE {literal(beyond)} END"
    )
    short = f"length({text}) <= {DIGITS} AND NOT {text} RLIKE {literal(EXPONENT)}"
    exactly = f"CASE WHEN {wide} = try_cast({wide} AS {exact}) THEN try_cast({wide} AS {kind}) END"
    return (
        f"CASE WHEN {short} THEN CASE WHEN {kept} THEN {exactly} END END"  # Spark works out ahead what stands in an AND
    )


def _moment(kind: str, text: str, epoch: int) -> str:
    """ISO text, or a whole number of days or of 1/`epoch` seconds since 1970; null outside the years 1 to 9999."""
    micros = f"timestamp_micros(try_multiply(try_cast({text} AS bigint), {1_000_000 // epoch}L))"
    since = f"date_from_unix_date(try_cast({text} AS int))" if kind == "date" else f"cast({micros} AS {kind})"
    moment = f"CASE WHEN {text} RLIKE '^-?[0-9]+$' THEN {since} ELSE try_cast({text} AS {kind}) END"
    return f"CASE WHEN {moment} BETWEEN {kind} '{EARLIEST}' AND {kind} '{LATEST}' THEN {moment} END"
