"""Decoder of pgoutput messages, protocol version 1 (PostgreSQL's documentation, "Logical Replication Message Formats").

Numbers are big-endian, texts are zero-terminated, times count microseconds since 2000. Values are texts as the type's
output function writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from struct import Struct
from struct import error as Truncated
from typing import Any, Final, Literal, NamedTuple, TypeAlias

EPOCH: Final = 946_684_800_000_000


class Unchanged(Enum):
    """Large value that is not sent because an update did not change it."""

    TOAST = "u"


UNCHANGED: Final = Unchanged.TOAST
Value: TypeAlias = str | Literal[Unchanged.TOAST] | None
Row: TypeAlias = tuple[Value, ...]


class Begin(NamedTuple):
    """`lsn` is the commit's, `at` its time in microseconds since 1970."""

    lsn: int
    at: int
    xid: int


class Commit(NamedTuple):
    """`end` is the LSN after the commit record."""

    end: int


class RelationColumn(NamedTuple):
    """Old rows have it if `of_identity`; updates may omit it if `large`. pgoutput does not send `large`."""

    name: str
    type: int  # OID
    of_identity: bool
    large: bool = False


class PgRelation(NamedTuple):
    id: int
    schema: str
    name: str
    columns: tuple[RelationColumn, ...]


class Insert(NamedTuple):
    relation: int
    new: Row


class Update(NamedTuple):
    """`old` is complete if `whole`, else it has the identity only; None if that did not change."""

    relation: int
    old: Row | None
    whole: bool
    new: Row


class Delete(NamedTuple):
    """`old` is complete if `whole`, else it has the identity only."""

    relation: int
    old: Row
    whole: bool


class Truncate(NamedTuple):
    relations: tuple[int, ...]


Decoded: TypeAlias = Begin | Commit | PgRelation | Insert | Update | Delete | Truncate

_SHORT, _INT = Struct("!H"), Struct("!I")
_BEGIN, _COMMIT = Struct("!qqI"), Struct("!Bqqq")
_COLUMN, _TRUNCATE = Struct("!Ii"), Struct("!IB")
_NULL, _TOAST, _TEXT = b"nut"
_NEW, _KEY, _OLD = b"NKO"
_IGNORED: Final = b"OYM"
"""Origins, types, logical messages."""


def decode(data: bytes) -> Decoded | None:
    """Return None for a message that changes no row. Raises ValueError."""
    if data[:1] and data[:1] in _IGNORED:
        return None
    reader = _READERS.get(data[:1])
    if reader is None:
        raise ValueError(f"a message of unknown kind {data[:1]!r}")
    message: Decoded
    try:
        message, end = reader(data)
    except (Truncated, IndexError) as error:
        raise ValueError(f"a message of kind {data[:1]!r} that is cut short: {error}") from None
    if end != len(data):
        raise ValueError(f"a message of kind {data[:1]!r} of {len(data)} bytes, not {end}")
    return message


def _begin(data: bytes) -> tuple[Begin, int]:
    lsn, at, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, at + EPOCH, xid), 1 + _BEGIN.size


def _commit(data: bytes) -> tuple[Commit, int]:
    _, _, end, _ = _COMMIT.unpack_from(data, 1)
    return Commit(end), 1 + _COMMIT.size


def _relation(data: bytes) -> tuple[PgRelation, int]:
    (number,) = _INT.unpack_from(data, 1)
    schema, at = _text(data, 5)
    name, at = _text(data, at)
    (count,) = _SHORT.unpack_from(data, at + 1)  # after the replica identity
    at += 3
    columns = []
    for _ in range(count):
        flags = data[at]
        column, at = _text(data, at + 1)
        kind, _ = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(RelationColumn(column, kind, bool(flags & 1)))
    return PgRelation(number, schema or "pg_catalog", name, tuple(columns)), at


def _insert(data: bytes) -> tuple[Insert, int]:
    (relation,) = _INT.unpack_from(data, 1)
    _expect(data, 5, _NEW)
    new, end = _row(data, 6)
    return Insert(relation, new), end


def _update(data: bytes) -> tuple[Update, int]:
    (relation,) = _INT.unpack_from(data, 1)
    kind, old, at = data[5], None, 5
    if kind in (_KEY, _OLD):
        old, at = _row(data, 6)
    _expect(data, at, _NEW)
    new, end = _row(data, at + 1)
    return Update(relation, old, kind == _OLD, new), end


def _delete(data: bytes) -> tuple[Delete, int]:
    (relation,) = _INT.unpack_from(data, 1)
    _expect(data, 5, _KEY, _OLD)
    old, end = _row(data, 6)
    return Delete(relation, old, data[5] == _OLD), end


def _truncate(data: bytes) -> tuple[Truncate, int]:
    count, _ = _TRUNCATE.unpack_from(data, 1)
    at = 1 + _TRUNCATE.size
    relations = Struct(f"!{count}I").unpack_from(data, at)
    return Truncate(relations), at + 4 * count


def _row(data: bytes, at: int) -> tuple[Row, int]:
    (count,) = _SHORT.unpack_from(data, at)
    at += 2
    row: list[Value] = []
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + _INT.unpack_from(data, at + 1)[0]
            row.append(str(data[start:at], "utf-8"))
        elif kind == _NULL:
            row.append(None)
            at += 1
        elif kind == _TOAST:
            row.append(UNCHANGED)
            at += 1
        else:
            raise ValueError(f"a value of unknown kind {chr(kind)!r}")
    return tuple(row), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.find(0, at)
    if end < 0:
        raise IndexError("a text without an end")
    return str(data[at:end], "utf-8"), end + 1


def _expect(data: bytes, at: int, *kinds: int) -> None:
    if data[at] not in kinds:
        raise ValueError(f"a row of unknown kind {chr(data[at])!r}")


_READERS: Final[Mapping[bytes, Callable[[bytes], tuple[Any, int]]]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
}
