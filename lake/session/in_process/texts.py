"""Functions of texts and times of Spark that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import BOOLEAN, DATE, INT, LONG, NTZ, TEXT, TIMESTAMP, Function, times
from lake.session.in_process.types import MICROSECONDS, Value, cast, common_type, is_integer, once
from lake.text import literal, quoted

BINARY: Final = T.BinaryType()
AES: Final = {"aes_encrypt": 4, "aes_decrypt": 3}
"""Numbers of arguments, without mode and padding."""
LINE_END: Final = "chr(13) || chr(10)"
UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")
DATE_PARTS: Final = ("year", "quarter", "month", "day", "dayofyear", "weekofyear")
FORMATS: Final = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S", "SSS": "%g"}
FORMAT: Final = re.compile(r"'([^']*)'|([A-Za-z]+)|([^A-Za-z']+)")
"""Parts of a format of times: quoted text, a field, or signs."""
RESERVED: Final = re.compile(r"''|[][{}#]")
"""What a format of times has beside its parts: quotes as text, and optional parts."""
PLAIN_SCALE: Final = 6
"""Java writes a decimal of more places with an exponent if it is small."""
ASCII: Final = r"[\x00-\x7f]*"


def typed(template: str, type_: T.DataType, *given: T.DataType) -> Function:
    """Return a function whose arguments have the types `given`, or narrower integers."""

    def compute(values: Sequence[Value]) -> Value:
        if len(values) != len(given):
            raise unsupported("a function with other arguments")
        texts = []
        for value, wanted in zip(values, given, strict=True):
            if value.type != wanted and not (is_integer(wanted) and common_type([value.type, wanted]) == wanted):
                raise unsupported(f"a function of a {value.type.simpleString()}")
            texts.append(cast(value, wanted).sql)
        return Value(template.format(*texts), type_)

    return compute


def text(template: str, type_: T.DataType = TEXT, *others: T.DataType) -> Function:
    """Return a function of a text and of `others`."""
    return typed(template, type_, TEXT, *others)


def of_ascii(function: str) -> Function:
    """Return a function that is the same in all languages only for ASCII."""
    return text(
        f"CASE WHEN {{0}} IS NULL THEN NULL WHEN regexp_full_match({{0}}, '{ASCII}') THEN {function}({{0}})"
        " ELSE error('a letter') END"
    )


def constant(value: Value) -> str:
    """Return the text of a literal. Raises Unsupported for other values."""
    if not value.is_literal or value.type != TEXT:
        raise unsupported(f"a computed text, {value.sql}")
    return value.sql[1:-1].replace("''", "'")


def trimmed(function: str) -> Function:
    """Return a function of a text, or of a literal of the signs to remove and of a text."""

    def compute(values: Sequence[Value]) -> Value:
        *signs, of = values
        if len(signs) > 1 or of.type != TEXT:
            raise unsupported(f"{function} of other values")
        removed = constant(signs[0]) if signs else " "
        if not removed.isascii():
            raise unsupported(f"{function} of {removed}")
        return Value(f"{function}({of.sql}, {literal(removed)})", TEXT)

    return compute


def concat(values: Sequence[Value]) -> Value:
    if values and all(isinstance(value.type, T.ArrayType) and value.type == values[0].type for value in values):
        lists = [value.sql for value in values]
        known = " AND ".join(f"{sql} IS NOT NULL" for sql in lists)
        joined = lists[0]
        for sql in lists[1:]:
            joined = f"list_concat({joined}, {sql})"
        return Value(f"CASE WHEN {known} THEN {joined} END", values[0].type)
    if values and all(value.type == BINARY for value in values):
        return Value(f"({' || '.join(value.sql for value in values)})", BINARY)
    return Value(f"({' || '.join(_as_texts(values))})" if values else "''", TEXT)


def concat_ws(values: Sequence[Value]) -> Value:
    return Value(f"concat_ws({', '.join(_as_texts(values))})", TEXT)


def _as_texts(values: Sequence[Value]) -> list[str]:
    return [cast(value, TEXT).sql for value in values]


def substring(values: Sequence[Value]) -> Value:
    of, start, *length = values
    from_one = start.is_literal and start.sql.isdigit() and int(start.sql) > 0
    if of.type != TEXT or not from_one or not all(is_integer(value.type) and value.type != LONG for value in length):
        raise unsupported("substring of other values")
    sizes = [f"CASE WHEN {value.sql} < 0 THEN 0 ELSE {value.sql} END" for value in length]
    return Value(f"substring({', '.join([of.sql, start.sql, *sizes])})", TEXT)


def replace(values: Sequence[Value]) -> Value:
    of, old, new = values
    if not constant(old) or {of.type, new.type} != {TEXT}:
        raise unsupported("replace of other values")
    return Value(f"replace({of.sql}, {old.sql}, {new.sql})", TEXT)


def like(values: Sequence[Value]) -> Value:
    of, pattern = values
    if of.type != TEXT or "\\" in constant(pattern):
        raise unsupported("like with another pattern")
    return Value(f"({of.sql} LIKE {pattern.sql})", BOOLEAN)


def try_to_binary(values: Sequence[Value]) -> Value:
    """Return the bytes of a text, null where its expression fails."""
    made = by_utf8("encode", TEXT, BINARY)(values)
    if "error(" in made.sql:
        raise unsupported("an attempt at what DuckDB may refuse")
    return Value(f"TRY({made.sql})", BINARY)


def by_utf8(function: str, given: T.DataType, made: T.DataType) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        of, encoding = values
        if of.type != given or constant(encoding).lower() != "utf-8":
            raise unsupported(f"{function} of other values")
        return Value(f"{function}({of.sql})", made)

    return compute


def in_lines(values: Sequence[Value]) -> Value:
    """Return bytes as base64 in lines of 76 signs."""
    plain = typed("base64({0})", TEXT, BINARY)(values).sql
    ended, size = f"regexp_replace({{0}}, '.{{{{76}}}}', '\\0' || {LINE_END}, 'g')", "length({0})"
    lines = f"left({ended}, CAST({size} + 2 * (({size} - 1) // 76) AS BIGINT))"
    return Value(once(plain, lines.format), TEXT)


def by_aes(function: str) -> Function:
    """Return a function of bytes, key, nonce (to encrypt) and authenticated data, by AES in Galois/Counter mode."""

    def compute(values: Sequence[Value]) -> Value:
        of, key, mode, padding, *others = values
        if (constant(mode).upper(), constant(padding).upper()) != ("GCM", "DEFAULT"):
            raise unsupported(f"{function} in another mode")
        given = (of, key, *others)
        if len(given) != AES[function] or not all(value.type == BINARY for value in given):
            raise unsupported(f"{function} of other values")
        return Value(f"spark_{function}({', '.join(value.sql for value in given)})", BINARY)

    return compute


def sha2(values: Sequence[Value]) -> Value:
    of, bits = values
    if of.type not in {TEXT, BINARY} or bits.sql != "256":
        raise unsupported("sha2 of other values")
    return Value(f"sha256({of.sql})", TEXT)


def to_json(values: Sequence[Value]) -> Value:
    """Return a struct or list as Spark's JSON: without null parts of structs, times by millisecond."""
    [of] = values
    if not isinstance(of.type, T.StructType | T.ArrayType):
        raise unsupported(f"to_json of a {of.type.simpleString()}")
    return Value(_json(of), TEXT)


def _json(of: Value, depth: int = 0) -> str:  # noqa: PLR0911 one return a kind
    """Return SQL of JSON, null of null."""
    match of.type:
        case T.StructType():
            parts = [Value(f"({of.sql}).{quoted(part.name)}", part.dataType) for part in of.type]
            names = [literal(f"{json.dumps(part.name, ensure_ascii=False)}:") for part in of.type]
            texts = [f"{name} || {_json(part, depth)}" for name, part in zip(names, parts, strict=True)]
            return f"CASE WHEN {of.sql} IS NOT NULL THEN '{{' || concat_ws(',', {', '.join(texts)}) || '}}' END"
        case T.ArrayType():
            item = f"json{depth}"
            part = f"coalesce({_json(Value(item, of.type.elementType), depth + 1)}, 'null')"
            return f"'[' || array_to_string(list_transform({of.sql}, lambda {item}: {part}), ',') || ']'"
        case T.StringType():
            return f"CAST(to_json({of.sql}) AS VARCHAR)"
        case T.DateType():
            return _quoted(cast(of, TEXT))
        case T.TimestampType() | T.TimestampNTZType():
            zone = "'Z'" if of.type == TIMESTAMP else ""
            return _quoted(date_format([of, Value(literal(f"yyyy-MM-dd'T'HH:mm:ss.SSS{zone}"), TEXT, is_literal=True)]))
    written = cast(of, TEXT)
    if isinstance(of.type, T.DoubleType):
        return f"CASE WHEN isfinite({of.sql}) THEN {written.sql} ELSE {_quoted(written)} END"
    if isinstance(of.type, T.DecimalType) and of.type.scale > PLAIN_SCALE:
        raise unsupported("a small decimal as JSON")
    return written.sql


def _quoted(of: Value) -> str:
    return f"'\"' || {of.sql} || '\"'"


def date_trunc(values: Sequence[Value]) -> Value:
    unit, at = values
    if (name := constant(unit).lower()) not in UNITS:
        raise unsupported(f"date_trunc by {name}")
    local = cast(cast(at, TIMESTAMP), NTZ).sql
    return cast(Value(f"CAST(date_trunc('{name}', {local}) AS TIMESTAMP)", NTZ), TIMESTAMP)


def trunc(values: Sequence[Value]) -> Value:
    day, unit = values
    if day.type != DATE or (name := constant(unit).lower()) not in UNITS[:4]:
        raise unsupported("trunc of other values")
    return Value(f"CAST(date_trunc('{name}', {day.sql}) AS DATE)", DATE)


def part_of_time(sql: str, *types: T.DataType) -> Function:
    """Return a function of a date or a time in UTC as integer; `types` are those that have the part."""

    def compute(values: Sequence[Value]) -> Value:
        [at] = values
        if at.type not in types:
            raise unsupported(f"a part of a {at.type.simpleString()}")
        local = cast(at, NTZ) if at.type == TIMESTAMP else at
        return Value(f"CAST({sql.format(local.sql)} AS INTEGER)", INT)

    return compute


def date_format(values: Sequence[Value]) -> Value:
    at, pattern = values
    form = ""
    if RESERVED.search(constant(pattern)) or constant(pattern).count("'") % 2:
        raise unsupported(f"the format {constant(pattern)}")
    for written, letters, signs in FORMAT.findall(constant(pattern)):
        fields = [found[0] for found in re.finditer(r"(\w)\1*", letters)]
        if unknown := [field for field in fields if field not in FORMATS]:
            raise unsupported(f"the format {unknown[0]}")
        form += "".join(map(FORMATS.__getitem__, fields)) + (written or signs).replace("%", "%%")
    local = cast(cast(at, TIMESTAMP), NTZ).sql
    four_digits = f"WHEN year({local}) BETWEEN 1000 AND 9999 THEN strftime({local}, {literal(form)})"
    return Value(f"CASE {four_digits} WHEN {local} IS NOT NULL THEN error('a year') END", TEXT)


def shifted(unit: str, values: Sequence[Value]) -> Value:
    """Return a time moved by a number of units, all of one length in UTC."""
    number, at = values
    unit = unit.lower()
    if unit not in MICROSECONDS or not is_integer(number.type) or at.type not in {TIMESTAMP, NTZ}:
        raise unsupported(f"timestampadd by {unit}")
    micros = f"CAST({number.sql} AS BIGINT) * {MICROSECONDS[unit]}"
    return times("+")([at, Value(micros, T.DayTimeIntervalType())])


def interval(values: Sequence[Value]) -> Value:
    """Return the microseconds of literal seconds: other parts are zero."""
    *parts, seconds = values
    if not all(value.sql == "0" for value in parts) or not seconds.is_literal:
        raise unsupported("a computed interval")
    return Value(f"CAST({seconds.sql} * 1000000 AS BIGINT)", T.DayTimeIntervalType(), is_literal=True)


TIMES: Final = (DATE, TIMESTAMP, NTZ)
FUNCTIONS: Final[dict[str, Function]] = {
    "concat": concat,
    "concat_ws": concat_ws,
    "length": text("length({0})", INT),
    "left": text("left({0}, CASE WHEN {1} < 0 THEN 0 ELSE {1} END)", TEXT, INT),
    "substring": substring,
    "substr": substring,
    "lower": of_ascii("lower"),
    "upper": of_ascii("upper"),
    "trim": trimmed("trim"),
    "ltrim": trimmed("ltrim"),
    "rtrim": trimmed("rtrim"),
    "replace": replace,
    "contains": text("contains({0}, {1})", BOOLEAN, TEXT),
    "startswith": text("starts_with({0}, {1})", BOOLEAN, TEXT),
    "endswith": text("ends_with({0}, {1})", BOOLEAN, TEXT),
    "instr": text("CAST(instr({0}, {1}) AS INTEGER)", INT, TEXT),
    "like": like,
    "sha2": sha2,
    "to_json": to_json,
    "encode": by_utf8("encode", TEXT, BINARY),
    "decode": by_utf8("decode", BINARY, TEXT),
    "base64": in_lines,
    "unbase64": typed(f"from_base64(replace({{0}}, {LINE_END}, ''))", BINARY, TEXT),
    "unhex": typed("CASE WHEN length({0}) % 2 = 1 THEN error('half a byte') ELSE unhex({0}) END", BINARY, TEXT),
    "aes_encrypt": by_aes("aes_encrypt"),
    "aes_decrypt": by_aes("aes_decrypt"),
    "try_to_binary": try_to_binary,
    "date_trunc": date_trunc,
    "trunc": trunc,
    "date_format": date_format,
    **{part: part_of_time(f"{part}({{0}})", *TIMES) for part in DATE_PARTS},
    **{part: part_of_time(f"{part}({{0}})", *TIMES[1:]) for part in UNITS[-3:]},
    "dayofmonth": part_of_time("day({0})", *TIMES),
    "dayofweek": part_of_time("dayofweek({0}) + 1", *TIMES),
    "weekday": part_of_time("isodow({0}) - 1", *TIMES),
    "unix_micros": typed("epoch_us({0})", LONG, TIMESTAMP),
    "timestamp_micros": typed("make_timestamptz({0})", TIMESTAMP, LONG),
    "timestamp_millis": typed("make_timestamptz({0} * 1000)", TIMESTAMP, LONG),
    "timestamp_seconds": typed("make_timestamptz({0} * 1000000)", TIMESTAMP, LONG),
    "unix_date": typed("CAST({0} - DATE '1970-01-01' AS INTEGER)", INT, DATE),
    "date_from_unix_date": typed("DATE '1970-01-01' + {0}", DATE, INT),
    "date_add": typed("{0} + {1}", DATE, DATE, INT),
    "date_sub": typed("{0} - {1}", DATE, DATE, INT),
    "datediff": typed("CAST({0} - {1} AS INTEGER)", INT, DATE, DATE),
    "add_months": typed("CAST({0} + to_months({1}) AS DATE)", DATE, DATE, INT),
    "last_day": typed("last_day({0})", DATE, DATE),
    "make_dt_interval": interval,
}
