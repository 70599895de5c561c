"""From the landing folder into the logs: one batch per stream after another, until nothing is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream, load_contract, sound_contracts
from lake.errors import LakeError
from lake.ingest import attempts, landing, recovery
from lake.ingest.append import BatchCounts, append, unread
from lake.ingest.delivery import Files
from lake.progress import step
from lake.store.damage import blamed
from lake.store.ledger import runs
from lake.store.ledger.runs import failing
from lake.store.log import Log, LogHead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ingest(  # noqa: PLR0913  the last two are for callers that go on, and for tests
    settings: Settings,
    spark: SparkSession,
    contracts: Mapping[str, Contract],
    streams: Iterable[str] | None = None,
    *,
    on_failure: Callable[[str, LakeError], None] | None = None,
    batches: int | None = None,
    now: datetime | None = None,
) -> dict[str, BatchCounts]:
    """Takes every pending landing file of `streams` (all of them by default) into its log, in `batches` at most.

    What lands meanwhile is left for the next call, so that this one ends however fast files arrive. Returns each
    stream's counts over the batches that were made. A stream that fails does not stop the others: `on_failure` is
    called as soon as it fails; without it, the error is raised when all are done.
    Raises DeclarationError for an unknown stream.
    """
    chosen = [known_stream(contracts, stream) for stream in (contracts if streams is None else streams)]
    chosen.sort(key=lambda contract: bool(attempts.suspects(settings, contract.name)))  # who may die does so last
    done: dict[str, BatchCounts] = {}
    failures: list[LakeError] = []
    for contract in chosen:
        began = datetime.now(UTC)
        try:
            with failing(settings, "ingest", contract.name):
                done[contract.name] = taken = _drain(settings, spark, contract, batches, now)
            if taken.read:
                runs.note(settings, "ingest", contract.name, None, began, **asdict(taken))
            else:
                runs.nothing_to_do(settings, "ingest", contract.name, None, began)
        except Exception as error:
            fault = error if isinstance(error, LakeError) else blamed(settings, error)
            if fault is None:
                raise
            (on_failure or (lambda _, error: failures.append(error)))(contract.name, fault)
    if failures:
        raise failures[0] if len(failures) == 1 else type(failures[0])("\n".join(map(str, failures)))
    return done


def ingest_landed(  # noqa: PLR0913  of which streams, and whom to tell
    settings: Settings,
    spark: Callable[[], SparkSession],
    streams: Sequence[str] = (),
    *,
    give_up: bool = False,
    tell: Callable[[str], None],
    on_failure: Callable[[str, LakeError], None],
) -> dict[str, BatchCounts]:
    """Ingests as `ingest` does what landed for streams of sound contracts; those of faulty ones fail.

    With `give_up`, an empty batch is first put in the place of what a named stream has lost.
    Raises DeclarationError where a named stream is unknown, its contract is faulty, or nothing of it is lost.
    """
    contracts, faults = sound_contracts(settings)
    for stream in streams:
        load_contract(settings, stream)
    for stream in streams if give_up else ():
        batch = recovery.give_up(settings, stream)
        tell(f"batch {batch} of {stream} is empty now: run lake rebuild --all once all streams can be read")
    for stream, fault in faults.items():
        on_failure(stream, fault)
    return ingest(settings, spark(), contracts, streams or None, on_failure=on_failure)


def behind(settings: Settings, stream: str) -> tuple[int, int]:
    """How many landing files of `stream` its log has not taken in yet, and their bytes."""
    landed = landing.landed(Log(settings, stream))
    waiting = [file.size for file in landing.listing(settings, stream) if file.mark not in landed]
    return len(waiting), sum(waiting)


def _drain(
    settings: Settings, spark: SparkSession, contract: Contract, batches: int | None, now: datetime | None
) -> BatchCounts:
    """Batches until nothing is left of what is there now; the counts are their sums."""
    stream, log = contract.name, Log(settings, contract.name)
    listed = {file.mark: file.size for file in landing.listing(settings, stream)}

    def deliver(head: LogHead) -> Files | None:
        waiting = listed.keys() - landing.landed(log)
        work.remain(sum(listed[mark] for mark in waiting))
        files = landing.pending(settings, stream, waiting)
        files = attempts.few(settings, stream, files)
        folder = settings.path(settings.landing) / stream
        repaired = unread(settings, head)
        return Files.checked(settings, files, contract, folder=folder, repaired=repaired) if files else None

    total = BatchCounts(log.head().batch)
    with step("ingest", stream) as work:
        for _ in count() if batches is None else range(batches):
            counts = append(settings, spark, contract, deliver, now=now)
            if counts.batch == total.batch:
                break
            total = counts.after(total)
    if settings.archive is not None:
        landing.archive(settings, stream, landing.landed(log), settings.path(settings.archive) / stream)
    return total
