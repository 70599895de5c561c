"""The head of a derived table: what its newest commit says of it, in the commit's `userMetadata`.

It is the record by which everything else knows a table: where it stands, what it was derived from, what built it. Its
keys in the commit are those of `TableHead.to_json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lake.store.delta import Position

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Columns: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What a head says of each input: {input: {"read": {column: type}, …}}, see lake.evaluation.columns."""
HANDED_ON: Final = "handed_on"
"""There: {column: column of the input}, which columns of the function are columns of the input as they are."""

COMMENT, UNIT = "comment", "unit"
Meanings: TypeAlias = Mapping[str, Mapping[str, str]]
"""What is said of columns, in their Delta metadata: {column: {COMMENT: what it means, UNIT: what its number counts}}.

COMMENT is Spark's own key, which catalogues show.
"""
CHANGE: Final = "_change"
"""The column of a diff that says what becomes of a row: insert, update or delete."""


@dataclass(frozen=True)
class Counts:
    """How many rows a commit changes."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        return self.inserted + self.updated + self.deleted

    @classmethod
    def of(cls, diff: pa.Table | DataFrame) -> Counts:
        """The counts of a diff: rows of a table, each with what becomes of it in the column CHANGE."""
        import pyarrow as pa

        if isinstance(diff, pa.Table):
            counts = {row["values"]: row["counts"] for row in diff.column(CHANGE).value_counts().to_pylist()}
        else:
            counts = {row[CHANGE]: row["count"] for row in diff.groupBy(CHANGE).count().collect()}
        return cls(counts.get("insert", 0), counts.get("update", 0), counts.get("delete", 0))


NONE: Final = Counts()


@dataclass(frozen=True)
class TableHead:
    """What a commit of a derived table says.

    The table follows from the logs as they are at `cut`, but the events that the voids 1..`voids` take back. `inputs`
    says how far it has read: {log: batch, table: Delta version}; `physical` which Delta table each input was that is a
    table: {table: folder}. `verb` made the commit and changed `counts` rows. `fingerprint` is that of the definition
    that built the table; `definition` its parts, said by commits that build a whole table; `columns` what it reads.

    `suite_passed` is the hash of the row-local expectations that the changed rows met, `content` the fingerprint of all
    rows where it is known, `purge` the number of the last erasure before which the table keeps no versions.
    """

    position: Position
    cut: int
    verb: str
    inputs: Mapping[str, int]
    fingerprint: str
    voids: int = 0
    physical: Mapping[str, str] = field(default_factory=dict)
    columns: Columns = field(default_factory=dict)
    counts: Counts = NONE
    suite_passed: str | None = None
    definition: Mapping[str, str] | None = None
    content: str | None = None
    purge: int = 0

    @classmethod
    def of(cls, position: Position) -> TableHead:
        """The head that `position` carries."""
        data = position.data
        return cls(
            position=position,
            cut=data["cut"],
            verb=data.get("verb", ""),
            inputs=data.get("inputs", {}),
            fingerprint=data.get("fingerprint", ""),
            voids=data.get("voids", 0),
            physical=data.get("homes", {}),
            columns=data.get("columns", {}),
            counts=Counts(**data.get("counts", {})),
            suite_passed=data.get("met"),
            definition=data.get("definition"),
            content=data.get("content"),
            purge=data.get("purge", 0),
        )

    @property
    def streams(self) -> dict[str, int]:
        """The inputs that are logs, with the last batch of each that was read."""
        return {name: batch for name, batch in self.inputs.items() if name not in self.physical}

    def to_json(self) -> dict[str, Any]:
        """What the commit carries."""
        optional = {"definition": self.definition, "content": self.content, "purge": self.purge or None}
        return {
            "verb": self.verb,
            "cut": self.cut,
            "voids": self.voids,
            "inputs": self.inputs,
            "homes": self.physical,
            "fingerprint": self.fingerprint,
            "columns": self.columns,
            "counts": asdict(self.counts),
            "met": self.suite_passed,
            **{name: value for name, value in optional.items() if value is not None},
        }

    @property
    def committed(self) -> Position:
        """The position of a commit that says this, on top of the head's own."""
        return self.position.next(**self.to_json())

    @property
    def version(self) -> int:
        """The Delta version of the commit."""
        return self.position.version

    @property
    def origin(self) -> int:
        """The version whose rows these are: an older one where this commit only repeats its head."""
        return self.position.origin

    @property
    def changed_nothing(self) -> bool:
        """Whether the commit left every row as it was."""
        return self.position.data.get("repeated", False) or (self.verb == "advance" and not self.counts.total)
