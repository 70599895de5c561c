"""Upcast of stored events to the newest contract, by Python functions in Spark's workers or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lake.contracts.contract import Contract
from lake.contracts.expressions import literal, quoted
from lake.contracts.origins import members
from lake.contracts.upcast import FAILED, UpcastStep, upcast_fields, upcast_sql, used_fields
from lake.kinds.grouped_map import pickled
from lake.lazy import Column, DataFrame
from lake.records.columns import arrow_type
from lake.records.extra_members import read_members
from lake.records.unknown_members import by_names, without_declared
from lake.session.in_process.mode import uses_duckdb
from lake.store.dialects import MEMBERS

UPCAST = "_upcast"


def with_members(rows: DataFrame, contracts: Sequence[Contract]) -> DataFrame:
    carried = members(contracts)
    if not carried:
        return rows
    kinds = ", ".join(f"m{number}: {member.shape.type}" for number, member in enumerate(carried))
    return rows.withColumn(
        MEMBERS, by_python(f"struct<{kinds}>", partial(read_members, carried), ["_version", "_extra"])
    )


def upcast(rows: DataFrame, contract: Contract, steps: Sequence[UpcastStep]) -> DataFrame:
    fields = upcast_fields(steps, contract.fields)
    if not fields:
        return rows
    expressions = [sql for step in steps for _, sql in step.expressions]
    read = ["_version", *sorted({*used_fields(expressions, contract.fields), *(field.name for field in fields)})]
    types = {field.name: arrow_type(field) for field in fields}
    queries = [upcast_sql(steps, contract.fields, "rows", opened=True, tried=tried) for tried in (False, True)]
    kinds = ", ".join([*(f"{quoted(field.name)}: {field.type}" for field in fields), f"{FAILED}: string"])
    made = rows.withColumn(UPCAST, by_python(f"struct<{kinds}>", partial(_evaluated, queries, read, types), read))
    what = f"concat({literal(f'{contract.name}: ')}, {UPCAST}.{FAILED}, ' of version ', _version, ' cannot be upcast')"
    values = {
        field.name: f"CASE WHEN {UPCAST}.{FAILED} IS NOT NULL THEN raise_error({what})"
        f" ELSE {UPCAST}.{quoted(field.name)} END"
        for field in fields
    }
    return made.selectExpr(
        *(f"{values[name]} AS {quoted(name)}" if name in values else quoted(name) for name in rows.columns)
    )


def with_undeclared(rows: DataFrame, contracts: Sequence[Contract]) -> DataFrame:
    if len(contracts) == 1:
        return rows  # `_extra` has only undeclared members then, as canonical JSON
    known = by_names(field for contract in contracts for field in contract.fields)
    return rows.withColumn("_extra", by_python("string", partial(without_declared, known), ["_extra"]))


def _evaluated(
    queries: Sequence[str], read: Sequence[str], types: dict[str, pa.DataType], *columns: pa.Array
) -> pa.Array:
    """The second query, which names a failure, runs only if the first fails."""
    import duckdb

    try:
        made = by_duckdb(f"FROM {queries[0]}", read, columns)
        failed = pa.nulls(made.num_rows, pa.string())
    except duckdb.Error:
        made = by_duckdb(f"FROM {queries[1]}", read, columns)
        failed = made[FAILED].combine_chunks().cast(pa.string())
    arrays = [made[name].combine_chunks().cast(kind) for name, kind in types.items()]
    return pa.StructArray.from_arrays([*arrays, failed], names=[*types, FAILED])


def by_duckdb(sql: str, names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Table:
    import duckdb

    with duckdb.default_connection().cursor() as con:
        con.execute("SET threads = 1; SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        con.register("rows", pa.Table.from_arrays(list(columns), list(names)))
        return con.sql(sql).to_arrow_table()


def by_python(type_: str, work: Callable[..., pa.Array], columns: Iterable[str]) -> Column:
    """Return the column of `work` over arrays of `columns`. Workers of Spark get it by value: they have no `lake`."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.functions import arrow_udf

    arguments: Any = [F.col(quoted(name)) for name in columns]
    if uses_duckdb():
        from pyspark.sql.connect.column import Column as ConnectColumn

        from lake.session.in_process.python_functions import ArrowFunction

        return ConnectColumn(ArrowFunction(type_, work, arguments))
    payload, loaded = pickled(work), list[Callable[..., pa.Array]]()

    def evaluate(*arrays: pa.Array) -> pa.Array:
        import pickle

        if not loaded:
            loaded.append(pickle.loads(payload))
        return loaded[0](*arrays)

    made: Any = arrow_udf(type_)(evaluate)  # type: ignore[call-overload]
    column: Column = made(*arguments)
    return column
