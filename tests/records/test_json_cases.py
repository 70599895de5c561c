"""JSON records by cases: accepted with values, rejected with a reason, or either.

Sources: the ideas of JSONTestSuite, RFC 8259 for the grammar, docs/values.md for the values and the limits.
RecordReader reads every case between two good records, and SingleReader alone. Both must agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from lake.contracts.contract import read_contract
from lake.contracts.reasons import BLANK, Reason
from lake.records.raw_values import TextRecords
from lake.records.reader import RecordReader
from lake.records.single_reader import EXTRA, RecordRejected, SingleReader
from tests import shop
from tests.records.reading import json_records

BYTES: Final = 1 << 20
FIELDS: Final = {
    "id": ("string", {"default": "x"}),
    "t": shop.optional("string"),
    "d": shop.optional("double"),
    "l": shop.optional({"type": "array", "items": ["null", "string"]}),
}
CONTRACT: Final = read_contract(json.dumps(shop.contract("cases", FIELDS)), file="cases.avsc")
READER: Final = RecordReader(CONTRACT, BYTES)
SINGLE: Final = SingleReader(CONTRACT, BYTES)
GOOD: Final = b'{"id":"good","t":"u","d":2}'
EMPTY: Final = {"id": "x", "t": None, "d": None, "l": None, EXTRA: None}
Values = dict[str, Any]
Outcome = Values | tuple[str, str]

NUMBERS: Final[Mapping[str, tuple[str, float | None]]] = {
    "zero": ("0", 0.0),
    "minus zero": ("-0", 0.0),
    "minus zero with a fraction": ("-0.0", 0.0),
    "minus zero with an exponent": ("-0e1", 0.0),
    "negative integer": ("-123", -123.0),
    "fraction": ("123.456789", 123.456789),
    "fraction of one": ("-0.1", -0.1),
    "trailing zeros of a fraction": ("1.500", 1.5),
    "small e": ("1e2", 100.0),
    "capital E": ("1E2", 100.0),
    "exponent with plus": ("1E+2", 100.0),
    "exponent with minus": ("1e-2", 0.01),
    "exponent of zero": ("0e1", 0.0),
    "exponent with leading zeros": ("1e002", 100.0),
    "fraction and exponent": ("123.45E-2", 1.2345),
    "64 bits and one more": ("18446744073709551616", 18446744073709551616.0),
    "more digits than a double has": ("0.10000000000000000000000000000000000001", 0.1),
    "largest double": ("1.7976931348623157e308", 1.7976931348623157e308),
    "smallest double": ("5e-324", 5e-324),
    "below the smallest double": ("1e-400", 0.0),
    "above the largest double": ("1e400", None),
    "below the least double": ("-1e400", None),
    "exponent of four digits": ("1e1000", None),
    "exponent of four digits with minus": ("1e-1000", None),
    "exponent of a hundred digits": ("0.4e" + "9" * 100, None),
    "exponent of a hundred digits with minus": ("-1e-" + "9" * 100, None),
    "a thousand digits": ("0." + "3" * 998, 1 / 3),
    "ten thousand digits": ("1" * 10_000, None),
}
TEXTS: Final[Mapping[str, tuple[str, str | None]]] = {
    "empty text": ('""', ""),
    "blank": ('" "', " "),
    "all short escapes": (r'"\"\\\/\b\f\n\r\t"', '"\\/\b\f\n\r\t'),
    "escape of a letter": (r'"\u0041"', "A"),
    "escape in capitals and small letters": (r'"\u00E9\u00e9"', "éé"),
    "escape of a quote": (r'"\u0022"', '"'),
    "escape of a backslash": (r'"\u005C"', "\\"),
    "escape of NUL": (r'"a\u0000b"', "a\0b"),
    "escape of a control character": (r'"\u001f"', "\x1f"),
    "escape of DEL": (r'"\u007F"', "\x7f"),
    "escaped backslash before u": (r'"\\u0041"', r"\u0041"),
    "escaped backslash before a quote": (r'"a\\"', "a\\"),
    "escaped pair of surrogates": (r'"\ud834\udd1e"', "\U0001d11e"),
    "two escaped pairs": (r'"\uD83D\ude39\ud83d\udc8d"', "\U0001f639\U0001f48d"),
    "last character as a pair": (r'"\uDBFF\uDFFE"', "\U0010fffe"),
    "noncharacter of a higher plane": (r'"\uD83F\uDFFE"', "\U0001fffe"),
    "noncharacter U+FDD0": (r'"\uFDD0"', "\ufdd0"),
    "noncharacter U+FFFE": (r'"\uFFFE"', "\ufffe"),
    "replacement character": ('"\ufffd"', "\ufffd"),
    "escape of the byte order mark": (r'"\uFEFF"', "\ufeff"),
    "raw byte order mark in a text": ('"\ufeffa"', "\ufeffa"),
    "escape of the line separator": (r'"\u2028\u2029"', "\u2028\u2029"),
    "raw line separator": ('"\u2028\u2029"', "\u2028\u2029"),
    "raw DEL": ('"a\x7fa"', "a\x7fa"),
    "raw C1 control character": ('"\x80\x85"', "\x80\x85"),
    "raw characters of two to four bytes": ('"\u0123€\U0001f600"', "\u0123€\U0001f600"),
    "raw combining character": ('"e\u0301"', "e\u0301"),
    "raw last character": ('"\U0010ffff"', "\U0010ffff"),
    "comment in a text": ('"a/*b*/c//d#e"', "a/*b*/c//d#e"),
    "structure in a text": ('"]},:[{"', "]},:[{"),
    "text like a literal": ('"null"', "null"),
    "single quotes in a text": ('"\'"', "'"),
    "true": ("true", "true"),
    "false": ("false", "false"),
    "null": ("null", None),
    "empty list": ("[]", "[]"),
    "empty object": ("{}", "{}"),
    "list with blanks": ("[ 1 ,\t2\n, null ]", "[1,2,null]"),
    "object with blanks": ('{ "b" : [ { } ] , "a" : -0 }', '{"b":[{}],"a":-0}'),
    "list of all kinds": ('[null,1,"1",{},[],true]', '[null,1,"1",{},[],true]'),
    "199 levels of lists": ("[" * 199 + "]" * 199, "[" * 199 + "]" * 199),
    "199 levels of objects": ('{"a":' * 198 + "{}" + "}" * 198, '{"a":' * 198 + "{}" + "}" * 198),
    "a thousand lists next to each other": ("[" + "[]," * 1000 + "[]]", "[" + "[]," * 1000 + "[]]"),
}
DOCUMENTS: Final[Mapping[str, tuple[str, Values]]] = {
    "empty object": ("{}", {}),
    "empty object with blanks": (" {\t}\r\n", {}),
    "every blank of the grammar": ('\n{ \t"t"\r:\n"a" \t,\r\n"d" : 1 }\t ', {"t": "a", "d": 1.0}),
    "member without a name": ('{"":1}', {EXTRA: '{"":1}'}),
    "name with NUL": (r'{"a\u0000b":1}', {EXTRA: r'{"a\u0000b":1}'}),
    "escaped name of a field": (r'{"\u0074":"a"}', {"t": "a"}),
    "names that differ in case": ('{"t":"a","T":"b"}', {"t": "a", EXTRA: '{"T":"b"}'}),
    "names that differ in composition": ('{"é":1,"e\u0301":1}', {EXTRA: '{"e\u0301":1,"é":1}'}),
    "name that is a part of another": ('{"a":1,"aa":1}', {EXTRA: '{"a":1,"aa":1}'}),
    "same name at two levels": ('{"a":{"a":{"a":1}}}', {EXTRA: '{"a":{"a":{"a":1}}}'}),
    "same name in two items": ('{"a":[{"b":1},{"b":2}]}', {EXTRA: '{"a":[{"b":1},{"b":2}]}'}),
    "undeclared literals": ('{"a":[true,false,null]}', {EXTRA: '{"a":[true,false,null]}'}),
    "undeclared null": ('{"a":null}', {EXTRA: '{"a":null}'}),
    "long name": ('{"' + "n" * 5000 + '":1}', {EXTRA: '{"' + "n" * 5000 + '":1}'}),
}
NO_VALUES: Final[Mapping[str, str | bytes]] = {
    "leading zero": "01",
    "leading zeros": "000",
    "minus and leading zero": "-012",
    "plus": "+1",
    "plus and minus": "+-1",
    "two minus": "--1",
    "minus alone": "-",
    "minus and blank": "- 1",
    "minus and letter": "-a",
    "point without digits behind": "1.",
    "point without digits before": ".1",
    "minus and point": "-.1",
    "point before exponent": "1.e1",
    "zero and point before exponent": "0.e1",
    "two points": "1.2.3",
    "exponent without digits": "1e",
    "exponent with sign without digits": "1E+",
    "exponent with two signs": "1e+-2",
    "exponent with a fraction": "1e1.5",
    "two exponents": "1e2e3",
    "exponent alone": "e1",
    "hexadecimal": "0x1",
    "octal": "0o7",
    "digit and letter": "1a",
    "underscore in digits": "1_000",
    "blank in digits": "1 000",
    "comma as the point": "1,5",
    "full-width digit": "\uff11",
    "Arabic digit": "\u0661",
    "minus sign of mathematics": "\u22121",
    "suffix of a long": "1L",
    "NaN": "NaN",
    "minus NaN": "-NaN",
    "nan": "nan",
    "Infinity": "Infinity",
    "minus Infinity": "-Infinity",
    "Inf": "Inf",
    "True": "True",
    "NULL": "NULL",
    "incomplete true": "tru",
    "incomplete false": "fals",
    "incomplete null": "nul",
    "true and a letter": "truee",
    "word": "undefined",
    "nothing": "",
    "text without its end": '"a',
    "quote alone": '"',
    "text without its beginning": 'a"',
    "text without quotes": "abc",
    "single quotes": "'a'",
    "typographic quotes": "“a”",
    "two texts": '"a""b"',
    "text and a letter": '"a"b',
    "escape outside of a text": r"\n",
    "raw newline": '"a\nb"',
    "raw tab": '"a\tb"',
    "raw NUL": '"a\0b"',
    "wrong escape a": r'"\a"',
    "wrong escape v": r'"\v"',
    "wrong escape x": r'"\x41"',
    "wrong escape of a single quote": r'"\'"',
    "wrong escape of a digit": r'"\0"',
    "wrong escape of a blank": r'"\ "',
    "wrong escape of a line end": '"\\\n"',
    "wrong escape of a wide character": '"\\\U0001f300"',
    "capital U": r'"\U0041"',
    "backslash before the end": r'"\"',
    "three backslashes before the end": r'"\\\"',
    "escape without digits": r'"\u"',
    "escape of three digits": r'"\u00A"',
    "escape with a letter": r'"\u00G0"',
    "escape with a sign": r'"\u+041"',
    "escape with a blank": r'"\u 041"',
    "escape with an underscore": r'"\u0_41"',
    "escape with full-width digits": '"\\u\uff10\uff10\uff14\uff11"',
    "escape in braces": r'"\u{41}"',
    "high surrogate alone": r'"\ud834"',
    "low surrogate alone": r'"\udd1e"',
    "surrogates in the wrong order": r'"\udd1e\ud834"',
    "two high surrogates and a low one": r'"\ud834\ud834\udd1e"',
    "pair and a low surrogate": r'"\ud834\udd1e\udd1e"',
    "high surrogate and a letter": r'"\ud834a"',
    "high surrogate and another escape": r'"\ud834\n"',
    "high surrogate and half an escape": r'"\ud834\u"',
    "high surrogate and an incomplete low one": r'"\ud834\udd"',
    "high surrogate and an escaped backslash": r'"\ud834\\udd1e"',
    "escape of U+FFFF": r'"\uFFFF"',
    "raw U+FFFF": '"\uffff"',
    "overlong NUL": b'"\xc0\x80"',
    "overlong slash of two bytes": b'"\xc0\xaf"',
    "overlong slash of three bytes": b'"\xe0\x80\xaf"',
    "overlong slash of four bytes": b'"\xf0\x80\x80\xaf"',
    "overlong slash of six bytes": b'"\xfc\x80\x80\x80\x80\xaf"',
    "surrogate in UTF-8": b'"\xed\xa0\xb4"',
    "pair of surrogates in UTF-8": b'"\xed\xa0\xb4\xed\xb4\x9e"',
    "beyond the last character": b'"\xf4\x90\x80\x80"',
    "continuation byte alone": b'"\x81"',
    "character that is cut": b'"\xe2\x82"',
    "byte that UTF-8 never has": b'"\xff"',
    "Latin-1": b'"caf\xe9"',
    "invalid UTF-8 outside of a text": b"1\xe5",
    "invalid UTF-8 in an escape": b'"\\u00\xe5"',
    "invalid UTF-8 behind a backslash": b'"\\\xe5"',
    "trailing comma in a list": "[1,]",
    "leading comma in a list": "[,1]",
    "comma alone in a list": "[,]",
    "two commas in a list": "[1,,2]",
    "no comma in a list": "[1 2]",
    "colon in a list": "[1:2]",
    "list without its end": "[1",
    "list without its end behind a comma": "[1,",
    "list with the end of an object": "[1}",
    "list closed twice": "[1]]",
    "spread in a list": "[...1]",
    "trailing comma in an object": '{"a":1,}',
    "two trailing commas in an object": '{"a":1,,}',
    "comma alone in an object": "{,}",
    "two commas in an object": '{"a":1,,"b":2}',
    "no comma in an object": '{"a":1 "b":2}',
    "no colon": '{"a" 1}',
    "two colons": '{"a"::1}',
    "equals sign for a colon": '{"a"=1}',
    "comma for a colon": '{"a",1}',
    "name without a value": '{"a":}',
    "name alone": '{"a"}',
    "value without a name": "{:1}",
    "name without quotes": "{a:1}",
    "name in single quotes": "{'a':1}",
    "number for a name": "{1:1}",
    "null for a name": "{null:1}",
    "list for a name": "{[]:1}",
    "object in braces": "{{}}",
    "object without its end": '{"a":1',
    "object with the end of a list": '{"a":1]',
    "wrong escape in a name": r'{"\x":1}',
    "high surrogate alone in a name": r'{"\ud834":1}',
    "U+FFFF in a name": r'{"\uffff":1}',
    "invalid UTF-8 in a name": b'{"\xb9":1}',
    "name twice with equal values": '{"a":1,"a":1}',
    "name twice with other values": '{"a":1,"b":2,"a":null}',
    "name twice, once escaped": r'{"a":1,"\u0061":2}',
    "empty name twice": '{"":1,"":2}',
    "comment of a block": "1/*a*/",
    "comment of a line": "1//a\n",
    "comment of a hash": "1#a\n",
    "comment before": "/*a*/1",
    "form feed": "\x0c1",
    "vertical tab": "1\x0b",
    "no-break space": "\u00a01",
    "next line": "1\x85",
    "word joiner": "\u20601",
    "byte order mark between": "\ufeff1",
    "zero byte behind": "1\0",
    "semicolon behind": "1;",
    "angle bracket": "<1>",
    "tag": "<null>",
    "star": "*",
    "backquotes": "`a`",
    "200 levels of lists": "[" * 200 + "]" * 200,
    "10,000 levels of lists": "[" * 10_000 + "]" * 10_000,
    "100,000 levels of lists": "[" * 100_000 + "]" * 100_000,
    "100,000 levels of objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "100,000 levels without an end": "[" * 100_000,
    "100,000 levels of both without an end": '[{"a":' * 100_000,
}
NO_DOCUMENTS: Final[Mapping[str, str | bytes]] = {
    **{f"{name} alone": text for name, text in {"number": "1", "text": '"a"', "true": "true", "null": "null"}.items()},
    "list alone": '[{"t":"a"}]',
    "empty list alone": "[]",
    "brace alone": "{",
    "end of an object alone": "}",
    "quote alone": '"',
    "object closed twice": '{"t":"a"}}',
    "list behind": '{"t":"a"}[]',
    "number behind": '{"t":"a"}1',
    "comma behind": '{"t":"a"},',
    "hash behind": '{"t":"a"}#',
    "comment behind": '{"t":"a"}/**/',
    "half a comment behind": '{"t":"a"}/',
    "zero byte behind": '{"t":"a"}\0',
    "form feed behind": '{"t":"a"}\x0c',
    "no-break space behind": '{"t":"a"}\u00a0',
    "byte order mark behind": '{"t":"a"}\ufeff',
    "two objects": '{"t":"a"}{"t":"b"}',
    "two objects with a blank": '{"t":"a"} {"t":"b"}',
    "field twice with equal values": '{"t":"a","t":"a"}',
    "field twice with other values": '{"d":1,"d":2}',
    "field twice, once escaped": r'{"t":"a","\u0074":"a"}',
    "field without quotes": '{t:"a"}',
    "field in single quotes": "{'t':'a'}",
    "object without its beginning": '"t":"a"}',
    "object that is cut in a name": '{"t',
    "form feed alone": "\x0c",
    "zero byte alone": "\0",
    "word joiner alone": "\u2060",
    "byte that UTF-8 never has": b"\xff",
    "half a byte order mark": b'\xef\xbb{"t":"a"}',
    **{f"{name} with its mark": '\ufeff{"t":"a"}'.encode(name) for name in ("utf-16-le", "utf-16-be", "utf-32-le")},
    **{f"{name} without a mark": '{"t":"a"}'.encode(name) for name in ("utf-16-le", "utf-16-be")},
}
EITHER: Final[Mapping[str, bytes]] = {
    "byte order mark before": b'\xef\xbb\xbf{"t":"a"}',
    "two byte order marks before": b'\xef\xbb\xbf\xef\xbb\xbf{"t":"a"}',
    "byte order mark alone": b"\xef\xbb\xbf",
    "byte order mark and a blank": b"\xef\xbb\xbf \n",
}
LISTS: Final = frozenset({"nothing", "comma as the point"})
"""Ideas that are valid JSON within brackets."""
IN_FILES: Final = frozenset(
    f"document: {idea}"
    for idea in ("list alone", "list behind", "two objects", "two objects with a blank", "byte order mark behind")
)
"""Ideas that are valid in files: lists of records, several on a line, and byte order marks between them."""
UNPARSEABLE: Final = str(Reason.UNPARSEABLE)
WRONG: Final = str(Reason.WRONG_TYPE)


def accepted() -> dict[str, tuple[bytes, Values]]:
    cases = {f"document: {idea}": case for idea, case in DOCUMENTS.items()}
    cases |= {f"text: {idea}": (f'{{"t":{value}}}', {"t": text}) for idea, (value, text) in TEXTS.items()}
    cases |= {f"text of a list: {idea}": (of_list(value), {"l": [text]}) for idea, (value, text) in TEXTS.items()}
    for idea, (number, double) in NUMBERS.items():
        cases[f"text of a list: {idea}"] = of_list(number), {"l": [number]}
        cases[f"number as text: {idea}"] = (f'{{"t":{number}}}', {"t": number})
        cases[f"undeclared number: {idea}"] = (f'{{"a":[{number}]}}', {EXTRA: f'{{"a":[{number}]}}'})
        if double is not None:
            cases[f"double: {idea}"] = (f'{{"d":{number}}}', {"d": double})
    return {idea: (text.encode(), EMPTY | values) for idea, (text, values) in cases.items()}


def refused() -> dict[str, tuple[bytes, str]]:
    controls = {f"raw control character {code:#04x}": f'"a{chr(code)}b"' for code in range(0x20)}
    cases: dict[str, tuple[bytes, str]] = {
        "empty": (b"", BLANK),
        "blanks": (b" \t\r\n", BLANK),
        **{f"document: {idea}": (utf8(text), UNPARSEABLE) for idea, text in NO_DOCUMENTS.items()},
        **{f"double: {i}": (b'{"d":%b}' % n.encode(), WRONG) for i, (n, double) in NUMBERS.items() if double is None},
    }
    for idea, value in {**NO_VALUES, **controls}.items():
        cases[f"value: {idea}"] = (b'{"t":%b}' % utf8(value), UNPARSEABLE)
        cases[f"undeclared value: {idea}"] = (b'{"a":{"b":%b}}' % utf8(value), UNPARSEABLE)
        if isinstance(value, str) and idea not in LISTS:
            reason = UNPARSEABLE if "\uffff" in value else WRONG
            cases[f"text of a list: {idea}"] = of_list(value).encode(), reason
    return cases


def of_list(value: str) -> str:
    """Return a record whose list field has a text of JSON."""
    return f'{{"l":{json.dumps(f"[{value}]", ensure_ascii=False)}}}'


def utf8(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def outcome(text: bytes) -> Outcome:
    """Return the values of a record, or the reason and the detail of its refusal, on which both readers agree."""
    before, row, behind = READER.read(TextRecords([1, 2, 3], [GOOD, text, GOOD]), {}).to_pylist()
    for good in (before, behind):
        assert (good["id"], good["t"], good["d"], good["_reason"]) == ("good", "u", 2.0, None)
    try:
        found: Outcome = SINGLE.values(text, {})
    except RecordRejected as refusal:
        found = refusal.reason, refusal.detail
    in_columns = {name: row[name] for name in EMPTY}
    assert found == (in_columns if row["_reason"] is None else (row["_reason"], row["_detail"]))
    return found


@pytest.mark.parametrize(("text", "values"), [pytest.param(*case, id=idea) for idea, case in accepted().items()])
def test_json_record_is_accepted_with_its_values(text: bytes, values: Values) -> None:
    assert outcome(text) == values
    found = json_records(b"%b\n%b\n%b\n" % (GOOD, text, GOOD))
    assert [record[1] for record in found] == [GOOD, text.strip(), GOOD]


@pytest.mark.parametrize(("text", "reason"), [pytest.param(*case, id=idea) for idea, case in refused().items()])
def test_json_record_is_rejected_with_its_reason(text: bytes, reason: str) -> None:
    found = outcome(text)
    assert isinstance(found, tuple)
    assert found[0] == reason


@pytest.mark.slow
def test_json_file_keeps_the_good_records_around_a_rejected_one() -> None:
    for idea, (text, _) in refused().items():
        if idea not in IN_FILES:
            found = json_records(b"%b\n%b\n%b\n" % (GOOD, text, GOOD))
            texts = [record[1] for record in found if isinstance(record[1], bytes)]
            assert len(texts) == len(found)
            table = READER.read(TextRecords(range(len(texts)), texts), {})
            assert table["id"].drop_null().to_pylist() == ["good", "good"], idea


@pytest.mark.parametrize("text", EITHER.values(), ids=EITHER)
def test_json_record_has_one_outcome_if_the_grammar_leaves_it_open(text: bytes) -> None:
    assert outcome(text) in ({**EMPTY, "t": "a"}, (UNPARSEABLE, "not one JSON object"), (BLANK, ""))
