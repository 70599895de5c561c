"""Functions of regular expressions of Java that RE2 evaluates alike, as DuckDB's SQL; see `functions`.

Patterns are constants of the parts that PART knows. Sources: java.util.regex.Pattern of Java 17, RE2's syntax.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as T

from lake.session.in_process.mode import unsupported
from lake.session.in_process.signatures import constant, require, whole
from lake.session.in_process.types import BOOLEAN, TEXT, Value
from lake.text import literal

SPACES: Final = r" \t\n\x0B\f\r"
LINE_ENDS: Final = r"\n\r\x{85}\x{2028}\x{2029}"
PART: Final = re.compile(
    r"""(?P<one>[^\\^$.|?*+()\[\]{}] | \\[^A-Za-z0-9\s] | \\[dDwWsS] | \.
          | \[\^?-?(?:[^\\^\[\]&-] | \\[^A-Za-z0-9\s] | \\[dws] | (?<=[0-9A-Za-z])-(?=[0-9A-Za-z]))+-?\])
        (?P<times>(?:[*+?]|\{\d{1,2}(?:,\d{0,2})?\})?\??)
      | \((?:\?:)? | \)\?? | \|""",
    re.VERBOSE,
)
"""Characters, classes and groups; groups may be optional, not repeated."""
ESCAPED: Final = re.compile(r"\\.", re.DOTALL)
"""Escape; `\\s` becomes spaces."""
TRANSLATED: Final = {".": f"[^{LINE_ENDS}]", r"\s": f"[{SPACES}]", r"\S": f"[^{SPACES}]"}


def _spaces(found: re.Match[str]) -> str:
    return SPACES if found[0] == r"\s" else found[0]


def _pattern(value: Value, *, may_end: bool = False, may_be_empty: bool = False) -> str:
    """Return RE2's text of a pattern; it `may_end` with `$`, and match the empty text if it `may_be_empty`."""
    pattern = constant(value)
    start, end = pattern.startswith("^"), may_end and pattern.endswith("$") and not pattern.endswith("\\$")
    inner, translated, place = pattern[start : -1 if end else None], "^" * start, 0
    while place < len(inner):
        part = PART.match(inner, place)
        if part is None:
            raise unsupported(f"the pattern {pattern}")
        one = part["one"]
        made = part[0] if one is None else TRANSLATED.get(one, ESCAPED.sub(_spaces, one)) + part["times"]
        translated, place = translated + made, part.end()
    if _compiled(pattern).search("") and not may_be_empty:
        raise unsupported(f"a pattern that matches the empty text, {pattern}")
    return literal(f"{translated}[{LINE_ENDS}]?\\z" if end else translated)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise unsupported(f"the pattern {pattern}") from error


def matches(values: Sequence[Value]) -> Value:
    of, pattern = values
    require(of.type == TEXT)
    found = f"regexp_matches({of.sql}, {_pattern(pattern, may_end=True, may_be_empty=True)})"
    if constant(pattern).endswith("$"):
        found = f"CASE WHEN contains({of.sql}, chr(13)) THEN error('two signs that end a line') ELSE {found} END"
    return Value(found, BOOLEAN)


def replaced(values: Sequence[Value]) -> Value:
    of, pattern, new = values
    require(of.type == TEXT and not {*constant(new)} & {"\\", "$"})
    return Value(f"regexp_replace({of.sql}, {_pattern(pattern)}, {new.sql}, 'g')", TEXT)


def extracted(values: Sequence[Value]) -> Value:
    pattern = _pattern(values[1], may_be_empty=True)
    found = f"regexp_extract({values[0].sql}, {pattern}, {_group(values)})"
    return Value(f"CASE WHEN {values[0].sql} IS NOT NULL THEN {found} END", TEXT)


def all_extracted(values: Sequence[Value]) -> Value:
    pattern = _pattern(values[1])
    found = f"regexp_extract_all({values[0].sql}, {pattern}, {_group(values)})"
    return Value(f"list_transform({found}, lambda m: coalesce(m, ''))", T.ArrayType(TEXT))  # null: an unused group


def _group(values: Sequence[Value]) -> int:
    of, pattern, *group = values
    number = whole(group[0]) if group else 1
    require(of.type == TEXT and 0 <= number <= _compiled(constant(pattern)).groups)
    return number


def split(values: Sequence[Value]) -> Value:
    of, pattern, *limit = values
    require(of.type == TEXT and all(value.sql == "-1" for value in limit))
    return Value(f"string_split_regex({of.sql}, {_pattern(pattern)})", T.ArrayType(TEXT))
