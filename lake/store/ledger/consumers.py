"""Consumers: readers that follow the editions of a table, and the edition each has. A table under `meta/`.

An edition is offered before its changes are handed out, and acknowledged once they are applied. After a crash in
between they are handed out again; by the edition's number the consumer knows whether it applied them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lake.config import Settings
from lake.errors import Unavailable
from lake.store.ledger import editions
from lake.store.ledger_table import LedgerHead, LedgerTable, as_state, check_name, columns_of, record_of

SINK: Final = ""
"""Table name of consumers that are sinks, which follow whole editions."""
FOR_EVER: Final = 365_000.0
"""Greatest number of days by which a `datetime` is moved."""
NEVER: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Consumer:
    """Consumer of `table` (SINK: of editions). It has `edition`, None before its first snapshot is acknowledged.

    `offered` is the edition whose changes it was given since; `at` is the time of the last of these events.
    """

    name: str
    table: str
    edition: int | None = None
    offered: int | None = None
    at: datetime = NEVER

    def __str__(self) -> str:
        return f"sink {self.name}" if self.is_sink else f"consumer {self.name} of {self.table}"

    @property
    def is_sink(self) -> bool:
        """The target of a sink stores the true position; the one here is a hint."""
        return self.table == SINK

    @property
    def is_listed(self) -> bool:
        return self.at != NEVER

    @property
    def needs(self) -> tuple[int, ...]:
        """Editions between which its next changes lie; none for a snapshot, which can be of any edition."""
        if self.edition is None:
            return ()
        return (self.edition,) if self.offered is None else (self.edition, self.offered)


_CONSUMERS = LedgerTable("consumers", {"action": "VARCHAR", **columns_of(Consumer)})


def consumers(settings: Settings) -> list[Consumer]:
    return _listed(_CONSUMERS.head(settings))


def _listed(head: LedgerHead) -> list[Consumer]:
    return [record_of(Consumer, entry) for entry in head.state.get("consumers", [])]


def consumer(settings: Settings, name: str, table: str) -> Consumer:
    """Return an empty one if it is unknown. Raises DeclarationError for an invalid name."""
    check_name(name, "consumer")
    return _find(consumers(settings), name, table)


def _find(listed: Iterable[Consumer], name: str, table: str) -> Consumer:
    return next((one for one in listed if (one.name, one.table) == (name, table)), Consumer(name, table))


def offer(settings: Settings, before: Consumer, edition: int) -> Consumer | None:
    """Record that the consumer is given the changes up to `edition`; None if that expired meanwhile.

    Raises Unavailable as `acknowledge` does.
    """
    with _CONSUMERS.writing(settings) as head:
        if not editions.is_kept(settings, edition):
            return None
        return _change(head, "offer", before, replace(before, offered=edition))


def acknowledge(settings: Settings, before: Consumer) -> Consumer:
    """Record that the consumer has the edition it was offered. Raises Unavailable if its state changed meanwhile."""
    with _CONSUMERS.writing(settings) as head:
        return _change(head, "acknowledge", before, replace(before, edition=before.offered, offered=None))


def begin(settings: Settings, before: Consumer, edition: int | None) -> Consumer:
    """Set the consumer to `edition`, as if it had it; None: to a snapshot. Raises Unavailable as `acknowledge` does."""
    with _CONSUMERS.writing(settings) as head:
        return _change(head, "begin", before, replace(before, edition=edition, offered=None))


def forget(settings: Settings, name: str, table: str) -> bool:
    check_name(name, "consumer")
    with _CONSUMERS.writing(settings) as head:
        before = _find(_listed(head), name, table)
        if before.is_listed:
            _add(head, "forget", before, [one for one in _listed(head) if one != before])
        return before.is_listed


def late(settings: Settings, now: datetime, *, upto: int) -> list[Consumer]:
    behind = (one for one in consumers(settings) if one.edition is not None and one.edition < upto)
    return [one for one in behind if is_held(settings, one, now) and not must_start_over(settings, one)]


def must_start_over(settings: Settings, one: Consumer) -> bool:
    return not all(editions.is_kept(settings, number) for number in one.needs)


@contextmanager
def needed_editions(settings: Settings) -> Iterator[frozenset[int]]:
    """Within the block no consumer is offered or acknowledges another edition."""
    now = datetime.now(UTC)
    with _CONSUMERS.writing(settings) as head:
        yield frozenset(number for one in _listed(head) if is_held(settings, one, now) for number in one.needs)


def behind_since(settings: Settings, one: Consumer) -> datetime | None:
    after = None if one.edition is None else editions.edition_after(settings, one.edition)
    return after.published_at if after else None


def held_until(settings: Settings, one: Consumer) -> datetime | None:
    """Return until when editions are kept for the consumer; None while it has the newest.

    A consumer that a pin took back to an older edition counts as behind since then.
    """
    since = behind_since(settings, one)
    return max(since, one.at) + timedelta(days=min(settings.keep_consumer_days, FOR_EVER)) if since else None


def is_held(settings: Settings, one: Consumer, now: datetime) -> bool:
    until = held_until(settings, one)
    return until is None or now < until


def _change(head: LedgerHead, action: str, before: Consumer, after: Consumer) -> Consumer:
    if _find(_listed(head), before.name, before.table) != before:
        raise Unavailable(
            f"{before} was moved on by another process", fix="run only one process for each consumer, and start it anew"
        )
    if after == before:
        return before
    after = replace(after, at=datetime.now(UTC))
    _add(head, action, after, [*(one for one in _listed(head) if one != before), after])
    return after


def _add(head: LedgerHead, action: str, entry: Consumer, listed: list[Consumer]) -> None:
    state = [as_state(one) for one in sorted(listed, key=lambda one: (one.table, one.name))]
    head.add([action, *asdict(entry).values()], consumers=state)
