"""The logs in `lake sql`: `log.<stream>` has the events up to a cut that no void takes back, as its contract has them.

What is refused, punctuation and other broadcasts are no events. What is personal is null: a query opens nothing with a
key, so it needs no key store, and nobody who was forgotten comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lake.config import Settings
from lake.contracts import evolution, origins
from lake.contracts.contract import Contract
from lake.contracts.duckdb_types import type_of
from lake.quoting import literal, quoted
from lake.read import event_values
from lake.read.relation import FILE, Relation, stored
from lake.store.ledger.cuts import Cut
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.snapshot import Column
from lake.store.voids import kept_sql, voided
from lake.store.warehouse import Warehouse

SCHEMA: Final = "log"
OWN: Final = (
    Column("_place", "VARCHAR", "BATCH:BUCKET:OFFSET, as lake void takes it", ""),
    Column("_batch", "BIGINT", "the batch of the log that brought the event", ""),
    Column("_time", "TIMESTAMPTZ", "event time", ""),
    Column("_ingested_at", "TIMESTAMPTZ", "when the event arrived", ""),
    Column("_source", "VARCHAR", "file and line, or the place in a source, that the event came from", ""),
)
"""What every log has, so that an event is found again. No field's name begins with `_`."""
READ: Final = {
    "_batch": "BIGINT",
    "_offset": "BIGINT",
    "_time": "TIMESTAMPTZ",
    "_ingested_at": "TIMESTAMPTZ",
    "_source": "VARCHAR",
    "_version": "INTEGER",
    "_extra": "VARCHAR",
}
BUCKETS: Final = 1 << 31
BUCKET: Final = r"/_bucket=(-?[0-9]+)/"


def relation(settings: Settings, contract: Contract, cut: Cut) -> Relation:
    """The log of a stream at `cut`.

    Raises LakeError where it has lost what the cut counts, or where `contract` cannot read what an older one wrote.
    """
    log, upto = Log(settings, contract.name), cut.batches.get(contract.name, 0)
    contracts = evolution.with_current(log.contracts(log.must_reach(upto)), contract)
    bounds = {"_batch": (1, upto), "_bucket": (0, BUCKETS)}
    files = Scan(log.path, bounds=bounds).files() if upto else []
    void = kept_sql(voided(settings, contract.name, 0, cut.voids))
    return Relation(
        SCHEMA,
        contract.name,
        contract.doc,
        (*_columns(contracts), *OWN),
        _query(files, contracts, f"_batch <= {upto} AND {void}"),
        Warehouse(settings).root,
        tuple(files),
        functions=event_values.functions(contracts),
    )


def _columns(contracts: Sequence[Contract]) -> Iterator[Column]:
    for field in contracts[-1].fields:
        note = event_values.note(field, contracts)
        meaning = f"{field.doc} ({note})".lstrip() if note else field.doc
        yield Column(field.name, type_of(field), meaning, field.unit)


def _query(files: Sequence[str], contracts: Sequence[Contract], test: str) -> str:
    physical = origins.columns(contracts)
    plain = [field for contract in contracts for field in contract.fields if not field.personal]
    kinds = {physical[field.name, field.type]: type_of(field) for field in plain}
    bucket = f"CAST(regexp_extract({quoted(FILE)}, {literal(BUCKET)}, 1) AS INTEGER) AS _bucket"
    own = ["concat_ws(':', _batch, _bucket, _offset) AS _place", *(column.name for column in OWN[1:])]
    events = f"(SELECT *, {bucket} FROM {stored(files, kinds | READ)})"
    shown = ", ".join([*(quoted(field.name) for field in contracts[-1].fields), *(column.name for column in OWN)])
    return f"SELECT {shown} FROM {event_values.read(contracts, f'(FROM {events} WHERE {test})', [*own, '_version'])}"
