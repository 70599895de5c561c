"""OpenSearch as a target, a search index for each table. Options: docs/how-to/sink-opensearch.md.

A table is the alias `<prefix><table>` of one index. `_id` is the name of lake.sinks.json_rows, or a hash if that is too
long. There are no transactions, so a delivery is staged in other indexes and then swapped in.

Each sink has one document in the index of positions. It is updated only if unchanged since it was read (`if_seq_no`):

1. The deliverer marks in it that it is staging, and removes what others have staged.
2. A table sent whole goes to a new index. Changes of other tables go to a staging index of the same mapping, to
   find the documents that the server rejects.
3. One write of the document commits the delivery: it has the new position and the staged indexes.
4. Staged changes are copied to the live indexes, one action moves the aliases of whole tables, and one write completes
   the position. Any process may do and repeat this.

A delivery's number is the external version of its documents, so a stalled deliverer that resumes in step 4 cannot
restore an older row, unless it resumes more than an hour (`gc_deletes`) after a delete.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from opensearchpy import exceptions

from lake.connect.opensearch.indexes import HASHED, IndexNames, index_body, reason
from lake.connect.opensearch.server import BULK_BYTES, BULK_ROWS, Document, OpenSearchServer
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.lazy import pa
from lake.sinks.json_rows import json_rows, named_rows
from lake.sinks.kind import SinkDeclaration, SinkKind
from lake.sinks.server import SERVER_OPTIONS
from lake.sinks.sink import SinkDelivery, SinkPosition, TableChanges, Target, TargetTable, overtaken

DELETED: Final = '{"_change": "delete"}'
"""Staged delete. No column's name begins with `_`."""
STAGED_SETTINGS: Final = {"number_of_replicas": 0, "number_of_shards": 1}
MEMORY_FACTOR: Final = 4
"""Assumed size of documents in memory, as a multiple of their size on disk."""
SCROLL_TIME: Final = "5m"
SCROLL_PARAMETERS: Final = {"scroll": SCROLL_TIME, "allow_partial_search_results": "false"}


@dataclass(frozen=True)
class StagedIndex:
    table: str
    index: str
    whole: bool


@dataclass(frozen=True)
class SwapState:
    position: str | None = None
    number: int = 0  # of the newest delivery
    staging: str | None = None
    staged: Sequence[StagedIndex] = ()
    next: str | None = None
    seq_no: int | None = None
    term: int | None = None


@dataclass(frozen=True)
class Positions:
    server: OpenSearchServer
    names: IndexNames
    sink: str

    def read(self) -> SwapState:
        try:
            found = self.server.client.get(index=self.names.positions, id=self.sink)
        except exceptions.NotFoundError:
            return SwapState()
        source = found["_source"]
        staged = tuple(StagedIndex(**staged) for staged in source.pop("staged"))
        source.pop("edition")
        return SwapState(**source, staged=staged, seq_no=found["_seq_no"], term=found["_primary_term"])

    def write(self, state: SwapState) -> SwapState:
        document = {name: value for name, value in asdict(state).items() if name not in {"seq_no", "term"}}
        document["edition"] = json.loads(state.position)["edition"] if state.position else None
        fence: dict[str, Any] = {"op_type": "create"}
        if state.seq_no is not None:
            fence = {"if_seq_no": state.seq_no, "if_primary_term": state.term}
        self._create_index()
        try:
            done = self.server.client.index(
                index=self.names.positions, body=document, id=self.sink, params={"refresh": "true", **fence}
            )
        except exceptions.ConflictError:
            raise _overtaken(self.server) from None
        return replace(state, seq_no=done["_seq_no"], term=done["_primary_term"])

    def _create_index(self) -> None:
        if not self.server.client.indices.exists(index=self.names.positions):
            mappings = {"dynamic": False, "properties": {"edition": {"type": "long"}}}
            try:
                self.server.client.indices.create(index=self.names.positions, body={"mappings": mappings})
            except exceptions.RequestError as error:
                if error.error != "resource_already_exists_exception":
                    raise

    def check_unchanged(self, state: SwapState) -> None:
        found = self.read()
        if (found.seq_no, found.term) != (state.seq_no, state.term):
            raise _overtaken(self.server)


def _overtaken(server: OpenSearchServer) -> Unavailable:
    return overtaken("another process delivers to the same indexes, and is ahead", server.where)


@dataclass
class IndexStage:
    positions: Positions
    state: SwapState
    delivery: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    staged: dict[str, StagedIndex] = field(default_factory=dict)

    @property
    def server(self) -> OpenSearchServer:
        return self.positions.server

    def begin(self) -> None:
        self.state = self.positions.write(replace(self.state, staging=self.delivery))
        self._remove_unpublished()

    def _remove_unpublished(self) -> None:
        names, client = self.positions.names, self.server.client
        found = client.indices.get_alias(index=names.staged_pattern)
        unpublished = [name for name, index in found.items() if {*index["aliases"]} == {IndexNames.writing(name)}]
        self.positions.check_unchanged(self.state)  # a later deliverer changes the document before it stages
        _remove(self.server, unpublished)

    def create_index(self, table: str, body: dict[str, Any], *, whole: bool) -> str:
        index = self.positions.names.index(table, self.delivery)
        settings = body["settings"] if whole else _without_shards(body["settings"]) | STAGED_SETTINGS
        settings = settings | {"refresh_interval": "-1"}
        aliases: dict[str, Any] = {IndexNames.writing(index): {}}
        self.server.client.indices.create(index=index, body={**body, "settings": settings, "aliases": aliases})
        self.staged[table] = StagedIndex(table, index, whole)
        return IndexNames.writing(index)

    def commit(self, position: str, bodies: dict[str, dict[str, Any]]) -> None:
        client, indices = self.server.client, [staged.index for staged in self.staged.values()]
        for staged in self.staged.values():
            if staged.whole:
                interval = bodies[staged.table]["settings"].get("refresh_interval")
                client.indices.put_settings(body={"index": {"refresh_interval": interval}}, index=staged.index)
        if indices:
            client.indices.refresh(index=",".join(indices))
        state = replace(self.state, staging=None, staged=tuple(self.staged.values()), next=position)
        self.state = self.positions.write(replace(state, number=state.number + 1))


def _without_shards(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not name.startswith(("number_of_", "routing"))}


def _remove(server: OpenSearchServer, indices: Sequence[str]) -> None:
    for index in indices:
        server.client.indices.delete(index=index, params={"ignore_unavailable": "true"})


def finish(positions: Positions) -> SwapState:
    state = positions.read()
    if state.next is None:
        return state
    for staged in state.staged:
        if not staged.whole:
            _copy(positions, state, staged)
    _swap_aliases(positions, state)
    done = positions.write(replace(state, position=state.next, next=None, staged=()))
    _remove(positions.server, [staged.index for staged in state.staged if not staged.whole])
    return done


def _copy(positions: Positions, state: SwapState, staged: StagedIndex) -> None:
    server, alias = positions.server, positions.names.alias(staged.table)
    if not server.client.indices.exists(index=alias):
        return  # removed meanwhile; the next delivery reports that
    for page in pages(server, staged.index):
        positions.check_unchanged(state)
        documents = [Document(name, None if text == DELETED else text) for name, text in page]
        if failed := server.bulk(alias, documents, state.number):
            positions.write(replace(state, position=None, next=None, staged=()))  # the live index has no edition's rows
            raise LakeError(
                f"{alias} rejects a document that an index like it accepted: {reason(failed[0].error)}",
                where=server.where,
                fix=f"lake deliver {positions.sink} --resync builds it again",
            )
    server.client.indices.refresh(index=alias)


def _swap_aliases(positions: Positions, state: SwapState) -> None:
    actions = list[dict[str, Any]]()
    client = positions.server.client
    for staged in state.staged:
        alias = positions.names.alias(staged.table)
        if staged.whole:
            exists = client.indices.exists(index=alias)
            current = client.indices.get_alias(index=alias) if exists else {}
            actions += [{"remove_index": {"index": old}} for old in current if old != staged.index]
            if staged.index not in current:
                actions.append({"add": {"index": staged.index, "alias": alias}})
    if actions:
        positions.check_unchanged(state)
        client.indices.update_aliases(body={"actions": actions})


def pages(server: OpenSearchServer, index: str) -> Iterator[list[tuple[str, str]]]:
    """Yield (`_id`, JSON) of an index's documents, as of the start."""
    client = server.client
    body = {"size": _page_size(server, index), "sort": ["_doc"], "query": {"match_all": {}}}
    found = server.retry(lambda: client.search(body=body, index=index, params=SCROLL_PARAMETERS))
    try:
        while hits := found["hits"]["hits"]:
            yield [(hit["_id"], json.dumps(hit["_source"], ensure_ascii=False)) for hit in hits]
            scroll = {"scroll_id": found["_scroll_id"], "scroll": SCROLL_TIME}
            found = server.retry(partial(client.scroll, body=scroll))
    finally:
        with suppress(exceptions.OpenSearchException):  # the scroll expires anyway
            client.clear_scroll(body={"scroll_id": [found["_scroll_id"]]})


def _page_size(server: OpenSearchServer, index: str) -> int:
    stats = server.client.indices.stats(index=index, metric="docs,store")["_all"]["primaries"]
    document_bytes: int = MEMORY_FACTOR * stats["store"]["size_in_bytes"] // max(stats["docs"]["count"], 1)
    return max(1, min(BULK_ROWS, BULK_BYTES // max(document_bytes, 1)))


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
                raise _overtaken(self.server)
            if not delivery.anew:
                delivery.check_position(SinkPosition.from_json(state.position) if state.position else None)
            for changes in delivery.tables:
                self._check_index(delivery, changes)
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

    def _check_index(self, delivery: SinkDelivery, changes: TableChanges) -> None:
        alias = self.names.alias(changes.table.far)
        exists = bool(self.server.client.indices.exists(index=alias))
        is_ours = delivery.shape_in_target(changes.table) is not None
        if delivery.anew or exists == is_ours or (exists and changes.whole and is_ours):
            return
        what = (
            f"there is an index {alias} already, and not of this sink" if exists else f"the index {alias} was removed"
        )
        fix = "give the sink a prefix of its own; or " if exists else ""
        raise DeclarationError(
            what,
            where=self.server.where,
            fix=f"{fix}lake deliver {self.name} --resync builds it again, and replaces what is there",
        )

    def _stage(self, stage: IndexStage, changes: TableChanges, body: dict[str, Any]) -> None:
        alias = stage.create_index(changes.table.far, body, whole=True) if changes.whole else ""
        deleted = None if changes.whole else DELETED
        for batch in _documents(changes):
            if not alias:
                alias = stage.create_index(changes.table.far, body, whole=False)
            documents = [Document(name, deleted if text is None else text) for _, name, text in batch]
            keys = {name: key for key, name, _ in batch}
            withdrawn = []
            for failed in self.server.bulk(alias, documents, stage.state.number + 1):
                changes.reject(keys[failed.document.name], reason(failed.error))
                withdrawn.append(Document(failed.document.name, DELETED))
            if withdrawn and not changes.whole:
                self.server.bulk(alias, withdrawn, stage.state.number + 1)

    def _read(self, table: TargetTable) -> Iterator[list[tuple[str | None, str]]]:
        with self.server.translated_errors():
            for page in pages(self.server, self.names.alias(table.far)):
                yield [(None if name.startswith(HASHED) else name, text) for name, text in page]

    def _no_row(self, table: TargetTable, name: str) -> LakeError:
        return LakeError(
            f"document {name} of {self.names.alias(table.far)} is not the row of {table.name} with that _id",
            where=self.server.where,
            fix=f"remove it, and run lake deliver {self.name} --repair",
        )


def _documents(changes: TableChanges) -> Iterator[list[tuple[str, str, str | None]]]:
    documents, size = list[tuple[str, str, str | None]](), 0
    for batch in json_rows(changes):
        columns = (batch.column(name).to_pylist() for name in ("key", "name", "after"))
        for key, name, after in zip(*columns, strict=True):
            if after is not None or changes.table.mode == "mirror":
                documents.append((key, name, after))
                size += len(name) + len(after or "")
                if len(documents) >= BULK_ROWS or size >= BULK_BYTES:
                    yield documents
                    documents, size = [], 0
    if documents:
        yield documents


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
