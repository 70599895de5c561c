"""Subscriptions: the changes of a table, edition by edition, for programs that keep a copy of it or act on its changes.

First a snapshot of the edition that readers see, then the net changes from there to the edition that they see by then;
editions that came and went in between are netted. What a consumer, known by its name, has acknowledged is remembered:
there it goes on. Changes are given at least once; the number of their edition tells who applied them already.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.errors import DeclarationError, StartOver, did_you_mean
from lake.read.net_changes import Change, NetChanges, net_changes
from lake.read.sql import reader
from lake.read.wait import POLL_SECONDS
from lake.store.ledger import consumers, editions
from lake.store.ledger.consumers import Consumer
from lake.store.ledger.editions import Edition
from lake.store.locks import activity
from lake.store.locks.lease import lease

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Changes:
    """The changes of `table` that lead to an edition: from edition `since`, or, for None, from nothing.

    The latter is a snapshot: it replaces everything that a consumer has. The rows are read as they are asked for, in
    the order of `identity`, the columns that tell them apart; iterated, each is a `Change` with its images as dicts.
    """

    table: str
    edition: int
    cut: int
    since: int | None
    _net: NetChanges = field(repr=False)
    _acknowledge: Callable[[], None] = field(repr=False)
    acknowledged: bool = field(default=False, init=False)

    @property
    def snapshot(self) -> bool:
        """Whether these are all rows of the edition, as inserts, in the place of everything that a consumer has."""
        return self.since is None

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell the rows apart."""
        return self._net.identity

    def arrow(self) -> pa.RecordBatchReader:
        """The changes as Arrow: `change` (insert, update or delete), and the rows `before` and `after` as structs."""
        return self._net.arrow()

    def __iter__(self) -> Iterator[Change]:
        return iter(self._net)

    def ack(self) -> None:
        """Says that the changes have been applied: the next ones lead on from this edition.

        Raises Unavailable where another process has moved the consumer on meanwhile.
        """
        if not self.acknowledged:
            self._acknowledge()
            self.acknowledged = True


def subscribe(  # noqa: PLR0913 where it begins and ends, said by name
    settings: Settings,
    table: str,
    *,
    consumer: str | None = None,
    from_edition: int | None = None,
    follow: bool = False,
    start_over: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[Changes]:
    """The changes of `table` up to the edition that readers see; with `follow`, those to come as well, without an end.

    They begin with a snapshot, or after edition `from_edition`; those of a `consumer` where it has acknowledged, unless
    it is to `start_over`. A consumer's have to be acknowledged before the next are asked for. `waiting` is called while
    there are none.

    Raises DeclarationError for an unknown table or edition, StartOver where an edition has expired that a consumer
    needs, Unavailable where another process reads for the same consumer.
    """
    if start_over and (consumer is None or from_edition is not None):
        raise DeclarationError(
            "only a consumer can start over, and only from a snapshot", fix="name the consumer, and no edition"
        )
    place: _Reader | _Consumer = _Reader(settings, table, from_edition)
    if consumer is not None:
        place = _Consumer(settings, consumers.consumer(settings, consumer, table), from_edition, start_over)
    if place.is_new:
        _must_exist(settings, table, from_edition)
    return _changes(settings, table, place, follow, waiting)


def _must_exist(settings: Settings, table: str, from_edition: int | None) -> None:
    """Raises DeclarationError unless the edition that readers see, or that to begin at, has the table."""
    shown = reader(settings).edition
    before = {} if from_edition is None else editions.get_edition(settings, from_edition).tables
    if table not in {**shown.tables, **before}:
        raise DeclarationError(f"no table {table!r} in edition {shown.number}", fix=did_you_mean(table, shown.tables))


def _changes(
    settings: Settings, table: str, place: _Reader | _Consumer, follow: bool, waiting: Callable[[], None]
) -> Iterator[Changes]:
    with place.held():
        while True:
            if follow:
                activity.renew(settings)
            step = place.step(reader(settings).edition)
            if step is not None:
                old, new = step
                net = net_changes(settings, table, old, new)
                since = old.number if old else None
                given = Changes(table, new.number, new.cut_of(table), since, net, partial(place.acknowledge, new))
                yield given
                place.must_be_acknowledged(given)
            elif follow:
                waiting()
                time.sleep(POLL_SECONDS)
            else:
                return


@dataclass
class _Reader:
    """Somebody without a name, who has edition `has` of a table, or nothing yet."""

    settings: Settings
    table: str
    has: int | None

    is_new = True

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step(self, shown: Edition) -> tuple[Edition | None, Edition] | None:
        """The editions that the next changes lead from and to; None where readers see the one that was given last."""
        if self.has is None:
            return None, shown
        if self.has == shown.number:
            return None
        if not editions.is_kept(self.settings, self.has):
            raise StartOver(
                f"edition {self.has} of {self.table} has expired, so what changed since is not known any more",
                fix="begin with a snapshot again; what a consumer with a name needs is kept for it",
            )
        return editions.get_edition(self.settings, self.has), shown

    def acknowledge(self, edition: Edition) -> None:
        self.has = edition.number

    def must_be_acknowledged(self, given: Changes) -> None:
        """Nobody remembers how far it is, so it need not say so."""
        given.ack()


@dataclass
class _Consumer:
    """A consumer by its name, for which one process at a time reads."""

    settings: Settings
    consumer: Consumer
    from_edition: int | None
    start_over: bool

    @property
    def is_new(self) -> bool:
        return not self.consumer.is_listed

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else reads for the consumer meanwhile; it begins where it is to."""
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

    def step(self, shown: Edition) -> tuple[Edition | None, Edition] | None:
        """The editions that the next changes lead from and to; None where it has the one that readers see.

        What was given and not acknowledged is given again, to the same edition: it may have been applied.
        """
        has, offered = self.consumer.edition, self.consumer.offered
        if consumers.must_start_over(self.settings, self.consumer):
            raise self._too_late()
        goal = shown.number if has is None or offered is None else offered
        if goal == has:
            return None
        after = consumers.offer(self.settings, self.consumer, goal)
        if after is None:  # it has expired since it was looked for
            return self.step(reader(self.settings).edition)
        self.consumer = after
        return (
            None if has is None else editions.get_edition(self.settings, has),
            editions.get_edition(self.settings, goal),
        )

    def acknowledge(self, _: Edition) -> None:
        self.consumer = consumers.acknowledge(self.settings, self.consumer)

    def must_be_acknowledged(self, given: Changes) -> None:
        """Raises DeclarationError where the changes were not: what comes next leads on from them."""
        if not given.acknowledged:
            raise DeclarationError(
                f"the changes of edition {given.edition} were not acknowledged, so {self.consumer} cannot go on",
                fix="call ack() once they are applied",
            )

    def _too_late(self) -> StartOver:
        one, keep = self.consumer, f"{self.settings.keep_consumer_days:g}"
        gone = next(number for number in one.needs if not editions.is_kept(self.settings, number))
        return StartOver(
            f"{one} must start over from a snapshot, which replaces all that it has: edition {gone} has expired",
            where=f"kept for it while it is not {keep} days behind (setting keep_consumer_days)",
            fix=f"lake changes {one.table} --consumer {one.name} --start-over; in Python, changes(…, start_over=True)",
        )


def forget_consumer(settings: Settings, name: str, table: str) -> None:
    """Takes a consumer off the list: no edition is kept for it. Raises DeclarationError where there is no such one."""
    if not consumers.forget(settings, name, table):
        names = (one.name for one in consumers.consumers(settings) if one.table == table)
        raise DeclarationError(f"no consumer {name!r} of {table}", fix=did_you_mean(name, names))
