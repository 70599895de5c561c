"""A spool in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lake.sources.source import SourceRecord, Spool


@dataclass
class Kept(Spool):
    """Spool that keeps the records of a source in order."""

    records: list[tuple[str, SourceRecord]] = field(default_factory=list)

    def put(self, stream: str, record: SourceRecord) -> None:
        self.records.append((stream, record))

    @property
    def texts(self) -> list[str]:
        return [record.text for _, record in self.records]

    @property
    def places(self) -> list[str]:
        return [record.place for _, record in self.records]

    @property
    def facts(self) -> list[Mapping[str, str]]:
        return [record.facts for _, record in self.records]
