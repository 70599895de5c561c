"""Decoding of JSON texts to members: accepted and rejected texts, and agreement of both decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from lake.contracts.reasons import Reason
from lake.records import json_value
from lake.records.json_value import Decoder, Members, NotJson, encoder, read_object
from lake.records.raw_values import ABSENT, JsonNumber, RawValue

NAMES = ("a", "b", "a b")
ACCEPTED = (
    b"{}",
    b' \t\r\n{ "a" : 1 }\n',
    b'{"a":[]}',
    b'{"a":[[],{}]}',
    b'{"a":0}',
    b'{"a":-0}',
    b'{"a":-0.0}',
    b'{"a":1E+2}',
    b'{"a":123e-10000000}',
    b'{"a":1.7976931348623157e309}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":""}',
    b'{"":1}',
    b'{"a":"\\u0000\\u001f\\b\\f\\n\\r\\t\\/\\\\\\""}',
    b'{"a":"\x7f"}',
    b'{"a":"\\ud834\\udd1e"}',
    '{"a":"\u2028é\U0001f600"}'.encode(),
    b'{"\\u0061":1}',
    b'{"b":{"a":1,"A":1}}',
    b'{"a":null,"b":true,"a b":false}',
    b'{"x":{"a":[1.50,2]},"a":"x"}',
    b'{"a":"\\\\ud800"}',
)
REFUSED = (
    (b"", "not one JSON object"),
    (b"null", "not one JSON object"),
    (b"[]", "not one JSON object"),
    (b'"a"', "not one JSON object"),
    (b"{}{}", "not one JSON object"),
    (b"{},", "not one JSON object"),
    (b"{}x", "not one JSON object"),
    (b"{", "not one JSON object"),
    (b'{"a"}', "not one JSON object"),
    (b'{"a":}', "not one JSON object"),
    (b'{"a":1,}', "not one JSON object"),
    (b'{,"a":1}', "not one JSON object"),
    (b'{"a":1 "b":2}', "not one JSON object"),
    (b"{a:1}", "not one JSON object"),
    (b"{'a':1}", "not one JSON object"),
    (b"{1:1}", "not one JSON object"),
    (b'{"a":[1,]}', "not one JSON object"),
    (b'{"a":[,1]}', "not one JSON object"),
    (b'{"a":[1}', "not one JSON object"),
    (b'{"a":01}', "not one JSON object"),
    (b'{"a":-01}', "not one JSON object"),
    (b'{"a":+1}', "not one JSON object"),
    (b'{"a":1.}', "not one JSON object"),
    (b'{"a":.5}', "not one JSON object"),
    (b'{"a":1e}', "not one JSON object"),
    (b'{"a":-}', "not one JSON object"),
    (b'{"a":0x1}', "not one JSON object"),
    (b'{"a":1_0}', "not one JSON object"),
    ('{"a":\uff11}'.encode(), "not one JSON object"),
    (b'{"a":tru}', "not one JSON object"),
    (b'{"a":True}', "not one JSON object"),
    (b'{"a":"\t"}', "not one JSON object"),
    (b'{"a":"\x00"}', "not one JSON object"),
    (b'{"a":"\n"}', "not one JSON object"),
    (b'{"a":"\\x41"}', "not one JSON object"),
    (b'{"a":"\\u00g0"}', "not one JSON object"),
    (b'{"a":"\\', "not one JSON object"),
    (b'{"a":1}/**/', "not one JSON object"),
    (b'\xef\xbb\xbf{"a":1}', "not one JSON object"),
    ('{"a":\u00a01}'.encode(), "not one JSON object"),
    (b'\x0c{"a":1}', "not one JSON object"),
    (b'{"a":NaN}', "not one JSON object: NaN is not JSON"),
    (b'{"a":-Infinity}', "not one JSON object: -Infinity is not JSON"),
    (b'{"a":1,"a":1}', "not one JSON object: duplicate field name"),
    (b'{"x":1,"x":2}', "not one JSON object: duplicate field name"),
    (b'{"a":1,"\\u0061":2}', "not one JSON object: duplicate field name"),
    (b'{"a":{"c":1,"c":"\\""}}', "not one JSON object: duplicate field name"),
    (b'{"x":[{"c":1,"c":1}]}', "not one JSON object: duplicate field name"),
    (b'{"a":"\xff"}', "not valid UTF-8"),
    (b'{"a":"\xc0\x80"}', "not valid UTF-8"),
    (b'{"a":"\xed\xa0\x80"}', "not valid UTF-8"),
    (b'{"a":"\xf4\x90\x80\x80"}', "not valid UTF-8"),
    ("{}".encode("utf-16"), "not valid UTF-8"),
    (b'{"a":"\\ud800"}', "unpaired surrogate"),
    (b'{"a":"\\udc00\\ud800"}', "unpaired surrogate"),
    (b'{"x":{"\\ud800":1}}', "unpaired surrogate"),
    (b'{"a":"\\\\\\ud800"}', "unpaired surrogate"),
    (b'{"a":"\\uFfFf"}', "U+FFFF, which is no character"),
    (b'{"a":"\xef\xbf\xbf"}', "U+FFFF, which is no character"),
    (b'{"x":["\\uffff"]}', "U+FFFF, which is no character"),
    (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "not one JSON object: more than 200 levels"),
    (b'{"a":' + b"[" * 100_000, "not one JSON object: more than 200 levels"),
    (b'{"a":' * 100_000, "not one JSON object: more than 200 levels"),
)
MUTATED = (
    b'{"a":-0,"b":[1.5e3,{"c":null}],"x":"\\u00e9\\"\xc3\xa9"}',
    b' {"a":12,"b":{"c":true,"d":0.10},"a b":"\\ud83d\\ude00"}\t',
    b'{"b":"\\uffee-0\\\\","\\u0061":"\xef\xbf\xbe"}',
)


@pytest.mark.parametrize("text", ACCEPTED, ids=repr)
def test_decoder_reads_texts_that_the_grammar_allows(text: bytes) -> None:
    members = Decoder(NAMES).decode([text])
    assert members.broken == {}
    assert _shown(members) == [_carefully(text)]


@pytest.mark.parametrize(("text", "detail"), REFUSED, ids=lambda each: repr(each)[:40])
def test_decoder_rejects_a_text_with_its_reason(text: bytes, detail: str) -> None:
    members = Decoder(NAMES).decode([b'{"a":1}', text, b'{"a":2}'])
    assert members.broken == {1: (Reason.UNPARSEABLE, detail)}
    assert members.columns["a"] == [1, ABSENT, 2]


@pytest.mark.parametrize("text", MUTATED, ids=range(len(MUTATED)))
def test_decoder_agrees_with_the_standard_library_when_a_byte_differs(text: bytes) -> None:
    decoder = Decoder(NAMES)
    for texts in _neighbours(text):
        assert _shown(decoder.decode(texts)) == [_carefully(each) for each in texts]


@pytest.mark.long
def test_decoder_agrees_with_the_standard_library_when_two_bytes_differ() -> None:
    decoder = Decoder(NAMES)
    for text in (b'{"a":-0,"b":"\\ud83d"}', b'{"a":[1.0],"x":{}}'):
        for first in _neighbours(text):
            for each in first[:: len(first) // 24]:
                for texts in _neighbours(each):
                    assert _shown(decoder.decode(texts)) == [_carefully(one) for one in texts]


@pytest.mark.parametrize("text", MUTATED, ids=range(len(MUTATED)))
def test_decoder_returns_the_same_for_a_record_alone_and_among_others(text: bytes) -> None:
    decoder = Decoder(NAMES)
    texts = [each for several in _neighbours(text) for each in several[::5]]
    assert _shown(decoder.decode(texts)) == [_shown(decoder.decode([each]))[0] for each in texts]


def test_decoder_keeps_numbers_as_they_are_written() -> None:
    written = "1.10", "1E5", "-0", "-0.0", "1e400", "0.1000000000000000055511151231257827", "9" * 400
    texts = [b'{"a":%s,"x":[%s]}' % (number.encode(), number.encode()) for number in written]
    members = Decoder(["a"]).decode(texts)
    assert [json_value.plain_text(given) for given in members.columns["a"]] == list(written)
    assert [encoder().encode(extra).decode() for extra in members.extra] == [f'{{"x":[{n}]}}' for n in written]
    assert type(members.columns["a"][0]) is JsonNumber


def test_decoder_distinguishes_absent_members_from_null_ones() -> None:
    members = Decoder(["a", "b"]).decode([b'{"a":null}', b'{"b":0}'])
    assert members.columns == {"a": [None, ABSENT], "b": [ABSENT, 0]}


def test_decoder_accepts_any_name_of_a_member() -> None:
    names = ["taken at", "member_0", "__init__", "größe", 'a"b', "c\\d", "class", "-0"]
    texts = [encoder().encode({name: index for index, name in enumerate(names)}), b'{"member_5":1}']
    members = Decoder(names).decode(texts)
    assert [members.columns[name] for name in names] == [[index, ABSENT] for index in range(len(names))]
    assert members.extra == [None, {"member_5": 1}]


def test_decoder_without_names_returns_whole_records() -> None:
    assert Decoder(()).decode([b'{"a":1,"b":[2]}', b"{}"]).extra == [{"a": 1, "b": [2]}, None]


def test_encoder_writes_texts_like_the_values_grammar() -> None:
    text = "".join(map(chr, [*range(0x20, 0x250), 0x2028, 0xFFFD, 0x1F600, *range(0x20)]))
    items: list[RawValue] = [text, JsonNumber("1.50"), 7, None, True]
    assert encoder().encode({"b": items, "a": {}}).decode() == json_value.encode({"a": {}, "b": items})


def _neighbours(text: bytes) -> Iterator[list[bytes]]:
    """Yield the texts that differ from `text` at one place: a byte changed, added or removed."""
    for place in range(len(text)):
        before, after = text[:place], text[place + 1 :]
        changed = [before + bytes([byte]) + after for byte in range(256)]
        yield [*changed, before, before + after, before + text[place : place + 1] + text[place:]]


def _carefully(text: bytes) -> object:
    try:
        record = read_object(text)
    except NotJson as fault:
        return str(fault)
    columns = [_kind(record.pop(name, ABSENT)) for name in NAMES]
    return [*columns, _kind(record)]


def _shown(members: Members) -> Sequence[object]:
    records = zip(*(members.columns[name] for name in NAMES), members.extra, strict=True)
    return [
        members.broken[index][1] if index in members.broken else [*map(_kind, given[:-1]), _kind(given[-1] or {})]
        for index, given in enumerate(records)
    ]


def _kind(given: RawValue) -> object:
    """Return a value that equals only the same value. A whole number may be an int or a Number."""
    if isinstance(given, JsonNumber) or (isinstance(given, int) and not isinstance(given, bool)):
        return "number", json_value.plain_text(given)
    if isinstance(given, list):
        return [*map(_kind, given)]
    if isinstance(given, dict):
        return {name: _kind(value) for name, value in given.items()}
    return type(given), given
