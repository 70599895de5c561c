"""Subscriptions: changes of a table, edition by edition, for programs that copy it or react to it.

First a snapshot, then net changes. A named consumer resumes after its last acknowledged edition. Delivery is at least
once: deduplicate by edition number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from lake.config import Settings
from lake.errors import DeclarationError, StartOver, did_you_mean
from lake.lazy import pa
from lake.read.net_changes import NetChange, NetChanges, net_changes
from lake.read.sql import reader
from lake.read.wait import POLL_SECONDS
from lake.store.ledger import consumers, editions
from lake.store.ledger.consumers import Consumer
from lake.store.ledger.editions import Edition
from lake.store.locks import activity
from lake.store.locks.lease import lease


@dataclass
class Changes:
    """Changes of `table` from edition `since`, or a snapshot if None, read lazily in the order of `identity`."""

    table: str
    edition: int
    cut: int
    since: int | None
    _net: NetChanges = field(repr=False)
    _acknowledge: Callable[[], None] = field(repr=False)
    acknowledged: bool = field(default=False, init=False)

    @property
    def snapshot(self) -> bool:
        """True if these rows replace all rows of the consumer."""
        return self.since is None

    @property
    def identity(self) -> tuple[str, ...]:
        return self._net.identity

    def arrow(self) -> pa.RecordBatchReader:
        return self._net.arrow()

    def __iter__(self) -> Iterator[NetChange]:
        return iter(self._net)

    def ack(self) -> None:
        """Acknowledge the changes. Raises Unavailable if another process moved the consumer."""
        if not self.acknowledged:
            self._acknowledge()
            self.acknowledged = True


def subscribe(  # noqa: PLR0913 where it begins and ends
    settings: Settings,
    table: str,
    *,
    consumer: str | None = None,
    from_edition: int | None = None,
    start_over: bool = False,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[Changes]:
    """Yield the changes of `table` up to the current edition; with `on_wait`, follow new ones forever.

    Starts with a snapshot, after `from_edition`, or where the `consumer` has acknowledged, unless it is to
    `start_over`. A consumer must acknowledge before the next step. `on_wait` is called while there are no changes.

    Raises DeclarationError for an unknown table or edition, StartOver if a needed edition has expired, Unavailable if
    another process reads for the consumer.
    """
    if start_over and (consumer is None or from_edition is not None):
        raise DeclarationError(
            "only a consumer can start over, and only from a snapshot", fix="name the consumer, and no edition"
        )
    position: _AnonymousPosition | _ConsumerPosition = _AnonymousPosition(settings, table, from_edition)
    if consumer is not None:
        position = _ConsumerPosition(settings, consumers.consumer(settings, consumer, table), from_edition, start_over)
    if position.is_new:
        _check_table(settings, table, from_edition)
    return _changes(settings, table, position, on_wait)


def _check_table(settings: Settings, table: str, from_edition: int | None) -> None:
    current = reader(settings).edition
    before = {} if from_edition is None else editions.get_edition(settings, from_edition).tables
    if table not in {**current.tables, **before}:
        raise DeclarationError(
            f"no table {table!r} in edition {current.number}", fix=did_you_mean(table, current.tables)
        )


def _changes(
    settings: Settings, table: str, position: _AnonymousPosition | _ConsumerPosition, on_wait: Callable[[], None] | None
) -> Iterator[Changes]:
    with position.lease():
        while True:
            if on_wait is not None:
                activity.renew(settings)
            step = position.next_step(reader(settings).edition)
            if step is not None:
                old, new = step
                net = net_changes(settings, table, old, new)
                since = old.number if old else None
                changes = Changes(table, new.number, new.cut_of(table), since, net, partial(position.acknowledge, new))
                yield changes
                position.check_acknowledged(changes)
            elif on_wait is not None:
                on_wait()
                time.sleep(POLL_SECONDS)
            else:
                return


@dataclass
class _AnonymousPosition:
    settings: Settings
    table: str
    edition: int | None

    is_new = True

    def lease(self) -> AbstractContextManager[None]:
        return nullcontext()

    def next_step(self, current: Edition) -> tuple[Edition | None, Edition] | None:
        if self.edition is None:
            return None, current
        if self.edition == current.number:
            return None
        if not editions.is_kept(self.settings, self.edition):
            raise StartOver(
                f"edition {self.edition} of {self.table} has expired, so what changed since is not known any more",
                fix="begin with a snapshot again; what a consumer with a name needs is kept for it",
            )
        return editions.get_edition(self.settings, self.edition), current

    def acknowledge(self, edition: Edition) -> None:
        self.edition = edition.number

    def check_acknowledged(self, changes: Changes) -> None:
        changes.ack()


@dataclass
class _ConsumerPosition:
    settings: Settings
    consumer: Consumer
    from_edition: int | None
    start_over: bool

    @property
    def is_new(self) -> bool:
        return not self.consumer.is_listed

    @contextmanager
    def lease(self) -> Iterator[None]:
        name, table = self.consumer.name, self.consumer.table
        with lease(self.settings, f"consumer.{name}.{table}"):
            self.consumer = consumers.consumer(self.settings, name, table)
            if self.from_edition is not None:
                self._begin_after(self.from_edition)
            if self.start_over:
                self.consumer = consumers.begin(self.settings, self.consumer, None)
            yield

    def _begin_after(self, edition: int) -> None:
        if self.consumer.edition is not None:
            raise DeclarationError(
                f"{self.consumer} has edition {self.consumer.edition} already, and goes on from there",
                fix="name no edition, or have it start over",
            )
        self.consumer = consumers.begin(self.settings, self.consumer, edition)

    def next_step(self, current: Edition) -> tuple[Edition | None, Edition] | None:
        """Return the editions before and after the next changes, or None.

        Changes that were not acknowledged are repeated to the same edition, because they may have been applied.
        """
        edition, offered = self.consumer.edition, self.consumer.offered
        if consumers.must_start_over(self.settings, self.consumer):
            raise self._too_late()
        goal = current.number if edition is None or offered is None else offered
        if goal == edition:
            return None
        after = consumers.offer(self.settings, self.consumer, goal)
        if after is None:  # it has expired meanwhile
            return self.next_step(reader(self.settings).edition)
        self.consumer = after
        return (
            None if edition is None else editions.get_edition(self.settings, edition),
            editions.get_edition(self.settings, goal),
        )

    def acknowledge(self, _: Edition) -> None:
        self.consumer = consumers.acknowledge(self.settings, self.consumer)

    def check_acknowledged(self, changes: Changes) -> None:
        if not changes.acknowledged:
            raise DeclarationError(
                f"the changes of edition {changes.edition} were not acknowledged, so {self.consumer} cannot go on",
                fix="call ack() once they are applied",
            )

    def _too_late(self) -> StartOver:
        consumer, keep = self.consumer, f"{self.settings.keep_consumer_days:g}"
        gone = next(number for number in consumer.needs if not editions.is_kept(self.settings, number))
        return StartOver(
            f"{consumer} must start over from a snapshot, which replaces all that it has: edition {gone} has expired",
            where=f"kept for it while it is not {keep} days behind (setting keep_consumer_days)",
            fix=f"lake changes {consumer.table} --consumer {consumer.name} --start-over; in Python,"
            " changes(…, start_over=True)",
        )


def forget_consumer(settings: Settings, name: str, table: str) -> None:
    """Keep no edition for a consumer any more. Raises DeclarationError if there is none of that name."""
    if not consumers.forget(settings, name, table):
        names = (consumer.name for consumer in consumers.consumers(settings) if consumer.table == table)
        raise DeclarationError(f"no consumer {name!r} of {table}", fix=did_you_mean(name, names))
