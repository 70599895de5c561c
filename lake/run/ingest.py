"""From the landing folder into the logs: one batch per stream after another, until nothing is new."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.errors import LakeError
from lake.run.append import BatchCounts, append
from lake.store import log, sources
from lake.store.contracts import Contract, known_stream
from lake.store.delivery import Files
from lake.store.log import LogHead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ingest(  # noqa: PLR0913  the last two are for callers that go on, and for tests
    settings: Settings,
    spark: SparkSession,
    contracts: Mapping[str, Contract],
    streams: Iterable[str] | None = None,
    *,
    on_failure: Callable[[str, LakeError], None] | None = None,
    now: datetime | None = None,
) -> dict[str, BatchCounts]:
    """Takes every pending landing file of `streams` (all of them by default) into its log.

    Gives each stream's counts over the batches that were made. A stream that fails does not stop the others: it is
    told to `on_failure` as soon as it fails, or raised when all are done.
    Raises DeclarationError for an unknown stream.
    """
    chosen = [known_stream(contracts, stream) for stream in (contracts if streams is None else streams)]
    done: dict[str, BatchCounts] = {}
    failures: list[LakeError] = []
    for contract in chosen:
        try:
            done[contract.name] = _drain(settings, spark, contract, now)
        except LakeError as error:
            (on_failure or (lambda _, error: failures.append(error)))(contract.name, error)
    if failures:
        raise failures[0] if len(failures) == 1 else type(failures[0])("\n".join(map(str, failures)))
    return done


def _drain(settings: Settings, spark: SparkSession, contract: Contract, now: datetime | None) -> BatchCounts:
    """Batches until nothing is pending; the counts are their sums."""
    stream, app = contract.name, log.app(contract.name)

    def deliver(_: LogHead) -> Files | None:
        files = sources.pending(settings, stream, sources.landed(settings, stream, app))
        return Files.checked(settings, files, folder=settings.path(settings.landing) / stream) if files else None

    total = BatchCounts(log.head(settings, stream).batch)
    while True:
        counts = append(settings, spark, contract, deliver, now=now)
        if counts.batch == total.batch:
            break
        total = counts.after(total)
    sources.archive(settings, stream, sources.landed(settings, stream, app))
    return total
