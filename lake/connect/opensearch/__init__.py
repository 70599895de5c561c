"""OpenSearch as a target, a search index for each table. Options: docs/how-to/sink-opensearch.md.

A table is the alias `<prefix><table>` of one index. `_id` is the name of lake.sinks.json_rows, or a hash if that is too
long. There are no transactions, so changes are staged in another index (`staged_swap`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from lake.connect.opensearch.indexes import HASHED, IndexNames, index_body, reason
from lake.connect.opensearch.server import BULK_BYTES, BULK_ROWS, Document, OpenSearchServer
from lake.connect.opensearch.staged_swap import GONE, IndexStage, Positions, finish, overtaken, pages
from lake.errors import DeclarationError, LakeError
from lake.sinks.json_rows import json_rows, named_rows
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.server import SERVER_OPTIONS
from lake.sinks.sink import SinkDelivery, SinkPosition, TableChanges, Target, TargetTable

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class OpenSearchTarget:
    name: str
    server: OpenSearchServer
    names: IndexNames

    @cached_property
    def positions(self) -> Positions:
        return Positions(self.server, self.names, self.name)

    def close(self) -> None:
        self.server.close()

    def position(self) -> SinkPosition | None:
        """Finish an interrupted swap first."""
        with self.server.translated_errors():
            state = finish(self.positions)
            return SinkPosition.from_json(state.position) if state.position else None

    def deliver(self, delivery: SinkDelivery) -> SinkPosition:
        with self.server.translated_errors():
            bodies = {}
            for changes in delivery.tables:
                self.names.check_table(changes.table, self.server.where)
                bodies[changes.table.far] = index_body(changes.table, self.server.where)
            state = self.positions.read()
            if state.next is not None:
                raise overtaken(self.server)
            if not delivery.anew:
                delivery.check_position(SinkPosition.from_json(state.position) if state.position else None)
            for changes in delivery.tables:
                self._must_fit(delivery, changes)
            stage = IndexStage(self.positions, state)
            stage.begin()
            for changes in delivery.tables:
                self._stage(stage, changes, bodies[changes.table.far])
            position = delivery.position()
            stage.commit(position.to_json(), bodies)
            finish(self.positions)
            return position

    def rows(self, table: TargetTable) -> pa.RecordBatchReader:
        return named_rows(table, self._read(table), self._no_row)

    def _must_fit(self, delivery: SinkDelivery, changes: TableChanges) -> None:
        alias = self.names.alias(changes.table.far)
        is_there = bool(self.server.client.indices.exists(index=alias))
        is_ours = delivery.shape_in_target(changes.table) is not None
        if delivery.anew or is_there == is_ours or (is_there and changes.whole and is_ours):
            return
        what = (
            f"there is an index {alias} already, and not of this sink" if is_there else f"the index {alias} was removed"
        )
        fix = "give the sink a prefix of its own; or " if is_there else ""
        raise DeclarationError(
            what,
            where=self.server.where,
            fix=f"{fix}lake deliver {self.name} --resync makes it anew, in the place of what is there",
        )

    def _stage(self, stage: IndexStage, changes: TableChanges, body: dict[str, Any]) -> None:
        alias = stage.make(changes.table.far, body, whole=True) if changes.whole else ""
        for some in _documents(changes):
            if not alias:
                alias = stage.make(changes.table.far, body, whole=False)
            gone = GONE if not changes.whole else None
            documents = [Document(name, gone if text is None else text) for _, name, text in some]
            keys = {name: key for key, name, _ in some}
            withdrawn = []
            for failed in self.server.bulk(alias, documents, stage.state.number + 1):
                changes.reject(keys[failed.document.name], reason(failed.error))
                withdrawn.append(Document(failed.document.name, GONE))
            if withdrawn and not changes.whole:
                self.server.bulk(alias, withdrawn, stage.state.number + 1)

    def _read(self, table: TargetTable) -> Iterator[list[tuple[str | None, str]]]:
        with self.server.translated_errors():
            for some in pages(self.server, self.names.alias(table.far)):
                yield [(None if name.startswith(HASHED) else name, text) for name, text in some]

    def _no_row(self, table: TargetTable, name: str) -> LakeError:
        return LakeError(
            f"document {name} of {self.names.alias(table.far)} is not the row of {table.name} that its _id says",
            where=self.server.where,
            fix=f"remove it, and run lake deliver {self.name} --repair",
        )


def _documents(changes: TableChanges) -> Iterator[list[tuple[str, str, str | None]]]:
    some, size = list[tuple[str, str, str | None]](), 0
    for batch in json_rows(changes):
        columns = (batch.column(name).to_pylist() for name in ("key", "name", "after"))
        for key, name, after in zip(*columns, strict=True):
            if after is not None or changes.table.mode == "mirror":
                some.append((key, name, after))
                size += len(name) + len(after or "")
                if len(some) >= BULK_ROWS or size >= BULK_BYTES:
                    yield some
                    some, size = [], 0
    if some:
        yield some


def _open(declaration: SinkDeclaration) -> Target:
    name, options, where = declaration.name, declaration.options, declaration.where
    server = OpenSearchServer.of(options, where)
    return OpenSearchTarget(name, server, IndexNames.of(options["prefix"] or f"{name.replace('_', '-')}-", where))


KIND: Final = SinkKind(
    _open,
    modes=("mirror", "upsert"),
    options={**SERVER_OPTIONS, "seconds": (int, 60)},
    table_options={"mapping": (dict, {}), "settings": (dict, {})},
)
