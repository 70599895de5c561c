"""What a system outside is to the logs: a range that is fixed, read whole, and acknowledged once it is committed.

1. The position lives only in the logs' own commits. What the system outside keeps (a group's offset, a slot's confirmed
   position) is a hint, written after the commit and never read back as truth.
2. A read is bounded: what the range is, is decided before its first record is read, and it can be read again until it
   is acknowledged.
3. A gap (retention, a topic made anew, a lost slot) raises Gap; nothing is ever skipped in silence.
4. After the commit the range is acknowledged; who died in between acknowledges again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from lake.errors import DeclarationError

if TYPE_CHECKING:
    import pyarrow as pa

Progress: TypeAlias = Mapping[str, Any]
"""Where a source is, as JSON: what its next read begins after. Only the source itself looks into it."""


class FromEnvironment(str):
    """A text that a source's file took from the environment: it may be a secret, which the file itself may not have."""


class Gap(DeclarationError):
    """What a source has to read next is gone there, or is no longer what it was."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record: the `text` that a contract reads, the `place` that tells it from all others of its source, and
    `facts` about it which fields may be taken `from`, such as {"kafka.key": "AA"}.
    """

    text: str
    place: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lag:
    """How far the logs are behind: `events` that wait, `seconds` since the oldest came, `retained` bytes that are kept
    outside for us. None where a source cannot say.
    """

    events: int | None = None
    seconds: float | None = None
    retained: int | None = None


class Spool(Protocol):
    """Where a source puts what it reads, on disk, in the order in which it is to be in the log."""

    def put(self, stream: str, record: Record) -> None:
        """Takes one record for the log of `stream`."""

    def put_many(self, stream: str, texts: pa.Array, places: pa.Array, facts: Mapping[str, pa.Array]) -> None:
        """Takes records for the log of `stream` in columns of text of one length; a fact that a record lacks is null.

        Five times as fast as `put` where the spool takes them as they are.
        """
        columns = {name: column.to_pylist() for name, column in facts.items()}
        for row, (text, place) in enumerate(zip(texts.to_pylist(), places.to_pylist(), strict=True)):
            row_facts = {name: column[row] for name, column in columns.items() if column[row] is not None}
            self.put(stream, Record(text, place, row_facts))


class Source(Protocol):
    """One declared source, `sources/<name>.toml`, of one or more streams. Closed after use."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that it has records for."""

    @property
    def more(self) -> bool:
        """Whether the last read left something that was there when it began."""

    def read(self, after: Progress | None, spool: Spool) -> Progress | None:
        """Puts all records of one bounded range after `after` (None: from the beginning) into `spool`.

        Returns where it stands behind them; None where there is nothing new. Records that belong together, as those of
        a transaction do, are of one range. Raises Gap, and Unavailable where the system outside does not answer.
        """

    def acknowledge(self, upto: Progress) -> None:
        """Tells the system outside that everything up to `upto` is committed. Called again after a crash."""

    def lag(self, after: Progress | None) -> Lag:
        """How far the logs are behind. Raises Unavailable where the system outside does not answer."""

    def skip_gap(self, after: Progress | None) -> Progress:
        """Gives up on purpose what is gone: where to go on. Called for `lake ingest SOURCE --give-up` alone."""

    def close(self) -> None:
        """Lets go of connections."""


@runtime_checkable
class Partitioned(Protocol):
    """A source whose streams may be spread over partitions, between which their records have no order."""

    together: Sequence[tuple[str, ...]]
    """Facts of which records that are alike in one are of one partition, such as ("kafka", "key")."""

    def partitions(self, after: Progress) -> Mapping[str, int]:
        """How many partitions each stream has been read of."""


@runtime_checkable
class Copying(Protocol):
    """A source whose streams begin with a copy of what is there, which it can take again, unless `copies` says no."""

    @property
    def copies(self) -> bool:
        """Whether it is declared to copy anything."""

    def copy_again(self, after: Progress, streams: Iterable[str]) -> Progress:
        """A position from which the next read copies what is behind these streams anew, though nothing was missed."""


class Rows(Protocol):
    """The rows that a source has for one stream exactly as of `lsn`, a place in its own log, each as one record."""

    @property
    def lsn(self) -> str:
        """The place: what was committed before it is in the rows, and nothing else."""

    @property
    def records(self) -> Iterable[Record]:
        """The rows."""


@runtime_checkable
class Exact(Protocol):
    """A source that can say what its tables are at one place of its log, while others write."""

    def rows(self, stream: str) -> AbstractContextManager[Rows]:
        """The rows for `stream` as of a place of now, while the block lasts. Raises Unavailable."""

    def read_upto(self, after: Progress, lsn: str, spool: Spool) -> Progress:
        """As Source.read, of everything up to that place."""
