"""Cut: one number that stands for the newest batch of every log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from lake.config import Settings
from lake.errors import DeclarationError
from lake.project.project import Project
from lake.store import delta
from lake.store.erasures import record_destroyed
from lake.store.ledger.cuts import CUTS, Cut, get_cut, latest_cut, record_cut
from lake.store.ledger.runs import EDITION, failing
from lake.store.log import Log
from lake.store.log_head import CommittedDelivery, LogHead
from lake.store.storage import Address
from lake.store.table_logs import invalidate
from lake.store.view import view
from lake.store.voids import NUMBERED, voids_head


def cut(project: Project, *, label: str | None = None) -> Cut:
    """Record the heads of all logs as a new cut; return the latest cut if nothing has changed.

    With a `label`, return the cut recorded under it, if there is one, so that a retry gets the same cut. Raises
    StorageError if a log has lost batches of the latest cut.
    """
    settings = project.settings
    with failing(settings, "cut", EDITION):
        record_destroyed(settings, project.contracts.values())
        return _cut(project, label)


def _cut(project: Project, label: str | None) -> Cut:
    settings = project.settings
    with CUTS.hold_lease(settings), view():
        _reread([CUTS.location(settings).path, *(Log(settings, stream).path for stream in project.contracts)])
        latest = latest_cut(settings)
        before = latest.batches if latest else {}
        heads = _heads(settings, {stream: before.get(stream, 0) for stream in project.contracts})
        batches = consistent_prefix(heads, lambda stream: Log(settings, stream).backwards())
        batches = {stream: max(batch, before.get(stream, 0)) for stream, batch in batches.items()}  # no cut goes back
        for stream in batches:  # a power cut must not lose batches of a cut
            Log(settings, stream).flush()
        # After the logs: a cut with an event that replaces a voided one has to include that void.
        _reread(table.location(settings).path for table in NUMBERED)
        return record_cut(settings, batches, voids_head(settings), label=label)


def _heads(settings: Settings, minimum: Mapping[str, int]) -> dict[str, LogHead]:
    """Return the heads of the logs at one moment: no delivery of a source was committed between two of the reads.

    Raises StorageError if a log has not reached its batch in `minimum`.
    """
    logs = [Log(settings, stream) for stream in minimum]
    while True:
        heads = {log.stream: log.must_reach(minimum[log.stream]) for log in logs}
        if not any(head.sources for head in heads.values()):
            return heads
        _reread(log.path for log in logs)
        if all(log.head().batch == heads[log.stream].batch for log in logs):
            return heads


def _reread(tables: Iterable[Address]) -> None:
    tables = list(tables)
    for path in tables:
        invalidate(path)
    delta.prefetch(tables)


def consistent_prefix(heads: Mapping[str, LogHead], past: Callable[[str], Iterator[LogHead]]) -> dict[str, int]:
    """Return the newest batch of each log such that no delivery of a source is split: {stream: batch}.

    A delivery that has not reached all its logs is excluded from all of them, and so is everything after it. `past`
    returns the heads of a log, newest first; it is called only if something is excluded.
    """
    prefixes = {stream: head.batch for stream, head in heads.items()}
    excluded = [*_unfinished(heads)]
    while excluded:
        delivery = excluded.pop()
        for stream in heads.keys() & {*delivery.streams}:
            first, later = _from_delivery(delivery, past(stream))
            if first is not None and first <= prefixes[stream]:
                excluded += [other for batch, other in later.items() if first <= batch <= prefixes[stream]]
                prefixes[stream] = first - 1
    return prefixes


def _unfinished(heads: Mapping[str, LogHead]) -> Iterator[CommittedDelivery]:
    """Yield the deliveries that are not in all of their logs yet: at most the newest of each source."""
    for source in {name for head in heads.values() for name in head.sources}:
        deliveries = {stream: head.sources[source] for stream, head in heads.items() if source in head.sources}
        newest = max(deliveries.values(), key=lambda delivery: delivery.number)
        complete = {stream for stream, delivery in deliveries.items() if delivery.number == newest.number}
        if any(stream in heads and stream not in complete for stream in newest.streams):
            yield newest


def _from_delivery(
    delivery: CommittedDelivery, heads: Iterable[LogHead]
) -> tuple[int | None, dict[int, CommittedDelivery]]:
    """Return the delivery's batch in a log, if it is there, and the log's deliveries from it on, by batch.

    `heads` of the log are read from the newest back, as far as needed.
    """
    first, later = None, dict[int, CommittedDelivery]()
    for head in heads:
        newest = head.sources.get(delivery.source)
        if newest is None or newest.number < delivery.number:
            break
        later |= {other.batch: other for other in head.sources.values()}
        first = newest.batch if newest.number == delivery.number else first
    return first, later


def pick_cut(project: Project, number: int | None) -> Cut:
    """Return cut `number`, or the latest. Raises DeclarationError if there is none."""
    if number is not None:
        return get_cut(project.settings, number)
    latest = latest_cut(project.settings)
    if latest is None:
        raise DeclarationError("there is no cut yet", fix="lake ingest, then lake cut; or lake run, which does it all")
    return latest
