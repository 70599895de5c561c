"""Functions whose value is not decided by their arguments, in jobs and in the SQL of contracts.

A text, a comment, a quoted name or an alias that looks like a call is none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

NONDETERMINISTIC: Final = frozenset(
    {"rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "sample", "randomSplit", "sampleBy"}
    | {"now", "current_timestamp", "current_date", "current_time", "localtimestamp", "curdate", "today", "utcnow"}
    | {"current_user", "session_user", "current_database", "current_schema", "current_catalog", "current_timezone"}
    | {"monotonically_increasing_id", "spark_partition_id", "input_file_name"}
)
_TOKEN: Final = re.compile(
    r"""(?P<comment>--(?:\\\n|[^\r\n])*|/\*(?!\+).*?\*/)
    | (?P<clock>\b(?:date|timestamp(?:_ntz|_ltz)?)\s*['"]\s*(?:now|today|tomorrow|yesterday)\b[^'"]*['"])
    | (?P<text>\br'[^']*'|\br"[^"]*"|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>`[^`]*`)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_PLAIN: Final = {"comment": " ", "text": "''", "clock": "now()"}
_QUOTED_NAME: Final = re.compile(r"`([^`]*)`(?=(\s*\()?)")
_ALIAS: Final = re.compile(r"\bas\s+\w+(?!\w|\s*\()", re.IGNORECASE)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_WORD: Final = re.compile(r"\b([a-z_]\w*)\b(?:\s*(\(\s*\)?))?", re.IGNORECASE)
_WITHOUT_ARGUMENTS: Final = re.compile(r"current_\w+|localtimestamp")


def code_of(sql: str) -> str:
    """Return Spark's SQL without comments, aliases, and quoted names but those of functions. Its texts are empty.

    Times that the clock decides, such as `timestamp 'now'`, become calls of `now`.
    """
    plain = _TOKEN.sub(lambda token: _PLAIN.get(str(token.lastgroup), token[0]), sql)
    return _ALIAS.sub("as _", _QUOTED_NAME.sub(lambda name: name[1] if name[2] else "_", plain))


def texts_of(sql: str) -> Iterator[str]:
    """Yield the texts and quoted names in Spark's SQL, without their quotes and escapes."""
    for token in _TOKEN.finditer(sql):
        if token["name"]:
            yield token["name"][1:-1]
        elif token["text"]:
            yield _ESCAPED.sub(r"\1", token["text"].lstrip("rR")[1:-1])


def is_nondeterministic(name: str, *, has_arguments: bool) -> bool:
    return name in NONDETERMINISTIC or (name == "unix_timestamp" and not has_arguments)


def nondeterministic_function(sql: str, fields: Collection[str]) -> str:
    """Return the first function that is not deterministic, or "". A field hides a function without parentheses."""
    for word, parenthesis in _WORD.findall(code_of(sql)):
        name = word.lower()
        is_called = parenthesis and is_nondeterministic(name, has_arguments=not parenthesis.endswith(")"))
        if is_called or (_WITHOUT_ARGUMENTS.fullmatch(name) and word not in fields):
            return str(word)
    return ""
