"""A slot's transactions, and copies of tables, as spooled messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from lake.connect.postgres.source.messages import COPIED, DUMPED, CommitMoment, Images, changes, head, lsn_text, message
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
from lake.sources.source import Spool

ROWS: Final = b"IUDT"
"""Kinds of messages that change rows; those in OF_ONE have one relation, whose OID follows."""
OF_ONE: Final = b"IUD"
TOGETHER: Final = 10_000
TOGETHER_BYTES: Final = 8 << 20
Lookup = Callable[[Sequence[int]], Mapping[int, PgType]]


@dataclass(frozen=True)
class ChangeContext:
    """`streams`: (stream, contract) by "schema.table". `tables`: this name by OID; a table may be renamed meanwhile."""

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
    """Buffer of records: to add single ones to a spool is too slow."""

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
        if self._records >= TOGETHER or self._size >= TOGETHER_BYTES:
            self.flush()

    def flush(self) -> None:
        for stream, (texts, places) in self._waiting.items():
            self.spool.put_many(stream, pa.array(texts, pa.large_string()), pa.array(places, pa.string()), {})
        self._waiting, self._records, self._size = {}, 0, 0


@dataclass
class _StreamRelation:
    """Changes before `since` are in the stream's copy."""

    stream: str
    images: Images
    head: str
    since: int


class Transactions:
    """`since` has the LSN of the copy of each copied stream. `end` is after the last whole transaction."""

    def __init__(self, reading: ChangeContext, spool: Spool, *, after: int, since: Mapping[str, int]) -> None:
        self._reading, self._after, self._since = reading, after, since
        self._columns = RecordBuffer(spool)
        self._relations: dict[int, _StreamRelation | None] = {}
        self._moved = defaultdict[int, dict[Row, Row]](dict)
        self._moment: CommitMoment | None = None
        self._tail, self._millis, self._shown, self._ordinal, self._skipping = "", 0, "", 0, False
        self.end, self.records, self.messages = after, 0, 0

    def take(self, messages: Iterable[bytes]) -> None:
        for data in messages:
            self.messages += 1
            if self._skipping and data[0] in ROWS:
                continue
            if data[0] in OF_ONE and self._relations[int.from_bytes(data[1:5])] is None:
                self._ordinal += 1
                continue
            try:
                message = decode(data)
            except ValueError as error:
                raise LakeError(
                    f"PostgreSQL sent {error}",
                    where=self._shown,
                    fix="report this with the server's version: it does not speak protocol version 1 of pgoutput",
                ) from None
            if isinstance(message, Insert | Update | Delete):
                self._change(message)
            else:
                self._other(message)

    def finish(self) -> None:
        self._columns.flush()
        if self._moment is not None:
            raise LakeError(
                f"PostgreSQL sent half a transaction, {self._shown}", fix="please report this: it should be impossible"
            )

    def _other(self, message: Decoded | None) -> None:
        match message:
            case Begin(lsn, at, xid):
                self._moment = CommitMoment(lsn, at, self._reading.era, xid)
                self._tail, self._millis, self._shown = self._moment.tail, at // 1000, self._reading.place(lsn, "")
                self._ordinal, self._skipping = 0, lsn < self._after
                self._moved.clear()
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
        reading = self._reading
        name = reading.tables.get(relation.id, f"{relation.schema}.{relation.name}")
        stream, contract = reading.streams.get(name, (None, None))
        if stream is None or contract is None or stream not in self._since:
            return None
        declared = reading.types([column.type for column in relation.columns])
        images = Images.of(relation.columns, reading.key(contract), declared)
        schema, _, table = name.partition(".")
        about = head(reading.source, reading.database, schema, table)
        return _StreamRelation(stream, images, about, self._since[stream])

    def _change(self, message: Insert | Update | Delete) -> None:
        of = self._relations[message.relation]
        assert of is not None, "left out before it is decoded"
        for change in changes(message, of.images, self._moved[message.relation]):
            self._put(message.relation, change)

    def _put(self, number: int, change: tuple[str, str, str]) -> None:
        self._ordinal += 1
        of, moment = self._relations[number], self._moment
        if of is None or moment is None or moment.lsn < of.since:
            return
        text = message(change, self._millis, of.head + self._tail, self._ordinal)
        self._columns.put(of.stream, text, f"{self._shown}{self._ordinal}")
        self.records += 1


def copy_messages(
    reading: ChangeContext,
    table: PublishedTable,
    rows: Iterable[Sequence[str | None]],
    moment: CommitMoment,
    *,
    again: bool,
) -> Iterator[tuple[str, str]]:
    """Yield texts and places. `again` prepends a truncate."""
    stream, _ = reading.streams[f"{table.schema}.{table.name}"]
    declared = reading.types([column.type for column in table.columns])
    images = Images.of(table.columns, (), declared)
    millis = moment.at // 1000
    about = head(reading.source, reading.database, table.schema, table.name, snapshot="true") + moment.tail
    if again:
        yield message(("t", "null", "null"), millis, about, DUMPED), reading.place(moment.lsn, f"{stream}.0")
    for number, row in enumerate(rows, start=1):
        text = message(("r", "null", images.whole(tuple(row))), millis, about, COPIED)
        yield text, reading.place(moment.lsn, f"{stream}.{number}")
