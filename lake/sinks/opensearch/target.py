"""The target: each table an index behind an alias, and the position in an index of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lake.errors import DeclarationError, LakeError
from lake.sinks.json_rows import json_rows, named_rows
from lake.sinks.opensearch.mapping import body, reason
from lake.sinks.opensearch.names import HASHED, Names
from lake.sinks.opensearch.server import BULK_BYTES, BULK_ROWS, Document, OpenSearchServer
from lake.sinks.opensearch.switch import GONE, Positions, Stage, beaten, finish, pages
from lake.sinks.sink import Delivery, FarTable, Position, TableChanges

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class OpenSearch:
    """The target of sink `name`."""

    name: str
    server: OpenSearchServer
    names: Names

    @cached_property
    def positions(self) -> Positions:
        """Where its position is."""
        return Positions(self.server, self.names, self.name)

    def close(self) -> None:
        """Lets go of connections."""
        self.server.close()

    def position(self) -> Position | None:
        """What it has. Where a deliverer has died while it switched, what is left of that is done first."""
        with self.server.asked():
            state = finish(self.positions)
            return Position.from_json(state.position) if state.position else None

    def deliver(self, delivery: Delivery) -> Position:
        """Stages all changes, and switches to them."""
        with self.server.asked():
            bodies = {}
            for changes in delivery.tables:
                self.names.must_be_sound(changes.table, self.server.where)
                bodies[changes.table.far] = body(changes.table, self.server.where)
            state = self.positions.read()
            if state.next is not None:
                raise beaten(self.server)
            if not delivery.anew:
                delivery.must_lead_on_from(Position.from_json(state.position) if state.position else None)
            for changes in delivery.tables:
                self._must_fit(delivery, changes)
            stage = Stage(self.positions, state)
            stage.begin()
            for changes in delivery.tables:
                self._stage(stage, changes, bodies[changes.table.far])
            position = delivery.position()
            stage.commit(position.to_json(), bodies)
            finish(self.positions)
            return position

    def rows(self, table: FarTable) -> pa.RecordBatchReader:
        """The rows of a table. Raises LakeError for a document that is not the row that its `_id` says."""
        return named_rows(table, self._read(table), self._no_row)

    def _must_fit(self, delivery: Delivery, changes: TableChanges) -> None:
        """Raises DeclarationError where what is there under the table's name is not what this sink has made."""
        alias = self.names.alias(changes.table.far)
        is_there = bool(self.server.client.indices.exists(index=alias))
        is_ours = delivery.shape_there(changes.table) is not None
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

    def _stage(self, stage: Stage, changes: TableChanges, body: dict[str, Any]) -> None:
        alias = stage.make(changes.table.far, body, whole=True) if changes.whole else ""
        for some in _documents(changes):
            if not alias:
                alias = stage.make(changes.table.far, body, whole=False)
            gone = GONE if not changes.whole else None
            documents = [Document(name, gone if text is None else text) for _, name, text in some]
            keys = {name: key for key, name, _ in some}
            taken_away = []
            for failed in self.server.bulk(alias, documents, stage.state.number + 1):
                changes.reject(keys[failed.document.name], reason(failed.error))
                taken_away.append(Document(failed.document.name, GONE))
            if taken_away and not changes.whole:
                self.server.bulk(alias, taken_away, stage.state.number + 1)

    def _read(self, table: FarTable) -> Iterator[list[tuple[str | None, str]]]:
        with self.server.asked():
            for some in pages(self.server, self.names.alias(table.far)):
                yield [(None if name.startswith(HASHED) else name, text) for name, text in some]

    def _no_row(self, table: FarTable, name: str) -> LakeError:
        return LakeError(
            f"document {name} of {self.names.alias(table.far)} is not the row of {table.name} that its _id says",
            where=self.server.where,
            fix=f"remove it, and run lake deliver {self.name} --repair",
        )


def _documents(changes: TableChanges) -> Iterator[list[tuple[str, str, str | None]]]:
    """Keys, names and JSON of rows, as many as one request takes. What goes stays in a table of mode upsert."""
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
