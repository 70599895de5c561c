"""Producers of whom nothing came for too long: that they are waited for no longer is a batch of its own in the log."""

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
    """The producers of `contract` that were silent when ingestion began, at `began`: then `landed` were all its files.

    Who was silent for as long as the contract says is closed once everything that had come by then is in the log. So a
    backlog closes nobody, nor does a source that does not answer.
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
        """The stream and its sources: none is closed where one of them failed."""
        return {self.stream, *(source.name for source in self.sources)}

    def close(
        self, spark: Callable[[], SparkSession], *, drained: bool, now: datetime | None
    ) -> dict[str, BatchCounts]:
        """Closes who was silent, in one batch; nothing where nobody was, or something has not been taken in yet.

        `drained`: whether sources were read up to what they had. Raises as `append` does, and as a source that is
        asked.
        """
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
        """Whether nothing waits there, or only what came after ingestion began."""
        at = source_position(self.settings, source.name, source.streams)
        with closing(source.open()) as reader:
            lag = reader.lag(at.progress)
        waits = timedelta(seconds=lag.seconds) if lag.seconds is not None else None
        return lag.events == 0 or (waits is not None and datetime.now(UTC) - waits >= self.began)


def find_idle_producers(
    settings: Settings, contracts: Iterable[Contract], sources: Mapping[str, DeclaredSource], now: datetime | None
) -> list[IdleProducers]:
    """Of the streams whose contract closes silent producers, as ingestion begins; of a folder that can be read."""
    began, silent = now or datetime.now(UTC), []
    for contract in contracts:
        if contract.horizon is not None and contract.horizon.idle:
            feeding = tuple(source for source in sources.values() if contract.name in source.streams)
            with suppress(LakeError):  # which is told when its files are to be taken
                listed = frozenset(file.mark for file in landing.list_files(settings, contract.name))
                silent.append(IdleProducers(settings, contract, feeding, began, listed))
    return silent
