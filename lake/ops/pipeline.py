"""One cycle of a project: ingest; then `catch_up`: cut, advance, check, publish, deliver."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from lake import cost
from lake.config import Settings
from lake.contracts import declared_files
from lake.contracts.contract import sound_contracts
from lake.engine.advance import advance_all
from lake.engine.inputs import Inputs
from lake.engine.verbs import Advanced
from lake.errors import DeclarationError, LakeError
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.ingest import Ingestion
from lake.ingest.landing import LANDED, backlog
from lake.lazy import SparkSession
from lake.ops.ordering_lint import find_unordered_tables
from lake.progress import OnProgress
from lake.project.project import Project, load
from lake.publish.after_publish import after_publish
from lake.publish.blocked_groups import BlockedGroups, failure_of
from lake.publish.cut import cut
from lake.publish.publish import publish
from lake.quality import gate
from lake.session import SessionFactory
from lake.session.spark_session import INTERPRETED, configured, expect_short_run, started
from lake.sinks.deliver import deliver
from lake.sinks.kind import sound_sinks
from lake.sources.declared import names as source_names
from lake.store.delta import prefetch, prefetch_rows
from lake.store.ledger.checks import CHECKS
from lake.store.ledger.contract_versions import CONTRACTS
from lake.store.ledger.cuts import CUTS, Cut
from lake.store.ledger.editions import EDITIONS, Edition, latest_edition, pinned
from lake.store.ledger.runs import RUNS, background_recording
from lake.store.locks.lease import leases
from lake.store.log import Log
from lake.store.view import view
from lake.store.warehouse import KINDS, Warehouse


@dataclass(frozen=True)
class Cycle:
    """`edition` is what readers see, None while one is pinned. `held`: groups that were not published.

    `failures` are those of streams and sources, `undelivered` those of the sinks and connectors that follow a
    publication. `more`: sources with records left. `must_ask`: the next cycle may have news without a new file, from a
    source or because a producer is idle. `has_asked`: a sink or connector follows publications, or reported something.
    """

    cut: int
    tables: list[Advanced]
    edition: Edition | None
    held: BlockedGroups | None
    undelivered: dict[str, LakeError]
    streams: dict[str, BatchCounts] = field(default_factory=dict)
    failures: dict[str, LakeError] = field(default_factory=dict)
    more: list[str] = field(default_factory=list)
    must_ask: bool = False
    has_asked: bool = False

    @property
    def is_complete(self) -> bool:
        """True if it left no work. It did some if its inputs have changed."""
        return not (self.failures or self.more or self.held or self.undelivered)

    @property
    def found_nothing(self) -> bool:
        """True if it found nothing to do, and asked no other system for it."""
        idle = all(table.verb == "none" for table in self.tables) and not any(c.read for c in self.streams.values())
        return idle and self.is_complete and not (self.must_ask or self.has_asked)

    def raise_held(self) -> None:
        if self.held is not None:
            raise self.held.error


@view()
@background_recording()
def run(
    settings: Settings,
    spark: SessionFactory,
    on_progress: OnProgress,
    *,
    batches: int | None = None,
    now: datetime | None = None,
) -> Cycle:
    """Run one cycle over all landed files, or at most `batches` of each stream; `now` is the time of arrival.

    A stream or source that fails is reported; the others continue. Raises the error of a table or a gate; then the last
    edition stays in place. If some groups were published nevertheless, the error is only reported and returned.
    """
    try:
        project = load(settings)
    except DeclarationError:
        _ingest_despite_fault(settings, spark, on_progress)
        raise
    spark = partial(_session, project, spark, is_last=batches is None)
    work = Ingestion(settings, spark, project.contracts, batches, now, on_news=partial(_warm_up, settings))
    streams, failures, more = _ingest(work, on_progress)
    for warning in find_unordered_tables(project, [stream for stream, counts in streams.items() if counts.accepted]):
        on_progress(f"warning {warning}")
    with ExitStack() as block:
        spark = _interpreting(spark, block, lambda: _has_few_events(project, streams))
        done = catch_up(project, spark, on_progress)
    must_ask = bool(source_names(settings)) or any(c.horizon and c.horizon.idle for c in project.contracts.values())
    return replace(done, streams=streams, failures=failures, more=more, must_ask=must_ask)


def _session(project: Project, spark: SessionFactory, *, is_last: bool) -> SparkSession:
    if not started() and is_last and is_short_run(project):
        expect_short_run()
    return spark()


def _warm_up(settings: Settings) -> None:
    """Begin what takes long and is needed later: the import of the gate's library, and the state of tables."""
    gate.warm_up(settings)
    warehouse = Warehouse(settings)
    tables = (location.path for location in warehouse.folders(*KINDS))
    books = [book.location(settings).path for book in (CHECKS, CONTRACTS, CUTS, RUNS)]
    prefetch_rows(warehouse.root, tables, books, partial(leases(settings).prefetch, "log"))


def is_short_run(project: Project) -> bool:
    """Return whether the run is too short for optimizing compilation to pay off.

    It is if few bytes are pending for a small project; never with sources, as their pending records are unknown.
    """
    settings = project.settings
    if source_names(settings):
        return False
    with suppress(Exception), view():  # a later reader reports what cannot be read
        prefetch(book.location(settings).path for book in (EDITIONS, LANDED))
        pending = sum(backlog(settings, stream)[1] for stream in project.contracts)
        return pending <= cost.BRIEF_BYTES and _is_small(project)
    return False


def _has_few_events(project: Project, streams: Mapping[str, BatchCounts]) -> bool:
    return sum(counts.accepted for counts in streams.values()) <= cost.INTERPRETED_ROWS and _is_small(project)


def _is_small(project: Project) -> bool:
    """Return whether all tables are published, and have at most BRIEF_ROWS rows together with the logs."""
    settings, edition = project.settings, latest_edition(project.settings)
    if edition is None or edition.tables.keys() != project.tables.keys():
        return False
    logs = [Log(settings, stream) for stream in project.contracts]
    prefetch(log.path for log in logs)
    events = sum(log.head().events for log in logs)
    return events + sum(table.rows or 0 for table in edition.tables.values()) <= cost.BRIEF_ROWS


def _interpreting(spark: SessionFactory, block: ExitStack, has_few_events: Callable[[], bool]) -> SessionFactory:
    """Return a function like `spark`, whose session interprets its plans until the end of `block` if little is new."""
    lock, is_decided = threading.Lock(), False

    def session() -> SparkSession:
        nonlocal is_decided
        connected = spark()
        with lock:  # tables advance at the same time
            if not is_decided:
                is_decided = True
                if has_few_events():
                    block.enter_context(configured(connected, INTERPRETED))
        return connected

    return session


def catch_up(project: Project, spark: SessionFactory, on_progress: OnProgress) -> Cycle:
    """Bring tables and readers to the newest batches; then do what follows each publication, such as deliveries.

    With publish groups, an error of a table holds only its own group; if none is published, it is raised.
    """
    newest = cut(project)
    on_progress(f"cut     {newest.number}")
    advanced = list[Advanced]()

    def note(done: Advanced) -> None:
        advanced.append(done)
        on_progress(done.line)

    failure = failure_of(project, lambda: advance_all(Inputs(spark, project, newest), on_progress=note))
    order = list(project.tables)
    advanced.sort(key=lambda done: order.index(done.table))
    try:
        edition, held = _publish(project, newest, spark, on_progress)
    except LakeError:
        if failure is not None:
            raise failure from None
        raise
    undelivered, has_asked = _after_publish(project, on_progress)
    if failure is not None:
        if held is None:
            raise failure
        held = replace(held, error=failure)
    return Cycle(newest.number, advanced, edition, held, undelivered, has_asked=has_asked)


def _publish(
    project: Project, newest: Cut, spark: SessionFactory, on_progress: OnProgress
) -> tuple[Edition | None, BlockedGroups | None]:
    with view():
        if (pin := pinned(project.settings)) is not None:
            on_progress(f"publish readers are pinned to edition {pin} until `lake publish --resume`")
            return None, None
        edition, held = publish(project, newest, spark, on_progress)
    on_progress(f"publish edition {edition.number}{f': {held}' if held else ''}")
    return edition, held


def _after_publish(project: Project, on_progress: OnProgress) -> tuple[dict[str, LakeError], bool]:
    """Return the failures of sinks and connectors, and whether other systems were asked or something was reported."""
    settings, failures, has_asked = project.settings, dict[str, LakeError](), False

    def report(line: str) -> None:
        nonlocal has_asked
        has_asked = True
        on_progress(line)

    def failed(name: str, failure: LakeError) -> None:
        report(f"deliver {name} failed: {failure}")
        failures[name] = failure

    declared, faults = sound_sinks(settings)
    if faults:
        faults = declared_files.sinks(settings).after_publish_faults(faults)
    for name, fault in faults.items():
        failed(name, fault)
    following = [sink for sink in declared.values() if sink.after_publish]
    has_asked = has_asked or bool(following)
    for sink in following:
        try:
            if (done := deliver(settings, sink)).changed:
                report(f"deliver {done}")
        except LakeError as failure:
            failed(sink.name, failure)
    for hook in after_publish(settings):
        hook.run(project, report, failed)
        has_asked = has_asked or hook.is_due(settings)
    return failures, has_asked


def _ingest(work: Ingestion, on_progress: OnProgress) -> tuple[dict[str, BatchCounts], dict[str, LakeError], list[str]]:
    """Return the counts of streams, the failures of streams and sources, and the sources that have more."""
    failures, more, seconds = dict[str, LakeError](), list[str](), defaultdict[str, float](float)

    def failed(subject: str, failure: LakeError) -> None:
        failures[subject] = failure
        on_progress(f"ingest  {subject} failed: {failure}")

    def ended(stream: str, duration: float) -> None:
        seconds[stream] += duration

    streams = replace(work, on_failure=failed, on_more=more.append, on_end=ended).run()
    for stream, counts in streams.items():
        on_progress(f"ingest  {stream}: {_counted(counts)} in {seconds[stream]:.1f} s")
    return streams, failures, more


def _ingest_despite_fault(settings: Settings, spark: SessionFactory, on_progress: OnProgress) -> None:
    contracts, _ = sound_contracts(settings)
    if source_names(settings) or any(backlog(settings, stream)[0] for stream in contracts):
        on_progress("a declaration is faulty: events are ingested, but no table advances")
        _ingest(Ingestion(settings, spark, contracts), on_progress)


def _counted(counts: BatchCounts) -> str:
    if not counts.read:
        return "nothing new"
    refused = f", {counts.duplicates} duplicates, {counts.quarantined} quarantined"
    refused += f", {counts.control} control messages" if counts.control else ""
    return f"batch {counts.batch}, {counts.accepted} events of {counts.read} records{refused}"
