"""Delivery: bring a target to the current edition."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, did_you_mean
from lake.progress import step
from lake.read.sql import reader
from lake.read.wait import POLL_SECONDS
from lake.sinks.kind import DeclaredSink, RetryingTarget, RetryResult
from lake.sinks.plan import DeliveryPlan
from lake.sinks.sink import CHANGES, ResumableTarget, SinkPosition, TableChanges, Target, UnreadablePosition
from lake.store.ledger import consumers, editions, runs, sent
from lake.store.ledger.editions import Edition
from lake.store.locks import activity
from lake.store.locks.lease import lease

VERB = "deliver"
FIRST_PAUSE: Final = 1.0
"""Seconds until `follow` retries a failed sink; doubled after each further failure."""
LONGEST_PAUSE: Final = 60.0


@dataclass(frozen=True)
class SentTable:
    """Changes of one table, counted. If `whole`, all rows were sent and replaced the old ones.

    `rejected` and `undelivered` count the rows of the table that the target lacks now.
    """

    table: str
    whole: bool
    inserted: int
    updated: int
    deleted: int
    rejected: int = 0
    undelivered: int = 0

    @classmethod
    def of(cls, changes: TableChanges, position: SinkPosition | None = None, undelivered: int = 0) -> SentTable:
        name = changes.table.name
        inserted, updated, deleted = (changes.counts[change] for change in CHANGES)
        rejected = sum(row.table == name for row in position.rejected) if position else 0
        return cls(name, changes.whole, inserted, updated, deleted, rejected, undelivered)


@dataclass(frozen=True)
class DeliveryOutcome:
    """The target had the edition `since` before (None: nothing). It cannot store `rejected` rows.

    `undelivered` rows were not accepted, and are kept to be sent again.
    """

    sink: str
    edition: int
    cut: int
    since: int | None
    changed: bool
    tables: tuple[SentTable, ...] = ()
    rejected: int = 0
    undelivered: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        sent = ", ".join(f"{sent.table} +{sent.inserted} ~{sent.updated} -{sent.deleted}" for sent in self.tables)
        lacking = f", {self.rejected} rejected" if self.rejected else ""
        lacking += f", {self.undelivered} undelivered" if self.undelivered else ""
        return f"{self.sink}: edition {self.edition}: {sent}{lacking} in {self.seconds:.1f} s"


def deliver(settings: Settings, sink: DeclaredSink, *, resync: bool = False) -> DeliveryOutcome:
    """Bring the sink's target to the current edition. With `resync`, replace all rows.

    Raises DeclarationError if the sink's tables do not match the edition, StartOver if a resync is required,
    Unavailable if the target does not answer or another process is delivering.
    """
    began = datetime.now(UTC)
    with (
        lease(settings, f"sink.{sink.name}"),
        runs.failing(settings, VERB, sink.name),
        step(VERB, sink.name) as work,
        closing(sink.open()) as target,
    ):
        done: list[DeliveryOutcome] = []
        if not resync and (unfinished := _unfinished_plan(settings, sink, target)):
            done.append(_deliver(settings, unfinished, target, began))
        plan = _plan(settings, sink, target, resync=resync)
        if not plan.is_done:
            done.append(_deliver(settings, plan, target, began))
        elif not done:
            _record_position(settings, sink, plan.edition)
            runs.record_nothing_to_do(settings, VERB, [sink.name], plan.edition.cut)
            return _outcome(plan, plan.position)
        tables = tuple(table for outcome in done for table in outcome.tables)
        work.rows = sum(table.inserted + table.updated + table.deleted for table in tables)
        return replace(done[-1], since=done[0].since, tables=tables)


def deliver_once(settings: Settings, sink: DeclaredSink, *, resync: bool = False) -> DeliveryOutcome:
    """Deliver, and count undelivered rows also if nothing changed, which is too slow for each look of `follow`."""
    done = deliver(settings, sink, resync=resync)
    return done if done.changed else replace(done, undelivered=sent.counts(settings).get(sink.name, 0))


def _plan(settings: Settings, sink: DeclaredSink, target: Target, *, resync: bool) -> DeliveryPlan:
    position = None  # also if `resync` replaces one that cannot be read
    with suppress(UnreadablePosition) if resync else nullcontext():
        position = sink.position(target)
    return DeliveryPlan(settings, sink, position, reader(settings).edition, resync)


def _unfinished_plan(settings: Settings, sink: DeclaredSink, target: Target) -> DeliveryPlan | None:
    unfinished = target.underway() if isinstance(target, ResumableTarget) else None
    if unfinished is None or not editions.is_kept(settings, unfinished.edition):
        return None
    edition = editions.get_edition(settings, unfinished.edition)
    return DeliveryPlan(settings, sink, sink.position(target), edition, unfinished.anew)


def _deliver(settings: Settings, plan: DeliveryPlan, target: Target, began: datetime) -> DeliveryOutcome:
    with _editions_kept(settings, plan):
        delivery = plan.delivery()
        editions.flush(settings)
        position = target.deliver(delivery)
    waiting = _undelivered(plan, target)
    tables = tuple(SentTable.of(changes, position, waiting[changes.table.name]) for changes in delivery.tables)
    counts = {"edition": position.edition, "tables": [*map(asdict, tables)]}
    runs.record_outcome(settings, VERB, plan.sink.name, plan.edition.cut, began, **counts)
    seconds = (datetime.now(UTC) - began).total_seconds()
    return _outcome(plan, position, tables, undelivered=waiting.total(), seconds=round(seconds, 3))


def _undelivered(plan: DeliveryPlan, target: Target) -> Counter[str]:
    """Count undelivered rows by table."""
    if not isinstance(target, RetryingTarget):
        return Counter()
    return Counter(row.table for row in sent.undelivered(plan.settings, plan.sink.name))


def preview(settings: Settings, sink: DeclaredSink, *, resync: bool = False) -> DeliveryOutcome:
    with closing(sink.open()) as target:
        plan = _plan(settings, sink, target, resync=resync)
    if plan.is_done:
        return _outcome(plan, plan.position)
    tables = []
    for changes in plan.delivery().tables:
        for _ in changes.batches():  # reading counts the changes
            pass
        tables.append(SentTable.of(changes))
    return _outcome(plan, plan.position, tuple(tables))


def follow(
    settings: Settings,
    sinks: list[DeclaredSink],
    *,
    on_done: Callable[[DeliveryOutcome], None],
    on_failure: Callable[[str, LakeError], None],
) -> None:
    """Deliver every new edition, forever. A failed sink is retried after a pause, which grows while it fails."""
    due, pauses = dict[str, float](), dict[str, float]()
    while True:
        activity.renew(settings)
        for sink in sinks:
            if time.monotonic() < due.get(sink.name, 0.0):
                continue
            try:
                done = deliver(settings, sink)
            except LakeError as failure:
                on_failure(sink.name, failure)
                pauses[sink.name] = min(2 * pauses.get(sink.name, FIRST_PAUSE / 2), LONGEST_PAUSE)
                due[sink.name] = time.monotonic() + pauses[sink.name]
                continue
            pauses.pop(sink.name, None)
            if done.changed:
                on_done(done)
        time.sleep(POLL_SECONDS)


def send_again(settings: Settings, sink: DeclaredSink) -> RetryResult:
    """Send undelivered rows again. Raises DeclarationError if none are kept for the sink's kind."""
    with closing(_retrying(sink)) as target, lease(settings, f"sink.{sink.name}"):
        return target.send_again(sink)


def give_up(settings: Settings, sink: DeclaredSink) -> RetryResult:
    """Treat all undelivered rows as accepted."""
    with closing(_retrying(sink)) as target, lease(settings, f"sink.{sink.name}"):
        return target.give_up()


def _retrying(sink: DeclaredSink) -> RetryingTarget:
    target = sink.open()
    if not isinstance(target, RetryingTarget):
        raise DeclarationError(
            f"sink {sink.name} is of kind {sink.kind}: nothing is kept for it to be sent again",
            where=sink.where,
            fix=f"lake deliver {sink.name} sends what it has not",
        )
    return target


def forget_sink(settings: Settings, name: str) -> None:
    """Delete the warehouse's record of a sink, so that its editions can expire. The target is not changed.

    A sink whose position is in the warehouse then starts from scratch. Raises DeclarationError for an unknown sink.
    """
    if not forget_position(settings, name):
        known = (consumer.name for consumer in consumers.consumers(settings) if consumer.is_sink)
        raise DeclarationError(f"nothing was delivered to a sink {name!r}", fix=did_you_mean(name, known))


def forget_position(settings: Settings, name: str) -> bool:
    """Do as `forget_sink`, but return whether anything was delivered to the sink."""
    was_sent = sent.forget(settings, name)
    return consumers.forget(settings, name, consumers.SINK) or was_sent


@contextmanager
def _editions_kept(settings: Settings, plan: DeliveryPlan) -> Iterator[None]:
    before = consumers.consumer(settings, plan.sink.name, consumers.SINK)
    base = plan.base.number if plan.base else None
    if before.edition != base or before.offered not in {None, plan.edition.number}:
        before = consumers.begin(settings, before, base)
    offered = consumers.offer(settings, before, plan.edition.number)
    if offered is None:
        raise DeclarationError(f"edition {plan.edition.number} has expired meanwhile", fix="try again")
    yield
    consumers.acknowledge(settings, offered)


def _record_position(settings: Settings, sink: DeclaredSink, edition: Edition) -> None:
    before = consumers.consumer(settings, sink.name, consumers.SINK)
    if (before.edition, before.offered) != (edition.number, None) and editions.is_kept(settings, edition.number):
        consumers.begin(settings, before, edition.number)


def _outcome(
    plan: DeliveryPlan,
    position: SinkPosition | None,
    tables: tuple[SentTable, ...] = (),
    *,
    undelivered: int = 0,
    seconds: float = 0.0,
) -> DeliveryOutcome:
    return DeliveryOutcome(
        plan.sink.name,
        plan.edition.number,
        plan.edition.cut,
        plan.position.edition if plan.position else None,
        bool(tables),
        tables,
        len(position.rejected) if position else 0,
        undelivered,
        seconds,
    )
