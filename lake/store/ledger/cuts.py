"""Cuts of the project: recorded, consistent prefixes of all its logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from lake.config import Settings
from lake.store import delta
from lake.store.damage import skip_unreadable
from lake.store.ledger.editions import EDITIONS, latest_edition
from lake.store.ledger_table import LedgerHead, LedgerTable, as_state, columns_of, record_of, unknown_entry
from lake.store.table_head import TableHead
from lake.store.view import view
from lake.store.warehouse import Location, Warehouse


@dataclass(frozen=True)
class Cut:
    """`batches` is {stream: last batch}, `voids` the last void number."""

    number: int
    batches: Mapping[str, int]
    voids: int
    made_at: datetime


CUTS = LedgerTable("cuts", {**columns_of(Cut), "label": "VARCHAR"})


def latest_cut(settings: Settings) -> Cut | None:
    return _cut_of(CUTS.head(settings))


def get_cut(settings: Settings, number: int) -> Cut:
    latest = latest_cut(settings)
    if latest is not None and latest.number == number:
        return latest
    for row in CUTS.find(settings, "number = ?", number):
        return record_of(Cut, row)
    if lost := _lost_cut(settings, number):
        return lost
    raise unknown_entry("cut", number, latest.number if latest else 0, fix="lake cut")


def record_cut(settings: Settings, batches: Mapping[str, int], voids: int, *, label: str | None = None) -> Cut:
    """Record a new cut at `batches` and `voids`; return the latest one if nothing has changed since.

    A `label` always names one cut: if it is recorded, that cut is returned.
    """
    with CUTS.writing(settings) as head:
        for row in CUTS.find(settings, "label = ?", label) if label else ():
            return record_of(Cut, row)
        latest = _cut_of(head)
        if latest and (dict(latest.batches), latest.voids) == (dict(batches), voids):
            cut = latest
        else:
            cut = Cut(last_cut(settings) + 1, dict(sorted(batches.items())), voids, datetime.now(UTC))
        if cut is not latest or label:
            head.add([*asdict(cut).values(), label], cut=as_state(cut))
        return cut


@view()
def last_cut(settings: Settings) -> int:
    """Return the greatest number of a cut, also from editions and tables if the ledger has lost some."""
    tables = prefetched_tables(settings, EDITIONS.location(settings))
    cut, edition = latest_cut(settings), latest_edition(settings)
    numbers = [cut.number if cut else 0, edition.cut if edition else 0]
    for table in tables:
        with skip_unreadable():  # an unreadable table does not prevent counting others
            head = delta.head(table.path, table.app)
            numbers.append(head.data.get("cut", 0) if head else 0)
    return max(numbers)


def _lost_cut(settings: Settings, number: int) -> Cut | None:
    """Return what tables that followed a lost cut recorded of it: not its time, nor streams that no table reads."""
    if not 0 < number <= last_cut(settings):
        return None
    batches: dict[str, int] = {}
    voids = -1
    for table in Warehouse(settings).folders("table"):
        with skip_unreadable():  # as above
            heads = map(TableHead.of, delta.positions(table.path, table.app))
            if head := next((head for head in heads if head.cut <= number), None):
                voids = max(voids, head.voids)
                for name, batch in head.streams.items():
                    batches[name] = max(batch, batches.get(name, 0))
    return Cut(number, batches, voids, datetime.fromtimestamp(0, UTC)) if voids >= 0 else None


def prefetched_tables(settings: Settings, *books: Location) -> list[Location]:
    tables = [*Warehouse(settings).folders("table")]
    delta.prefetch(table.path for table in (*books, *tables))
    return tables


def _cut_of(head: LedgerHead) -> Cut | None:
    state = head.state.get("cut")
    return record_of(Cut, state) if state else None
