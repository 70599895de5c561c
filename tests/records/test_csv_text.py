"""CSV files: comparison with the model on every small file, options, places, faults, chunks."""

from __future__ import annotations

import json
import random
import re
from itertools import product

import pytest

from lake.contracts.csv_options import CsvOptions
from tests.records import csv_model
from tests.records.reading import csv_records, file_records

CHARACTERS = ("a", ",", '"', "\n", "\r", " ")
HEADER = b"x,y\n"
COPY = {"delimiter": "\t", "quote": "", "escape": "\\"}

FILES = [
    (b"\n\r\n \t\nx,y\n1,a\n", {}, [(5, {"x": "1", "y": "a"})]),
    (b"x,y\n1,a\r\n2,b\r3,c", {}, [(2, {"x": "1", "y": "a"}), (3, {"x": "2", "y": "b"}), (4, {"x": "3", "y": "c"})]),
    (b'x,y\r\n1,"a\r\nb\rc\nd"\r\n2,e', {}, [(2, {"x": "1", "y": "a\r\nb\rc\nd"}), (6, {"x": "2", "y": "e"})]),
    (b'x,y\n1,""\n2,\n', {}, [(2, {"x": "1", "y": ""}), (3, {"x": "2"})]),
    (b'x,y\n1,""\n2,NA\n3,"NA"', {"null": ["", "NA"]}, [(2, {"x": "1"}), (3, {"x": "2"}), (4, {"x": "3"})]),
    (b'x,y\n1,""\n2,NA\n3,"NA"', {"null": "NA"}, [(2, {"x": "1", "y": ""}), (3, {"x": "2"}), (4, {"x": "3"})]),
    (b"\xef\xbb\xbf x , y \n1, a\n", {}, [(2, {"x": "1", "y": " a"})]),
    (b"x\n \n\na\n", {}, [(2, {"x": " "}), (4, {"x": "a"})]),
    # columns beyond the header, and odd names
    (
        b"x,y,\n1,a,\n2,b\n3,c,d\n",
        {},
        [(2, {"x": "1", "y": "a"}), (3, {"x": "2", "y": "b"}), (4, {"x": "3", "y": "c", "_3": "d"})],
    ),
    (
        b"x,y\n1,a,,\n2,b,c\n3\n",
        {},
        [
            (2, {"x": "1", "y": "a"}),
            (3, ("3 columns, and the header has 2", "2,b,c")),
            (4, ("1 column, and the header has 2", "3")),
        ],
    ),
    (b"x,y,y,y_3\n1,a,b,c\n", {}, [(2, {"x": "1", "y": "a", "y_3_": "b", "y_3": "c"})]),
    (b"x,,y\n1,,a\n2,b,c\n", {}, [(2, {"x": "1", "y": "a"}), (3, {"x": "2", "_2": "b", "y": "c"})]),
    # lines before the header, and a delimiter in the file
    (b"# one\n# two\nx,y\n#,a\n", {"skip": "#"}, [(4, {"x": "#", "y": "a"})]),
    (b"one, two\n\nx,y\n1,a\n", {"skip": 1}, [(4, {"x": "1", "y": "a"})]),
    (b"sep=;\r\nx;y\r\n1;a\r\n", {}, [(3, {"x": "1", "y": "a"})]),
    (b'"sep=;"\n\nx;y\n1;a\n', {"delimiter": "|"}, [(4, {"x": "1", "y": "a"})]),
    (
        b"made by hand\n1,a\n2,b\n",
        {"skip": 1, "columns": ["x", "y"]},
        [(2, {"x": "1", "y": "a"}), (3, {"x": "2", "y": "b"})],
    ),
    (
        b"1,a,\n2\n",
        {"columns": ["x", "y"]},
        [(1, {"x": "1", "y": "a"}), (2, ("1 column, and the contract has 2", "2"))],
    ),
    # backslashes
    (b"x\ty\n1\ta\\tb\\\\c\\nd\\re\n", COPY, [(2, {"x": "1", "y": "a\tb\\c\nd\re"})]),
    (
        b"x\ty\n1\t\\N\n2\t\\\\N\n3\t\\N.\n",
        COPY,
        [(2, {"x": "1"}), (3, {"x": "2", "y": "\\N"}), (4, {"x": "3", "y": "N."})],
    ),
    (
        b"x\ty\n1\ta\\\tb\n2\ta\\\r\nb\n3\tc\n",
        COPY,
        [(2, {"x": "1", "y": "a\tb"}), (3, {"x": "2", "y": "a\r\nb"}), (5, {"x": "3", "y": "c"})],
    ),
    (
        b"x\ty\n1\t\\x41\n2\ta\\",
        COPY,
        [(2, ("\\x is no escape that is read", "1\t\\x41")), (3, ("a backslash at the end", "2\ta\\"))],
    ),
    (b'x,y\n1,"a\\"b"\n2,"a""b\\\\"\n', {"escape": "\\"}, [(2, {"x": "1", "y": 'a"b'}), (3, {"x": "2", "y": 'a"b\\'})]),
    (b"x,y\n1,a\\tb\n", {}, [(2, {"x": "1", "y": "a\\tb"})]),
    # blanks around columns
    (
        b'x , y\n 1\t, a b \n2, "b " \n3,   \n',
        {"trim": True},
        [(2, {"x": "1", "y": "a b"}), (3, {"x": "2", "y": "b "}), (4, {"x": "3"})],
    ),
    (b'x,y\n 1 , "b"\n', {}, [(2, {"x": " 1 ", "y": ' "b"'})]),
    (b"x\ty\n 1 \t \n", {"delimiter": "\t", "trim": True}, [(2, {"x": "1"})]),
    # quotes
    (
        b'x,y\n1,5" pipe\n2,"a" b\n3,c\n',
        {},
        [(2, {"x": "1", "y": '5" pipe'}), (3, ("text behind a closing quote", '2,"a" b')), (4, {"x": "3", "y": "c"})],
    ),
    (b'x,y\n1,a\n2,"b\n3,c\n', {}, [(2, {"x": "1", "y": "a"}), (3, ("a quote is not closed", '2,"b\n3,c'))]),
    (b"x,y\n1,'a,b'\n2,\"\n", {"quote": "'"}, [(2, {"x": "1", "y": "a,b"}), (3, {"x": "2", "y": '"'})]),
    (b'x,y\n1,"a\n', {"quote": ""}, [(2, {"x": "1", "y": '"a'})]),
    # invalid text
    (
        b"x,y\n1,a\0\n2,\xff\n3,c",
        {},
        [
            (2, ("a zero byte", "1,a\0")),
            (3, ("not valid UTF-8, or U+FFFF, which is no character", "2,\uffff")),
            (4, {"x": "3", "y": "c"}),
        ],
    ),
    (
        b"x,y\n1,\x81\n2,\xe4",
        {"encoding": "windows-1252"},
        [(2, ("not valid windows-1252, or U+FFFF, which is no character", "1,\uffff")), (3, {"x": "2", "y": "ä"})],
    ),
]
FAULTS = [
    (b"x,y\n1,a\n", {"columns": ["X", "Y"]}, "a header, and the contract says that there is none"),
    (b'"",\n1,a\n', {}, "a header without names: ,"),
    (b"x,\xff\n", {}, "a header that is not valid UTF-8"),
    (b"x,y\0\n", {}, "a header with a zero byte"),
    (b"x," + b"y" * 300 + b"\xff\n", {}, "a header that is not valid UTF-8"),
    (b"x," + b"y" * 300 + b"\0\n", {}, "a header with a zero byte"),
    (b'x,"y"z\n', {}, "a header that cannot be read: text behind a closing quote: x,y"),
    (b"\n \r\n", {}, "no record: all lines are blank or skipped, or a quote in the header is not closed"),
    (b"# x\n", {"skip": "#"}, "no record: all lines are blank or skipped, or a quote in the header is not closed"),
    (b'"x,y\n1,a', {}, "no record: all lines are blank or skipped, or a quote in the header is not closed"),
    (b"x" + b",x" * 5000, {}, "oversized: 5,001 columns, limit 5,000"),
]


@pytest.mark.parametrize(("data", "options", "expected"), FILES)
def test_csv_is_read_as_declared_in_any_chunks(data: bytes, options: dict[str, object], expected: object) -> None:
    for chunk_bytes in range(1, len(data) + 1):
        assert csv_records(data, CsvOptions.of(options), chunk_bytes=chunk_bytes) == expected


@pytest.mark.parametrize(("data", "options", "fault"), FAULTS)
def test_csv_without_a_header_is_rejected_as_a_whole(data: bytes, options: dict[str, object], fault: str) -> None:
    for chunk_bytes in (1, 2, 1 << 16):
        assert csv_records(data, CsvOptions.of(options), chunk_bytes=chunk_bytes) == [fault]


def test_csv_without_records_is_valid_if_it_has_a_header_or_is_empty() -> None:
    assert csv_records(b"x,y\n") == csv_records(b"x,y") == csv_records(b"") == []


def test_csv_header_with_a_field_twice_or_without_any_is_rejected() -> None:
    assert file_records(b"x,x\n1,2\n", "a.csv", declared=("x",)) == ["a header that names the field x twice: x,x"]
    assert file_records(b"1,2\n3,4\n", "a.csv", declared=("x",)) == [
        'a header without a field of the contract: 1,2 (if it has no header, "csv": {"columns": […]} names its '
        'columns; if they have other names, "aliases" does)'
    ]
    ways = {
        b"# a\n# b\nx,y\n1,2\n": '"csv": {"skip": "#"} would read it',
        b"Title,\n\nx,y\n1,2\n": '"csv": {"skip": 2} would read it',
        b"x;y\n1;2\n": '"csv": {"delimiter": ";"} would read it',
        b"X,Y\n1,2\n": '"aliases": ["X"] of the field x would read it',
    }
    for data, way in ways.items():
        assert str(file_records(data, "a.csv", declared=("x", "y"))[0]).endswith(f" ({way})")
    assert file_records(b",,\n ,\nx,y\n1,2\n", "a.csv", declared=("x",)) == [(4, {"x": "1", "y": "2"})]
    assert file_records(b"x,y,y\n1,2,3\n", "a.csv", declared=("x", "y_3")) == [(2, {"x": "1", "y": "2", "y_3_": "3"})]


@pytest.mark.parametrize("sign", [*"#\\/'%*§\x01"])
def test_suggested_skip_reads_the_file_as_it_is_written(sign: str) -> None:
    data = f"{sign} title\nx,y\n1,2\n".encode()
    [fault] = file_records(data, "a.csv", declared=("x", "y"))
    suggestion = re.search(r'"csv": (.*) would read it', str(fault))
    assert suggestion
    options = CsvOptions.of(json.loads(suggestion[1]))
    assert file_records(data, "a.csv", options, declared=("x", "y")) == [(3, {"x": "1", "y": "2"})]


def _check_against_the_model(text: str) -> None:
    assert csv_records(text.encode()) == [*csv_model.records(text)], text


@pytest.mark.parametrize(
    "length", [*range(6), pytest.param(6, marks=pytest.mark.long), pytest.param(7, marks=pytest.mark.long)]
)
def test_csv_agrees_with_the_model_on_every_small_file(length: int) -> None:
    for characters in product(CHARACTERS, repeat=length):
        _check_against_the_model("x,y\n" + "".join(characters))


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("record", ['1,"a ""b"""', "1,b", '"1","c\nd"'])
def test_csv_agrees_with_the_model_on_every_byte_at_every_place(record: str) -> None:
    data = f"2,e\n{record}\r\n3,f\n".encode()
    for at, byte in product(range(len(data)), range(256)):
        for behind in (at, at + 1):  # inserted, and replacing a byte
            changed = HEADER + data[:at] + bytes([byte]) + data[behind:]
            text = changed.decode("utf-8", "replace").replace("\ufffd", "\uffff")
            assert csv_records(changed) == [*csv_model.records(text)], changed


def test_csv_record_too_long_rejects_its_file_in_any_chunks() -> None:
    fault = "oversized: a line of more than 32 bytes, or a quote that is not closed"
    for record in (b"1,%b\n" % (b"a" * 32), b'1,"%b"\n' % (b"a\n" * 15), b'1,"' + b"a\r\n" * 11):
        for chunk_bytes in range(1, 80):
            data = HEADER + b"0,a\n" + record
            short = data.replace(b"a", b"", 3)
            assert csv_records(data, chunk_bytes=chunk_bytes, record_bytes=2)[-1] == fault, (chunk_bytes, data)
            assert csv_records(short, chunk_bytes=chunk_bytes, record_bytes=2)[-1] != fault, (chunk_bytes, short)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_csv_agrees_with_the_model_in_any_chunks(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(2000):
        text = "x,y\n" + "".join(chance.choices((*CHARACTERS, ",", "é", '""', "a,b\n"), k=chance.randrange(30)))
        chunk_bytes = chance.randrange(1, len(text) + 1)
        assert csv_records(text.encode(), chunk_bytes=chunk_bytes) == [*csv_model.records(text)], (text, chunk_bytes)
