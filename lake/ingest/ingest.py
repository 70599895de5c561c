"""Ingestion of landing files and sources, batch by batch until nothing is new; then idle producers are closed.

The horizon no longer waits for a producer after the batch that closes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, count
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream, load_contract, sound_contracts
from lake.errors import LakeError, Unavailable
from lake.ingest import crashed_readers, landing
from lake.ingest.append import append, unreadable_files
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.declared_position import declared_position
from lake.ingest.files import Mark
from lake.ingest.horizon import Horizon
from lake.lazy import SparkSession
from lake.progress import step
from lake.session.spark_session import first_line, started
from lake.sources.declared import DeclaredSource, sound_sources
from lake.sources.declared import names as source_names
from lake.store import delta
from lake.store.ledger import runs
from lake.store.ledger.cuts import CUTS
from lake.store.ledger.runs import failing
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.process import fault_of
from lake.store.view import view
from lake.store.warehouse import Warehouse
from lake.text import some_of

if TYPE_CHECKING:
    from lake.ingest.delivery import Closing, FileDelivery

Work: TypeAlias = Callable[[dict[str, BatchCounts]], None]
"""It adds what it ingests to the counts of streams, also before it fails."""


class _SparkNeeded(Exception):
    """A file has landed in a stream that had none."""


class _NoSession(Unavailable):
    """Spark cannot be started; no stream is at fault."""

    def __init__(self, why: LakeError) -> None:
        super().__init__(why.what)
        self.why = why


class _Task(NamedTuple):
    """Work on a stream or a source, which writes to the logs of `streams`."""

    subject: str
    streams: Set[str]
    work: Work


@dataclass
class _Outcome:
    counts: dict[str, BatchCounts] = field(default_factory=dict)
    unchanged: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    failures: list[Exception] = field(default_factory=list)

    def raise_failures(self) -> None:
        expected = [failure for failure in self.failures if isinstance(failure, LakeError)]
        unexpected = [failure for failure in self.failures if failure not in expected]
        if self.failures:
            raise unexpected[0] if unexpected else LakeError.joined(expected)


@dataclass(frozen=True)
class Ingestion:
    """Ingestion of what landing folders and sources have now, up to `batches` of each.

    A failure stops only its stream or source. It is passed to `on_failure`, or raised at the end. `on_news` is called
    once if files have landed, `on_more` for a source that has more, `on_end` with a stream and its seconds.
    """

    settings: Settings
    spark: Callable[[], SparkSession]
    contracts: Mapping[str, Contract]
    batches: int | None = None
    now: datetime | None = None
    on_failure: Callable[[str, LakeError], None] | None = None
    on_news: Callable[[], None] = lambda: None
    on_more: Callable[[str], None] = lambda _: None
    on_end: Callable[[str, float], None] = lambda *_: None
    _starting: Lock = field(default_factory=Lock, init=False)
    _failed: list[_NoSession] = field(default_factory=list, init=False)

    def run(self, names: Iterable[str] | None = None) -> dict[str, BatchCounts]:
        """Ingest `names` (default: all), starting Spark only if needed. Return each stream's sums.

        Raises DeclarationError for an unknown name, and errors of `spark`.
        """
        declared, faults = sound_sources(self.settings, self.contracts)
        named = None if names is None else list(names)
        sources = {*declared, *faults}
        wanted = self.contracts if named is None else [n for n in named if n in self.contracts or n not in sources]
        chosen = [known_stream(self.contracts, stream) for stream in wanted]
        streams = {contract.name for contract in chosen}
        closings = idle_closings(self.settings, chosen, declared, self.now) if not faults else []
        outcome = _Outcome()
        tasks = self._landing_tasks(chosen)
        tasks += [
            _Task(name, {*source.streams}, partial(self._drain, source))
            for name, source in declared.items()
            if named is None or name in named or streams & {*source.streams}
        ]
        tasks += [_Task(n, set(), partial(_raise, fault)) for n, fault in faults.items() if named is None or n in named]
        self._perform_all(tasks, outcome)
        for idle in closings:
            if not outcome.failed & idle.subjects:
                close = partial(idle.close, self._session, drained=self.batches is None, now=self.now)
                self._perform(idle.stream, close, outcome)
        runs.record_nothing_to_do(self.settings, "ingest", outcome.unchanged)
        outcome.raise_failures()
        return {stream: outcome.counts[stream] for stream in self.contracts if stream in outcome.counts}

    def _perform_all(self, tasks: Sequence[_Task], outcome: _Outcome) -> None:
        """Perform `tables_at_once` in parallel: in order on one stream; alone at the end if a file may crash it."""
        by_deaths = sorted(((self._deaths(group), group) for group in _by_streams(tasks)), key=itemgetter(0))
        safe = [group for deaths, group in by_deaths if not deaths]
        alone = [group for deaths, group in by_deaths if deaths]

        def perform(group: Iterable[_Task]) -> None:
            for task in group:
                self._perform(task.subject, task.work, outcome)

        if len(safe) > 1:
            with ThreadPoolExecutor(self.settings.tables_at_once, thread_name_prefix="streams") as pool:
                for future in [pool.submit(copy_context().run, perform, group) for group in safe]:
                    future.result()
        else:
            alone = safe + alone
        for group in alone:
            perform(group)

    def _deaths(self, tasks: Iterable[_Task]) -> int:
        streams = (stream for task in tasks for stream in task.streams)
        return max((crashed_readers.crashes(self.settings, stream).deaths for stream in {*streams}), default=0)

    def _perform(self, subject: str, work: Work, outcome: _Outcome) -> None:
        began, ingested, sums = datetime.now(UTC), dict[str, BatchCounts](), outcome.counts
        try:
            with failing(self.settings, "ingest", subject):
                work(ingested)
        except _NoSession as error:
            raise error.why from error.why.__cause__
        except Exception as error:
            fault = fault_of(error, self.settings)
            outcome.failed.add(subject)
            if self.on_failure is None:
                outcome.failures.append(fault or error)
            else:
                self.on_failure(subject, fault or _unexpected(error))
        read = {stream: counts for stream, counts in ingested.items() if counts.read}
        for stream, counts in (read if subject in outcome.failed else ingested).items():
            sums[stream] = counts.after(sums[stream]) if stream in sums else counts
            self.on_end(stream, (datetime.now(UTC) - began).total_seconds())
        for stream, counts in read.items():
            runs.record_outcome(self.settings, "ingest", stream, None, began, **asdict(counts))
        if not read and subject not in outcome.failed:
            outcome.unchanged.append(subject)

    def _session(self) -> SparkSession:
        with self._starting:
            if self._failed:
                raise self._failed[0]
            try:
                return self.spark()
            except LakeError as why:
                self._failed.append(_NoSession(why))
                raise self._failed[0] from why

    def _drain(self, source: DeclaredSource, counts: dict[str, BatchCounts]) -> None:
        from lake.ingest.source_ingestion import open_ingestion

        with open_ingestion(self.settings, self._session, self.contracts, source, now=self.now) as ingestion:
            try:
                ingestion.drain(self.batches, self.on_more)
            finally:
                counts.update(ingestion.counts)

    def _landing_tasks(self, chosen: Sequence[Contract]) -> list[_Task]:
        """Ingest streams without new files at once; return tasks for all streams, which report the results."""
        settings, by_name = self.settings, {contract.name: contract for contract in chosen}
        storage = Warehouse(settings).root.storage
        with view():
            delta.prefetch([landing.LANDED.location(settings).path, *(Log(settings, name).path for name in by_name)])
            listings = storage.begin(partial(_has_new_files, settings), by_name)
            unchanged = [name for name, has_new in listings.items() if not has_new.result()]
            if not started() and any(_has_new_files(settings, name) for name in by_name if name not in unchanged):
                self.on_news()  # before the time of the first stream is measured
        early: dict[str, dict[str, BatchCounts]] = {name: {} for name in unchanged}
        need_spark = partial(_raise, _SparkNeeded())
        futures = storage.begin(lambda name: self._ingest_files(need_spark, by_name[name], early[name]), unchanged)
        wait(futures.values())

        def ingest_stream(contract: Contract, counts: dict[str, BatchCounts]) -> None:
            with suppress(_SparkNeeded):
                if contract.name in futures:
                    counts.update(early[contract.name])
                    return futures[contract.name].result()
            self._ingest_files(self._session, contract, counts)

        return [_Task(contract.name, {contract.name}, partial(ingest_stream, contract)) for contract in chosen]

    @view()
    def _ingest_files(
        self, spark: Callable[[], SparkSession], contract: Contract, ingested: dict[str, BatchCounts]
    ) -> None:
        settings, stream, log = self.settings, contract.name, Log(self.settings, contract.name)
        delta.prefetch([log.path, *(table.location(settings).path for table in (landing.LANDED, CUTS))])
        listed = {file.mark: file.size for file in landing.list_files(settings, stream)}
        landing.warn_of_folders(settings, stream)
        denied = set[str]()

        def deliver(head: LogHead) -> FileDelivery | None:
            waiting = listed.keys() - landing.ingested_marks(log)
            work.remain(sum(listed[mark] for mark in waiting))
            found = landing.pending(settings, stream, waiting, denied)
            if not (files := crashed_readers.readable_at_once(settings, stream, found)):
                return None
            folder = landing.folder(settings, settings.landing, stream)
            repaired = unreadable_files(settings, head)
            from lake.ingest.delivery import FileDelivery  # with Arrow

            return FileDelivery.checked(settings, files, contract, folder=folder, repaired=repaired)

        total = ingested.setdefault(stream, BatchCounts(log.head().batch))
        with step("ingest", stream) as work:
            for _ in count() if self.batches is None else range(self.batches):
                counts = append(settings, spark, contract, deliver, now=self.now)
                if counts.batch == total.batch:
                    break
                total = ingested[stream] = counts.after(total)
                if not listed.keys() - landing.ingested_marks(log):
                    break
            work.rows = total.accepted
        if denied:
            landing.warn_of_denied(stream, denied)
        if settings.archive is not None:
            log.flush()
            landing.archive(settings, stream, landing.ingested_marks(log))


def ingest(  # noqa: PLR0913  what to ingest, a callback and the time
    settings: Settings,
    spark: Callable[[], SparkSession],
    contracts: Mapping[str, Contract],
    names: Iterable[str] | None = None,
    *,
    on_failure: Callable[[str, LakeError], None] | None = None,
    now: datetime | None = None,
) -> dict[str, BatchCounts]:
    return Ingestion(settings, spark, contracts, on_failure=on_failure, now=now).run(names)


def ingest_named(
    settings: Settings,
    spark: Callable[[], SparkSession],
    names: Sequence[str] = (),
    *,
    on_failure: Callable[[str, LakeError], None],
) -> dict[str, BatchCounts]:
    """Ingest streams with valid contracts, and call `on_failure` for the others.

    Raises DeclarationError for a name that is unknown or faulty.
    """
    contracts, faults = sound_contracts(settings)
    declared = {*source_names(settings)}
    for name in names:
        if name not in declared:
            load_contract(settings, name)
    for stream, fault in faults.items():
        on_failure(stream, fault)
    return ingest(settings, spark, contracts, names or None, on_failure=on_failure)


def _unexpected(error: Exception) -> LakeError:
    fix = "lake ingest STREAM --debug shows the stack trace; the other streams are ingested"
    fault = LakeError(f"unexpected error: {first_line(error)}", fix=fix)
    fault.__cause__ = error
    return fault


def _by_streams(tasks: Iterable[_Task]) -> list[list[_Task]]:
    """Return tasks in groups, in their order: tasks of different groups write to different streams."""
    groups = list[list[_Task]]()
    for task in tasks:
        joined = [group for group in groups if any(other.streams & task.streams for other in group)]
        groups = [group for group in groups if group not in joined] + [[*chain(*joined), task]]
    return groups


def _has_new_files(settings: Settings, stream: str) -> bool:
    with suppress(Exception):  # reported when the stream is ingested
        return landing.backlog(settings, stream)[0] > 0
    return False


def _raise(fault: Exception, *_: object) -> NoReturn:
    raise fault


@dataclass(frozen=True)
class IdleClosing:
    """Closing of a stream's producers that were idle when ingestion `began`, with the files `landed` by then.

    Nothing is closed until everything that existed then is in the log: while files or records wait, or a source does
    not answer.
    """

    settings: Settings
    contract: Contract
    sources: tuple[DeclaredSource, ...]
    began: datetime
    landed: frozenset[Mark]

    @property
    def stream(self) -> str:
        return self.contract.name

    @property
    def subjects(self) -> set[str]:
        return {self.stream, *(source.name for source in self.sources)}

    def close(
        self,
        spark: Callable[[], SparkSession],
        ingested: dict[str, BatchCounts],
        *,
        drained: bool,
        now: datetime | None,
    ) -> None:
        """Close producers that are still idle. `drained`: sources were read to their end."""
        log = Log(self.settings, self.stream)
        if not self._idle(log.head()) or self.landed - landing.ingested_marks(log):
            return
        if not drained and not all(self._is_read(source) for source in self.sources):
            return
        closed: tuple[str, ...] = ()

        def deliver(head: LogHead) -> Closing | None:
            nonlocal closed
            if not (closed := self._idle(head)):
                return None
            from lake.ingest.delivery import Closing

            return Closing(self.began)

        ingested[self.stream] = append(self.settings, spark, self.contract, deliver, now=now)
        if closed:
            names = some_of([*map(repr, closed)])
            logging.getLogger("lake").warning("%s: closed idle producers: %s", self.stream, names)

    def _idle(self, head: LogHead) -> tuple[str, ...]:
        declared = self.contract.horizon
        return Horizon.of(head, self.contract).idle(self.began, declared.idle if declared else None)

    def _is_read(self, source: DeclaredSource) -> bool:
        at = declared_position(self.settings, source)
        with closing(source.open()) as reader:
            lag = reader.lag(at.progress)
        if lag.events == 0 and not lag.at_least:
            return True
        return lag.seconds is not None and datetime.now(UTC) - timedelta(seconds=lag.seconds) >= self.began


def idle_closings(
    settings: Settings, contracts: Iterable[Contract], sources: Mapping[str, DeclaredSource], now: datetime | None
) -> list[IdleClosing]:
    """Return one for each contract with an `idle`. Skip those whose landing folder cannot be listed."""
    began, closings = now or datetime.now(UTC), []
    for contract in contracts:
        if contract.horizon is not None and contract.horizon.idle:
            feeding = tuple(source for source in sources.values() if contract.name in source.streams)
            with suppress(LakeError):  # reported when its files are ingested
                listed = frozenset(file.mark for file in landing.list_files(settings, contract.name))
                closings.append(IdleClosing(settings, contract, feeding, began, listed))
    return closings
