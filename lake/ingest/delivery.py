"""Deliveries: the input of a batch, from files, a source, or the quarantine."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from lake import cost
from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.ingest import crashed_readers, record_frames
from lake.ingest.files import Content, File, Mark, fact_texts, fault_of, unchanged
from lake.ingest.record_frames import FileCopies, Place
from lake.lazy import DataFrame, SparkSession, pa, pq
from lake.records.decompression import PACKINGS
from lake.records.read_tasks import TEXTS, FileTask, TaskFile, TextTask
from lake.records.reader import RecordReader
from lake.session.remote import shares_disk
from lake.sources import spool
from lake.sources.spool import SpooledDelivery
from lake.store.log_rows import ACCEPTED, REFUSED, REPAIRED
from lake.store.quarantine import Rejected, mark
from lake.store.scan import to_frame
from lake.store.storage import Address, objects
from lake.store.storage.objects import Object

POSITION_BITS: Final = 40
"""Bits of a record's place in its file; the higher bits of its position are the file's rank."""
LINE: Final = re.compile(r":[0-9]+$")
ACCEPTS: Final = "accepted:"
FETCHES: Final = "source:"
CLOSES: Final = "idle at "
"""Prefixes of marks that name no file: of an acceptance, a source's delivery, a closing of idle producers."""
PACKED: Final = dict.fromkeys((*PACKINGS, ".parquet", ".avro"), 10)
PACKED_SPOOL: Final = 6
"""Assumed ratios of unpacked to stored size: by kind of file, and of a source's spool."""


def unpacked_bytes(name: str, size: int) -> int:
    return size * (PACKED_SPOOL if name.startswith(FETCHES) else PACKED.get(Path(name).suffix.lower(), 1))


@dataclass(frozen=True)
class QuarantineEvent:
    """Rejection, repair or acceptance (`what`) of the record `mark`, at a position that no record has."""

    position: int
    source: str
    mark: str
    what: str


class Delivery:
    """Input of one batch. This base class has no files."""

    keeps_rejects = True
    """False for records from quarantine: those that are rejected again stay there."""

    @property
    def faults(self) -> Iterable[tuple[str, str]]:
        return ()

    @property
    def size(self) -> int:
        return 0

    def read(self, reader: RecordReader) -> pa.Table:
        return record_frames.read_locally(TextTask(reader), ())

    def frame(self, spark: SparkSession, reader: RecordReader) -> DataFrame:
        """Read its records in Spark's tasks; see `lake.records.read_tasks` for columns."""
        raise NotImplementedError  # never called: a delivery without bytes is read by `read`

    def marks(self, refused: set[int]) -> list[Mark]:
        raise NotImplementedError

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterable[QuarantineEvent]:
        return ()

    def close(self) -> None:
        return

    def parts(self) -> Iterable[Delivery]:
        return ()

    def without_changed(self) -> Delivery:
        return self

    def fault_of_store(self, error: Exception) -> LakeError | None:
        return None

    def with_faults(self, faults: Mapping[int, str]) -> Delivery:
        """Add `faults` of files, by the position of the file's first record."""
        return self

    def with_files_of(self, ranks: Container[int]) -> Delivery:
        return self


@dataclass(frozen=True)
class FileDelivery(Delivery):
    """Files that are read whole. A file with a fault counts as one record.

    `repaired` are files in quarantine, {mark: name}: those that are readable now are repaired.
    """

    settings: Settings
    contract: Contract
    files: tuple[File, ...]
    bad: Mapping[File, str] = field(default_factory=dict)
    repaired: Mapping[str, str] = field(default_factory=dict)
    copies: FileCopies = field(default_factory=FileCopies, compare=False, repr=False)

    @classmethod
    def checked(
        cls,
        settings: Settings,
        files: Iterable[File],
        contract: Contract,
        *,
        folder: Path | Address | None = None,
        repaired: Mapping[str, str] = MappingProxyType({}),
    ) -> FileDelivery:
        """Find the faults of `files`. A path named twice is read once: positions of records are by file."""
        files = tuple({file.path: file for file in files}.values())
        crashes = crashed_readers.crashes(settings, contract.name)
        faults = {file: crashes.fault(file.mark) for file in files}
        others = [file for file in files if not faults[file]]
        faults |= {
            file: fault_of(file, folder=folder) or record_frames.fault_of_size(settings, file) for file in others
        }
        return cls(settings, contract, files, {file: faults[file] for file in files if faults[file]}, repaired)

    @property
    def faults(self) -> list[tuple[str, str]]:
        return [(file.name, fault) for file, fault in self.bad.items()]

    @property
    def good(self) -> list[File]:
        return [file for file in self.files if file not in self.bad]

    @property
    def size(self) -> int:
        return sum(unpacked_bytes(file.path.name, file.size) for file in self.good)

    def read(self, reader: RecordReader) -> pa.Table:
        files = self._with_content
        objects.prefetch(file.path for file in files if isinstance(file.path, Object))
        contents = {record_frames.address_of(file.path): file.path for file in files}
        task = replace(self._task(reader), open=lambda address: contents[address].open("rb"))
        return record_frames.read_locally(task, record_frames.paths([file.path for file in files]).to_batches())

    def frame(self, spark: SparkSession, reader: RecordReader) -> DataFrame:
        places = self.copies.places(self.settings, [file.path for file in self._with_content])
        task = self._task(reader, places)
        sizes = {places[file.path]: file.size for file in self._with_content}
        if shares_disk(self.settings):
            return record_frames.read(record_frames.of_files(spark, sizes), task)
        return record_frames.read(record_frames.with_contents(spark, sizes), task)

    @property
    def _with_content(self) -> list[File]:
        return [file for file in self.good if file.size]

    def _task(self, reader: RecordReader, elsewhere: Mapping[Content, Place] = MappingProxyType({})) -> FileTask:
        files = {}
        for rank, file in enumerate(self.files):
            facts = fact_texts(self.contract, Path(file.name).name, file.mtime)
            address = record_frames.address_of(elsewhere.get(file.path, file.path))
            files[address] = TaskFile(rank << POSITION_BITS, file.name, file.path.name, facts)
        return FileTask(reader, self.contract.csv, files)

    def marks(self, refused: set[int]) -> list[Mark]:
        return [*(file.mark for file in self.files), *((old_mark, 0, 0) for _, old_mark in self._readable_again)]

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterator[QuarantineEvent]:
        rank = {file.name: rank for rank, file in enumerate(self.files)}
        for number, file in enumerate(self.bad, 1):
            yield QuarantineEvent(rank[file.name] << POSITION_BITS, file.name, mark(batch, number), REFUSED)
        for number, (name, old_mark) in enumerate(self._readable_again, 1):
            yield QuarantineEvent((rank[name] + 1 << POSITION_BITS) - number, name, old_mark, REPAIRED)

    @property
    def _readable_again(self) -> list[tuple[str, str]]:
        good = {file.name for file in self.good}
        return [(name, old_mark) for old_mark, name in sorted(self.repaired.items()) if name in good]

    def close(self) -> None:
        self.copies.delete()

    def parts(self) -> Iterator[FileDelivery]:
        return (replace(self, files=(file,), bad={}) for file in self.good)

    def without_changed(self) -> FileDelivery:
        same = unchanged(self.files)
        return self if same == self.files else replace(self, files=same, bad=_only(self.bad, same))

    def fault_of_store(self, error: Exception) -> LakeError | None:
        first = next((file.path for file in self.good if isinstance(file.path, Object)), None)
        storage = self.settings.object_storage
        return storage.read_error(error, str(first)) if storage and first else None

    def with_faults(self, faults: Mapping[int, str]) -> FileDelivery:
        new = {self.files[position >> POSITION_BITS]: fault for position, fault in faults.items()}
        return replace(self, bad=_only({**self.bad, **new}, self.files))

    def with_files_of(self, ranks: Container[int]) -> FileDelivery:
        return self.with_faults({rank << POSITION_BITS: "" for rank in range(len(self.files)) if rank not in ranks})


@dataclass(frozen=True)
class ReplayDelivery(Delivery):
    """Quarantined records that are appended again. Those that are rejected again stay there.

    `failed`: these by mark, with their new fault. `times`: mtimes in nanoseconds by batch and file.
    """

    contract: Contract
    rows: tuple[Rejected, ...]
    failed: dict[str, Rejected] = field(default_factory=dict, compare=False)
    times: Mapping[tuple[int, str], int] = field(default_factory=dict, compare=False)

    keeps_rejects = False

    @property
    def size(self) -> int:
        return sum(len(row.raw) for row in self.rows)

    def read(self, reader: RecordReader) -> pa.Table:
        return record_frames.read_locally(TextTask(reader), self._texts.to_batches())

    def frame(self, spark: SparkSession, reader: RecordReader) -> DataFrame:
        return record_frames.read(to_frame(spark, self._texts), TextTask(reader))

    @property
    def _texts(self) -> pa.Table:
        columns = [[*map(_position, self.rows)], [row.source for row in self.rows], [row.raw for row in self.rows]]
        return pa.table([*columns, [self._facts(row) for row in self.rows]], schema=TEXTS)

    def _facts(self, row: Rejected) -> list[tuple[str, str]]:
        file = LINE.sub("", row.source)
        of_file = fact_texts(self.contract, Path(file).name, self.times.get((row.batch, file)))
        facts = json.loads(row.facts) if row.facts else {}
        return [(name, text) for name, text in {**facts, **of_file}.items() if text is not None]

    def marks(self, refused: set[int]) -> list[Mark]:
        return [row.fingerprint for row in self.rows if _position(row) not in refused]

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterator[QuarantineEvent]:
        for row in self.rows:
            if _position(row) not in refused:
                yield QuarantineEvent(_position(row) + 1, row.source, row.mark, REPAIRED)

    def record_failures(self, failures: Mapping[int, tuple[str, str]]) -> None:
        for row in self.rows:
            if fault := failures.get(_position(row)):
                self.failed[row.mark] = replace(row, reason=fault[0], detail=fault[1])


def _position(row: Rejected) -> int:
    return (row.batch << 31 | row.number) << 1


@dataclass(frozen=True)
class SourceDelivery(Delivery):
    settings: Settings
    spooled: SpooledDelivery
    stream: str
    copies: FileCopies = field(default_factory=FileCopies, compare=False, repr=False)

    @property
    def _file(self) -> Path:
        return self.spooled.file(self.stream)

    @property
    def size(self) -> int:
        [(name, size, *_)] = self.marks(set())
        return unpacked_bytes(name, size)

    def read(self, reader: RecordReader) -> pa.Table:
        batches = pq.ParquetFile(self._file).iter_batches() if self._file.exists() else ()
        texts = (spool.as_texts(batch, self.spooled.source) for batch in batches)
        return record_frames.read_locally(TextTask(reader), texts)

    def frame(self, spark: SparkSession, reader: RecordReader) -> DataFrame:
        place = self.copies.places(self.settings, [self._file])[self._file]
        return record_frames.read(record_frames.of_spool(spark, str(place), self.spooled.source), TextTask(reader))

    def close(self) -> None:
        self.copies.delete()

    def marks(self, refused: set[int]) -> list[Mark]:
        size = self._file.stat().st_size if self._file.exists() else 0
        return [(f"{FETCHES}{self.spooled.source}/{self.spooled.number}", size, 0)]


@dataclass(frozen=True)
class Acceptance(Delivery):
    reason: str

    @classmethod
    def of(cls, mark: Mark) -> Acceptance | None:
        return cls(mark[0].removeprefix(ACCEPTS)) if mark[0].startswith(ACCEPTS) else None

    def marks(self, refused: set[int]) -> list[Mark]:
        return [(ACCEPTS + self.reason, 0, 0)]

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterator[QuarantineEvent]:
        yield QuarantineEvent(0, "", "all", ACCEPTED)


@dataclass(frozen=True)
class Closing(Delivery):
    at: datetime

    @classmethod
    def of(cls, mark: Mark) -> Closing | None:
        text = mark[0].removeprefix(CLOSES)
        return cls(datetime.fromisoformat(text)) if mark[0].startswith(CLOSES) else None

    def marks(self, refused: set[int]) -> list[Mark]:
        return [(CLOSES + self.at.isoformat(), 0, 0)]


def _only(bad: Mapping[File, str], files: Iterable[File]) -> dict[File, str]:
    return {file: bad[file] for file in files if file in bad}


def records_of(
    spark: SparkSession, settings: Settings, contract: Contract, delivery: Delivery, *, texts: bool = False
) -> DataFrame:
    """Parse the records of a delivery. With `texts`, valid ones have `_raw` too."""
    reader = RecordReader(contract, settings.record_bytes, all_texts=texts)
    if delivery.size <= cost.READ_BYTES:
        return to_frame(spark, delivery.read(reader))
    return delivery.frame(spark, reader)
