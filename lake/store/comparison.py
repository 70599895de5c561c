"""Changes between two versions of a table, by comparison or by the change feed of its commits.

The SQL of the difference between the tables `rows` (new) and `old` is the same text for Spark and DuckDB. Rows
correspond by their identity, nulls included. Both sides have at most one row of each identity.

A change feed is complete if its fingerprints prove it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lake import cost
from lake.store import delta
from lake.store.ledger.editions import EditionTable
from lake.store.proof.fingerprints import MODULUS, Fingerprint, Kind, duck_hash, duck_values, fields_of_json, spark_text
from lake.store.scan import arrow_schema
from lake.store.storage import Address
from lake.store.table_head import CHANGE
from lake.text import DUCKDB, literal, parquet_rows, quoted

if TYPE_CHECKING:
    import duckdb

    from lake.store.table_log import TableState

WAS: Final = "_was"
"""Column of a diff: hash of the row that an update or a delete removes."""


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal as in the SQL of this module: NaN equals NaN, also within a value."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, float) and isinstance(other, float) and isnan(one):
        return isnan(other)
    return bool(one == other)


def comparison_key(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts and hashes `value` as SQL does, also if it is nested: null first, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, *map(comparison_key, value.values()))
    if isinstance(value, list | tuple):
        return (1, *map(comparison_key, value))
    if isinstance(value, float) and isnan(value):
        return (2,)
    return (1, value)


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


def after_images(
    columns: Sequence[str], identity: Sequence[str], quote: str, maps: Mapping[str, Kind] = MappingProxyType({})
) -> list[str]:
    """`maps` are the types of columns that are compared by their texts, since Spark compares no maps."""
    pairs_of_names = ((quoted(column, quote), quoted(old_name(column), quote)) for column in columns)
    after = [f"case when _new is null then {old} else {new} end as {new}" for new, old in pairs_of_names]
    return [*after, f"{_change(columns, identity, quote, maps)} as {CHANGE}"]


def map_columns(schema: str) -> dict[str, Kind]:
    """Return the types of those columns of a JSON schema that contain maps."""
    return {name: kind for name, kind in fields_of_json(schema) if _has_map(kind)}


def _has_map(kind: Kind) -> bool:
    if isinstance(kind, str) or kind["type"] == "map":
        return not isinstance(kind, str)
    if kind["type"] == "array":
        return _has_map(kind["elementType"])
    return any(_has_map(field["type"]) for field in kind["fields"])


def _change(
    columns: Sequence[str], identity: Sequence[str], quote: str, maps: Mapping[str, Kind] = MappingProxyType({})
) -> str:
    differs = []
    for column in columns:
        if column not in identity:
            pair = [quoted(column, quote), quoted(old_name(column), quote)]
            new, old = [spark_text(maps[column], value) for value in pair] if column in maps else pair
            differs.append(f"{new} is distinct from {old}")
    return _by_side(f"case when {' or '.join(differs) or 'false'} then 'update' end")


def _by_side(on_both: str) -> str:
    return f"case when _new is null then 'delete' when _there is null then 'insert' else {on_both} end"


FEED: Final = "feed"
SIGN: Final = "_feed_sign"
TYPE: Final = "_change_type"
SIGNED: Final = f"CASE WHEN {TYPE} IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"


def proven_feed(con: duckdb.DuckDBPyConnection, path: Address, old: EditionTable, new: EditionTable) -> bool:
    """Create FEED, a table of `con`: the rows, state included, added and removed from version `old` to `new`.

    Returns False if rows have to be compared instead: the feed does not reach back; fingerprints do not add up (a
    commit was lost and its number reused) or are unknown, as of personal tables; or comparing costs no more.
    """
    repays = 0 < new.version - old.version <= cost.FEED_COMMITS and (new.rows or 0) >= cost.FEED_ROWS
    if not repays or old.content is None or new.content is None:
        return False
    try:
        hashed = _load(con, path, after=old.version, upto=new.version)
    except Exception:  # any gap
        return False
    count, total = con.sql(f"SELECT sum({SIGN}), sum({SIGN} * ({hashed})::HUGEINT) FROM {FEED}").fetchall()[0]
    changed = Fingerprint(int(count or 0), int(total or 0) % MODULUS)
    return Fingerprint.parse(old.content) + changed == Fingerprint.parse(new.content)


def _load(con: duckdb.DuckDBPyConnection, path: Address, *, after: int, upto: int) -> str:
    with delta.opened(path, upto) as table:
        fields = fields_of_json(table.schema().to_json())
        rows = feed(con, path, table, after=after, upto=upto)
        values = duck_values(fields, [name for name, _ in fields])
        con.execute(f"CREATE TEMP TABLE {FEED} AS SELECT {values}, {SIGNED} AS {SIGN} FROM ({rows})")
    return duck_hash(fields)


def feed(con: duckdb.DuckDBPyConnection, path: Address, table: TableState, *, after: int, upto: int) -> str:
    """Return SQL of the rows that the commits after version `after` changed in `table`, which is at `upto`.

    Columns: those of the table, and TYPE. By Delta's protocol (PROTOCOL.md of delta-io/delta, "Add CDC File"): the rows
    of a commit's change files if it has some, else all rows of the files it added or removed. Raises ValueError across
    a change of columns, OSError if a commit is gone.
    """
    columns, files = fields_of_json(table.schema().to_json()), dict[str, list[str]]()
    for version in range(after + 1, upto + 1):
        actions = delta.actions(path, version)
        if any(fields_of_json(action["schemaString"]) != columns for kind, action in actions if kind == "metaData"):
            raise ValueError(f"{path.name}: other columns since version {version}")
        for kind, file in delta.feed_files(path, actions):
            files.setdefault(kind, []).append(str(file))
    wanted, parts = ", ".join(quoted(name) for name, _ in columns), []
    for kind, change in (("cdc", TYPE), ("add", "'insert'"), ("remove", "'delete'")):
        if kind in files:
            parts.append(f"SELECT {wanted}, {change} AS {TYPE} FROM {parquet_rows(files[kind])}")
    if not parts:
        con.register("unchanged", arrow_schema(table).empty_table())
        parts.append(f"SELECT {wanted}, 'insert' AS {TYPE} FROM unchanged")
    return " UNION ALL ".join(parts)
