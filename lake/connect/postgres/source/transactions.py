"""A slot's transactions, and copies of tables, as spooled messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lake.connect.postgres.source.messages import COPY, TRUNCATE, CommitMoment, Images, changes, head, lsn_text, message
from lake.connect.postgres.source.pgoutput import (
    Begin,
    Commit,
    Decoded,
    Delete,
    Insert,
    PgRelation,
    Row,
    Truncate,
    Update,
    decode,
)
from lake.connect.postgres.source.publication import PublishedTable
from lake.connect.postgres.source.values import PgType
from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.lazy import pa
from lake.sources.source import Spool

SINGLE_ROW_KINDS: Final = b"IUD"
"""Kinds of messages about one row, which begin with the OID of its relation."""
ROW_KINDS: Final = SINGLE_ROW_KINDS + b"T"
BUFFERED_RECORDS: Final = 10_000
BUFFERED_BYTES: Final = 8 << 20
Lookup = Callable[[Sequence[int]], Mapping[int, PgType]]


@dataclass(frozen=True)
class ChangeContext:
    """`streams` is {"schema.table": (stream, contract)}. `tables` is {OID: this name}, as tables get renamed."""

    source: str
    database: str
    era: int
    streams: Mapping[str, tuple[str, Contract]]
    types: Lookup
    tables: Mapping[int, str] = field(default_factory=dict)

    def key(self, contract: Contract) -> list[Sequence[str]]:
        return [contract.field(name).names for name in contract.key]

    def place(self, lsn: int, last: object) -> str:
        return f"{lsn_text(lsn)}#{last}" if not self.era else f"{self.era}:{lsn_text(lsn)}#{last}"


@dataclass
class RecordBuffer:
    """Buffer of records, since adding them one by one to a spool is too slow."""

    spool: Spool
    _waiting: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    _records: int = 0
    _size: int = 0

    def put(self, stream: str, text: str, place: str) -> None:
        waiting = self._waiting.get(stream)
        if waiting is None:
            waiting = self._waiting[stream] = ([], [])
        waiting[0].append(text)
        waiting[1].append(place)
        self._records += 1
        self._size += len(text)
        if self._records >= BUFFERED_RECORDS or self._size >= BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        for stream, (texts, places) in self._waiting.items():
            self.spool.put_many(stream, pa.array(texts, pa.large_string()), pa.array(places, pa.string()), {})
        self._waiting, self._records, self._size = {}, 0, 0


@dataclass
class _StreamRelation:
    stream: str
    images: Images
    head: str
    since: int  # changes before it are in the stream's copy


class Transactions:
    """`since` has the LSN of the copy of each copied stream. `end` is after the last whole transaction."""

    def __init__(self, context: ChangeContext, spool: Spool, *, after: int, since: Mapping[str, int]) -> None:
        self._context, self._after, self._since = context, after, since
        self._buffer = RecordBuffer(spool)
        self._relations: dict[int, _StreamRelation | None] = {}
        self._key_owners = defaultdict[int, dict[Row, Row]](dict)
        self._moment: CommitMoment | None = None
        self._tail, self._millis, self._place, self._ordinal, self._skipping = "", 0, "", 0, False
        self.end, self.records, self.messages = after, 0, 0

    def read(self, messages: Iterable[bytes]) -> None:
        for data in messages:
            self.messages += 1
            if self._skipping and data[0] in ROW_KINDS:
                continue
            if data[0] in SINGLE_ROW_KINDS and self._relations[int.from_bytes(data[1:5])] is None:
                self._ordinal += 1
                continue
            try:
                message = decode(data)
            except ValueError as error:
                raise LakeError(
                    f"PostgreSQL sent {error}",
                    where=self._place,
                    fix="report this with the server's version: it does not speak protocol version 1 of pgoutput",
                ) from None
            if isinstance(message, Insert | Update | Delete):
                self._change(message)
            else:
                self._other(message)

    def finish(self) -> None:
        self._buffer.flush()
        if self._moment is not None:
            raise LakeError(
                f"PostgreSQL sent half a transaction, {self._place}", fix="please report this: it should be impossible"
            )

    def _other(self, message: Decoded | None) -> None:
        match message:
            case Begin(lsn, at, xid):
                self._moment = CommitMoment(lsn, at, self._context.era, xid)
                self._tail, self._millis, self._place = self._moment.tail, at // 1000, self._context.place(lsn, "")
                self._ordinal, self._skipping = 0, lsn < self._after
                self._key_owners.clear()
            case Commit():
                if not self._skipping:
                    self.end = message.end
                self._moment, self._skipping = None, False
            case PgRelation():
                self._relations[message.id] = self._relation(message)
            case Truncate():
                for number in message.relations:
                    self._put(number, ("t", "null", "null"))

    def _relation(self, relation: PgRelation) -> _StreamRelation | None:
        context = self._context
        name = context.tables.get(relation.id, f"{relation.schema}.{relation.name}")
        stream, contract = context.streams.get(name, (None, None))
        if stream is None or contract is None or stream not in self._since:
            return None
        declared = context.types([column.type for column in relation.columns])
        images = Images.of(relation.columns, context.key(contract), declared)
        schema, _, table = name.partition(".")
        about = head(context.source, context.database, schema, table)
        return _StreamRelation(stream, images, about, self._since[stream])

    def _change(self, message: Insert | Update | Delete) -> None:
        relation = self._relations[message.relation]
        assert relation is not None, "left out before it is decoded"
        for change in changes(message, relation.images, self._key_owners[message.relation]):
            self._put(message.relation, change)

    def _put(self, number: int, change: tuple[str, str, str]) -> None:
        self._ordinal += 1
        relation, moment = self._relations[number], self._moment
        if relation is None or moment is None or moment.lsn < relation.since:
            return
        text = message(change, self._millis, relation.head + self._tail, self._ordinal)
        self._buffer.put(relation.stream, text, f"{self._place}{self._ordinal}")
        self.records += 1


def copy_messages(
    context: ChangeContext,
    table: PublishedTable,
    rows: Iterable[Sequence[str | None]],
    moment: CommitMoment,
    *,
    again: bool,
) -> Iterator[tuple[str, str]]:
    """Yield texts and places. `again` prepends a truncate."""
    stream, _ = context.streams[f"{table.schema}.{table.name}"]
    declared = context.types([column.type for column in table.columns])
    images = Images.of(table.columns, (), declared)
    millis = moment.at // 1000
    about = head(context.source, context.database, table.schema, table.name, snapshot="true") + moment.tail
    if again:
        yield message(("t", "null", "null"), millis, about, TRUNCATE), context.place(moment.lsn, f"{stream}.0")
    for number, row in enumerate(rows, start=1):
        text = message(("r", "null", images.whole(tuple(row))), millis, about, COPY)
        yield text, context.place(moment.lsn, f"{stream}.{number}")
