"""Protocol between editions and targets: a target is an external system that holds one edition and stores which one.

1. Rows and position change in one transaction, or in repeatable steps. The warehouse's own record of the position only
   protects editions from expiry; it is never trusted.
2. A delivery is the net difference between the target's edition and the current one: empty after a rebuild that gave
   the same rows, the reverse after a rollback.
3. A delivery names the position it starts from. A target with another position rejects it.
4. A row that a target cannot store is omitted. The position lists it with the reason until the row changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from lake.errors import LakeError, Unavailable
from lake.lazy import pa
from lake.store.snapshot import Column
from lake.text import plain

Mode: TypeAlias = Literal["mirror", "upsert", "append"]
"""Rows of the target's table: the edition's rows; those plus deleted ones; or one row per change."""

CHANGES: Final = ("insert", "update", "delete")
MOST_REJECTED: Final = 1000


@dataclass(frozen=True, order=True)
class RejectedRow:
    """Row that the target cannot store; `key` is JSON (see `key_of`)."""

    table: str
    key: str
    reason: str


def key_of(row: Mapping[str, Any], identity: Iterable[str]) -> str:
    return json.dumps({column: plain(row[column]) for column in identity}, ensure_ascii=False)


class UnreadablePosition(LakeError):
    """Raised if something else than a position is stored in its place."""


@dataclass(frozen=True)
class SinkPosition:
    """Edition of a target, (`shape`, `description`) by table, and rejected rows."""

    edition: int
    cut: int
    published_at: str
    tables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    rejected: tuple[RejectedRow, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SinkPosition:
        try:
            data = json.loads(text)
            tables = {name: (shape, description) for name, (shape, description) in data["tables"].items()}
            rejected = tuple(RejectedRow(**row) for row in data["rejected"])
            return cls(int(data["edition"]), int(data["cut"]), str(data["published_at"]), tables, rejected)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UnreadablePosition(f"the position in the target cannot be read: {text[:100]!r}") from None


@dataclass(frozen=True)
class TargetTable:
    """Table `name` of an edition, called `far` in the target."""

    name: str
    far: str
    columns: tuple[Column, ...]
    identity: tuple[str, ...]
    doc: str = ""
    mode: Mode = "mirror"
    options: Mapping[str, Any] = field(default_factory=dict)
    shaped: bool = True

    @property
    def types(self) -> dict[str, str]:
        return {column.name: column.type for column in self.columns}

    @cached_property
    def shape(self) -> str:
        """Digest of what rows depend on: those of another shape do not fit the table."""
        shape = [self.types, self.identity, sorted(self.options.items())] if self.shaped else [self.identity]
        return _digest([self.far, self.mode, *shape])

    @cached_property
    def description(self) -> str:
        return _digest([self.doc, [column.description for column in self.columns]])


def _digest(of: Any) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True, default=list).encode()).hexdigest()[:16]


class ChangeSource(Protocol):
    def batches(self) -> pa.RecordBatchReader:
        """Return `change` (insert, update, delete), and the structs `before` and `after`; null for no row."""


@dataclass
class TableChanges:
    """If `whole`, all changes are inserts and replace everything in the target.

    For a delete, `before` is only sure to have the identity. A target that rejects an update deletes its old row.
    `described`: its descriptions have to be written. `known`: keys of rows rejected in earlier deliveries.
    """

    table: TargetTable
    source: ChangeSource = field(repr=False)
    whole: bool = False
    described: bool = False
    known: frozenset[str] = frozenset()
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CHANGES, 0), init=False)
    rejected: list[RejectedRow] = field(default_factory=list, init=False)
    _changed: set[str] = field(default_factory=set, init=False)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes ordered by identity, once, and count them."""
        for batch in self.source.batches():
            for change in batch.column("change").value_counts().to_pylist():
                self.counts[change["values"]] += change["counts"]
            if self.known:
                rows = (row["after"] or row["before"] for row in batch.to_pylist(maps_as_pydicts="strict"))
                self._changed |= self.known & {key_of(row, self.table.identity) for row in rows}
            yield batch

    def reject(self, key: str, reason: str) -> None:
        """Record that the target omits the row with this key. Raises LakeError if there are too many."""
        self.rejected.append(RejectedRow(self.table.name, key, reason))
        if len(self.rejected) > MOST_REJECTED:
            raise LakeError(
                f"the target cannot take more than {MOST_REJECTED:,} rows of {self.table.name}, the last as {reason}",
                fix="nothing was delivered: leave out the column in the sink's file, or change it in the table's job",
            )

    def rejected_after(self, before: Iterable[RejectedRow]) -> Iterator[RejectedRow]:
        if not self.whole:
            yield from (row for row in before if row.table == self.table.name and row.key not in self._changed)
        yield from self.rejected


def overtaken(what: str, where: str = "") -> Unavailable:
    return Unavailable(what, where=where, fix="run one `lake deliver` for each target, and try again")


@dataclass(frozen=True)
class SinkDelivery:
    """Changes from position `expected` (None: empty) to an edition."""

    sink: str
    expected: SinkPosition | None
    edition: int
    cut: int
    published_at: datetime
    tables: Sequence[TableChanges]
    anew: bool = False
    """Existing objects with the names of its tables may be replaced."""

    def shape_in_target(self, table: TargetTable) -> str | None:
        had = self.expected.tables.get(table.name) if self.expected else None
        return had[0] if had else None

    def position(self) -> SinkPosition:
        """Return the position after it. All changes must have been read."""
        before = self.expected.rejected if self.expected else ()
        rejected = sorted(row for changes in self.tables for row in changes.rejected_after(before))
        at = self.published_at.astimezone(UTC).isoformat()
        tables = {changes.table.name: (changes.table.shape, changes.table.description) for changes in self.tables}
        return SinkPosition(self.edition, self.cut, at, tables, tuple(rejected))

    def check_position(self, found: SinkPosition | None) -> None:
        if found != self.expected:
            has = f"edition {found.edition}" if found else "nothing"
            raise overtaken(f"sink {self.sink} was brought to another position meanwhile: it has {has}")


class Target(Protocol):
    """External system. It connects on first use.

    Every method raises Unavailable if it does not answer, DeclarationError if it rejects permanently.
    """

    def position(self) -> SinkPosition | None:
        """Return the stored position, None if nothing was delivered."""

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        """Apply it, and return the new position. Without a transaction, this changes last; a repetition is harmless."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class UnfinishedDelivery:
    """Interrupted delivery. If `anew`, it replaces all rows (`--resync`)."""

    edition: int
    anew: bool = False


@runtime_checkable
class ResumableTarget(Protocol):
    """Target that works in steps and resumes an interrupted delivery, to the edition that it began with."""

    def underway(self) -> UnfinishedDelivery | None: ...


@runtime_checkable
class FingerprintingTarget(Protocol):
    """Target that computes fingerprints itself, as lake.store.proof.fingerprints does."""

    def stored_as(self, column: Column) -> str:
        """Return DuckDB's SQL of the value that the target stores for a column."""

    def fingerprint(self, table: TargetTable) -> str: ...

    def hashes(self, table: TargetTable) -> pa.RecordBatchReader:
        r"""Return the identity's columns as texts, `_key` (its 64-bit hash) and `_hash` (the row's).

        DuckDB can cast a text to the column's type; binary values are `\x` and hexadecimal digits.
        """


@runtime_checkable
class ReadableTarget(Protocol):
    def rows(self, table: TargetTable) -> pa.RecordBatchReader:
        """Return the table's columns, in types that can be cast to its own."""
