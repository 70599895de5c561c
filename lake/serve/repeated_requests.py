"""Comparison of a repeated request's undecided records with those committed the first time.

Decided events are recognized by id; the others by their places beside them, in the folder or in a log. Values in a log
are compared only if the contract allows decisions on them: otherwise they may be encrypted, or computed by SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lake.contracts import evolution
from lake.contracts.contract import Contract
from lake.project.project import Project
from lake.read.wait import BatchToken, RecordToken
from lake.records.single_reader import EXTRA, RecordRejected, SingleReader
from lake.serve.bodies import PostedRecord
from lake.serve.decide.rule import compared_fields, content, undecidable
from lake.serve.source import DeclaredIntake, place
from lake.store import duckdb_tables
from lake.store.log import Log
from lake.store.log_rows import REFUSAL
from lake.store.scan import Scan
from lake.store.warehouse import Warehouse
from lake.text import literal


@dataclass(frozen=True)
class KeptRecords:
    """Committed records of one `stream` in group number `group` of a source."""

    project: Project
    declared: DeclaredIntake
    stream: str
    group: int

    def have(self, records: Mapping[int, PostedRecord]) -> bool:
        """Return whether these records, by their ordinals in the group, were committed. Raises LakeError, OSError."""
        for group in self.declared.folder.groups():
            if group.number == self.group:
                kept = [*self.declared.folder.records(group)]
                return all(
                    0 <= number < len(kept)
                    and kept[number][0] == self.stream
                    and self._content(PostedRecord(*kept[number][1:])) == self._content(record)
                    for number, record in records.items()
                )
        return self._are_logged(records)

    @property
    def _contract(self) -> Contract:
        return self.project.contracts[self.stream]

    @cached_property
    def _reader(self) -> SingleReader:
        return SingleReader(self._contract, self.project.settings.record_bytes)

    def _content(self, record: PostedRecord) -> bytes:
        try:
            values = self._reader.values(record.utf8, record.facts)
        except RecordRejected:
            return record.utf8
        return content(values, compared_fields(self._contract))

    def _are_logged(self, records: Mapping[int, PostedRecord]) -> bool:
        settings, source = self.project.settings, self.declared.name
        token = RecordToken(self.stream, source, self.group, "").resolve(settings)
        if not isinstance(token, BatchToken):
            return False
        kept = {f"{source}:{place(self.group, number)}": record for number, record in records.items()}
        rows, can_differ = self._rows(token.batch, [*kept]), not any(undecidable(self._contract))
        if can_differ and any(self._differs(row, kept[row["_source"]]) for row in rows):
            return False
        query = "SELECT * FROM t WHERE _batch = $1 AND list_contains($2, source)"
        quarantine, redeliveries = (
            duckdb_tables.rows(path.path, query, token.batch, [*kept])
            for path in (Warehouse(settings).quarantine(self.stream), Warehouse(settings).redeliveries(self.stream))
        )
        if can_differ and any(row["raw"] not in {"", kept[row["source"]].text} for row in quarantine):
            return False  # an erasure empties the text
        found = {row["_source"] for row in rows} | {row["source"] for row in (*quarantine, *redeliveries)}
        return found == kept.keys()

    def _rows(self, batch: int, places: Sequence[str]) -> list[dict[str, Any]]:
        scan = Scan(Log(self.project.settings, self.stream).path, bounds={"_batch": (batch, batch)})
        stored = set(scan.schema().names)
        wanted = (*compared_fields(self._contract), EXTRA, "_source", "_version", REFUSAL)
        where = f"_source IN ({', '.join(map(literal, places))})"
        rows: list[dict[str, Any]] = scan.arrow([name for name in wanted if name in stored], where=where).to_pylist()
        return rows

    def _differs(self, row: Mapping[str, Any], record: PostedRecord) -> bool:
        if row.get(REFUSAL) is not None or row["_version"] != self._version:
            return False
        return content(row, compared_fields(self._contract)) != self._content(record)

    @cached_property
    def _version(self) -> int:
        log = Log(self.project.settings, self.stream)
        return len(evolution.append_version(log.contracts(log.head()), self._contract))
