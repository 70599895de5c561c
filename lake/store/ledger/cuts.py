"""Cuts of the project: recorded, consistent prefixes of all its logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from lake.config import Settings
from lake.store.ledger_table import LedgerHead, LedgerTable, as_state, columns_of, instant, parse_nested, unknown_entry
from lake.store.recovery import cut_at, last_cut


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
        return _cut(row)
    if lost := cut_at(settings, number):
        return Cut(number, *lost, made_at=datetime.fromtimestamp(0, UTC))  # the time is unknown
    raise unknown_entry("cut", number, latest.number if latest else 0, fix="lake cut")


def record_cut(settings: Settings, batches: Mapping[str, int], voids: int, *, label: str | None = None) -> Cut:
    """Record a new cut at `batches` and `voids`; return the latest one if nothing has changed since.

    A `label` always names one cut: if it is recorded, that cut is returned.
    """
    with CUTS.writing(settings) as head:
        for row in CUTS.find(settings, "label = ?", label) if label else ():
            return _cut(row)
        latest = _cut_of(head)
        if latest and (dict(latest.batches), latest.voids) == (dict(batches), voids):
            cut = latest
        else:
            cut = Cut(last_cut(settings) + 1, dict(sorted(batches.items())), voids, datetime.now(UTC))
        if cut is not latest or label:
            head.add([*asdict(cut).values(), label], cut=as_state(cut))
        return cut


def _cut_of(head: LedgerHead) -> Cut | None:
    state = head.state.get("cut")
    return _cut(state) if state else None


def _cut(row: Mapping[str, Any]) -> Cut:
    return Cut(row["number"], parse_nested(row["batches"]), row["voids"], instant(row["made_at"]))
