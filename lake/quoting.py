"""Names and texts in SQL: what may be the name of a column, and how names and texts are written so that they stay one.

Spark and DuckDB differ in both: Spark writes names in backticks and takes \\ in a text as an escape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lake.errors import DeclarationError

SPARK: Final = "`"
DUCKDB: Final = '"'


def quoted(name: str, quote: str = DUCKDB) -> str:
    """`name` as an SQL identifier, in the quotes of DuckDB or of Spark."""
    return quote + name.replace(quote, quote * 2) + quote


def literal(text: str, quote: str = DUCKDB) -> str:
    """`text` as an SQL string, for the engine whose identifiers stand in `quote`."""
    if quote == SPARK:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return "'" + text.replace("'", "''") + "'"


def check(names: Iterable[str]) -> None:
    """Raises DeclarationError, without a place, for what is no name. The SQL of kinds is made of such."""
    wrong = [name for name in names if not name.isidentifier()]
    if wrong:
        raise DeclarationError(
            f"{wrong[0]!r} is not a valid column name",
            fix="use letters, digits and _, not beginning with a digit",
        )
