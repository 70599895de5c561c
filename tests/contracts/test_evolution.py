"""Evolution of contracts: values are read under every name that a field has or had, for events of every version."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.contracts import origins
from lake.contracts.contract import Contract, read_contract
from lake.contracts.evolution import with_current
from lake.contracts.fields import duckdb_type
from lake.read import logs
from lake.records.extra_members import read_members
from lake.store.dialects import MEMBERS, fields_sql
from lake.store.scan import to_frame
from tests.contracts import histories
from tests.contracts.histories import History, Stored

Log = tuple[tuple[Contract, ...], list[dict[str, Any]]]


def contracts_of(history: History, chain: str = "number") -> tuple[Contract, ...]:
    """Return the versions of a history, each checked against those before it."""
    contracts: tuple[Contract, ...] = ()
    for version in history:
        contracts = with_current(contracts, read_contract(json.dumps(histories.contract(version, chain)), file="x"))
    return contracts


def expected(history: History) -> list[tuple[Stored, tuple[int | None, ...]]]:
    """Return each event that a version ingests, with the values that the newest one reads."""
    names = sorted({name for version in history for field in version for name in field.names}) or ["a"]
    events = [
        event
        for version in range(len(history))
        for record in histories.records(names)
        if (event := histories.taken(history, version, record)) is not None
    ]
    return [(event, tuple(histories.read(history, event).values())) for event in events]


def stored_rows(history: History, contracts: Sequence[Contract], events: Iterable[Stored]) -> list[dict[str, Any]]:
    """Return the rows of a log with these events."""
    physical = origins.columns(contracts)
    rows = []
    for event in events:
        fields = contracts[event.version].fields[1:]
        values = {physical[field.name, field.type]: event.values[field.name] for field in fields}
        rows.append({**values, "_version": event.version + 1, "_extra": histories.extra(event)})
    return rows


def by_duckdb(contracts: Sequence[Contract], rows: Sequence[dict[str, Any]]) -> list[tuple[int | None, ...]]:
    """Return the values that `lake sql` reads."""
    newest = contracts[-1].fields[1:]
    if not newest:
        return [() for _ in rows]
    kinds = {
        column: duckdb_type(next(f for c in contracts for f in c.fields if (f.name, f.type) == place))
        for place, column in origins.columns(contracts).items()
    }
    kinds |= {"_version": "INTEGER", "_extra": "VARCHAR", "n": "INTEGER"}
    table = pa.table(
        {name: [str(row[name]) if row.get(name) is not None else None for row in numbered(rows)] for name in kinds},
        schema=pa.schema([(name, pa.string()) for name in kinds]),
    )
    with duckdb.connect() as con:
        con.register("texts", table)
        typed = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, kind in kinds.items())
        logs.create_functions(contracts, con)
        values = ", ".join(field.name for field in newest)
        events = logs.fields_sql(contracts, f"(SELECT {typed} FROM texts)", ["n", "_version"])
        query = f"SELECT {values} FROM {events} ORDER BY n"
        return [tuple(map(histories.plain, row)) for row in con.execute(query).fetchall()]


def numbered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"n": n} for n, row in enumerate(rows)]


def by_spark(spark: SparkSession, logs: Sequence[Log]) -> list[list[tuple[int | None, ...]]]:
    """Return the values that tables read, of several logs in one query: each row is read by its own log's contracts."""
    kinds = {column: kind for contracts, _ in logs for (_, kind), column in origins.columns(contracts).items()}
    names = [*kinds, "_version", "_extra", "_log"]
    rows = [row | {"_log": n} for n, (_, rows) in enumerate(logs) for row in rows]
    texts = {name: [None if row.get(name) is None else str(row[name]) for row in rows] for name in names}
    carried = {f"{MEMBERS}_{n}": members_of(n, contracts, rows) for n, (contracts, _) in enumerate(logs)}
    frame = to_frame(spark, pa.table({**texts, **{name: of for name, of in carried.items() if of is not None}}))
    typed = frame.selectExpr(
        *(f"cast({name} AS {kinds.get(name, 'string')}) AS {name}" for name in names),
        *(name for name in frame.columns if name in carried),
    )
    read = [
        [sql.rpartition(" AS ")[0].replace(f"{MEMBERS}.", f"{MEMBERS}_{n}.") for sql in fields_sql(contracts)[1:]]
        for n, (contracts, _) in enumerate(logs)
    ]
    columns = []
    for at in range(max(map(len, read))):
        cases: dict[str, list[int]] = {}
        for n, fields in enumerate(read):
            cases.setdefault(fields[at] if at < len(fields) else "NULL", []).append(n)
        whens = (f"WHEN _log IN ({', '.join(map(repr, map(str, of)))}) THEN {sql}" for sql, of in cases.items())
        columns.append(f"CASE {' '.join(whens)} END")
    found = iter(typed.selectExpr(*columns).collect())
    return [
        [tuple(map(histories.plain, next(found)[: len(fields)])) for _ in rows]
        for (_, rows), fields in zip(logs, read, strict=True)
    ]


def members_of(log: int, contracts: Sequence[Contract], rows: Sequence[dict[str, Any]]) -> pa.Array | None:
    """Return the members that Python reads of one log, beside the rows of all."""
    members = origins.members(contracts)
    versions = pa.array([row["_version"] if row["_log"] == log else None for row in rows], pa.int32())
    return read_members(members, versions, pa.array([row["_extra"] for row in rows], pa.string())) if members else None


def alike(logs: Iterable[Log]) -> Iterator[list[Log]]:
    """Yield logs grouped by the types of their columns, not too many for one query."""
    groups: dict[str, list[Log]] = {}
    for log in logs:
        group = groups.setdefault(repr(sorted(origins.columns(log[0]).items())), [])
        group.append(log)
    for group in groups.values():
        yield from (group[at : at + 50] for at in range(0, len(group), 50))


def check_with_duckdb(history: History, chain: str = "number") -> None:
    told, contracts = expected(history), contracts_of(history, chain)
    found = by_duckdb(contracts, stored_rows(history, contracts, [event for event, _ in told]))
    for (event, values), given in zip(told, found, strict=True):
        assert given == values, (history, event)


def check_with_spark(spark: SparkSession, some: Iterable[History], chain: str = "number") -> None:
    by_contracts: dict[int, tuple[History, list[tuple[Stored, tuple[int | None, ...]]]]] = {}
    logs: list[Log] = []
    for history in some:
        told, contracts = expected(history), contracts_of(history, chain)
        logs.append((contracts, stored_rows(history, contracts, [event for event, _ in told])))
        by_contracts[id(logs[-1])] = history, told
    for group in alike(log for log in logs if len(log[0][-1].fields) > 1):
        for log, found in zip(group, by_spark(spark, group), strict=True):
            history, told = by_contracts[id(log)]
            for (event, values), given in zip(told, found, strict=True):
                assert given == values, (history, event)


@pytest.mark.parametrize("length", [*range(3), *(pytest.param(length, marks=pytest.mark.long) for length in (3, 4))])
def test_sql_reads_the_values_of_the_model_in_every_short_history(length: int) -> None:
    for history in histories.every_history(length):
        check_with_duckdb(history)


@pytest.mark.parametrize("length", [2, *(pytest.param(length, marks=pytest.mark.long) for length in (3, 4))])
def test_tables_read_the_values_of_the_model_in_every_short_history(spark: SparkSession, length: int) -> None:
    check_with_spark(spark, histories.every_history(length))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("chain", [*histories.TYPES])
def test_sql_reads_the_values_of_the_model_in_longer_histories(chain: str, seed: int) -> None:
    dice = Random(seed)
    check_with_duckdb(histories.some_history(dice, dice.randint(5, 10)), chain)


@pytest.mark.long
@pytest.mark.parametrize("chain", [*histories.TYPES])
def test_tables_read_the_values_of_the_model_in_longer_histories(spark: SparkSession, chain: str) -> None:
    dice = Random(46)
    check_with_spark(spark, [histories.some_history(dice, dice.randint(5, 10)) for _ in range(60)], chain)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 40))])
def test_field_named_like_a_column_of_another_has_its_own(seed: int) -> None:
    """A field that gets another type is stored in a new column, `a__bigint`."""
    dice = Random(seed)
    history = histories.some_history(dice, dice.randint(3, 6), ("a", "a__bigint"))
    columns = [*origins.columns(contracts_of(history)).values()]
    assert len({*columns}) == len(columns)
    check_with_duckdb(history)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 60))])
def test_definition_of_a_field_changes_if_older_events_are_read_differently(seed: int) -> None:
    """Tables advance as long as the definition stays, so all newest versions with one must read the same values."""
    dice = Random(seed)
    history = histories.some_history(dice, dice.randint(2, 5))
    events = [event for event, _ in expected(history)]
    values: dict[tuple[str, str], tuple[int | None, ...]] = {}
    for newest in histories.newest_versions(history, "abc"):
        contracts = contracts_of(newest)
        names = origins.several_names(contracts)
        for field in contracts[-1].fields[1:]:
            definition = f"{field.type} {field.default!r} {names[field.name]}"
            found = tuple(histories.plain(histories.read(newest, event)[field.name]) for event in events)
            assert values.setdefault((field.name, definition), found) == found, (newest, definition)
    unrelated = contracts_of((*history, (*history[-1], histories.Field(("z",)))))
    names = origins.several_names(contracts_of(history))
    assert {name: origins.several_names(unrelated)[name] for name in names} == names
