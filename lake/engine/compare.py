"""Comparison of a table's rows with the rows it should have: by fingerprint, or by a diff of Spark or DuckDB.

A table has at most one row per identity: a MERGE cannot tell two apart, and no later change could name either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

from lake.errors import LakeError
from lake.kinds.sql_errors import causes, raise_sql, raised_facts
from lake.lazy import DataFrame, F, pa, pc
from lake.project.declaration import Declaration
from lake.session.in_process.mode import in_process
from lake.store.comparison import WAS, after_images, equal, map_columns, match, old_name, pairs
from lake.store.duckdb_tables import connection
from lake.store.proof.fingerprints import duck_hash, fields_of
from lake.store.rows import Rows, sortable
from lake.store.scan import to_arrow
from lake.store.table_head import CHANGE
from lake.text import DUCKDB, SPARK, literal, quoted

HALF: Final = 32
_TWICE: Final = "several rows of one identity: "


def compare(rows: DataFrame, old: DataFrame, identity: Sequence[str]) -> DataFrame:
    """Return the rows to insert, update and delete so that `old` becomes `rows`: their columns, and CHANGE.

    Both have the same columns and one row per `identity`. A deleted row has its old values.
    """
    # Renamed, because `rows` may descend from `old`, and then the two sides' columns are one to Spark.
    before = old.select(
        *[F.col(quoted(column, SPARK)).alias(old_name(column)) for column in rows.columns], F.lit(True).alias("_there")
    )
    joined = rows.withColumn("_new", F.lit(True)).join(before, F.expr(match(identity, SPARK)), "full_outer")
    maps = {} if in_process(rows.sparkSession) else map_columns(rows.schema.json())
    return joined.selectExpr(*after_images(rows.columns, identity, SPARK, maps)).where(f"{CHANGE} is not null")


def compare_local(rows: pa.Table, old: pa.Table, identity: Sequence[str], key: str | None = None) -> pa.Table:
    """Compare in this process, and add WAS: the hash of the old row, null without a `key`."""
    columns = rows.column_names
    with connection() as con:
        con.register("rows", rows)
        con.register("old", old)
        selected = ", ".join([*after_images(columns, identity, DUCKDB), WAS])
        hashed = "NULL" if key is None else duck_hash(fields_of(old.schema), literal(key))
        compared = con.sql(f"SELECT {selected} FROM {pairs(columns, identity, hashed)}").to_arrow_table()
    changed = compared.filter(pc.is_valid(compared.column(CHANGE)))
    return changed.cast(pa.schema([*rows.schema, pa.field(CHANGE, pa.string()), pa.field(WAS, pa.uint64())]))


def as_json_rows(diff: pa.Table, old: pa.Table, identity: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Return rows of a diff: identity, `change`, and for an update `columns`: {column: [old, new value]}."""
    replaced = {repr([row[k] for k in identity]): row for row in old.to_pylist()}
    changes = []
    for row in diff.to_pylist():
        key = {k: row[k] for k in identity}
        change: dict[str, Any] = {**key, "change": row[CHANGE]}
        if row[CHANGE] == "update":
            was = replaced[repr(list(key.values()))]
            others = [column for column in row if column != CHANGE and column not in identity]
            change["columns"] = {c: [was[c], row[c]] for c in others if not equal(was[c], row[c])}
        changes.append(change)
    return tuple(changes)


def first_changes(diff: Rows, identity: Sequence[str], count: int) -> pa.Table:
    if diff.in_memory is None:
        return to_arrow(diff.held.orderBy(*identity).limit(count))
    keys = [(name, "ascending") for name in sortable(diff.in_memory.schema, identity)]
    return diff.in_memory.sort_by(keys).slice(0, count) if keys else diff.in_memory.slice(0, count)


def check_identity(declaration: Declaration, rows: Rows) -> Rows:
    """Return `rows`, checked to have one row per identity.

    Raises DuplicateIdentity: for rows in this process now, for rows of Spark when they are read.
    """
    if rows.in_memory is None:
        return Rows(failing_on_duplicates(rows.held, declaration.kind.identity))
    names = ", ".join(map(quoted, declaration.kind.identity))
    with connection() as con:
        con.register("rows", rows.in_memory)
        query = f"SELECT {names} FROM rows GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 1"
        if twice := con.sql(query).to_arrow_table().to_pylist():
            raise DuplicateIdentity(declaration, twice[0])
    return rows


def failing_on_duplicates(rows: DataFrame, identity: Sequence[str]) -> DataFrame:
    by = [quoted(name, SPARK) for name in identity]
    several = F.expr(f"count(*) over (partition by {', '.join(by)})")
    counted = rows.withColumn("_rows_of_identity", several)
    return counted.where(f"if(_rows_of_identity > 1, {raise_sql(_TWICE, identity)}, true)").drop("_rows_of_identity")


class DuplicateIdentity(LakeError):
    def __init__(self, declaration: Declaration, identity: Mapping[str, Any]) -> None:
        what = ", ".join(f"{name}={'null' if value is None else value}" for name, value in identity.items())
        super().__init__(
            f"{declaration.name}: several rows have the identity {what}: nothing was committed",
            where=declaration.where,
            fix="extend the kind's identity or id until it is unique, return only one of them, or void their events",
        )
        self.identity = identity


def fault_of(declaration: Declaration, error: Exception) -> DuplicateIdentity | None:
    if twice := next((cause for cause in causes(error) if isinstance(cause, DuplicateIdentity)), None):
        return twice
    identity = raised_facts(_TWICE, error)
    return DuplicateIdentity(declaration, identity[1]) if identity else None


def fingerprints(*frames: DataFrame) -> list[str]:
    """Return the fingerprints of `frames` with the same columns, from one job.

    A fingerprint is the number of rows and the sum of their xxHash64, in halves: no sum overflows below 2^31 rows.
    """
    columns = frames[0].columns
    sums = [_sums(frame, columns, number) for number, frame in enumerate(frames)]
    summed = {row["number"]: row for row in reduce(lambda a, b: a.union(b), sums).collect()}
    return [_text(summed[number].asDict()) for number in range(len(frames))]


def _sums(rows: DataFrame, columns: Sequence[str], number: int) -> DataFrame:
    return rows.selectExpr(f"{_hash(rows, columns)} as _hash").selectExpr(
        f"{number} as number",
        "count(*) as rows",
        f"coalesce(sum(shiftrightunsigned(_hash, {HALF})), 0) as high",
        f"coalesce(sum(_hash & {2**HALF - 1}), 0) as low",
    )


def _hash(rows: DataFrame, columns: Sequence[str]) -> str:
    # Spark's hash skips nulls, so their places are hashed too.
    types = dict(rows.dtypes)
    parts = []
    for column in sorted(columns):
        nested = types[column].startswith(("array", "struct", "map"))
        name = quoted(column, SPARK)
        texts = [f"cast({name} as string)", f"to_json({name})"]  # each distinguishes values that the other does not
        parts += [*(texts if nested else [name]), f"isnull({name})"]
    return f"xxhash64({', '.join(parts)})"


def _text(sums: dict[str, int]) -> str:
    total = (sums["high"] << HALF) + sums["low"]
    return f"{sums['rows']}-{total % 2**64:016x}"
