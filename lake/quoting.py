"""Quoting of names and texts in SQL, and the check of column names.

Spark and DuckDB differ: Spark quotes names by backticks and treats \\ in a text as an escape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lake.errors import DeclarationError

SPARK: Final = "`"
DUCKDB: Final = '"'


def quoted(name: str, quote: str = DUCKDB) -> str:
    """Return `name` as an SQL identifier, in the quotes of DuckDB or of Spark."""
    return quote + name.replace(quote, quote * 2) + quote


def literal(text: str, quote: str = DUCKDB) -> str:
    """Return `text` as an SQL string, for the engine with the quotes `quote`."""
    if quote == SPARK:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return "'" + text.replace("'", "''") + "'"


def check(names: Iterable[str]) -> None:
    """Raise DeclarationError, without a place, for an invalid column name. The SQL of kinds contains such names."""
    wrong = [name for name in names if not name.isidentifier()]
    if wrong:
        raise DeclarationError(
            f"{wrong[0]!r} is not a valid column name",
            fix="use letters, digits and _, not beginning with a digit",
        )
