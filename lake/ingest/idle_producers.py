"""Closing of idle producers, by a batch after which the horizon no longer waits for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.ingest import landing
from lake.ingest.append import BatchCounts, append
from lake.ingest.delivery import Closing
from lake.ingest.files import Mark
from lake.ingest.horizon import Horizon
from lake.ingest.source_position import source_position
from lake.sources.declared import DeclaredSource
from lake.store.log import Log, LogHead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN: Final = 3


@dataclass(frozen=True)
class IdleProducers:
    """Producers that were idle when ingestion `began`, with the files `landed` by then.

    They are closed only when everything that existed then is in the log: neither while files or records wait, nor while
    a source does not answer.
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
        self, spark: Callable[[], SparkSession], *, drained: bool, now: datetime | None
    ) -> dict[str, BatchCounts]:
        """Close the producers in one batch unless records wait. `drained`: sources were read to their end."""
        log = Log(self.settings, self.stream)
        if not self._idle(log.head()) or self.landed - landing.ingested_marks(log):
            return {}
        if not drained and not all(self._is_read(source) for source in self.sources):
            return {}

        def deliver(head: LogHead) -> Closing | None:
            return Closing(self.began) if self._idle(head) else None

        counts = append(self.settings, spark, self.contract, deliver, now=now)
        if closed := log.head().horizon.get("closed", ()):
            more = f" and {len(closed) - SHOWN} more" if closed[SHOWN:] else ""
            names = ", ".join(map(repr, closed[:SHOWN]))
            logging.getLogger("lake").warning("%s: closed idle producers: %s%s", self.stream, names, more)
        return {self.stream: counts}

    def _idle(self, head: LogHead) -> tuple[str, ...]:
        declared = self.contract.horizon
        return Horizon.of(head, self.contract).idle(self.began, declared.idle) if declared and declared.idle else ()

    def _is_read(self, source: DeclaredSource) -> bool:
        at = source_position(self.settings, source.name, source.streams)
        with closing(source.open()) as reader:
            lag = reader.lag(at.progress)
        waits = timedelta(seconds=lag.seconds) if lag.seconds is not None else None
        return lag.events == 0 or (waits is not None and datetime.now(UTC) - waits >= self.began)


def find_idle_producers(
    settings: Settings, contracts: Iterable[Contract], sources: Mapping[str, DeclaredSource], now: datetime | None
) -> list[IdleProducers]:
    """Return the idle producers of each contract whose landing folder can be listed."""
    began, idle = now or datetime.now(UTC), []
    for contract in contracts:
        if contract.horizon is not None and contract.horizon.idle:
            feeding = tuple(source for source in sources.values() if contract.name in source.streams)
            with suppress(LakeError):  # reported when its files are ingested
                listed = frozenset(file.mark for file in landing.list_files(settings, contract.name))
                idle.append(IdleProducers(settings, contract, feeding, began, listed))
    return idle
