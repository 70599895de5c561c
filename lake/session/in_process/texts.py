"""Spark's functions of texts and bytes that DuckDB computes alike, as DuckDB's SQL; see `functions`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process import dates
from lake.session.in_process.casts import cast
from lake.session.in_process.operators import or_null
from lake.session.in_process.signatures import (
    Function,
    by_count,
    constant_number,
    constant_text,
    keyword,
    of_types,
    require,
    typed,
)
from lake.session.in_process.types import BINARY, BOOLEAN, INT, LONG, TEXT, TIMESTAMP, Value, once
from lake.text import literal, quoted

LINE_END: Final = "chr(13) || chr(10)"
LONGEST_PADDING: Final = 1_000
"""Most characters of a padding, most repeats of a text."""
CONTROL: Final = re.compile(r"[\x00-\x1f]")
"""Characters that Java and Python escape differently in JSON."""
PLAIN_SCALE: Final = 6
"""Java writes a decimal of more places with an exponent if it is small."""
OTHER_LOWER: Final = r"\x{{130}}\x{{3a3}}\x{{1c89}}\x{{a7cb}}-\x{{a7dc}}\x{{10d50}}-\x{{10d65}}\x{{16ea0}}-\x{{16eb8}}"
OTHER_UPPER: Final = (
    r"\x{{df}}\x{{149}}\x{{19b}}\x{{1f0}}\x{{264}}\x{{390}}\x{{3b0}}\x{{587}}\x{{1c8a}}\x{{1e96}}-\x{{1e9a}}\x{{1f50}}-\x{{1fff}}"
    r"\x{{a7cb}}-\x{{a7dc}}\x{{fb00}}-\x{{fb17}}\x{{10d70}}-\x{{10d85}}\x{{16ebb}}-\x{{16ed3}}"
)
"""Letters with several characters in the other case, one that depends on its place, or one of a later Unicode."""


def in_case(function: str, differing: str) -> Function:
    """Return a change of case; it fails for `differing` letters."""
    return typed(
        f"CASE WHEN {{0}} IS NULL THEN NULL WHEN regexp_matches({{0}}, '[{differing}]') THEN error('a letter')"
        f" ELSE {function}({{0}}) END",
        TEXT,
        TEXT,
    )


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


def base64_in_lines(values: Sequence[Value]) -> Value:
    """Return bytes as base64 in lines of 76 characters."""
    plain = typed("base64({0})", TEXT, BINARY)(values).sql
    ended, size = f"regexp_replace({{0}}, '.{{{{76}}}}', '\\0' || {LINE_END}, 'g')", "length({0})"
    lines = f"left({ended}, CAST({size} + 2 * (({size} - 1) // 76) AS BIGINT))"
    return Value(once(plain, lines.format), TEXT)


def to_json(values: Sequence[Value]) -> Value:
    """Return a struct, list or map as Spark's JSON: without null parts of structs, times by millisecond."""
    [of] = values
    require(isinstance(of.type, T.StructType | T.ArrayType | T.MapType))
    return Value(_json(of), TEXT)


def _json(of: Value, depth: int = 0) -> str:  # noqa: PLR0911 one return a kind
    """Return SQL of JSON, null of null."""
    match of.type:
        case T.StructType():
            require(not CONTROL.search("".join(of.type.names)))
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
        case T.StringType():
            return f"CAST(to_json({of.sql}) AS VARCHAR)"
        case T.DateType():
            return _quoted(cast(of, TEXT))
        case T.TimestampType() | T.TimestampNTZType():
            zone = "'Z'" if of.type == TIMESTAMP else ""
            form = Value(literal(f"yyyy-MM-dd'T'HH:mm:ss.SSS{zone}"), TEXT, is_literal=True)
            return _quoted(dates.date_format([of, form]))
    written = cast(of, TEXT)
    if isinstance(of.type, T.DoubleType):
        return f"CASE WHEN isfinite({of.sql}) THEN {written.sql} ELSE {_quoted(written)} END"
    require(not isinstance(of.type, T.DecimalType) or of.type.scale <= PLAIN_SCALE)
    return written.sql


def _quoted(of: Value) -> str:
    return f"'\"' || {of.sql} || '\"'"


CUT: Final = "CASE WHEN {1} < 0 THEN 0 ELSE {1} END"
NOT_EMPTY: Final = constant_text(bool)
ASCII: Final = constant_text(str.isascii)
DISTINCT_CHARACTERS: Final = constant_text(lambda text: text.isascii() and len({*text}) == len(text))
POSITIVE: Final = constant_number(lambda number: number > 0)
SIZE: Final = constant_number(lambda size: 0 <= size <= LONGEST_PADDING)
UTF_8: Final = keyword("utf-8")
ENCODE: Final = typed("encode({0})", BINARY, TEXT, UTF_8)
SEALED: Final = (BINARY, BINARY, keyword("gcm"), keyword("default"))
"""Bytes, key, mode and padding."""

FUNCTIONS: Final[dict[str, Function]] = {
    "concat": concat,
    "concat_ws": concat_ws,
    **dict.fromkeys(("length", "char_length", "character_length"), typed("CAST(length({0}) AS INTEGER)", INT, TEXT)),
    "octet_length": typed("CAST(strlen({0}) AS INTEGER)", INT, TEXT),
    "left": typed(f"left({{0}}, {CUT})", TEXT, TEXT, INT),
    "right": typed(f"right({{0}}, {CUT})", TEXT, TEXT, INT),
    **dict.fromkeys(
        ("substring", "substr"),
        by_count(
            {
                2: typed("substring({0}, {1})", TEXT, TEXT, POSITIVE),
                3: typed(f"substring({{0}}, {{1}}, {CUT.replace('1', '2')})", TEXT, TEXT, POSITIVE, INT),
            }
        ),
    ),
    "lower": in_case("lower", OTHER_LOWER),
    "upper": in_case("upper", OTHER_UPPER),
    **{
        name: by_count(
            {
                1: typed(f"{name}({{0}}, ' ')", TEXT, TEXT),
                2: typed(f"{name}({{1}}, {{0}})", TEXT, ASCII, TEXT),
            }
        )
        for name in ("trim", "ltrim", "rtrim")
    },
    **{
        name: by_count(
            {
                2: typed(f"{name}({{0}}, {{1}}, ' ')", TEXT, TEXT, SIZE),
                3: typed(f"{name}({{0}}, {{1}}, {{2}})", TEXT, TEXT, SIZE, NOT_EMPTY),
            }
        )
        for name in ("lpad", "rpad")
    },
    "repeat": typed("repeat({0}, {1})", TEXT, TEXT, SIZE),
    "replace": typed("replace({0}, {1}, {2})", TEXT, TEXT, NOT_EMPTY, TEXT),
    "translate": typed(
        "translate({0}, {1}, {2})",
        *(TEXT, TEXT, DISTINCT_CHARACTERS),
        constant_text(lambda text: text.isascii() and "\0" not in text),
    ),
    "contains": typed("contains({0}, {1})", BOOLEAN, TEXT, TEXT),
    "startswith": typed("starts_with({0}, {1})", BOOLEAN, TEXT, TEXT),
    "endswith": typed("ends_with({0}, {1})", BOOLEAN, TEXT, TEXT),
    "like": typed("({0} LIKE {1})", BOOLEAN, TEXT, constant_text(lambda pattern: "\\" not in pattern)),
    "instr": typed("CAST(instr({0}, {1}) AS INTEGER)", INT, TEXT, TEXT),
    **dict.fromkeys(("locate", "position"), typed("CAST(instr({1}, {0}) AS INTEGER)", INT, TEXT, TEXT)),
    "split_part": typed("split_part({0}, {1}, {2})", TEXT, TEXT, NOT_EMPTY, POSITIVE),
    "md5": typed("md5({0})", TEXT, TEXT),
    **dict.fromkeys(("sha", "sha1"), typed("sha1({0})", TEXT, TEXT)),
    "sha2": typed("sha256({0})", TEXT, of_types(TEXT, BINARY), constant_number(lambda bits: bits == 256)),
    "hex": typed("hex({0})", TEXT, LONG),
    "to_json": to_json,
    "encode": ENCODE,
    "decode": typed("decode({0})", TEXT, BINARY, UTF_8),
    "try_to_binary": lambda values: or_null(ENCODE(values)),
    "base64": base64_in_lines,
    "unbase64": typed(f"from_base64(replace({{0}}, {LINE_END}, ''))", BINARY, TEXT),
    "unhex": typed("CASE WHEN length({0}) % 2 = 1 THEN error('half a byte') ELSE unhex({0}) END", BINARY, TEXT),
    "aes_encrypt": typed("spark_aes_encrypt({0}, {1}, {4}, {5})", BINARY, *SEALED, BINARY, BINARY),
    "aes_decrypt": typed("spark_aes_decrypt({0}, {1}, {4})", BINARY, *SEALED, BINARY),
}
