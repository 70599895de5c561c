"""A spool in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lake.sources.source import SourceRecord


@dataclass
class Kept:
    """Spool that keeps the records of a source in order."""

    records: list[tuple[str, SourceRecord]] = field(default_factory=list)

    def put(self, stream: str, record: SourceRecord) -> None:
        self.records.append((stream, record))

    def put_many(self, stream: str, texts: pa.Array, places: pa.Array, facts: Mapping[str, pa.Array]) -> None:
        columns = {name: column.to_pylist() for name, column in facts.items()}
        for row, (text, place) in enumerate(zip(texts.to_pylist(), places.to_pylist(), strict=True)):
            row_facts = {name: column[row] for name, column in columns.items() if column[row] is not None}
            self.put(stream, SourceRecord(text, place, row_facts))

    @property
    def texts(self) -> list[str]:
        return [record.text for _, record in self.records]

    @property
    def places(self) -> list[str]:
        return [record.place for _, record in self.records]

    @property
    def facts(self) -> list[Mapping[str, str]]:
        return [record.facts for _, record in self.records]
