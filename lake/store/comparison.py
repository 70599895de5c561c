"""SQL of what differs between a table `rows` and what was there before, `old`: the same text for Spark and DuckDB.

Rows are the same row by their identity, nulls included; both sides have at most one of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lake.quoting import DUCKDB, literal, quoted
from lake.store.table_head import CHANGE

WAS: Final = "_was"
"""The column of a diff that holds the hash of the row that an update or a delete takes away."""


def changed_pairs(columns: Sequence[str], identity: Sequence[str], *, before: Sequence[str] | None = None) -> str:
    """DuckDB's SQL of what differs between its tables `rows` and `old`: CHANGE, and both rows as structs, null where
    there is none: `before` and `after`.

    Where the columns of `old` are others than those of `rows`, `before` names them: then every row that stays is an
    update, as it looks different to whoever has it.
    """
    has = columns if before is None else before
    change = _change(columns, identity, DUCKDB) if before is None else _by_side("'update'")
    new = ", ".join(f"{literal(column)}: {quoted(column)}" for column in columns)
    old = ", ".join(f"{literal(column)}: {quoted(was(column))}" for column in has)
    return f"""SELECT {change} AS {CHANGE},
            CASE WHEN _there THEN {{{old}}} END AS before, CASE WHEN _new THEN {{{new}}} END AS after
        FROM {pairs(has, identity)} WHERE {CHANGE} IS NOT NULL"""


def pairs(columns: Sequence[str], identity: Sequence[str], hashed: str = "NULL") -> str:
    """DuckDB's SQL of each row of its table `rows` (`_new`) beside that of `old` (`_there`) with the same identity.

    `columns` are those of `old`; WAS is what the SQL `hashed` makes of its row.
    """
    renamed = ", ".join(f"{quoted(column)} AS {quoted(was(column))}" for column in columns)
    return f"""(SELECT *, true AS _new FROM rows)
        FULL OUTER JOIN (SELECT {renamed}, true AS _there, {hashed} AS {WAS} FROM old) ON {match(identity, DUCKDB)}"""


def was(column: str) -> str:
    """What a column of `old` is called beside those of `rows`."""
    return f"_was_{column}"


def match(identity: Sequence[str], quote: str) -> str:
    """SQL of whether a row of `rows` and one of `old` are the same row."""
    same = (f"{quoted(c, quote)} is not distinct from {quoted(was(c), quote)}" for c in identity)
    return " and ".join(same)


def images(columns: Sequence[str], identity: Sequence[str], quote: str) -> list[str]:
    """SQL of each column's value after the change, and of CHANGE, which is null of a row that stays."""
    after = [f"case when _new is null then {old} else {new} end as {new}" for new, old in _names(columns, quote)]
    return [*after, f"{_change(columns, identity, quote)} as {CHANGE}"]


def _change(columns: Sequence[str], identity: Sequence[str], quote: str) -> str:
    """SQL of what becomes of a row; null of one that stays."""
    others = [column for column in columns if column not in identity]
    differs = [f"{new} is distinct from {old}" for new, old in _names(others, quote)]
    return _by_side(f"case when {' or '.join(differs) or 'false'} then 'update' end")


def _by_side(on_both: str) -> str:
    return f"case when _new is null then 'delete' when _there is null then 'insert' else {on_both} end"


def _names(columns: Sequence[str], quote: str) -> list[tuple[str, str]]:
    """Each column's quoted name after and before the change."""
    return [(quoted(column, quote), quoted(was(column), quote)) for column in columns]
