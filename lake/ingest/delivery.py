"""Records on their way into a log: landing files, files at hand, or records that come back from quarantine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa

from lake import s3
from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import ContractError
from lake.ingest import attempts
from lake.ingest.files import File, Mark, unchanged
from lake.ingest.records import bounds, file_facts, formats
from lake.ingest.records.bounds import Content
from lake.ingest.records.file_facts import SOURCE, FileOf
from lake.session import first_line, raise_if_gone
from lake.sources import spool
from lake.sources.spool import Spooled
from lake.store import put_up
from lake.store.log import ACCEPTED, REFUSED, REPAIRED
from lake.store.quarantine import Rejected, mark
from lake.store.scan import to_frame
from lake.store.storage import Address, objects
from lake.store.storage.objects import Object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = pa.schema(
    [("_file", pa.string()), ("_block", pa.int64()), ("_seq", pa.int64()), ("_raw", pa.string())]
)
FACTS: Final = pa.schema([("_file", pa.string()), ("_facts", pa.string())])
LINE_BITS: Final = 40  # a record's position is its file's rank followed by this many bits of line number
LINE: Final = re.compile(r":[0-9]+$")
_PLACE: Final = re.compile(r"\b(?:file|s3a?):/\S+?(?=\.?(?:\s|$))")
ACCEPTS: Final = "accepted:"
FETCHES: Final = "source:"
CLOSES: Final = "idle at "
GIVE_UP: Final = "lake ingest {stream} --give-up, which makes the batch empty, then lake rebuild --all"


@dataclass(frozen=True)
class Origin:
    """Where the records of one `_file` come from; `source` names it.

    `base`: added to a record's line it gives the position of the record in its batch, the same whenever that is made
    again; the `base` itself is the position of the file as a whole. `first_line` is the line of its first record, 0
    where `source` names the one record itself.
    """

    base: int
    source: str
    first_line: int = 1


@dataclass(frozen=True)
class QuarantineEvent:
    """That the record `mark` of the quarantine is refused, repaired or accepted (see lake.store.log): `what`.

    It is told at a position of the delivery where no event is.
    """

    position: int
    source: str
    mark: str
    what: str


class Delivery(Protocol):
    """What one batch reads. Its records have the columns that `formats` describes."""

    @property
    def keeps_rejects(self) -> bool:
        """Whether what breaks the contract goes to quarantine: not what is there already."""

    @property
    def faults(self) -> Iterable[tuple[str, str]]:
        """(source, detail) of what could not be read at all."""

    def records(self, spark: SparkSession) -> DataFrame:
        """Every record."""

    def files_of_records(self) -> Iterable[FileOf]:
        """The files of the records."""

    def origin(self, address: str) -> Origin:
        """Where the records with this `_file` come from."""

    def marks(self, refused: set[int]) -> list[Mark]:
        """What the log's progress remembers when all records were taken but those with a `_seq` in `refused`."""

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterable[QuarantineEvent]:
        """What `batch` says of records that are, or were, in quarantine, but for those that it parses and refuses.

        `refused`: the `_seq` of records that it does not take.
        """

    def close(self) -> None:
        """Removes what was put aside to read it."""

    def parts(self) -> Iterable[Delivery]:
        """Yield each of its files as a delivery of its own, if it has several."""

    def settled(self) -> Delivery:
        """Itself, or what is left without the files that changed while they were read."""

    def without_broken(self, spark: SparkSession) -> Delivery:
        """Itself, or what is left when each file that Spark fails to read is put among the faults."""


@dataclass(frozen=True)
class Files:
    """Files that are read whole; those with a fault are told and counted as one record each.

    `repaired`: marks of files that were in quarantine as such, each with the file's name; one that can be read now has
    been repaired.
    """

    settings: Settings
    contract: Contract
    files: tuple[File, ...]
    bad: Mapping[File, str] = field(default_factory=dict)
    repaired: Mapping[str, str] = field(default_factory=dict)
    keeps_rejects: bool = True

    @classmethod
    def checked(
        cls,
        settings: Settings,
        files: Iterable[File],
        contract: Contract,
        *,
        folder: Path | Address | None = None,
        repaired: Mapping[str, str] = MappingProxyType({}),
    ) -> Files:
        """`files`, looked into for faults under `contract`; with `folder`, links out of it are one."""
        names = () if contract.envelope else [name for field in contract.fields for name in field.names]
        files = tuple(files)
        died = attempts.suspects(settings, contract.name)
        faults = {file: died[file.mark].fault for file in files if file.mark in died and died[file.mark].fault}
        read = [file.mark for file in files if file not in faults]
        objects.look_into(file.path for file in files if isinstance(file.path, Object) and file.size)
        with attempts.at_work(settings, contract.name, read, done=False):
            for file in files:
                faults[file] = faults.get(file) or formats.fault_of(
                    file, folder=folder, names=names, record_bytes=settings.record_bytes, options=contract.csv
                )
                faults[file] = faults[file] or formats.fault_of_columns(file.path, contract)
        return cls(settings, contract, files, {file: faults[file] for file in files if faults[file]}, repaired)

    @property
    def faults(self) -> list[tuple[str, str]]:
        return [(file.name, fault) for file, fault in self.bad.items()]

    @property
    def good(self) -> list[File]:
        return [file for file in self.files if file not in self.bad]

    def records(self, spark: SparkSession) -> DataFrame:
        return self._records(spark, self.good)

    def _records(self, spark: SparkSession, files: Iterable[File]) -> DataFrame:
        paths = {path: self._told(path) for path in (self._staged[file] for file in files if file.size)}
        return formats.records(spark, paths, self.contract.csv, record_bytes=self.settings.record_bytes)

    def _told(self, path: Content) -> str:
        """What Spark is told to read."""
        return formats.spelled(path) if isinstance(path, Object) else str(self._up.get(path, path))

    @cached_property
    def _up(self) -> Mapping[Path, Address]:
        """Where Spark reads files that only this machine has."""
        staged = (path for file, path in self._staged.items() if file.size)
        return put_up.put_up(self.settings, [path for path in staged if isinstance(path, Path)])

    def files_of_records(self) -> Iterator[FileOf]:
        return ((path.name, Path(file.name).name, file.mtime) for file, path in self._staged.items())

    @cached_property
    def _staged(self) -> Mapping[File, Content]:
        """A path of its own for every good file; where records tell facts of their files, also a name of its own."""
        contract, apart = self.contract, bool(file_facts.fields_of(self.contract))
        return {
            file: formats.stage(self.settings, file, contract.csv, stream=contract.name, apart=apart)
            for file in self.good
        }

    def origin(self, address: str) -> Origin:
        return self._origins[formats.place_of(address)]

    @cached_property
    def _origins(self) -> Mapping[str, Origin]:
        return {
            str(path if isinstance(path, Object) else self._up.get(path, path)): Origin(
                rank << LINE_BITS, file.name, 2 if self._is_headed(file) else 1
            )
            for rank, file in enumerate(self.files)
            if (path := self._staged.get(file)) is not None
        }

    def _is_headed(self, file: File) -> bool:
        return formats.format_of(file.path) == "csv" and not self.contract.csv.columns

    def marks(self, refused: set[int]) -> list[Mark]:
        return [*(file.mark for file in self.files), *((mark, 0, 0) for _, mark in self._dismissed)]

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterator[QuarantineEvent]:
        rank = {file.name: rank for rank, file in enumerate(self.files)}
        for number, file in enumerate(self.bad, 1):
            yield QuarantineEvent(rank[file.name] << LINE_BITS, file.name, mark(batch, number), REFUSED)
        for number, (name, was) in enumerate(self._dismissed, 1):
            yield QuarantineEvent((rank[name] + 1 << LINE_BITS) - number, name, was, REPAIRED)

    @property
    def _dismissed(self) -> list[tuple[str, str]]:
        good = {file.name for file in self.good}
        return [(name, mark) for mark, name in sorted(self.repaired.items()) if name in good]

    def close(self) -> None:
        if "_up" in self.__dict__:  # what was never read has put nothing up, or aside
            put_up.take_down(self._up.values())
        if "_staged" in self.__dict__:
            formats.unstage(self.settings, self._staged.values())

    def parts(self) -> Iterator[Files]:
        return (replace(self, files=(file,), bad={}) for file in self.good)

    def settled(self) -> Files:
        same = unchanged(self.files)
        return self if same == self.files else replace(self, files=same, bad=_only(self.bad, same))

    def without_broken(self, spark: SparkSession) -> Files:
        broken = {file: self._failure(spark, file) for file in self.good}
        return replace(self, bad={**self.bad, **{file: fault for file, fault in broken.items() if fault}})

    def _failure(self, spark: SparkSession, file: File) -> str:
        """What Spark says when it reads all of `file`, "" if it can."""
        try:
            self._records(spark, [file]).selectExpr("max(length(_raw))").collect()
        except Exception as error:
            raise_if_gone(error)
            if isinstance(file.path, Object) and (fault := s3.unread(error, str(file.path))):
                raise fault from error
            cause: BaseException | None = error
            while cause is not None:
                if bounds.TOO_LONG in str(cause):
                    most = bounds.line_bytes(self.settings.record_bytes)
                    return f"{bounds.OVERSIZED}a column of more than {most:,} characters"
                cause = getattr(cause, "cause", None)
            said = _PLACE.sub(lambda _: file.path.name, first_line(error))  # the same wherever the file is
            return f"cannot be read: {said[:300]}"
        return ""


@dataclass(frozen=True)
class Replayed:
    """Quarantined records, put to their log once more in their order. Those that fail again stay where they are.

    Where they are a `whole`, the batch that they were before, none may fail: `marks` raises ContractError. `failed` is
    told which of them do, by their number, with reason and detail of today. `times`: when the file of a batch and a
    name was changed, in nanoseconds, where that is known.
    """

    rows: tuple[Rejected, ...]
    whole: bool = False
    faults: tuple[tuple[str, str], ...] = ()
    keeps_rejects: bool = False
    failed: dict[int, tuple[str, str]] = field(default_factory=dict, compare=False)
    times: Mapping[tuple[int, str], int] = field(default_factory=dict, compare=False)

    def records(self, spark: SparkSession) -> DataFrame:
        columns = [[row.mark for row in self.rows], [0] * len(self.rows), list(range(len(self.rows)))]
        records = to_frame(spark, pa.table([*columns, [row.raw for row in self.rows]], schema=RECORDS))
        if not any(row.facts for row in self.rows):
            return records
        facts = pa.table([columns[0], [row.facts for row in self.rows]], schema=FACTS)
        facts_of = to_frame(spark, facts).selectExpr("_file", f"from_json(_facts, 'map<string,string>') AS {SOURCE}")
        return records.join(facts_of, "_file")

    def files_of_records(self) -> Iterator[FileOf]:
        for row in self.rows:
            file = LINE.sub("", row.source)
            yield row.mark, Path(file).name, self.times.get((row.batch, file))

    def close(self) -> None:
        pass

    def origin(self, address: str) -> Origin:
        return self._origins[address]

    @cached_property
    def _origins(self) -> Mapping[str, Origin]:
        return {row.mark: Origin((row.batch << 31 | row.number) << 1, row.source, 0) for row in self.rows}

    def marks(self, refused: set[int]) -> list[Mark]:
        if self.whole and refused:
            stream = self.rows[0].stream
            raise ContractError(
                f"a batch of {stream} cannot be read again: {len(refused)} of its records break the contract",
                fix=f"restore the contract under which they were ingested; or {GIVE_UP.format(stream=stream)}",
            )
        return [row.fingerprint for seq, row in enumerate(self.rows) if seq not in refused]

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterator[QuarantineEvent]:
        for seq, row in enumerate(self.rows):
            if seq not in refused:
                yield QuarantineEvent(self.origin(row.mark).base + 1, row.source, row.mark, REPAIRED)

    def parts(self) -> tuple[()]:
        return ()

    def settled(self) -> Replayed:
        return self

    def without_broken(self, spark: SparkSession) -> Replayed:
        return self


@dataclass(frozen=True)
class Fetched:
    """What a source has read for one stream; see lake.sources.spool."""

    settings: Settings
    spooled: Spooled
    stream: str
    keeps_rejects: bool = True
    faults: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, settings: Settings, stream: str, mark: Mark) -> Fetched | None:
        """What `mark` remembers, where it is of a source and still on disk."""
        if not mark[0].startswith(FETCHES):
            return None
        source, _, number = mark[0].removeprefix(FETCHES).rpartition("/")
        candidates = (
            cls(settings, spooled, stream)
            for spooled in spool.spooled(settings, source)
            if str(spooled.number) == number
        )
        return next((fetched for fetched in candidates if fetched.marks(set()) == [mark]), None)

    @property
    def _file(self) -> Path:
        return self.spooled.file(self.stream)

    def records(self, spark: SparkSession) -> DataFrame:
        if not self._file.exists():
            return to_frame(spark, RECORDS.empty_table())
        return formats.spooled(spark, str(self._up.get(self._file, self._file)))

    @cached_property
    def _up(self) -> Mapping[Path, Address]:
        return put_up.put_up(self.settings, [self._file])

    def files_of_records(self) -> Iterable[FileOf]:
        return ()

    def close(self) -> None:
        if "_up" in self.__dict__:
            put_up.take_down(self._up.values())

    def origin(self, address: str) -> Origin:
        return Origin(0, f"{self.spooled.source}:", 0)

    def marks(self, refused: set[int]) -> list[Mark]:
        size = self._file.stat().st_size if self._file.exists() else 0
        return [(f"{FETCHES}{self.spooled.source}/{self.spooled.number}", size, 0)]

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterable[QuarantineEvent]:
        return ()

    def parts(self) -> tuple[()]:
        return ()

    def settled(self) -> Fetched:
        return self

    def without_broken(self, spark: SparkSession) -> Fetched:
        return self


class Recordless:
    """A batch without records, which says something about the log itself."""

    keeps_rejects = True
    faults: tuple[tuple[str, str], ...] = ()

    def records(self, spark: SparkSession) -> DataFrame:
        return to_frame(spark, RECORDS.empty_table())

    def files_of_records(self) -> Iterable[FileOf]:
        return ()

    def close(self) -> None:
        pass

    def origin(self, address: str) -> Origin:
        raise KeyError(address)

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterable[QuarantineEvent]:
        return ()

    def parts(self) -> tuple[()]:
        return ()

    def settled(self) -> Self:
        return self

    def without_broken(self, spark: SparkSession) -> Self:
        return self


@dataclass(frozen=True)
class Acceptance(Recordless):
    """That all which was refused so far is accepted, with the `reason`."""

    reason: str

    @classmethod
    def of(cls, mark: Mark) -> Acceptance | None:
        """What `mark` remembers, where it is of an acceptance."""
        return cls(mark[0].removeprefix(ACCEPTS)) if mark[0].startswith(ACCEPTS) else None

    def marks(self, refused: set[int]) -> list[Mark]:
        return [(ACCEPTS + self.reason, 0, 0)]

    def quarantine_events(self, batch: int, refused: set[int]) -> Iterator[QuarantineEvent]:
        yield QuarantineEvent(0, "", "all", ACCEPTED)


@dataclass(frozen=True)
class Closing(Recordless):
    """That producers are waited for no longer of whom nothing had come for too long `at` that instant."""

    at: datetime

    @classmethod
    def of(cls, mark: Mark) -> Closing | None:
        """What `mark` remembers, where it is of a closing."""
        text = mark[0].removeprefix(CLOSES)
        return cls(datetime.fromisoformat(text)) if mark[0].startswith(CLOSES) else None

    def marks(self, refused: set[int]) -> list[Mark]:
        return [(CLOSES + self.at.isoformat(), 0, 0)]


def _only(bad: Mapping[File, str], files: Iterable[File]) -> dict[File, str]:
    return {file: bad[file] for file in files if file in bad}
