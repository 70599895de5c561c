"""Protocol between external sources and the logs: a bounded range is read whole, committed, then acknowledged.

1. The position lives only in the logs' commits. A position that the source stores is a hint, never trusted.
2. The range of a read is fixed before its first record. The read is repeated if the process dies before the records
   are spooled.
3. A gap (retention, a recreated topic, a lost slot) raises Gap; nothing is skipped silently.
4. The range is acknowledged after the commit, and again whenever the source is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.contracts.declared_files import DeclaredFile
from lake.errors import DeclarationError
from lake.lazy import pa

Progress: TypeAlias = Mapping[str, Any]
"""Position of a source as JSON, opaque to all others."""


class Gap(DeclarationError):
    """The records to read next are gone, or have changed."""


def check_members(progress: Progress, members: Iterable[str], name: str, where: str) -> None:
    """Raise DeclarationError if a source of another kind had the name `name` before."""
    if missing := [member for member in members if member not in progress]:
        raise DeclarationError(
            f"{name} was read as a source of another kind: its position has no {missing[0]!r}",
            where=where,
            fix="give the new source another name, that of its file; or restore the kind",
        )


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Text that a contract reads, its unique `place` in the source, and facts such as {"kafka.key": "AA"}."""

    text: str
    place: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lag:
    """Backlog: `events` that wait, `seconds` since the oldest, bytes `retained` by the source. None is unknown.

    With `at_least`, not all events were counted.
    """

    events: int | None = None
    seconds: float | None = None
    retained: int | None = None
    at_least: bool = False


class Spool(Protocol):
    """Storage on disk for records read, in log order."""

    def put(self, stream: str, record: SourceRecord) -> None: ...

    def put_many(self, stream: str, texts: pa.Array, places: pa.Array, facts: Mapping[str, pa.Array]) -> None:
        """Add columns of equal length; a missing fact is null. Five times as fast as `put`."""


class Source(Protocol):
    """Declared source of one or more streams."""

    @property
    def streams(self) -> tuple[str, ...]: ...

    @property
    def more(self) -> bool:
        """Return whether the last read left records that existed when it began."""

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        """Put all records of one bounded range after `after` (None: from the beginning) into `spool`.

        Return the position after them; None if there is nothing new. Records that belong together, such as a
        transaction's, are in one range. Raises Gap, and Unavailable.
        """

    def acknowledge(self, upto: Progress) -> None:
        """Allow the source to delete what it has before `upto`. May be repeated, also by another process."""

    def lag(self, after: Progress | None) -> Lag: ...

    def skip_gap(self, after: Progress | None) -> Progress:
        """Return a position beyond what is gone. Only called for `lake ingest SOURCE --give-up`."""

    def close(self) -> None: ...


@runtime_checkable
class PartitionedSource(Protocol):
    """Source with partitions between which records have no order."""

    together: Sequence[tuple[str, ...]]
    """Facts that determine the partition of a record, such as ("kafka", "key")."""
    offset: tuple[str, ...]
    """Fact that orders the records of one partition, such as ("kafka", "offset")."""

    def partitions(self, after: Progress) -> Mapping[str, int]: ...


@runtime_checkable
class CopyingSource(Protocol):
    """Source whose streams begin with a copy of existing rows, repeatable unless `copies` is false."""

    @property
    def copies(self) -> bool: ...

    def copy_again(self, after: Progress, streams: Iterable[str]) -> Progress:
        """Return a position from which the next read copies these streams again."""


@dataclass(frozen=True)
class SnapshotRows:
    """Rows of one stream exactly as of `lsn`, a position in the source's own log."""

    lsn: str
    records: Iterable[SourceRecord]


@runtime_checkable
class SnapshotSource(Protocol):
    """Source that can return its tables as of one position of its log while others write."""

    def rows(self, stream: str) -> AbstractContextManager[SnapshotRows]: ...

    def read_upto(self, after: Progress, lsn: str, spool: Spool) -> Progress:
        """Put all records after `after` and up to `lsn` into `spool`. Return the position after them."""


@dataclass(frozen=True)
class SourceDeclaration(DeclaredFile):
    """File `sources/<name>.toml` without `kind`, with the project's contracts and settings."""

    contracts: Mapping[str, Contract]
    settings: Settings


@dataclass(frozen=True)
class DecisionRequest:
    """Events to decide on: JSON Lines of one stream, or {stream: [event, …], …} of several.

    `id` is the idempotency key (default: a hash of the body), `expect` the required version of the key; `new`: the key
    must have no event.
    """

    streams: tuple[str, ...]
    body: bytes
    id: str = ""
    expect: str = ""
    new: bool = False


class Decider(Protocol):
    """Decision on events before they are appended, by the Folds of a declaration's table `decide`."""

    def append(self, settings: Settings, command: DecisionRequest) -> dict[str, Any]:
        """Append the events if they are accepted.

        Returns token or tokens, records, idempotent, again, and version or versions. Raises Refused, ContractError for
        a bad record, DeclarationError without a rule, Unavailable if another process decides meanwhile.
        """

    def pause(self, settings: Settings, source: str) -> AbstractContextManager[object]:
        """Return a context in which `source` decides nothing. Raises Unavailable while a server decides."""


@dataclass(frozen=True)
class SourceFact:
    """Value of each record besides its text, for fields of contracts that are `"from"` its `name`.

    A name such as "kafka.headers.NAME" stands for any end. Values are texts, written as the Avro `type`.
    """

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class SourceKind:
    """Kind of source: the object of an entry point in the group `lake.sources`, named as the kind.

    `open` does not connect; it raises one DeclarationError with all faults. `transactional`: places end in `:` or `#`
    and the record's ordinal in its transaction. `members` are in every Progress of the kind: one without them is of
    another kind.
    """

    open: Callable[[SourceDeclaration], Source]
    transactional: bool = True
    decider: Decider | None = None
    facts: Sequence[SourceFact] = ()
    members: Sequence[str] = ()
