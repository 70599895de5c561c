"""From a source into the logs: one delivery after another, each in all of its logs before the next is read.

1. What an earlier run has read and not committed everywhere is committed first, from its spool.
2. The source is told again what is committed: whoever ran before may have died before it was.
3. A range is read whole into the spool, and appended to the log of each stream that has records of it: one batch each,
   whose commit says where the source then stands. The spool of the delivery before is dropped.

A delivery without a record, where a source moved on for nothing, is a batch without records in the log of its first
stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, did_you_mean
from lake.ingest.append import BatchCounts, append
from lake.ingest.delivery import Fetched
from lake.ingest.standing import standing
from lake.progress import step
from lake.sources import spool
from lake.sources.declared import Declared, sound_sources
from lake.sources.source import Copying, Progress, Source, Spool
from lake.sources.spool import Spooled
from lake.store.locks.lease import lease
from lake.store.log import Log, LogHead

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def drain(  # noqa: PLR0913  the last two are for callers that go on, and for tests
    settings: Settings,
    spark: SparkSession,
    contracts: Mapping[str, Contract],
    source: Declared,
    *,
    deliveries: int | None = None,
    on_more: Callable[[str], None] = lambda _: None,
    now: datetime | None = None,
) -> dict[str, BatchCounts]:
    """Takes what `source` has into the logs of its streams, in so many `deliveries` at most; the counts of each.

    Calls `on_more` where those were not all that was there.

    Raises as the source does, Gap where what is next is gone, DeclarationError where a delivery that some logs have
    is lost on disk, and Unavailable where another process is at it.
    """
    with delivering(settings, spark, contracts, source, now=now) as work, step("ingest", source.name):
        done = 0
        while (deliveries is None or done < deliveries) and work.take(work.reader.read):
            done += 1
        if done == deliveries and work.reader.more:
            on_more(source.name)
    return work.counts


@contextmanager
def delivering(
    settings: Settings,
    spark: SparkSession,
    contracts: Mapping[str, Contract],
    source: Declared,
    *,
    now: datetime | None = None,
) -> Iterator[Delivering]:
    """The source, held by this process alone; what was read before is in the logs. Raises as `drain` does."""
    with lease(settings, f"source.{source.name}"), closing(source.open()) as reader:
        work = Delivering(settings, spark, contracts, source, reader, now)
        work.finish()
        at = standing(settings, source.name, source.streams)
        if at.progress is not None:
            reader.acknowledge(at.progress)
        yield work


def give_up_gap(settings: Settings, name: str, contracts: Mapping[str, Contract]) -> Progress:
    """Where the source goes on once what is gone there is given up; the next delivery begins behind it.

    Raises DeclarationError where it is declared wrongly, nothing is gone, or what was read is not in the logs yet.
    """
    return _moved(settings, name, contracts, lambda reader, after: reader.skip_gap(after))


def copy_again(settings: Settings, name: str, contracts: Mapping[str, Contract], streams: Sequence[str]) -> None:
    """Has the source copy what is behind these of its streams anew with its next delivery.

    Raises DeclarationError where it is declared wrongly or cannot, and where what was read is not in the logs yet.
    """

    def again(reader: Source, after: Progress | None) -> Progress:
        for stream in streams:
            if stream not in reader.streams:
                what = f"{name} has no records for the stream {stream!r}"
                raise DeclarationError(what, fix=did_you_mean(stream, reader.streams))
        if not isinstance(reader, Copying):
            raise DeclarationError(
                f"{name} has no copy to take again", fix='only a database\'s tables are copied: kind = "postgres"'
            )
        if after is None:
            raise DeclarationError(f"{name} has copied nothing yet", fix=f"lake ingest {name}")
        return reader.copy_again(after, streams)

    _moved(settings, name, contracts, again)


def _moved(
    settings: Settings,
    name: str,
    contracts: Mapping[str, Contract],
    move: Callable[[Source, Progress | None], Progress],
) -> Progress:
    """Where the source goes on: a delivery without records, which the next run commits, says so."""
    sources, faults = sound_sources(settings, contracts)
    if name in faults:
        raise faults[name]
    source = sources[name]
    with lease(settings, f"source.{source.name}"), closing(source.open()) as reader:
        at = standing(settings, source.name, source.streams)
        if at.lacking or any(spooled.number > at.number for spooled in spool.spooled(settings, name)):
            raise DeclarationError(f"what was read of {name} is not in the logs yet", fix=f"lake ingest {name}, first")
        progress = move(reader, at.progress)
        with spool.spooling(settings, name) as writer:
            spool.keep(settings, name, at.number + 1, writer, progress)
    return progress


@dataclass
class Delivering:
    """A source at work: `reader` is at what was committed last, `counts` are those of its streams so far."""

    settings: Settings
    spark: SparkSession
    contracts: Mapping[str, Contract]
    source: Declared
    reader: Source
    now: datetime | None
    counts: dict[str, BatchCounts] = field(default_factory=dict)

    def finish(self) -> None:
        """Commits what is on disk and not in all logs that it is for."""
        name, at = self.source.name, standing(self.settings, self.source.name, self.source.streams)
        on_disk = spool.spooled(self.settings, name)
        if at.lacking and at.number not in {spooled.number for spooled in on_disk}:
            raise DeclarationError(
                f"delivery {at.number} of {name} is in the logs of some streams, not of {', '.join(at.lacking)},"
                " and its records are gone",
                where=str(self.settings.path(f".lake/{spool.FOLDER}") / name),
                fix="restore that folder from a backup, or take back what is there: lake void STREAM --batch N",
            )
        new = [spooled.number for spooled in on_disk if spooled.number > at.number]
        if new != [*range(at.number + 1, at.number + 1 + len(new))]:
            raise DeclarationError(
                f"delivery {new[0]} of {name} is on the disk, and the logs have none after {at.number}",
                where=str(self.settings.path(f".lake/{spool.FOLDER}") / name),
                fix=f"restore a copy of the warehouse that has those between, or remove that folder: {name} is then"
                f" read again from behind delivery {at.number}",
            )
        for spooled in on_disk:
            if spooled.number >= at.number:
                self.commit(spooled)

    def take(self, read: Callable[[Progress | None, Spool], Progress | None]) -> bool:
        """Commits what is `read` after what was committed last, and acknowledges it; whether there was anything."""
        name, at = self.source.name, standing(self.settings, self.source.name, self.source.streams)
        with spool.spooling(self.settings, name) as writer:
            progress = read(at.progress, writer)
            if progress is None:
                return False
            spooled = spool.keep(self.settings, name, at.number + 1, writer, progress)
        self.commit(spooled)
        for older in spool.spooled(self.settings, name):
            if older.number < spooled.number:
                spool.drop(older)
        self.reader.acknowledge(progress)
        return True

    def commit(self, spooled: Spooled) -> None:
        """Appends a delivery to the logs that lack it."""
        for stream in spooled.streams or self.source.streams[:1]:
            self._append(spooled, stream)

    def _append(self, spooled: Spooled, stream: str) -> None:
        def deliver(head: LogHead) -> Fetched | None:
            newest = head.sources.get(spooled.source)
            has = newest is not None and int(newest["delivery"]) >= spooled.number
            return None if has else Fetched(spooled, stream)

        before = self.counts.get(stream) or BatchCounts(Log(self.settings, stream).head().batch)
        counts = append(self.settings, self.spark, self.contracts[stream], deliver, now=self.now)
        self.counts[stream] = counts.after(before) if counts.batch != before.batch else before
