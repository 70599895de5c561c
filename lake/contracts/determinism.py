"""Functions whose value is not decided by their arguments, in jobs and in the SQL of contracts."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

NONDETERMINISTIC: Final = frozenset(
    {"rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "sample", "randomSplit", "sampleBy"}
    | {"now", "current_timestamp", "current_date", "current_time", "localtimestamp", "curdate"}
    | {"monotonically_increasing_id", "spark_partition_id", "input_file_name"}
)
_WORD: Final = re.compile(r"\b([a-z_]\w*)\b(?:\s*(\(\s*\)?))?", re.IGNORECASE)
_WITHOUT_ARGUMENTS: Final = re.compile(r"current_\w+|localtimestamp")


def nondeterministic_function(sql: str, fields: Collection[str]) -> str:
    """Return the first function that is not deterministic, or "". A field hides a function without parentheses."""
    for word, parenthesis in _WORD.findall(sql):
        name = word.lower()
        is_called = parenthesis and name in NONDETERMINISTIC
        is_clock = name == "unix_timestamp" and parenthesis.endswith(")")  # without an argument
        if is_called or is_clock or (_WITHOUT_ARGUMENTS.fullmatch(name) and word not in fields):
            return str(word)
    return ""
