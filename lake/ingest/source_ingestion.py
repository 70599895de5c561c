"""Ingestion of a source: each delivery is committed to all of its logs before the next is read.

A delivery is spooled, then appended to each log as a batch whose commit has the position in the source. Each run first
commits the spool of the last one, and acknowledges the committed position again. A delivery without records is an empty
batch of the source's first stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime

from lake.config import Settings
from lake.contracts.contract import Contract, load_contract, sound_contracts
from lake.errors import DeclarationError, did_you_mean
from lake.ingest.append import append
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.declared_position import declared_position
from lake.ingest.delivery import SourceDelivery
from lake.lazy import SparkSession
from lake.progress import step
from lake.sources import spool
from lake.sources.declared import DeclaredSource, names, sound_sources
from lake.sources.source import CopyingSource, Progress, Source, Spool
from lake.sources.spool import SpooledDelivery
from lake.store.ledger import runs
from lake.store.locks.lease import lease
from lake.store.log import Log, SourcePosition
from lake.store.log_head import LogHead
from lake.store.recovery import RESTORE


def append_source(
    settings: Settings, spark: Callable[[], SparkSession], source: DeclaredSource, *, verb: str
) -> BatchCounts:
    """Append what a source of one stream has, for a command that makes the source. Return sums.

    Raises DeclarationError if a file declares a source of that name or the stream is unknown, and errors of the source.
    """
    [stream] = source.streams
    contract = load_contract(settings, stream)
    if source.name in names(settings):
        where = _declaration_path(settings, source.name)
        raise DeclarationError(f"{source.name} is declared", where=where, fix=f"lake ingest {source.name}")
    with runs.recording(settings, verb, stream) as counts:
        with open_ingestion(settings, spark, {stream: contract}, source) as ingestion:
            ingestion.drain()
        done = ingestion.counts.get(stream, BatchCounts(Log(settings, stream).head().batch))
        counts.update(asdict(done))
    return done


@contextmanager
def open_ingestion(
    settings: Settings,
    spark: Callable[[], SparkSession],
    contracts: Mapping[str, Contract],
    source: DeclaredSource,
    *,
    now: datetime | None = None,
) -> Iterator[SourceIngestion]:
    """Open a source exclusively, and finish its last run.

    Raises errors of the source, DeclarationError if records that a log lacks are lost, Unavailable if it is in use.
    """
    with lease(settings, f"source.{source.name}"), closing(source.open()) as reader:
        work = SourceIngestion(settings, spark, contracts, source, reader, now)
        work.finish()
        at = declared_position(settings, source)
        if at.progress is not None:
            work.acknowledge(at.progress, at.streams)
        yield work


def give_up_lost(settings: Settings, name: str, contracts: Mapping[str, Contract]) -> str:
    """Skip a gap, or the lost records of a delivery that only some logs have. Return a line that reports it.

    Raises DeclarationError if nothing is lost, or spooled records are not in the logs.
    """
    with _open_declared(settings, name, contracts) as (reader, at):
        if at.lacking and not _can_complete(settings, name, at):
            return _give_up_delivery(settings, name, reader, at)
        _check_ingested(settings, name, at)
        progress = reader.skip_gap(at.progress)
        _spool_empty(settings, name, at.number + 1, progress)
        return f"{name} goes on at {json.dumps(progress)}"


def copy_again(settings: Settings, name: str, contracts: Mapping[str, Contract], streams: Sequence[str]) -> None:
    """Have the source's next delivery copy the tables of `streams` again.

    Raises DeclarationError if it cannot copy, or spooled records are not in the logs.
    """
    with _open_declared(settings, name, contracts) as (reader, at):
        _check_ingested(settings, name, at)
        for stream in streams:
            if stream not in reader.streams:
                what = f"{name} has no records for the stream {stream!r}"
                raise DeclarationError(what, fix=did_you_mean(stream, reader.streams))
        if not isinstance(reader, CopyingSource):
            raise DeclarationError(
                f"{name} has no copy to take again", fix='only a database\'s tables are copied: kind = "postgres"'
            )
        if not reader.copies:
            what = f"{name} copies no tables: it is declared with snapshot = false"
            raise DeclarationError(what, where=_declaration_path(settings, name), fix=_with_copies(settings, name))
        if at.progress is None:
            raise DeclarationError(f"{name} has copied nothing yet", fix=f"lake ingest {name}")
        _spool_empty(settings, name, at.number + 1, reader.copy_again(at.progress, streams))


def delete_spooled_records(settings: Settings) -> None:
    """Delete spooled records that are in all of their logs: they are in clear, and are kept until the next delivery."""
    for source in spool.sources(settings):
        with lease(settings, f"source.{source}"):
            for spooled in spool.spooled_deliveries(settings, source):
                logs = [Log(settings, stream) for stream in spooled.streams]
                if all(_is_in_log(spooled, log.head()) for log in logs):
                    for log in logs:
                        log.flush()
                    spool.delete_records(spooled)


@contextmanager
def _open_declared(
    settings: Settings, name: str, contracts: Mapping[str, Contract]
) -> Iterator[tuple[Source, SourcePosition]]:
    sources, faults = sound_sources(settings, contracts)
    if name in faults:
        raise faults[name]
    source = sources[name]
    with lease(settings, f"source.{source.name}"), closing(source.open()) as reader:
        yield reader, declared_position(settings, source)


def _check_ingested(settings: Settings, name: str, at: SourcePosition) -> None:
    if at.lacking or any(spooled.number > at.number for spooled in spool.spooled_deliveries(settings, name)):
        raise DeclarationError(f"what was read of {name} is not in the logs yet", fix=f"lake ingest {name}, first")


def _can_complete(settings: Settings, name: str, at: SourcePosition) -> bool:
    """Return whether the records of the newest delivery for the logs that lack it are on disk."""
    return any(
        spooled.number == at.number and all(spooled.file(stream).exists() for stream in at.lacking)
        for spooled in spool.spooled_deliveries(settings, name)
    )


def _give_up_delivery(settings: Settings, name: str, reader: Source, at: SourcePosition) -> str:
    """Replace the newest delivery by an empty one, and copy its tables again if possible.

    It is spooled last: after an earlier crash, nothing is given up.
    """
    assert at.progress is not None
    for spooled in spool.spooled_deliveries(settings, name):
        if spooled.number >= at.number:
            spool.drop(spooled)
    summary = f"delivery {at.number} of {name} is given up: its records for {', '.join(at.lacking)} are lost"
    if isinstance(reader, CopyingSource) and reader.copies:
        _spool_empty(settings, name, at.number + 1, reader.copy_again(at.progress, at.lacking))
        summary += ", and the tables behind them are copied anew"
    elif isinstance(reader, CopyingSource):
        again = "".join(f" --again {stream}" for stream in at.lacking)
        summary += f"; to copy their tables, {_with_copies(settings, name)}, and then lake ingest {name}{again}"
    _spool_empty(settings, name, at.number, at.progress, at.streams)
    return summary


def _declaration_path(settings: Settings, name: str) -> str:
    return f"{settings.sources}/{name}.toml"


def _with_copies(settings: Settings, name: str) -> str:
    return f"write snapshot = true in {_declaration_path(settings, name)}"


def _spool_empty(settings: Settings, name: str, number: int, progress: Progress, streams: Sequence[str] = ()) -> None:
    with spool.new_spool(settings, name) as writer:
        for stream in streams:
            writer.begin(stream)
        spool.keep(settings, name, number, writer, progress)


@dataclass
class SourceIngestion:
    settings: Settings
    spark: Callable[[], SparkSession]
    contracts: Mapping[str, Contract]
    source: DeclaredSource
    reader: Source
    now: datetime | None
    counts: dict[str, BatchCounts] = field(default_factory=dict)

    def drain(self, deliveries: int | None = None, on_more: Callable[[str], None] = lambda _: None) -> None:
        """Ingest up to `deliveries`; call `on_more` if the source has more.

        Raises errors of the source; Gap if the next records are gone.
        """
        with step("ingest", self.source.name) as work:
            done = 0
            while (deliveries is None or done < deliveries) and self.ingest_next(self.reader.read):
                done += 1
            if done == deliveries and self.reader.more:
                on_more(self.source.name)
            work.rows = sum(counts.accepted for counts in self.counts.values())

    def finish(self) -> None:
        name, at = self.source.name, declared_position(self.settings, self.source)
        on_disk = spool.spooled_deliveries(self.settings, name)
        folder = str(self.settings.path(f".lake/{spool.FOLDER}") / name)
        if at.lacking and not _can_complete(self.settings, name, at):
            raise DeclarationError(
                f"delivery {at.number} of {name} is in the logs of some streams, not of {', '.join(at.lacking)},"
                " and its records are gone",
                where=folder,
                fix=f"restore that folder from a backup; or lake ingest {name} --give-up, which goes on without them",
            )
        new = [spooled for spooled in on_disk if spooled.number > at.number]
        is_gapless = all(spooled.number == number for number, spooled in enumerate(new, at.number + 1))
        if not is_gapless or not all(spooled.has_records for spooled in new):
            raise DeclarationError(
                f"delivery {new[0].number} of {name} is on the disk, and the logs have none after {at.number}",
                where=folder,
                fix=f"restore a copy of the warehouse that has those between, or remove that folder: {name} is then"
                f" read again from behind delivery {at.number}",
            )
        for spooled in on_disk:
            if spooled.number >= at.number:
                self.commit(spooled)

    def ingest_next(self, read: Callable[[Progress | None, Spool], Progress | None]) -> bool:
        name, at = self.source.name, declared_position(self.settings, self.source)
        with spool.new_spool(self.settings, name) as writer:
            progress = read(at.progress, writer)
            if progress is None:
                return False
            spooled = spool.keep(self.settings, name, at.number + 1, writer, progress)
        self.commit(spooled)
        for older in spool.spooled_deliveries(self.settings, name):
            if older.number < spooled.number:
                spool.drop(older)
        self.acknowledge(progress, spooled.streams or self.source.streams[:1])
        return True

    def acknowledge(self, progress: Progress, streams: Iterable[str]) -> None:
        """Acknowledge `progress` once the logs are on the disk: the source may then delete the records."""
        for stream in streams:
            Log(self.settings, stream).flush()
        self.reader.acknowledge(progress)

    def commit(self, spooled: SpooledDelivery) -> None:
        streams = spooled.streams or self.source.streams[:1]
        for stream in sorted(streams, key=lambda stream: stream not in self.contracts):  # valid ones first
            if stream in self.contracts:
                self._append(spooled, stream)
            elif stream in self.source.streams and not _is_in_log(spooled, Log(self.settings, stream).head()):
                load_contract(self.settings, stream)  # raises its fault

    def _append(self, spooled: SpooledDelivery, stream: str) -> None:
        def deliver(head: LogHead) -> SourceDelivery | None:
            return None if _is_in_log(spooled, head) else SourceDelivery(self.settings, spooled, stream)

        before = self.counts.get(stream) or BatchCounts(Log(self.settings, stream).head().batch)
        counts = append(self.settings, self.spark, self.contracts[stream], deliver, now=self.now)
        self.counts[stream] = counts.after(before) if counts.batch != before.batch else before


def _is_in_log(spooled: SpooledDelivery, head: LogHead) -> bool:
    newest = head.sources.get(spooled.source)
    return newest is not None and newest.number >= spooled.number


def restart_sources(
    settings: Settings,
    wanted: Sequence[str],
    *,
    give_up: bool,
    again: Sequence[str],
    on_progress: Callable[[str], None],
) -> None:
    """Prepare sources for their next delivery.

    With `give_up`, they continue after a gap or lost records (see `give_up_lost`). With `again`, the one source copies
    the tables behind these streams again. Raises DeclarationError for a name that is unknown or faulty, or if nothing
    is lost.
    """
    contracts, _ = sound_contracts(settings)
    declared = {*names(settings)}
    for name in wanted:
        if name not in declared:
            load_contract(settings, name)
            if give_up:
                raise DeclarationError(f"{name} is a stream; --give-up is for sources", fix=RESTORE)
    for name in wanted if give_up else ():
        on_progress(give_up_lost(settings, name, contracts))
    if again:
        [source] = wanted
        if source not in declared:
            raise DeclarationError(f"unknown source {source!r}", fix=did_you_mean(source, declared))
        copy_again(settings, source, contracts, again)
        on_progress(f"{source} copies {', '.join(again)} anew")
