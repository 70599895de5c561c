"""Deliver: brings the target of a sink to the edition that readers see, from whatever edition it has."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, did_you_mean
from lake.progress import step
from lake.read.sql import reader
from lake.read.wait import POLL_SECONDS
from lake.sinks.declared import Declared
from lake.sinks.plan import Plan
from lake.sinks.sink import Position, Stepwise, Target
from lake.store.ledger import consumers, editions, runs, sent
from lake.store.ledger.editions import Edition
from lake.store.locks import activity
from lake.store.locks.lease import lease

VERB = "deliver"


@dataclass(frozen=True)
class Sent:
    """What was sent of a table: so many rows of each change. With `whole`, they replaced all that was there."""

    table: str
    whole: bool
    inserted: int
    updated: int
    deleted: int


@dataclass(frozen=True)
class Delivered:
    """What became of a sink: it has `edition` now, by way of `tables`; `since` is the one before, None for nothing.

    `rejected` is how many rows its target cannot take; `changed` whether there was anything to do.
    """

    sink: str
    edition: int
    cut: int
    since: int | None
    changed: bool
    tables: tuple[Sent, ...] = ()
    rejected: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        sent = ", ".join(f"{one.table} +{one.inserted} ~{one.updated} -{one.deleted}" for one in self.tables)
        refused = f", {self.rejected} rejected" if self.rejected else ""
        return f"{self.sink}: edition {self.edition}: {sent}{refused} in {self.seconds:.1f} s"


def deliver(settings: Settings, sink: Declared, *, resync: bool = False) -> Delivered:
    """Brings the sink's target to the edition that readers see; with `resync`, by all rows, whatever it has.

    Raises DeclarationError where its tables are not declared as the edition has them, StartOver where its target has
    to begin anew, Unavailable where it does not answer or another process is delivering.
    """
    began = datetime.now(UTC)
    with (
        lease(settings, f"sink.{sink.name}"),
        runs.failing(settings, VERB, sink.name),
        step(VERB, sink.name) as work,
        closing(sink.open()) as target,
    ):
        done: list[Delivered] = []
        if not resync and (begun := _begun(settings, target)):
            done.append(_deliver(settings, Plan(settings, sink, target.position(), begun), target, began))
        plan = Plan(settings, sink, target.position(), reader(settings).edition, resync)
        if not plan.is_done:
            done.append(_deliver(settings, plan, target, began))
        elif not done:
            _remember(settings, sink, plan.edition)
            runs.nothing_to_do(settings, VERB, [sink.name], plan.edition.cut)
            return _delivered(plan, plan.position, changed=False)
        tables = tuple(table for one in done for table in one.tables)
        work.rows = sum(table.inserted + table.updated + table.deleted for table in tables)
        return replace(done[-1], since=done[0].since, tables=tables)


def _begun(settings: Settings, target: Target) -> Edition | None:
    begun = target.underway() if isinstance(target, Stepwise) else None
    return editions.get_edition(settings, begun) if begun and editions.is_kept(settings, begun) else None


def _deliver(settings: Settings, plan: Plan, target: Target, began: datetime) -> Delivered:
    """Apply a plan and record the run; both of its editions are kept meanwhile."""
    with _held(settings, plan.sink, plan):
        delivery = plan.delivery()
        editions.flush(settings)
        position = target.deliver(delivery)
    told = tuple(
        Sent(one.table.name, one.whole, one.counts["insert"], one.counts["update"], one.counts["delete"])
        for one in delivery.tables
    )
    counts = {"edition": position.edition, "tables": [*map(asdict, told)]}
    runs.note(settings, VERB, plan.sink.name, plan.edition.cut, began, **counts)
    seconds = (datetime.now(UTC) - began).total_seconds()
    return _delivered(plan, position, told, seconds=round(seconds, 3))


def preview(settings: Settings, sink: Declared, *, resync: bool = False) -> Delivered:
    """What `deliver` would do: the target is asked what it has, and left as it is. Raises as that does."""
    with closing(sink.open()) as target:
        plan = Plan(settings, sink, target.position(), reader(settings).edition, resync)
    if plan.is_done:
        return _delivered(plan, plan.position, changed=False)
    told = []
    for one in plan.delivery().tables:
        counts = Counter[str]()
        for batch in one.source.batches():
            counts.update(batch.column("change").to_pylist())
        told.append(Sent(one.table.name, one.whole, counts["insert"], counts["update"], counts["delete"]))
    return _delivered(plan, plan.position, tuple(told))


def follow(
    settings: Settings,
    sinks: list[Declared],
    *,
    on_done: Callable[[Delivered], None],
    on_failure: Callable[[str, LakeError], None],
) -> None:
    """Delivers each edition to come, without an end. A sink that fails is told, and tried again with the next look."""
    while True:
        activity.renew(settings)
        for sink in sinks:
            try:
                done = deliver(settings, sink)
                if done.changed:
                    on_done(done)
            except LakeError as failure:
                on_failure(sink.name, failure)
        time.sleep(POLL_SECONDS)


def forget_sink(settings: Settings, name: str) -> None:
    """Takes a sink off the list, so that no edition is kept for it; its target is left alone.

    One whose position is in the warehouse begins anew. Raises DeclarationError where it is not on the list.
    """
    was_sent = sent.forget(settings, name)
    if not consumers.forget(settings, name, consumers.SINK) and not was_sent:
        listed = (one.name for one in consumers.consumers(settings) if one.is_sink)
        raise DeclarationError(f"nothing was delivered to a sink {name!r}", fix=did_you_mean(name, listed))


@contextmanager
def _held(settings: Settings, sink: Declared, plan: Plan) -> Iterator[None]:
    """Both editions of the delivery are kept while the block runs, and the one that was delivered after it."""
    before = consumers.consumer(settings, sink.name, consumers.SINK)
    base = plan.base
    has = base.number if base else None
    if before.edition != has or before.offered not in {None, plan.edition.number}:
        before = consumers.begin(settings, before, has)
    offered = consumers.offer(settings, before, plan.edition.number)
    if offered is None:
        raise DeclarationError(f"edition {plan.edition.number} has expired meanwhile", fix="try again")
    yield
    consumers.acknowledge(settings, offered)


def _remember(settings: Settings, sink: Declared, edition: Edition) -> None:
    """Notes that the target has the edition, where a crash came between its transaction and the note."""
    before = consumers.consumer(settings, sink.name, consumers.SINK)
    if (before.edition, before.offered) != (edition.number, None) and editions.is_kept(settings, edition.number):
        consumers.begin(settings, before, edition.number)


def _delivered(
    plan: Plan, position: Position | None, sent: tuple[Sent, ...] = (), *, changed: bool = True, seconds: float = 0.0
) -> Delivered:
    return Delivered(
        plan.sink.name,
        plan.edition.number,
        plan.edition.cut,
        plan.position.edition if plan.position else None,
        changed,
        sent,
        len(position.rejected) if position else 0,
        seconds,
    )
