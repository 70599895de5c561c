"""From the landing folder into the logs: one batch per stream after another, until nothing is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream
from lake.errors import LakeError
from lake.ingest import attempts, sources
from lake.ingest.append import BatchCounts, append, unread
from lake.ingest.delivery import Files
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


def behind(settings: Settings, stream: str) -> tuple[int, int]:
    """How many landing files of `stream` its log has not taken in yet, and their bytes."""
    landed = sources.landed(Log(settings, stream))
    waiting = [file.size for file in sources.listing(settings, stream) if file.mark not in landed]
    return len(waiting), sum(waiting)


def _drain(
    settings: Settings, spark: SparkSession, contract: Contract, batches: int | None, now: datetime | None
) -> BatchCounts:
    """Batches until nothing is left of what is there now; the counts are their sums."""
    stream, log = contract.name, Log(settings, contract.name)
    listed = {file.mark for file in sources.listing(settings, stream)}

    def deliver(head: LogHead) -> Files | None:
        files = sources.pending(settings, stream, listed - sources.landed(log))
        files = attempts.few(settings, stream, files)
        folder = settings.path(settings.landing) / stream
        repaired = unread(settings, head)
        return Files.checked(settings, files, contract, folder=folder, repaired=repaired) if files else None

    total = BatchCounts(log.head().batch)
    for _ in count() if batches is None else range(batches):
        counts = append(settings, spark, contract, deliver, now=now)
        if counts.batch == total.batch:
            break
        total = counts.after(total)
    if settings.archive is not None:
        sources.archive(settings, stream, sources.landed(log), settings.path(settings.archive) / stream)
    return total
