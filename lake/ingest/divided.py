"""Refused records whose transaction is otherwise in the logs: readers see it without them.

The place of a record in a source is its transaction and an ordinal: a commit of a database, a group of requests by
HTTP. Of a tap it is its run and a line; what belongs together there is a delivery, the rows up to a STATE. Kafka does
not say which transaction a record is of. What the log has of a transaction stays, as records that break a contract hold
up nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.config import Settings
from lake.sources.declared import kinds
from lake.sources.tap import name_on_the_line
from lake.store import delta, small
from lake.store.delivered import Delivered
from lake.store.log import REFUSAL, Log
from lake.text import counted

KAFKA: Final = "kafka"
"""The kind of sources whose places tell a partition in the place of a transaction."""
TAP: Final = "tap"
"""The kind of those whose places tell a run in its place, of which a batch has one delivery."""
TRANSACTION: Final = re.compile(r"(?P<all>(?P<source>[a-z][a-z0-9_]*):.*)[:#][0-9]+")
QUERY: Final = """
    SELECT DISTINCT regexp_replace(_source, '[:#][0-9]+$', '') AS of
    FROM t WHERE _batch = $1 AND {events} AND list_contains($2, regexp_replace(_source, '[:#][0-9]+$', ''))
"""


@dataclass(frozen=True)
class Divided:
    """Refused `records` of a stream, of `transactions` and of `deliveries` of taps of which the logs of `streams` have
    others; `first` is one.
    """

    stream: str
    records: int
    transactions: int
    deliveries: int
    streams: tuple[str, ...]
    first: str

    @property
    def summary(self) -> str:
        """`2 refused records of debits are missing from 1 transaction that credits has: bank:3`."""
        records = f"{counted(self.records, 'refused record')} of {self.stream}"
        of = [counted(self.transactions, "transaction")] if self.transactions else []
        of += [counted(self.deliveries, "delivery", "deliveries")] if self.deliveries else []
        return (
            f"{records} {'is' if self.records == 1 else 'are'} missing from"
            f" {' and '.join(of)} of which {', '.join(self.streams)}"
            f" {'has' if len(self.streams) == 1 else 'have'} the rest: {self.first}"
        )


def divided(settings: Settings, stream: str, refused: Iterable[tuple[int, str]]) -> Divided | None:
    """Of the records in the quarantine of `stream`, each with its batch and place, those whose transactions are in
    logs; None where none is.
    """
    by_name = {name_on_the_line(stream): TAP} | kinds(settings)
    places = _places({name for name, kind in by_name.items() if kind != KAFKA}, refused)
    having: dict[str, set[str]] = {}
    records, transactions, deliveries = 0, set[str](), 0
    for number, delivery in _deliveries(settings, stream, places):
        here = {other: _with(settings, other, delivery, [*places[number]]) for other in delivery.streams}
        having |= {other: having.get(other, set()) | ids for other, ids in here.items() if ids}
        ids = set[str]().union(*here.values())
        records += sum(count for place, count in places[number].items() if place in ids)
        if by_name[delivery.source] == TAP:
            deliveries += bool(ids)
        else:
            transactions |= ids
    first = min(set[str]().union(*having.values()), default="")
    return Divided(stream, records, len(transactions), deliveries, tuple(sorted(having)), first) if first else None


def _places(sources: Container[str], refused: Iterable[tuple[int, str]]) -> dict[int, dict[str, int]]:
    """How many of them are of each transaction, or run of a tap, of `sources`, by batch."""
    places: dict[int, dict[str, int]] = {}
    for number, place in refused:
        if (match := TRANSACTION.fullmatch(place)) and match["source"] in sources:
            batch = places.setdefault(number, {})
            batch[match["all"]] = batch.get(match["all"], 0) + 1
    return places


def _deliveries(settings: Settings, stream: str, batches: Mapping[int, Any]) -> Iterator[tuple[int, Delivered]]:
    """Those that batches of a log are."""
    for head in Log(settings, stream).backwards() if batches else ():
        if head.batch < min(batches):
            return
        if head.batch in batches and head.delivery:
            yield head.batch, head.delivery


def _with(settings: Settings, stream: str, delivery: Delivered, places: list[str]) -> set[str]:
    """Those of the places that the log of a stream has an event of, in its batch of a delivery."""
    log = Log(settings, stream)
    if not delta.exists(log.path):
        return set()
    for head in log.backwards():
        newest = head.sources.get(delivery.source)
        if newest is None or newest.number < delivery.number:
            return set()
        if newest.number == delivery.number:
            events = f"{REFUSAL} IS NULL" if REFUSAL in delta.columns(log.path) else "true"
            return {row["of"] for row in small.rows(log.path, QUERY.format(events=events), newest.batch, places)}
    return set()
