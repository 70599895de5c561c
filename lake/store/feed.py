"""Change feed of a table: the row changes of its commits, and the proof by fingerprints that it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lake import cost
from lake.store import delta
from lake.store.ledger.editions import EditionTable
from lake.store.proof.fingerprints import MODULUS, Fingerprint, duck_hash, duck_values, fields_of_json
from lake.store.scan import arrow_schema
from lake.store.storage import Address
from lake.text import literal, quoted

if TYPE_CHECKING:
    import duckdb

    from lake.store.table_log import TableState

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
            files.setdefault(kind, []).append(literal(str(file)))
    wanted, parts = ", ".join(quoted(name) for name, _ in columns), []
    for kind, change in (("cdc", TYPE), ("add", "'insert'"), ("remove", "'delete'")):
        if kind in files:
            rows = f"read_parquet([{', '.join(files[kind])}], union_by_name = true, hive_partitioning = false)"
            parts.append(f"SELECT {wanted}, {change} AS {TYPE} FROM {rows}")
    if not parts:
        con.register("unchanged", arrow_schema(table).empty_table())
        parts.append(f"SELECT {wanted}, 'insert' AS {TYPE} FROM unchanged")
    return " UNION ALL ".join(parts)
