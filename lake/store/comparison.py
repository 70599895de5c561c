"""SQL of the difference between the tables `rows` (new) and `old`: the same text for Spark and DuckDB.

Rows correspond by their identity, nulls included. Both sides have at most one row of each identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lake.store.table_head import CHANGE
from lake.text import DUCKDB, literal, quoted

WAS: Final = "_was"
"""Column of a diff: hash of the row that an update or a delete removes."""


def changed_pairs(columns: Sequence[str], identity: Sequence[str], *, before: Sequence[str] | None = None) -> str:
    """Return DuckDB's SQL of the changed rows: CHANGE, and the structs `before` and `after`, null if absent.

    If the columns of `old` differ from those of `rows`, `before` names them. Then every row that stays is an update,
    because its readers see it differently.
    """
    has = columns if before is None else before
    change = _change(columns, identity, DUCKDB) if before is None else _by_side("'update'")
    new = ", ".join(f"{literal(column)}: {quoted(column)}" for column in columns)
    old = ", ".join(f"{literal(column)}: {quoted(old_name(column))}" for column in has)
    return f"""SELECT {change} AS {CHANGE},
            CASE WHEN _there THEN {{{old}}} END AS before, CASE WHEN _new THEN {{{new}}} END AS after
        FROM {pairs(has, identity)} WHERE {CHANGE} IS NOT NULL"""


def pairs(columns: Sequence[str], identity: Sequence[str], hashed: str = "NULL") -> str:
    """Return DuckDB's SQL that joins `rows` (`_new`) with `old` (`_there`) by identity.

    `columns` are those of `old`; WAS is the value of the SQL `hashed` over its row.
    """
    renamed = ", ".join(f"{quoted(column)} AS {quoted(old_name(column))}" for column in columns)
    return f"""(SELECT *, true AS _new FROM rows)
        FULL OUTER JOIN (SELECT {renamed}, true AS _there, {hashed} AS {WAS} FROM old) ON {match(identity, DUCKDB)}"""


def old_name(column: str) -> str:
    return f"_was_{column}"


def match(identity: Sequence[str], quote: str) -> str:
    same = (f"{quoted(c, quote)} is not distinct from {quoted(old_name(c), quote)}" for c in identity)
    return " and ".join(same)


def after_images(columns: Sequence[str], identity: Sequence[str], quote: str) -> list[str]:
    after = [f"case when _new is null then {old} else {new} end as {new}" for new, old in _names(columns, quote)]
    return [*after, f"{_change(columns, identity, quote)} as {CHANGE}"]


def _change(columns: Sequence[str], identity: Sequence[str], quote: str) -> str:
    others = [column for column in columns if column not in identity]
    differs = [f"{new} is distinct from {old}" for new, old in _names(others, quote)]
    return _by_side(f"case when {' or '.join(differs) or 'false'} then 'update' end")


def _by_side(on_both: str) -> str:
    return f"case when _new is null then 'delete' when _there is null then 'insert' else {on_both} end"


def _names(columns: Sequence[str], quote: str) -> list[tuple[str, str]]:
    return [(quoted(column, quote), quoted(old_name(column), quote)) for column in columns]
