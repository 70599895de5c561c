"""What a system outside is to the editions: a target that has one of them, and says itself which.

1. The position is in the target. Rows and position move in one of its transactions, or in steps that can be repeated.
   What the warehouse remembers of it keeps editions from expiry, and is never read back as truth.
2. Sent is the net difference between the edition that the target has and the one that readers see: nothing after a
   rebuild that gave the same rows, the difference back after a rollback.
3. A delivery names the position that it leads on from. A target that has another one refuses it.
4. A row that a target cannot take is left out there, and is in its position with the reason until the row changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from lake.errors import LakeError, Unavailable
from lake.store.snapshot import Column
from lake.text import plain

if TYPE_CHECKING:
    import pyarrow as pa

Mode: TypeAlias = Literal["mirror", "upsert", "append"]
"""What a table in the target is: the rows of the edition; those, and rows that went from it; one row a change."""

MOST_REJECTED: Final = 1000
"""So many rows may be missing in a target, which keeps them in its position."""


@dataclass(frozen=True, order=True)
class Rejected:
    """A row that a target cannot take: of `table`, told apart by `key` (JSON), and why."""

    table: str
    key: str
    reason: str


def key_of(row: Mapping[str, Any], identity: Iterable[str]) -> str:
    """The columns that tell a row apart, as JSON."""
    return json.dumps({column: plain(row[column]) for column in identity}, ensure_ascii=False)


@dataclass(frozen=True)
class Position:
    """What a target has: an edition, the `shape` and the `description` of each of its tables, and what it lacks."""

    edition: int
    cut: int
    published_at: str
    tables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rejected: tuple[Rejected, ...] = ()

    def to_json(self) -> str:
        """As targets keep it."""
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Position:
        """The position that `text` is of. Raises LakeError where it is none."""
        try:
            data = json.loads(text)
            tables = {name: (shape, description) for name, (shape, description) in data["tables"].items()}
            rejected = tuple(Rejected(**row) for row in data["rejected"])
            return cls(data["edition"], data["cut"], data["published_at"], tables, rejected)
        except (ValueError, TypeError, KeyError):
            raise LakeError(
                f"the position in the target cannot be read: {text[:100]!r}",
                fix="lake deliver NAME --resync writes it anew",
            ) from None


@dataclass(frozen=True)
class FarTable:
    """A table as a sink has it: `name` is ours, `far` what it is called there; `options` are those of its kind."""

    name: str
    far: str
    columns: tuple[Column, ...]
    identity: tuple[str, ...]
    doc: str = ""
    mode: Mode = "mirror"
    options: Mapping[str, Any] = field(default_factory=dict)
    shaped: bool = True
    """Whether it has a shape that rows of another shape would not fit."""

    @property
    def types(self) -> dict[str, str]:
        """DuckDB's type of each column."""
        return {column.name: column.type for column in self.columns}

    @cached_property
    def shape(self) -> str:
        """Tells what the table is there; rows of another shape are of no use to it."""
        shape = [self.types, self.identity, sorted(self.options.items())] if self.shaped else [self.identity]
        return _digest([self.far, self.mode, *shape])

    @cached_property
    def description(self) -> str:
        """Tells what is said of the table and its columns."""
        return _digest([self.doc, [column.description for column in self.columns]])


def _digest(of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True, default=list).encode()).hexdigest()[:16]


class Rows(Protocol):
    """Where the changes of a table come from."""

    def batches(self) -> pa.RecordBatchReader:
        """`change` (insert, update, delete), and the rows `before` and `after` as structs, null where there is none."""


@dataclass
class TableChanges:
    """What becomes of the rows of one table. With `whole`, all of them are inserts, in the place of all that is there.

    Of a row that goes, only the columns of its identity are sure to be in `before`. An update that the target cannot
    take takes away what it has of the row. `described`: what is said of the table has changed.
    """

    table: FarTable
    source: Rows = field(repr=False)
    whole: bool = False
    described: bool = False
    known: frozenset[str] = frozenset()
    """Keys of rows that the target has rejected so far."""
    counts: dict[str, int] = field(default_factory=lambda: {"insert": 0, "update": 0, "delete": 0}, init=False)
    rejected: list[Rejected] = field(default_factory=list, init=False)
    _changed: set[str] = field(default_factory=set, init=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes, in the order of their identity; counted as they are read. To be read once."""
        for batch in self.source.batches():
            for change, count in _counted(batch):
                self.counts[change] += count
            if self.known:
                self._changed |= self.known & {key_of(row, self.table.identity) for row in _images(batch)}
            yield batch

    def reject(self, key: str, reason: str) -> None:
        """Notes that the target cannot take a row, whose key is told by `key_of`. Raises LakeError for too many."""
        self.rejected.append(Rejected(self.table.name, key, reason))
        if len(self.rejected) > MOST_REJECTED:
            raise LakeError(
                f"the target cannot take more than {MOST_REJECTED:,} rows of {self.table.name}, the last as {reason}",
                fix="nothing was delivered: leave out the column in the sink's file, or change it in the table's job",
            )

    def still_rejected(self, before: Iterable[Rejected]) -> Iterator[Rejected]:
        """Which rows of the table the target lacks once the changes are applied."""
        if not self.whole:
            yield from (row for row in before if row.table == self.table.name and row.key not in self._changed)
        yield from self.rejected


def _counted(batch: pa.RecordBatch) -> list[tuple[str, int]]:
    return [(entry["values"], entry["counts"]) for entry in batch.column("change").value_counts().to_pylist()]


def _images(batch: pa.RecordBatch) -> Iterator[Mapping[str, Any]]:
    for row in batch.to_pylist(maps_as_pydicts="strict"):
        yield row["before"] if row["after"] is None else row["after"]


@dataclass(frozen=True)
class Delivery:
    """What leads a target from the position `expected` (None: it has nothing) to an edition, for all its tables."""

    sink: str
    expected: Position | None
    edition: int
    cut: int
    published_at: datetime
    tables: Sequence[TableChanges]
    anew: bool = False
    """Whether it was asked for that all is made anew: what is there under the names of its tables may be replaced."""

    def shape_there(self, table: FarTable) -> str | None:
        """The shape that the target has of a table; None where it has none."""
        had = self.expected.tables.get(table.name) if self.expected else None
        return had[0] if had else None

    def position(self) -> Position:
        """What the target has once all changes are applied: to be asked for when they have been read."""
        before = self.expected.rejected if self.expected else ()
        rejected = sorted(row for changes in self.tables for row in changes.still_rejected(before))
        at = self.published_at.astimezone(UTC).isoformat()
        tables = {one.table.name: (one.table.shape, one.table.description) for one in self.tables}
        return Position(self.edition, self.cut, at, tables, tuple(rejected))

    def must_lead_on_from(self, found: Position | None) -> None:
        """Raises Unavailable where the target has another position than the one that the delivery leads on from."""
        if found != self.expected:
            has = f"edition {found.edition}" if found else "nothing"
            raise Unavailable(
                f"sink {self.sink} was brought to another position meanwhile: it has {has}",
                fix="run one `lake deliver` for each target, and try again",
            )


class Target(Protocol):
    """The system at the far end of a sink. Connected to when it is first asked; closed after use.

    Every method raises Unavailable where it does not answer, DeclarationError where it refuses for good.
    """

    def position(self) -> Position | None:
        """What it has; None where it was never delivered to."""

    def deliver(self, delivery: Delivery) -> Position:
        """Applies the changes of all tables and moves to the position behind them, which it returns.

        In one transaction, where it has such; else the position moves last, and a repetition does no harm. Raises
        Unavailable where it has another position than the one expected.
        """

    def close(self) -> None:
        """Lets go of connections."""


@runtime_checkable
class Stepwise(Protocol):
    """A target that moves by steps, and goes on where a delivery was cut short: to the edition that it was of."""

    def underway(self) -> int | None:
        """The edition of a delivery that was begun and not ended; None where there is none."""


@runtime_checkable
class Hashed(Protocol):
    """A target that computes fingerprints itself, as lake.store.proof.fingerprints does."""

    def held_as(self, column: Column) -> str:
        """DuckDB's SQL of what the target has in the place of a column's value."""

    def fingerprint(self, table: FarTable) -> str:
        """The fingerprint of what the target has of the table's columns."""

    def hashes(self, table: FarTable) -> pa.RecordBatchReader:
        """The columns of the identity as texts; `_key`, their hash, and `_hash`, that of the row, with 64 bits.

        A text is one that DuckDB casts to the column's type; of binary values `\\x` and hexadecimal digits.
        """


@runtime_checkable
class Readable(Protocol):
    """A target whose rows can be read back."""

    def rows(self, table: FarTable) -> pa.RecordBatchReader:
        """The columns of the table, in types that those of the table are cast from."""
