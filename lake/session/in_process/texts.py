"""Functions of texts of Spark that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process import dates
from lake.session.in_process.mode import unsupported
from lake.session.in_process.operators import (
    BOOLEAN,
    INT,
    LONG,
    TEXT,
    TIMESTAMP,
    Function,
    constant,
    text,
    tried,
    typed,
    whole,
)
from lake.session.in_process.types import Value, cast, is_integer, once
from lake.text import literal, quoted

BINARY: Final = T.BinaryType()
AES: Final = {"aes_encrypt": 4, "aes_decrypt": 3}
"""Numbers of arguments, without mode and padding."""
LINE_END: Final = "chr(13) || chr(10)"
LONGEST: Final = 1_000
"""Signs to which a text is padded, and times that it is repeated."""
CONTROL: Final = re.compile(r"[\x00-\x1f]")
"""Signs whose escapes in JSON Java and Python write in other letters."""
PLAIN_SCALE: Final = 6
"""Java writes a decimal of more places with an exponent if it is small."""
OTHER_LOWER: Final = r"\x{{130}}\x{{3a3}}\x{{1c89}}\x{{a7cb}}-\x{{a7dc}}\x{{10d50}}-\x{{10d65}}\x{{16ea0}}-\x{{16eb8}}"
OTHER_UPPER: Final = (
    r"\x{{df}}\x{{149}}\x{{19b}}\x{{1f0}}\x{{264}}\x{{390}}\x{{3b0}}\x{{587}}\x{{1c8a}}\x{{1e96}}-\x{{1e9a}}\x{{1f50}}-\x{{1fff}}"
    r"\x{{a7cb}}-\x{{a7dc}}\x{{fb00}}-\x{{fb17}}\x{{10d70}}-\x{{10d85}}\x{{16ebb}}-\x{{16ed3}}"
)
"""Letters with several signs in the other case, one that depends on its place, or one of a later Unicode."""


def cased(function: str, differing: str) -> Function:
    """Return a function of each letter, but for the `differing` ones."""
    return text(
        f"CASE WHEN {{0}} IS NULL THEN NULL WHEN regexp_matches({{0}}, '[{differing}]') THEN error('a letter')"
        f" ELSE {function}({{0}}) END"
    )


def trimmed(function: str) -> Function:
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


def padded(function: str) -> Function:
    def compute(values: Sequence[Value]) -> Value:
        of, size, *signs = values
        fill = constant(signs[0]) if signs else " "
        if of.type != TEXT or not fill or not 0 <= whole(size) <= LONGEST:
            raise unsupported(f"{function} of other values")
        return Value(f"{function}({of.sql}, {size.sql}, {literal(fill)})", TEXT)

    return compute


def repeated(values: Sequence[Value]) -> Value:
    of, times_ = values
    if of.type != TEXT or not 0 <= whole(times_) <= LONGEST:
        raise unsupported("repeat of other values")
    return Value(f"repeat({of.sql}, {times_.sql})", TEXT)


def split_part(values: Sequence[Value]) -> Value:
    of, separator, place = values
    if of.type != TEXT or not constant(separator) or whole(place) < 1:
        raise unsupported("split_part of other values")
    return Value(f"split_part({of.sql}, {separator.sql}, {place.sql})", TEXT)


def translated(values: Sequence[Value]) -> Value:
    of, old, new = values
    signs = constant(old)
    if of.type != TEXT or not (signs + constant(new)).isascii() or len({*signs}) < len(signs) or "\0" in constant(new):
        raise unsupported("translate of other values")
    return Value(f"translate({of.sql}, {old.sql}, {new.sql})", TEXT)


def like(values: Sequence[Value]) -> Value:
    of, pattern = values
    if of.type != TEXT or "\\" in constant(pattern):
        raise unsupported("like with another pattern")
    return Value(f"({of.sql} LIKE {pattern.sql})", BOOLEAN)


def try_to_binary(values: Sequence[Value]) -> Value:
    return tried(by_utf8("encode", TEXT, BINARY)(values), values)


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
    """Return a struct, list or map as Spark's JSON: without null parts of structs, times by millisecond."""
    [of] = values
    if not isinstance(of.type, T.StructType | T.ArrayType | T.MapType):
        raise unsupported(f"to_json of a {of.type.simpleString()}")
    return Value(_json(of), TEXT)


def _json(of: Value, depth: int = 0) -> str:  # noqa: PLR0911 one return a kind
    """Return SQL of JSON, null of null."""
    match of.type:
        case T.StructType():
            if CONTROL.search("".join(of.type.names)):
                raise unsupported("JSON with such names")
            parts = [Value(f"({of.sql}).{quoted(part.name)}", part.dataType) for part in of.type]
            names = [literal(f"{json.dumps(part.name, ensure_ascii=False)}:") for part in of.type]
            texts = [f"{name} || {_json(part, depth)}" for name, part in zip(names, parts, strict=True)]
            return f"CASE WHEN {of.sql} IS NOT NULL THEN '{{' || concat_ws(',', {', '.join(texts)}) || '}}' END"
        case T.ArrayType():
            item = f"json{depth}"
            part = f"coalesce({_json(Value(item, of.type.elementType), depth + 1)}, 'null')"
            return f"'[' || array_to_string(list_transform({of.sql}, lambda {item}: {part}), ',') || ']'"
        case T.MapType(keyType=T.StringType()):
            item = f"json{depth}"
            key = _json(Value(f"{item}.key", of.type.keyType))
            value = f"coalesce({_json(Value(f'{item}.value', of.type.valueType), depth + 1)}, 'null')"
            entries = f"list_transform(map_entries({of.sql}), lambda {item}: {key} || ':' || {value})"
            return f"CASE WHEN {of.sql} IS NOT NULL THEN '{{' || array_to_string({entries}, ',') || '}}' END"
        case T.MapType():
            raise unsupported("a map of other keys as JSON")
        case T.StringType():
            return f"CAST(to_json({of.sql}) AS VARCHAR)"
        case T.DateType():
            return _quoted(cast(of, TEXT))
        case T.TimestampType() | T.TimestampNTZType():
            zone = "'Z'" if of.type == TIMESTAMP else ""
            return _quoted(
                dates.date_format([of, Value(literal(f"yyyy-MM-dd'T'HH:mm:ss.SSS{zone}"), TEXT, is_literal=True)])
            )
    written = cast(of, TEXT)
    if isinstance(of.type, T.DoubleType):
        return f"CASE WHEN isfinite({of.sql}) THEN {written.sql} ELSE {_quoted(written)} END"
    if isinstance(of.type, T.DecimalType) and of.type.scale > PLAIN_SCALE:
        raise unsupported("a small decimal as JSON")
    return written.sql


def _quoted(of: Value) -> str:
    return f"'\"' || {of.sql} || '\"'"


FUNCTIONS: Final[dict[str, Function]] = {
    "concat": concat,
    "concat_ws": concat_ws,
    "length": text("CAST(length({0}) AS INTEGER)", INT),
    "left": text("left({0}, CASE WHEN {1} < 0 THEN 0 ELSE {1} END)", TEXT, INT),
    "substring": substring,
    "substr": substring,
    "lower": cased("lower", OTHER_LOWER),
    "upper": cased("upper", OTHER_UPPER),
    "trim": trimmed("trim"),
    "ltrim": trimmed("ltrim"),
    "rtrim": trimmed("rtrim"),
    "replace": replace,
    "contains": text("contains({0}, {1})", BOOLEAN, TEXT),
    "startswith": text("starts_with({0}, {1})", BOOLEAN, TEXT),
    "endswith": text("ends_with({0}, {1})", BOOLEAN, TEXT),
    "instr": text("CAST(instr({0}, {1}) AS INTEGER)", INT, TEXT),
    "like": like,
    **dict.fromkeys(("char_length", "character_length"), text("CAST(length({0}) AS INTEGER)", INT)),
    "octet_length": text("CAST(strlen({0}) AS INTEGER)", INT),
    "right": text("right({0}, CASE WHEN {1} < 0 THEN 0 ELSE {1} END)", TEXT, INT),
    "lpad": padded("lpad"),
    "rpad": padded("rpad"),
    "repeat": repeated,
    "split_part": split_part,
    "translate": translated,
    **dict.fromkeys(("locate", "position"), text("CAST(instr({1}, {0}) AS INTEGER)", INT, TEXT)),
    "md5": text("md5({0})"),
    "sha1": text("sha1({0})"),
    "sha": text("sha1({0})"),
    "hex": typed("hex({0})", TEXT, LONG),
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
    **dates.FUNCTIONS,
}
