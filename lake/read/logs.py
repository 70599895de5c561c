"""Logs in `lake sql`: `log.<stream>` has the events up to a cut, without voided ones, as its contract reads them.

Rejected records and broadcasts are no events. Personal fields are null, so no key is needed. Fields unknown to an
event's contract are read from `_extra` by the same Python as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from duckdb.func import ARROW, SPECIAL

from lake.config import Settings
from lake.contracts import evolution, origins
from lake.contracts.contract import Contract
from lake.contracts.evolution import steps_of_log
from lake.contracts.fields import DUCKDB, Field, duckdb_type
from lake.contracts.origins import ExtraMember
from lake.contracts.upcast import upcast_sql
from lake.read.relation import FILE, SystemRelation, rows_sql
from lake.store import log_rows
from lake.store.dialects import MEMBERS, DuckDBDialect
from lake.store.ledger.cuts import Cut
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.snapshot import Column
from lake.store.voids import not_voided_sql, voids_between
from lake.store.warehouse import Warehouse
from lake.text import literal, quoted

if TYPE_CHECKING:
    import duckdb

SCHEMA: Final = "log"
FUNCTION: Final = "_members_of_{}"
SYSTEM_COLUMNS: Final = (
    Column("_place", "VARCHAR", "BATCH:BUCKET:OFFSET, as lake void takes it", ""),
    Column("_batch", "BIGINT", "the batch of the log that brought the event", ""),
    Column("_time", "TIMESTAMPTZ", "event time", ""),
    Column("_ingested_at", "TIMESTAMPTZ", "when the event arrived", ""),
    Column("_source", "VARCHAR", "file and line, or the place in a source, that the event came from", ""),
)
"""Columns of every log; no field's name begins with `_`."""
SYSTEM_TYPES: Final = {name: DUCKDB[kind] for name, kind in log_rows.OWN.items()}
BUCKETS: Final = 1 << 31
BUCKET: Final = r"/_bucket=(-?[0-9]+)/"


def relation(settings: Settings, contract: Contract, cut: Cut) -> SystemRelation:
    """Return the log at `cut`. Raises LakeError if batches are lost or unreadable by `contract`."""
    log, upto = Log(settings, contract.name), cut.batches.get(contract.name, 0)
    contracts = evolution.with_current(log.contracts(log.must_reach(upto)), contract)
    bounds = {"_batch": (1, upto), "_bucket": (0, BUCKETS)}
    files = Scan(log.path, bounds=bounds).files() if upto else []
    void = not_voided_sql(voids_between(settings, contract.name, 0, cut.voids))
    return SystemRelation(
        SCHEMA,
        contract.name,
        contract.doc,
        (*_columns(contracts), *SYSTEM_COLUMNS),
        _query(files, contracts, f"_batch <= {upto} AND {void}"),
        Warehouse(settings).root,
        tuple(files),
        create_functions=partial(create_functions, contracts),
    )


def _columns(contracts: Sequence[Contract]) -> Iterator[Column]:
    for field in contracts[-1].fields:
        note = null_note(field, contracts)
        meaning = f"{field.doc} ({note})".lstrip() if note else field.doc
        yield Column(field.name, duckdb_type(field), meaning, field.unit)


def _query(files: Sequence[str], contracts: Sequence[Contract], test: str) -> str:
    physical = origins.columns(contracts)
    plain = [field for contract in contracts for field in contract.fields if not field.personal]
    kinds = {physical[field.name, field.type]: duckdb_type(field) for field in plain}
    bucket = f"CAST(regexp_extract({quoted(FILE)}, {literal(BUCKET)}, 1) AS INTEGER) AS _bucket"  # some files have it
    system = [column.name for column in SYSTEM_COLUMNS]
    own = ["concat_ws(':', _batch, _bucket, _offset) AS _place", *system[1:]]
    events = f"(SELECT * REPLACE ({bucket}) FROM {rows_sql(files, kinds | SYSTEM_TYPES)})"
    selected = ", ".join([*(quoted(field.name) for field in contracts[-1].fields), *system])
    return f"SELECT {selected} FROM {fields_sql(contracts, f'(FROM {events} WHERE {test})', [*own, '_version'])}"


def null_note(field: Field, contracts: Sequence[Contract]) -> str:
    """Return why `field` is null although the event may have had a value, or ""."""
    if field.personal:
        return "personal, so always null here"
    if contracts[-1].sealed and any(member.field == field for member in _members(contracts)):
        return "null of events that may have carried it before the contract knew that name: they have it sealed"
    return ""


def create_functions(contracts: Sequence[Contract], con: duckdb.DuckDBPyConnection) -> None:
    """Create the function that `fields_sql` calls, if any."""
    from lake.records.extra_members import read_members  # with Arrow

    members = _members(contracts)
    if not members:
        return
    kinds = ", ".join(f"m{number} {duckdb_type(member.shape)}" for number, member in enumerate(members))
    name = FUNCTION.format(contracts[-1].name)

    def work(versions, extras):  # type: ignore[no-untyped-def]  # DuckDB evaluates annotations
        return read_members(members, versions, extras)

    con.create_function(name, work, ["INTEGER", "VARCHAR"], f"STRUCT({kinds})", type=ARROW, null_handling=SPECIAL)


def fields_sql(contracts: Sequence[Contract], events: str, own: Sequence[str]) -> str:
    """Return SQL of the newest contract's fields and of `own` columns, which include `_version`.

    `events` is a query of a log's files.
    """
    members, newest, places = _members(contracts), contracts[-1], origins.origins(contracts)
    if members:
        call = f'"{FUNCTION.format(newest.name)}"(CAST(_version AS INTEGER), _extra)'
        events = f"(SELECT *, {call} AS {MEMBERS} FROM {events})"
    dialect, values = DuckDBDialect(members), []
    for field in newest.fields:
        value = "NULL" if field.personal else dialect.value(field, places[field.name])
        values.append(f"{dialect.cast(value, field)} AS {dialect.name(field.name)}")
    rows = f"(SELECT {', '.join([*values, *own])} FROM {events})"
    return upcast_sql(steps_of_log(contracts), newest.fields, rows, opened=False)


def _members(contracts: Sequence[Contract]) -> Mapping[ExtraMember, frozenset[int]]:
    every = origins.members(contracts)
    return {member: versions for member, versions in every.items() if not member.field.personal}
