"""JSON texts of files: places, exact texts, faults, chunks; no byte is lost."""

from __future__ import annotations

import json
import random
from itertools import product

import pytest

from lake.records import json_text
from tests.records.reading import Record, json_records

FILES: list[tuple[bytes, list[Record]]] = [
    (b'{"a":1}\n{"b":2}\r\n\r\n {"c":3} ', [(1, b'{"a":1}'), (2, b'{"b":2}'), (4, b'{"c":3}')]),
    (b'\xef\xbb\xbf{"a":1}\r\xef\xbb\xbf{"b":2}', [(1, b'{"a":1}'), (2, b'{"b":2}')]),
    # arrays
    (b'[\n{"a":1},\n{"b":2}\n]\n', [(2, b'{"a":1}'), (3, b'{"b":2}')]),
    (b'[{"a":1}, {"b":[{}]}]\n[]\n[{"c":3}]', [(1, b'{"a":1}'), (2, b'{"b":[{}]}'), (3, b'{"c":3}')]),
    (b' [\r\n1, "a,\\"]b" ,[{"a":1}],null]', [(2, b"1"), (3, b'"a,\\"]b"'), (4, b'[{"a":1}]'), (5, b"null")]),
    (b'[{"a":1},,{"b":2},]', [(1, b'{"a":1}'), (2, b","), (3, b'{"b":2}'), (4, b",")]),
    (b'[{"a":1}\n{"b":2}', [(1, b'{"a":1}'), (2, b'{"b":2}'), (3, b"[")]),
    (b'[\n{"a":1]}\n, {"b":2}]', [(2, b'{"a":1]}'), (3, b'{"b":2}')]),
    # over lines, and several on a line
    (
        b'{\n "a": {"b": [1, {}]},\n "c": "}{"\n}\n{"d":1}',
        [(1, b'{\n "a": {"b": [1, {}]},\n "c": "}{"\n}'), (5, b'{"d":1}')],
    ),
    (b'{"a":{}\n, "b":{}\n}\n{"c":3}\n', [(1, b'{"a":{}\n, "b":{}\n}'), (4, b'{"c":3}')]),
    (b'{"a":1}{"b":2} {"c":3}\n{"d":4}', [(1, b'{"a":1}'), (2, b'{"b":2}'), (3, b'{"c":3}'), (4, b'{"d":4}')]),
    (b'{"a":1}[{"b":2}]\n{"c":"}{"}', [(1, b'{"a":1}'), (2, b'{"b":2}'), (3, b'{"c":"}{"}')]),
    # broken
    (b'{"a":1}\nhello\n{"b":2} x\n{"c":3}', [(1, b'{"a":1}'), (2, b"hello"), (3, b'{"b":2} x'), (4, b'{"c":3}')]),
    (b'{"a":1, "b\n{"b":2}\n{"c":3}', [(1, b'{"a":1, "b'), (2, b'{"b":2}'), (3, b'{"c":3}')]),
    (b'{"a":1, "b":\n{"b":2}\n{"c":3}', [(1, b'{"a":1, "b":'), (2, b'{"b":2}'), (3, b'{"c":3}')]),
    (b'{"a":1, "b":[\n{"b":2}\n{"c":3}\n', [(1, b'{"a":1, "b":['), (2, b'{"b":2}'), (3, b'{"c":3}')]),
    (b'{"a":1,\n"b":2\n{"c":3}', [(1, b'{"a":1,\n"b":2'), (3, b'{"c":3}')]),
    (b'{"a":1}\n{\n"b":2', [(1, b'{"a":1}'), (2, b'{\n"b":2')]),
    (b'{"a":"x\ny"}\n}\n', [(1, b'{"a":"x'), (2, b'y"}'), (3, b"}")]),
    (b'{"a":1}, {"b":2}\n{"c":3},\n', [(1, b'{"a":1}, {"b":2}'), (2, b'{"c":3},')]),
]
BETWEEN = b" \t\r\n,[]\xef\xbb\xbf"


@pytest.mark.parametrize(("data", "expected"), FILES)
def test_json_is_read_as_written_in_any_chunks(data: bytes, expected: list[Record]) -> None:
    for chunk_bytes in range(1, len(data) + 1):
        assert json_records(data, chunk_bytes=chunk_bytes) == expected, chunk_bytes


def test_json_without_a_record_is_rejected_unless_it_is_empty() -> None:
    assert json_records(b"") == json_records(b"[]") == json_records(b"[\n]\n") == []
    assert json_records(b" \n\xef\xbb\xbf\n") == ["no record: all lines are blank"]


def _check(data: bytes) -> list[Record | str]:
    """Check that records are in order and contain all bytes except separators."""
    found = json_records(data)
    texts = [record[1] for record in found if isinstance(record, tuple) and isinstance(record[1], bytes)]
    places = [record[0] for record in found if isinstance(record, tuple)]
    assert places == sorted({*places}), data
    if found != ["no record: all lines are blank"]:
        assert len(texts) == len(found)
        assert b"".join(texts).translate(None, BETWEEN) == data.translate(None, BETWEEN), data
    return found


@pytest.mark.parametrize(
    "base", [b'{"a":"b"}\n{"c":[{}]}\n{}\n', b'[{"a":1},\n {"b":2}]\n', b'{\n"a":{"b":1}\n}{"c":2}']
)
def test_json_loses_no_byte_for_any_byte_at_any_place(base: bytes) -> None:
    for at, byte in product(range(len(base)), range(256)):
        _check(base[:at] + bytes([byte]) + base[at:])
        _check(base[:at] + bytes([byte]) + base[at + 1 :])


TOKENS = (
    b'{"a":',
    b'{"b":1}',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b'"',
    b"\n",
    b"\r",
    b" ",
    b"1",
    b":",
    b"\\",
    b"\xef\xbb\xbf",
)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
def test_json_is_the_same_in_any_chunks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    for _ in range(4000):
        data = b"".join(chance.choices(TOKENS, k=chance.randrange(1, 25)))
        expected = _check(data)
        monkeypatch.setattr(json_text, "WINDOW", chance.choice([1, 5, 20, 1 << 16]))
        chunk_bytes = chance.randrange(1, len(data) + 1)
        assert json_records(data, chunk_bytes=chunk_bytes) == expected, (data, chunk_bytes, json_text.WINDOW)


def _value(chance: random.Random, depth: int) -> object:
    kind = chance.randrange(7 if depth else 5)
    if kind < 3:
        return "".join(chance.choices('ab{}[],:"\\\n é', k=chance.randrange(6)))
    if kind < 5:
        return chance.choice([None, True, 1.5, -3])
    values = [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return values if kind == 5 else dict(zip("abcd", values, strict=False))


def test_json_records_equal_the_written_ones() -> None:
    chance = random.Random(7)
    for _ in range(1000):
        indents = chance.choice([(None,), (None, 0, 2), (1,)])
        records = [{"x": _value(chance, 3)} for _ in range(chance.randrange(1, 6))]
        texts = [json.dumps(one, indent=chance.choice(indents), ensure_ascii=False).encode() for one in records]
        before, between, behind = chance.choice(
            [(b"", b"\n", b""), (b"", b"", b"\r\n"), (b"[", b" ,\n", b"]"), (b"\n", b"\r\n\r\n", b"")]
        )
        found = json_records(before + between.join(texts) + behind, chunk_bytes=chance.choice([3, 50, 1 << 20]))
        assert [record[1] for record in found] == texts


def test_json_record_too_long_rejects_its_file_in_any_chunks() -> None:
    for record, words in (
        (b'{"a":"%b"}' % (b"x" * 30), "a line"),
        (b"x" * 33, "a line"),
        (b'{\n"a":"%b"}' % (b"x" * 30), "one record"),
    ):
        for before, chunk_bytes in product((b"{}\n", b"[", b"{}{} "), range(1, 60)):
            fault = f"oversized: {words} of more than 32 bytes"
            assert str(json_records(before + record, chunk_bytes=chunk_bytes, record_bytes=2)[-1])[:14] == fault[:14]
            found = json_records(before + record.replace(b"x", b"", 10), chunk_bytes=chunk_bytes, record_bytes=2)
            assert not any(isinstance(one, str) for one in found)
