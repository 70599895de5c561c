"""From landing folders and sources into the logs: one batch after another, until nothing is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream, load_contract, sound_contracts
from lake.errors import DeclarationError, LakeError, Unavailable, did_you_mean
from lake.ingest import crashed_readers, landing
from lake.ingest.append import BatchCounts, append, unreadable_files
from lake.ingest.delivery import Files
from lake.ingest.idle_producers import find_idle_producers
from lake.ingest.source_ingestion import copy_again, drain, give_up_lost
from lake.process import fault_of
from lake.progress import step
from lake.session import first_line, started
from lake.sources.declared import names as source_names
from lake.sources.declared import sound_sources
from lake.store import delta
from lake.store.bucket_log import THREADS
from lake.store.ledger import runs
from lake.store.ledger.cuts import CUTS
from lake.store.ledger.runs import failing
from lake.store.log import Log, LogHead
from lake.store.recovery import RESTORE
from lake.store.view import view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TRACE: Final = "lake ingest STREAM --debug shows the stack trace"


class _SparkNeeded(Exception):
    """A file has landed since none was found."""


class _NoSession(Unavailable):
    """That Spark does not start, for which no stream is to blame: `why`."""

    def __init__(self, why: LakeError) -> None:
        super().__init__(why.what)
        self.why = why


def ingest(  # noqa: PLR0913  the last two are for callers that go on, and for tests
    settings: Settings,
    spark: Callable[[], SparkSession],
    contracts: Mapping[str, Contract],
    names: Iterable[str] | None = None,
    *,
    on_failure: Callable[[str, LakeError], None] | None = None,
    on_more: Callable[[str], None] = lambda _: None,
    on_end: Callable[[str, float], None] = lambda *_: None,
    batches: int | None = None,
    now: datetime | None = None,
) -> dict[str, BatchCounts]:
    """Takes what has come for the streams and by the sources of these `names` (all by default) into their logs.

    Landing files and deliveries, in `batches` of each at most; Spark is started where there are any. What comes
    meanwhile is left for the next call, so that this one ends however fast it comes. Then producers are closed of whom
    nothing came for as long as their contract says. Returns each stream's counts over the batches that were made. A
    stream or a source that fails does not stop the others: `on_failure` is called as soon as it fails; without it, the
    error is raised when all are done. `on_more` is called for a source that has more than `batches` of it took,
    `on_end` for each stream of what was taken with the seconds that this took. Raises DeclarationError for an unknown
    name, and at once what `spark` raises.
    """

    def session() -> SparkSession:
        try:
            return spark()
        except LakeError as why:
            raise _NoSession(why) from why

    declared, faults = sound_sources(settings, contracts)
    named = None if names is None else list(names)
    of_sources = {*declared, *faults}
    wanted = contracts if named is None else [name for name in named if name in contracts or name not in of_sources]
    chosen = [known_stream(contracts, stream) for stream in wanted]
    chosen.sort(key=lambda contract: crashed_readers.crashes(settings, contract.name).deaths)
    streams = {contract.name for contract in chosen}
    silent = find_idle_producers(settings, chosen, declared, now) if not faults else []
    done: dict[str, BatchCounts] = {}
    failures: list[Exception] = []
    failed: set[str] = set()
    nothing: list[str] = []
    work = _of_landing_files(settings, spark, session, chosen, batches=batches, now=now)
    work += [
        (name, partial(drain, settings, session, contracts, source, deliveries=batches, on_more=on_more, now=now))
        for name, source in declared.items()
        if named is None or name in named or streams & {*source.streams}
    ]
    work += [(name, partial(_raise, fault)) for name, fault in faults.items() if named is None or name in named]
    closings = (
        (one.stream, partial(one.close, session, drained=batches is None, now=now))
        for one in silent
        if not failed & one.subjects
    )
    for subject, take in chain(work, closings):
        began = datetime.now(UTC)
        try:
            with failing(settings, "ingest", subject):
                taken = take()
            for stream, counts in taken.items():
                done[stream] = counts.after(done[stream]) if stream in done else counts
                on_end(stream, (datetime.now(UTC) - began).total_seconds())
            read = {stream: counts for stream, counts in taken.items() if counts.read}
            for stream, counts in read.items():
                runs.note(settings, "ingest", stream, None, began, **asdict(counts))
            if not read:
                nothing.append(subject)
        except _NoSession as error:
            raise error.why from error.why.__cause__
        except Exception as error:
            fault = fault_of(error, settings)
            failed.add(subject)
            if on_failure is None:
                failures.append(fault or error)
            else:
                on_failure(subject, fault or _unexpected(error))
    runs.nothing_to_do(settings, "ingest", nothing)
    if failures:
        several = len(failures) > 1 and all(isinstance(failure, LakeError) for failure in failures)
        raise type(failures[0])("\n".join(map(str, failures))) if several else failures[0]
    return done


def _unexpected(error: Exception) -> LakeError:
    fault = LakeError(f"unexpected error: {first_line(error)}", fix=f"{TRACE}; the other streams are ingested")
    fault.__cause__ = error
    return fault


def _of_landing_files(  # noqa: PLR0913  as `ingest` has them
    settings: Settings,
    spark: Callable[[], SparkSession],
    session: Callable[[], SparkSession],
    chosen: Sequence[Contract],
    *,
    batches: int | None,
    now: datetime | None,
) -> list[tuple[str, partial[dict[str, BatchCounts]]]]:
    """How the landing files of each stream are taken in. Spark is started if there are any."""
    with view():
        delta.prefetch(
            [landing.LANDED.location(settings).path, *(Log(settings, contract.name).path for contract in chosen)]
        )
        idle = [one for one in chosen if settings.store and not _waits(settings, one.name)]
        candidates = [one for one in chosen if one not in idle] if not started() else []
        waiting = [one.name for one in candidates if _waits(settings, one.name)]
    landed = partial(_landed, settings, batches=batches, now=now)
    with ThreadPoolExecutor(THREADS) as pool:  # a store is only asked how they stand: side by side
        found = {one.name: pool.submit(copy_context().run, landed, _no_session, one) for one in idle}
        with ExitStack() as failures:
            for stream in waiting:
                failures.enter_context(failing(settings, "ingest", stream))
            if waiting:
                spark()  # before the time of the first stream is taken

    def taken(contract: Contract) -> dict[str, BatchCounts]:
        with suppress(_SparkNeeded):
            if contract.name in found:
                return found[contract.name].result()
        return landed(session, contract)

    return [(contract.name, partial(taken, contract)) for contract in chosen]


def ingest_named(  # noqa: PLR0913  of which streams, and whom to tell
    settings: Settings,
    spark: Callable[[], SparkSession],
    names: Sequence[str] = (),
    *,
    give_up: bool = False,
    again: Sequence[str] = (),
    tell: Callable[[str], None],
    on_failure: Callable[[str, LakeError], None],
) -> dict[str, BatchCounts]:
    """Ingests as `ingest` does for streams of sound contracts; those of faulty ones fail.

    With `give_up`, each named source first goes on behind what is gone there, or without the half of a delivery that is
    lost. Of the streams `again` the one named source copies what is behind them anew. Raises DeclarationError if a name
    is unknown or its contract faulty, or with `give_up` if it is a stream or nothing is lost.
    """
    contracts, faults = sound_contracts(settings)
    declared = {*source_names(settings)}
    for name in names:
        if name not in declared:
            load_contract(settings, name)
            if give_up:
                raise DeclarationError(f"{name} is a stream; --give-up is for sources", fix=RESTORE)
        elif give_up:
            tell(give_up_lost(settings, name, contracts))
    if again:
        [source] = names
        if source not in declared:
            raise DeclarationError(f"unknown source {source!r}", fix=did_you_mean(source, declared))
        copy_again(settings, source, contracts, again)
        tell(f"{source} copies {', '.join(again)} anew")
    for stream, fault in faults.items():
        on_failure(stream, fault)
    return ingest(settings, spark, contracts, names or None, on_failure=on_failure)


def landing_backlog(settings: Settings, stream: str) -> tuple[int, int]:
    """How many landing files of `stream` its log has not taken in yet, and their bytes."""
    landed = landing.ingested_marks(Log(settings, stream))
    waiting = [file.size for file in landing.list_files(settings, stream) if file.mark not in landed]
    return len(waiting), sum(waiting)


def _waits(settings: Settings, stream: str) -> bool:
    """Whether landing files wait. What is wrong there is told when the stream is taken in."""
    with suppress(Exception):
        return landing_backlog(settings, stream)[0] > 0
    return False


def _no_session() -> SparkSession:
    raise _SparkNeeded


def _raise(fault: LakeError) -> dict[str, BatchCounts]:
    raise fault


@view()
def _landed(
    settings: Settings,
    spark: Callable[[], SparkSession],
    contract: Contract,
    *,
    batches: int | None,
    now: datetime | None,
) -> dict[str, BatchCounts]:
    """Batches until nothing is left of what is there now in the landing folder; the counts are their sums."""
    stream, log = contract.name, Log(settings, contract.name)
    delta.prefetch([log.path, *(book.location(settings).path for book in (landing.LANDED, CUTS))])
    listed = {file.mark: file.size for file in landing.list_files(settings, stream)}
    landing.warn_of_folders(settings, stream)

    def deliver(head: LogHead) -> Files | None:
        waiting = listed.keys() - landing.ingested_marks(log)
        work.remain(sum(listed[mark] for mark in waiting))
        files = landing.pending(settings, stream, waiting)
        files = crashed_readers.readable_at_once(settings, stream, files)
        folder = landing.folder(settings, settings.landing, stream)
        repaired = unreadable_files(settings, head)
        return Files.checked(settings, files, contract, folder=folder, repaired=repaired) if files else None

    total = BatchCounts(log.head().batch)
    with step("ingest", stream) as work:
        for _ in count() if batches is None else range(batches):
            counts = append(settings, spark, contract, deliver, now=now)
            if counts.batch == total.batch:
                break
            total = counts.after(total)
            if not listed.keys() - landing.ingested_marks(log):
                break
        work.rows = total.accepted
    if settings.archive is not None:
        log.flush()
        landing.archive(settings, stream, landing.ingested_marks(log))
    return {stream: total}
