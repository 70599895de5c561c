"""Changes of tables as Debezium messages, so that contracts read them like those of Debezium itself.

    {"op": "u", "before": …, "after": {"id": 1, …}, "ts_ms": …, "source": {"connector": "postgresql", "name": "shop",
     "db": "shop", "schema": "public", "table": "orders", "snapshot": "false", "txId": 734, "ts_ms": …, "ts_us": …,
     "lsn": 24023128, "ordinal": 3}}

`source.lsn` is the commit's LSN: it grows in the order in which changes became visible, a change's own does not.
`source.ordinal` is the change's number in its transaction, from 1. A copied row (op r) has the copy's LSN and ordinal
0. A repeated copy begins with a truncate of ordinal -1, which removes rows whose delete was missed.

`before` is the old row if the replica identity is full, else null; for a delete it has at least the identity. An update
of the contract's key becomes a delete and a create.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from json.encoder import encode_basestring
from typing import Final, TypeAlias

from lake.connect.postgres.source.pgoutput import UNCHANGED, Delete, Insert, RelationColumn, Row, Update, Value
from lake.connect.postgres.source.values import PgType, codec

ERA_BITS: Final = 56
"""Bits of the LSN in `lsn_in_era`. The bits above it count changes of the server."""
COPY, TRUNCATE = 0, -1
"""Ordinals of copied rows, and of the truncate before a repeated copy."""


def lsn_in_era(lsn: int, era: int = 0) -> int:
    """Return the number that orders changes: LSNs restart after a failover, eras do not."""
    return (era << ERA_BITS) + lsn


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def read_lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


@dataclass(frozen=True)
class CommitMoment:
    lsn: int
    at: int  # microseconds since 1970
    era: int = 0
    xid: int | None = None

    @property
    def tail(self) -> str:
        millis = self.at // 1000
        xid = "" if self.xid is None else f'"txId":{self.xid},'
        return f'{xid}"ts_ms":{millis},"ts_us":{self.at},"lsn":{lsn_in_era(self.lsn, self.era)},"ordinal":'


Member: TypeAlias = tuple[str, Callable[[str], str], str]


@dataclass(frozen=True)
class Images:
    """Writer of rows as JSON. A member has a column's `"name":`, writer and placeholder; `key` has column indexes."""

    members: Sequence[Member]
    of_identity: Sequence[bool]
    key: Sequence[int]

    @classmethod
    def of(cls, columns: Sequence[RelationColumn], key: Iterable[Sequence[str]], types: Mapping[int, PgType]) -> Images:
        names = [column.name for column in columns]
        written = [(f"{encode_basestring(column.name)}:", codec(column.type, types)) for column in columns]
        return cls(
            [(begin, how.write, how.placeholder) for begin, how in written],
            [column.of_identity for column in columns],
            [names.index(name) for of in key for name in of if name in names],
        )

    def whole(self, row: Row) -> str:
        return _image(zip(self.members, row, strict=True))

    def identity(self, row: Row) -> str:
        return _image(compress(zip(self.members, row, strict=True), self.of_identity))

    def key_of(self, row: Row) -> Row:
        return tuple(row[at] for at in self.key)


def _image(members: Iterable[tuple[Member, Value]]) -> str:
    parts = [
        name + ("null" if value is None else placeholder if value is UNCHANGED else write(value))
        for (name, write, placeholder), value in members
    ]
    return "{" + ",".join(parts) + "}"


Change = tuple[str, str, str]


def changes(message: Insert | Update | Delete, images: Images, key_owners: dict[Row, Row]) -> Sequence[Change]:
    """Return the changes by key. `key_owners` has the rows that took over a key in this transaction: {key: row}.

    With a deferrable constraint, the former row of a key may still change or be deleted; this is left out.
    """
    if isinstance(message, Insert):
        return (("c", "null", images.whole(message.new)),)
    if isinstance(message, Update) and message.old is None:
        return (("u", "null", images.whole(message.new)),)
    old = message.old
    assert old is not None, "a delete has it"
    before = images.whole(old) if message.whole else "null"
    was_replaced = bool(key_owners) and message.whole and key_owners.get(images.key_of(old), old) != old

    def removal() -> tuple[Change, ...]:
        return () if was_replaced else (("d", before if message.whole else images.identity(old), "null"),)

    if isinstance(message, Delete):
        return removal()
    new = message.new
    if message.whole:
        new = tuple(had if value is UNCHANGED else value for value, had in zip(new, old, strict=True))
    else:
        new = tuple(
            had if value is UNCHANGED and kept else value
            for value, had, kept in zip(new, old, images.of_identity, strict=True)
        )
    key, new_key = images.key_of(old), images.key_of(new)
    if key == new_key:
        if key in key_owners and not was_replaced:
            key_owners[key] = new
        return () if was_replaced else (("u", before, images.whole(new)),)
    if message.whole:
        key_owners[new_key] = new
    return (*removal(), ("c", "null", images.whole(new)))


def head(source: str, database: str, schema: str, table: str, *, snapshot: str = "false") -> str:
    names = {"name": source, "db": database, "schema": schema, "table": table, "snapshot": snapshot}
    parts = ",".join(f'"{name}":{encode_basestring(value)}' for name, value in names.items())
    return f'"source":{{"connector":"postgresql",{parts},'


def message(change: Change, ts_ms: int, about: str, ordinal: int) -> str:
    """`about` is the `head` of the table and the `tail` of the moment."""
    op, before, after = change
    return f'{{"op":"{op}","before":{before},"after":{after},"ts_ms":{ts_ms},{about}{ordinal}}}}}'
