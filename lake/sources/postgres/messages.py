"""Changes of tables as Debezium writes them, so that `lake.ingest` reads them as it does those, and one may follow.

    {"op": "u", "before": …, "after": {"id": 1, …}, "ts_ms": …, "source": {"connector": "postgresql", "name": "shop",
     "db": "shop", "schema": "public", "table": "orders", "snapshot": "false", "txId": 734, "ts_ms": …, "ts_us": …,
     "lsn": 24023128, "ordinal": 3}}

`source.lsn` is where the transaction was committed: it grows in the order in which changes became visible, which the
place of the change itself does not. `source.ordinal` is the change's number in its transaction, from 1: identity and
order of changes are (lsn, ordinal), across all tables. A row of a copy (op r) has the place at which the copy was taken
and the ordinal 0: it beats what was committed before, and a change at the same place beats it. Where a table is copied
anew, a truncate with ordinal -1 comes first, so that rows which nobody saw deleted are gone.

`source.ts_ms` and `ts_us` are when the transaction was committed, or the copy taken. `before` is the old row where the
table's replica identity is full, else null; that of a delete has the identity's columns at least. An update that
changes the contract's key is a delete and a create. What a value looks like says `lake.sources.postgres.values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Final

from lake.sources.postgres.pgoutput import UNCHANGED, Delete, Insert, Relation, Row, Update
from lake.sources.postgres.values import Codec, Declared, codec

ERA_BITS: Final = 56
"""A place is the LSN, which never needs more bits than these, and above them how often the server was another one."""
COPIED: Final = 0
DUMPED: Final = -1


def place(lsn: int, era: int = 0) -> int:
    """The number by which the changes at `lsn` are ordered: LSNs of a server that took over begin anew, eras do not."""
    return (era << ERA_BITS) + lsn


def shown(lsn: int) -> str:
    """An LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def read_lsn(text: str) -> int:
    """The number of an LSN that PostgreSQL wrote."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


@dataclass(frozen=True)
class Moment:
    """What all changes of a transaction, or all rows of a copy, have in common: `at` is in microseconds since 1970."""

    lsn: int
    at: int
    era: int = 0
    xid: int | None = None

    @property
    def tail(self) -> str:
        """The end of a message but its ordinal."""
        millis = self.at // 1000
        xid = "" if self.xid is None else f'"txId":{self.xid},'
        return f'{xid}"ts_ms":{millis},"ts_us":{self.at},"lsn":{place(self.lsn, self.era)},"ordinal":'


@dataclass(frozen=True)
class Images:
    """The rows of one version of a table as JSON. `key` names the columns that are the contract's key."""

    names: Sequence[str]
    codecs: Sequence[Codec]
    of_identity: Sequence[bool]
    key: Sequence[int]
    _columns: list[tuple[str, Callable[[str], str], str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        columns = [
            (f"{encode_basestring(name)}:", how.write, how.placeholder)
            for name, how in zip(self.names, self.codecs, strict=True)
        ]
        object.__setattr__(self, "_columns", columns)

    @classmethod
    def of(cls, relation: Relation, key: Mapping[str, Sequence[str]], declared: Mapping[int, Declared]) -> Images:
        """Those of `relation`; `key` has, for each field of the contract's key, the names that its column may have."""
        names = [column.name for column in relation.columns]
        return cls(
            names,
            [codec(column.type, declared) for column in relation.columns],
            [column.of_identity for column in relation.columns],
            [names.index(name) for of in key.values() for name in of if name in names],
        )

    def whole(self, row: Row) -> str:
        parts = [
            name + ("null" if value is None else placeholder if value is UNCHANGED else write(value))
            for (name, write, placeholder), value in zip(self._columns, row, strict=True)
        ]
        return "{" + ",".join(parts) + "}"

    def identity(self, row: Row) -> str:
        """Those columns of an old row that it has, where it has the identity alone."""
        parts = [
            name + ("null" if value is None else placeholder if value is UNCHANGED else write(value))
            for (name, write, placeholder), value, kept in zip(self._columns, row, self.of_identity, strict=True)
            if kept
        ]
        return "{" + ",".join(parts) + "}"

    def moved(self, old: Row, new: Row) -> bool:
        """Whether the contract's key is another one now."""
        return any(old[at] != new[at] for at in self.key)


def completed(new: Row, old: Row) -> Row:
    """`new` with the values that it does not say from `old`, a whole row."""
    return tuple(before if value is UNCHANGED else value for value, before in zip(new, old, strict=True))


Change = tuple[str, str, str]
"""The op of a message, and its `before` and `after` as JSON."""


def changes(message: Insert | Update | Delete, images: Images) -> Sequence[Change]:
    """The messages of one change: two where an update changes the contract's key, else one."""
    if isinstance(message, Insert):
        return (("c", "null", images.whole(message.new)),)
    if isinstance(message, Delete):
        return (("d", images.whole(message.old) if message.whole else images.identity(message.old), "null"),)
    old, new = message.old, message.new
    if old is None:
        return (("u", "null", images.whole(new)),)
    if message.whole:
        new = completed(new, old)
    else:
        new = tuple(
            before if value is UNCHANGED and kept else value
            for value, before, kept in zip(new, old, images.of_identity, strict=True)
        )
    before = images.whole(old) if message.whole else "null"
    if not images.moved(old, new):
        return (("u", before, images.whole(new)),)
    gone = before if message.whole else images.identity(old)
    return ("d", gone, "null"), ("c", "null", images.whole(new))


def head(source: str, database: str, schema: str, table: str, *, snapshot: str = "false") -> str:
    """The beginning of `source` in the messages of a table."""
    names = {"name": source, "db": database, "schema": schema, "table": table, "snapshot": snapshot}
    parts = ",".join(f'"{name}":{encode_basestring(value)}' for name, value in names.items())
    return f'"source":{{"connector":"postgresql",{parts},'


def message(change: Change, ts_ms: int, about: str, ordinal: int) -> str:
    """The text of a message; `about` is the `head` of its table and the `tail` of its moment."""
    op, before, after = change
    return f'{{"op":"{op}","before":{before},"after":{after},"ts_ms":{ts_ms},{about}{ordinal}}}}}'
