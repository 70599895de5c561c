"""The position, and deliveries that are staged beside and then switched to, which anyone may finish.

The document of a sink in the index of positions is changed where nobody else has changed it since it was read
(`if_seq_no`), and everything hangs on it:

1. Whoever delivers notes in it that he is staging, and removes what others have staged.
2. A table that is sent whole is written to a new index; the changes of others to an index of the same mapping beside,
   by which it is found out what the server does not take.
3. One write notes the position and what is staged. From then on the delivery is done, and what is left is to show it.
4. Changes are copied to the live indexes, which are refreshed; the aliases of whole tables are moved in one action;
   one write makes the position the one there. Whoever finds 3 without that does it, and again is as good as once.

Every delivery has a number, and documents are written with it as their external version: a deliverer that was believed
dead and wakes up in 4 cannot bring back an older row. A number would do so again an hour (`gc_deletes`) after a delete.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

from opensearchpy import exceptions

from lake.errors import LakeError, Unavailable
from lake.sinks.opensearch.mapping import reason
from lake.sinks.opensearch.names import Names
from lake.sinks.opensearch.server import BULK_BYTES, BULK_ROWS, Document, OpenSearchServer

GONE: Final = '{"_change": "delete"}'
"""What stands in a staged index for a row that goes: no column begins with `_`."""
STAGED: Final = {"refresh_interval": "-1", "number_of_replicas": 0, "number_of_shards": 1}
UNPACKED: Final = 4
"""A document takes about so many times the room that it has on the disk."""
KEPT: Final = "5m"
"""How long a server remembers how far a scroll is."""
SCROLLED: Final = {"scroll": KEPT, "allow_partial_search_results": "false"}


@dataclass(frozen=True)
class Staged:
    """What is staged for a table: all its rows, or its changes, in an index."""

    table: str
    index: str
    whole: bool


@dataclass(frozen=True)
class State:
    """What the document of a sink says: `number` is that of its newest delivery."""

    position: str | None = None
    number: int = 0
    staging: str | None = None
    staged: Sequence[Staged] = ()
    next: str | None = None
    """The position that is being switched to."""
    seq_no: int | None = None
    term: int | None = None


@dataclass(frozen=True)
class Positions:
    """The document of a sink."""

    server: OpenSearchServer
    names: Names
    sink: str

    def read(self) -> State:
        """What it says; nothing where there is none."""
        try:
            found = self.server.client.get(index=self.names.positions, id=self.sink)
        except exceptions.NotFoundError:
            return State()
        source = found["_source"]
        staged = tuple(Staged(**each) for each in source.pop("staged"))
        source.pop("edition")
        return State(**source, staged=staged, seq_no=found["_seq_no"], term=found["_primary_term"])

    def write(self, state: State) -> State:
        """Has it say something else than what was read. Raises Unavailable where somebody has changed it since."""
        about = {name: value for name, value in asdict(state).items() if name not in {"seq_no", "term"}}
        about["edition"] = json.loads(state.position)["edition"] if state.position else None
        fence: dict[str, Any] = {"op_type": "create"}
        if state.seq_no is not None:
            fence = {"if_seq_no": state.seq_no, "if_primary_term": state.term}
        self._make()
        try:
            done = self.server.client.index(
                index=self.names.positions, body=about, id=self.sink, params={"refresh": "true", **fence}
            )
        except exceptions.ConflictError:
            raise beaten(self.server) from None
        return replace(state, seq_no=done["_seq_no"], term=done["_primary_term"])

    def _make(self) -> None:
        if not self.server.client.indices.exists(index=self.names.positions):
            mappings = {"dynamic": False, "properties": {"edition": {"type": "long"}}}
            try:
                self.server.client.indices.create(index=self.names.positions, body={"mappings": mappings})
            except exceptions.RequestError as error:
                if error.error != "resource_already_exists_exception":
                    raise

    def must_be(self, state: State) -> None:
        """Raises Unavailable where somebody has changed it since."""
        found = self.read()
        if (found.seq_no, found.term) != (state.seq_no, state.term):
            raise beaten(self.server)


def beaten(server: OpenSearchServer) -> Unavailable:
    """That another deliverer is ahead."""
    return Unavailable(
        "somebody else delivers to the same indexes, and is ahead",
        where=server.where,
        fix="run one `lake deliver` for each target, and try again",
    )


@dataclass
class Stage:
    """A delivery that is being staged."""

    positions: Positions
    state: State
    delivery: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    staged: dict[str, Staged] = field(default_factory=dict)

    @property
    def server(self) -> OpenSearchServer:
        """Where it is staged."""
        return self.positions.server

    def begin(self) -> None:
        """Notes it, and removes what others have staged."""
        self.state = self.positions.write(replace(self.state, staging=self.delivery))
        self._sweep()

    def _sweep(self) -> None:
        names, client = self.positions.names, self.server.client
        found = client.indices.get_alias(index=names.made)
        unseen = [each for each, about in found.items() if {*about["aliases"]} == {Names.writing(each)}]
        self.positions.must_be(self.state)  # what others have made since they began later is not among them
        _remove(self.server, unseen)

    def make(self, table: str, body: dict[str, Any], *, whole: bool) -> str:
        """Makes an index for a table; the alias by which it is written."""
        index = self.positions.names.index(table, self.delivery)
        settings = body["settings"] | {"refresh_interval": "-1"} if whole else _without_place(body["settings"]) | STAGED
        aliases: dict[str, Any] = {Names.writing(index): {}}
        self.server.client.indices.create(index=index, body={**body, "settings": settings, "aliases": aliases})
        self.staged[table] = Staged(table, index, whole)
        return Names.writing(index)

    def commit(self, position: str, bodies: dict[str, dict[str, Any]]) -> None:
        """Makes it what is switched to."""
        client, indices = self.server.client, [each.index for each in self.staged.values()]
        for each in self.staged.values():
            if each.whole:
                wanted = bodies[each.table]["settings"].get("refresh_interval")
                client.indices.put_settings(body={"index": {"refresh_interval": wanted}}, index=each.index)
        if indices:
            client.indices.refresh(index=",".join(indices))
        state = replace(self.state, staging=None, staged=tuple(self.staged.values()), next=position)
        self.state = self.positions.write(replace(state, number=state.number + 1))


def _without_place(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not name.startswith(("number_of_", "routing"))}


def _remove(server: OpenSearchServer, indices: Sequence[str]) -> None:
    for index in indices:
        server.client.indices.delete(index=index, params={"ignore_unavailable": "true"})


def finish(positions: Positions) -> State:
    """Does what is left of a switch, whoever has begun it; what the document says then."""
    state = positions.read()
    if state.next is None:
        return state
    for staged in state.staged:
        if not staged.whole:
            _copy(positions, state, staged)
    _show(positions, state)
    done = positions.write(replace(state, position=state.next, next=None, staged=()))
    _remove(positions.server, [staged.index for staged in state.staged if not staged.whole])
    return done


def _copy(positions: Positions, state: State, staged: Staged) -> None:
    """Copies changes from a staged index to the live one."""
    server, alias = positions.server, positions.names.alias(staged.table)
    if not server.client.indices.exists(index=alias):
        return  # somebody has removed it, which the next delivery says
    for some in pages(server, staged.index):
        positions.must_be(state)
        documents = [Document(name, None if text == GONE else text) for name, text in some]
        if failed := server.bulk(alias, documents, state.number):
            positions.write(replace(state, position=None, next=None, staged=()))  # what is there is no edition
            raise LakeError(
                f"{alias} does not take a document that an index like it has taken: {reason(failed[0].error)}",
                where=server.where,
                fix=f"lake deliver {positions.sink} --resync makes it anew",
            )
    server.client.indices.refresh(index=alias)


def _show(positions: Positions, state: State) -> None:
    """Moves the aliases of all tables that were sent whole, in one action; what they had is removed."""
    actions = list[dict[str, Any]]()
    client = positions.server.client
    for staged in state.staged:
        alias = positions.names.alias(staged.table)
        if staged.whole:
            is_there = client.indices.exists(index=alias)
            there = client.indices.get_alias(index=alias) if is_there else {}
            actions += [{"remove_index": {"index": old}} for old in there if old != staged.index]
            if staged.index not in there:
                actions.append({"add": {"index": staged.index, "alias": alias}})
    if actions:
        positions.must_be(state)
        client.indices.update_aliases(body={"actions": actions})


def pages(server: OpenSearchServer, index: str) -> Iterator[list[tuple[str, str]]]:
    """The documents of an index, as it is when that begins: their `_id` and JSON, some at a time."""
    client = server.client
    body = {"size": _page(server, index), "sort": ["_doc"], "query": {"match_all": {}}}
    found = server.retried(lambda: client.search(body=body, index=index, params=SCROLLED))
    try:
        while hits := found["hits"]["hits"]:
            yield [(hit["_id"], json.dumps(hit["_source"], ensure_ascii=False)) for hit in hits]
            scroll = {"scroll_id": found["_scroll_id"], "scroll": KEPT}
            found = server.retried(partial(client.scroll, body=scroll))
    finally:
        with suppress(exceptions.OpenSearchException):  # it is forgotten by itself
            client.clear_scroll(body={"scroll_id": [found["_scroll_id"]]})


def _page(server: OpenSearchServer, index: str) -> int:
    """So many documents are about as large as a request may be."""
    about = server.client.indices.stats(index=index, metric="docs,store")["_all"]["primaries"]
    each: int = UNPACKED * about["store"]["size_in_bytes"] // max(about["docs"]["count"], 1)
    return max(1, min(BULK_ROWS, BULK_BYTES // max(each, 1)))
