"""The decoder of pgoutput's messages against an encoder that follows the same page of documentation."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.connect.postgres.source import pgoutput
from lake.connect.postgres.source.pgoutput import (
    EPOCH,
    UNCHANGED,
    Begin,
    Commit,
    Decoded,
    Delete,
    Insert,
    PgRelation,
    RelationColumn,
    Row,
    Truncate,
    Update,
)

LSN = st.integers(0, 2**63 - 1)
AT = st.integers(-(2**62), 2**62)
ID = st.integers(0, 2**32 - 1)
NAME = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)
VALUE = st.none() | st.just(UNCHANGED) | st.text(st.characters(codec="utf-8"), max_size=20)
ROW = st.lists(VALUE, max_size=6).map(tuple)
COLUMN = st.builds(RelationColumn, NAME, ID, st.booleans(), st.just(False))


@st.composite
def updates(draw: st.DrawFn) -> Update:
    old = draw(st.none() | ROW)
    return Update(draw(ID), old, draw(st.booleans()) if old is not None else False, draw(ROW))


DECODED: st.SearchStrategy[Any] = st.one_of(
    st.builds(Begin, LSN, AT, ID),
    st.builds(Commit, LSN),
    st.builds(PgRelation, ID, NAME, NAME, st.lists(COLUMN, max_size=5).map(tuple)),
    st.builds(Insert, ID, ROW),
    updates(),
    st.builds(Delete, ID, ROW, st.booleans()),
    st.builds(Truncate, st.lists(ID, max_size=4).map(tuple)),
)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def row(values: Row) -> bytes:
    parts = [struct.pack("!H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            data = value.encode()
            parts.append(b"t" + struct.pack("!I", len(data)) + data)
    return b"".join(parts)


def encode(message: Decoded) -> bytes:  # noqa: PLR0911 a line for each message
    match message:
        case Begin(lsn, at, xid):
            return b"B" + struct.pack("!qqI", lsn, at - EPOCH, xid)
        case Commit(end):
            return b"C" + struct.pack("!Bqqq", 0, end - 1, end, 0)
        case PgRelation(number, schema, name, columns):
            said = b"R" + struct.pack("!I", number) + text(schema) + text(name) + b"d"
            said += struct.pack("!H", len(columns))
            for column in columns:
                said += struct.pack("!B", column.of_identity) + text(column.name)
                said += struct.pack("!Ii", column.type, -1)
            return said
        case Insert(number, new):
            return b"I" + struct.pack("!I", number) + b"N" + row(new)
        case Update(number, old, whole, new):
            before = b"" if old is None else (b"O" if whole else b"K") + row(old)
            return b"U" + struct.pack("!I", number) + before + b"N" + row(new)
        case Delete(number, old, whole):
            return b"D" + struct.pack("!I", number) + (b"O" if whole else b"K") + row(old)
        case Truncate(relations):
            return b"T" + struct.pack("!IB", len(relations), 3) + struct.pack(f"!{len(relations)}I", *relations)


@given(DECODED)
def test_pgoutput_message_is_decoded_after_encoding(message: Decoded) -> None:
    assert pgoutput.decode(encode(message)) == message


@given(DECODED, st.data())
def test_pgoutput_rejects_truncated_and_extended_messages(message: Decoded, data: st.DataObject) -> None:
    whole = encode(message)
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]
    for wrong in (short, whole + b"\0"):
        with pytest.raises(ValueError, match=r"a message of|a value of|a row of|utf-8"):
            pgoutput.decode(wrong)


@given(st.binary(max_size=60))
def test_pgoutput_bytes_are_a_message_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        message = pgoutput.decode(data)
        assert data[:1] in {b"O", b"Y", b"M"} if message is None else encode(message)[:1] == data[:1]


def test_pgoutput_rejects_a_binary_value() -> None:
    binary = b"I" + struct.pack("!I", 1) + b"N" + struct.pack("!H", 1) + b"b" + struct.pack("!I", 1) + b"x"
    with pytest.raises(ValueError, match="a value of unknown kind 'b'"):
        pgoutput.decode(binary)
