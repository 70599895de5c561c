"""Head of a derived table: the record in the `userMetadata` of its newest commit, see `TableHead.to_json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lake.store.delta import Position

if TYPE_CHECKING:
    from lake.store.rows import Rows

Columns: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Record of each input in a head: {input: {"read": {column: type}, …}}, see lake.engine.columns."""
HANDED_ON: Final = "handed_on"
"""Key of {column: column of the input}: columns of the function that are unchanged columns of the input."""

COMMENT, UNIT = "comment", "unit"
Meanings: TypeAlias = Mapping[str, Mapping[str, str]]
"""{column: {COMMENT: its meaning, UNIT: what its number counts}}. COMMENT is Spark's own key, which catalogues show."""
CHANGE: Final = "_change"
SPARK, DUCKDB = "spark", "duckdb"
"""Engines that evaluate a commit's rows."""


def meaning_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {key: metadata[key] for key in (COMMENT, UNIT) if key in metadata}


@dataclass(frozen=True)
class Counts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    @property
    def total(self) -> int:
        return self.inserted + self.updated + self.deleted

    @property
    def only_inserts(self) -> bool:
        return self.total == self.inserted

    @classmethod
    def of(cls, diff: Rows) -> Counts:
        counts = {row[CHANGE]: row["count"] for row in diff.counts(CHANGE).to_pylist()}
        return cls(counts.get("insert", 0), counts.get("update", 0), counts.get("delete", 0))


NONE: Final = Counts()


@dataclass(frozen=True)
class TableHead:
    """Record of a commit of a derived table.

    The table follows from the logs at `cut`, without events of the voids 1..`voids`. `inputs` is how far each was read:
    {log: batch, table: Delta version}; `physical` the Delta table of each input that is a table: {table: folder}.
    `verb` made the commit. `fingerprint` is that of the definition that built the table; `definition` its parts,
    recorded by commits that build a whole table; `columns` the columns it reads.

    `suite_passed` is the hash of the row-local expectations that the changed rows met, `content` the fingerprint of all
    rows if known, `purge` the number of the last erasure before which the table keeps no versions. The rows were
    evaluated by `engine`.
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
    engine: str = SPARK

    @classmethod
    def of(cls, position: Position) -> TableHead:
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
            engine=data.get("engine", SPARK),
        )

    @property
    def streams(self) -> dict[str, int]:
        return {name: batch for name, batch in self.inputs.items() if name not in self.physical}

    def to_json(self) -> dict[str, Any]:
        optional = {"definition": self.definition, "content": self.content, "purge": self.purge or None}
        optional |= {"engine": None if self.engine == SPARK else self.engine}
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
        return self.position.next(**self.to_json())

    @property
    def version(self) -> int:
        return self.position.version

    @property
    def origin(self) -> int:
        return self.position.origin

    @property
    def changed_nothing(self) -> bool:
        return self.position.data.get("repeated", False) or (self.verb == "advance" and not self.counts.total)
