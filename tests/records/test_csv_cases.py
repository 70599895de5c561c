"""CSV files by cases: records by their first lines, as docs/how-to/published-files.md states.

Source: the ideas of csv-test-data, with our own files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from lake.contracts.contract import read_contract
from lake.contracts.csv_options import CsvOptions
from lake.contracts.reasons import Reason
from lake.records.read_tasks import read_file
from lake.records.reader import RecordReader
from tests import shop
from tests.records.reading import RECORD_BYTES, csv_records

FIELDS: Final = {"x": ("string", {"default": "none"}), "y": shop.optional("string")}
READER: Final = RecordReader(read_contract(json.dumps(shop.contract("cases", FIELDS)), file="cases.avsc"), RECORD_BYTES)
BEHIND: Final = "text behind a closing quote"
UNCLOSED: Final = "a quote is not closed"
SHORT, LONG = "1 column, and the header has 2", "3 columns, and the header has 2"
XY: Final = "x,y\n"
AB: Final = {2: {"x": "a", "y": "b"}}
Records = Mapping[int, dict[str, str] | str]

CASES: Final[Mapping[str, tuple[str, Records]]] = {
    # lines
    "lines of LF": ("x,y\na,b\nc,d\n", {**AB, 3: {"x": "c", "y": "d"}}),
    "lines of CR LF": ("x,y\r\na,b\r\nc,d\r\n", {**AB, 3: {"x": "c", "y": "d"}}),
    "lines of CR": ("x,y\ra,b\rc,d\r", {**AB, 3: {"x": "c", "y": "d"}}),
    "lines of all kinds": ("x,y\ra,b\r\nc,d\ne,f", {**AB, 3: {"x": "c", "y": "d"}, 4: {"x": "e", "y": "f"}}),
    "lines of LF CR": ("x,y\n\ra,b\n\r", {3: {"x": "a", "y": "b"}}),
    "no line end behind the last record": ("x,y\na,b", AB),
    "no line end behind an empty column": ("x,y\na,", {2: {"x": "a"}}),
    "no line end behind a quote": ('x,y\na,"b"', AB),
    "no line end behind two quotes": ('x,y\na,""', {2: {"x": "a", "y": ""}}),
    "header alone": ("x,y\n", {}),
    "header without its line end": ("x,y", {}),
    "header and blank lines": ("x,y\r\n\r\n\n", {}),
    "blank lines before, between and behind": ("\n\r\nx,y\n\na,b\n \t\n\nc,d\n\n", {5: AB[2], 8: {"x": "c", "y": "d"}}),
    "lines that only Unicode ends": ("x,y\na\x0b\x0c\x1c\x1d\x1e,\x85\u2028\u2029\n",
                                     {2: {"x": "a\x0b\x0c\x1c\x1d\x1e", "y": "\x85\u2028\u2029"}}),
    "end of file of DOS": ("x,y\na,b\n\x1a", {**AB, 3: SHORT}),
    "line of a hash": ("x,y\n#a\n#a,b\n", {2: SHORT, 3: {"x": "#a", "y": "b"}}),
    # empty columns
    "empty columns": ("x,y\n,\n,b\na,\n", {2: {}, 3: {"y": "b"}, 4: {"x": "a"}}),
    "empty texts": ('x,y\n"",""\n"",b\na,""\n', {2: {"x": "", "y": ""}, 3: {"x": "", "y": "b"},
                                                4: {"x": "a", "y": ""}}),
    "empty column and empty text": ('x,y\n"",\n,""\n', {2: {"x": ""}, 3: {"y": ""}}),
    "blank is no empty column": ("x,y\n , \n\t,\t\n", {2: {"x": " ", "y": " "}, 3: {"x": "\t", "y": "\t"}}),
    "blank in quotes": ('x,y\n" ","\t"\n', {2: {"x": " ", "y": "\t"}}),
    "words for null": ("x,y\nnull,NULL\nNA,\\N\n", {2: {"x": "null", "y": "NULL"}, 3: {"x": "NA", "y": "\\N"}}),
    # one column
    "one column": ("x\na\nb", {2: {"x": "a"}, 3: {"x": "b"}}),
    "one column with a blank line": ("x\na\n\nb\n", {2: {"x": "a"}, 4: {"x": "b"}}),
    "one column with empty texts": ('x\n""\n""', {2: {"x": ""}, 3: {"x": ""}}),
    "one column with delimiters": ("x\na,\nb,c\n", {2: {"x": "a"}, 3: "2 columns, and the header has 1"}),
    # quotes
    "all in quotes": ('"x","y"\n"a","b"\n', AB),
    "some in quotes": ('x,"y"\n"a",b\nc,"d"\n', {**AB, 3: {"x": "c", "y": "d"}}),
    "delimiter in quotes": ('x,y\n"a,b",","\n', {2: {"x": "a,b", "y": ","}}),
    "delimiters alone in quotes": ('x,y\n",,",",,,"\n', {2: {"x": ",,", "y": ",,,"}}),
    "LF in quotes": ('x,y\n"a\nb",c\nd,e\n', {2: {"x": "a\nb", "y": "c"}, 4: {"x": "d", "y": "e"}}),
    "CR LF in quotes": ('x,y\r\n"a\r\nb",c\r\nd,e\r\n', {2: {"x": "a\r\nb", "y": "c"}, 4: {"x": "d", "y": "e"}}),
    "CR in quotes": ('x,y\n"a\rb",c\nd,e\n', {2: {"x": "a\rb", "y": "c"}, 4: {"x": "d", "y": "e"}}),
    "LF CR in quotes": ('x,y\n"a\n\rb",c\nd,e\n', {2: {"x": "a\n\rb", "y": "c"}, 5: {"x": "d", "y": "e"}}),
    "line ends alone in quotes": ('x,y\n"\n","\r\n\r\n"\nd,e', {2: {"x": "\n", "y": "\r\n\r\n"},
                                                                 6: {"x": "d", "y": "e"}}),
    "line end before the closing quote": ('x,y\n"a\n","b\n"\n', {2: {"x": "a\n", "y": "b\n"}}),
    "blank line in quotes": ('x,y\n"a\n\n \nb",c\n', {2: {"x": "a\n\n \nb", "y": "c"}}),
    "header in quotes that are read as a record": ('x,y\n"x,y\nx,y",a\n', {2: {"x": "x,y\nx,y", "y": "a"}}),
    "quotes that are written twice": ('x,y\n"a ""b"" c","d"\n', {2: {"x": 'a "b" c', "y": "d"}}),
    "quote at the beginning and the end": ('x,y\n"""a""",""""\n', {2: {"x": '"a"', "y": '"'}}),
    "quotes alone": ('x,y\n"""""",""""""""\n', {2: {"x": '""', "y": '"""'}}),
    "quotes around a delimiter and a line end": ('x,y\n""",""","""\n"""\n', {2: {"x": '","', "y": '"\n"'}}),
    "quote within a column": ('x,y\n5" pipe,b\na"b"c,d""e\n', {2: {"x": '5" pipe', "y": "b"},
                                                               3: {"x": 'a"b"c', "y": 'd""e'}}),
    "quote at the end of a column": ('x,y\na",b"\n', {2: {"x": 'a"', "y": 'b"'}}),
    "blanks before quotes": ('x,y\n "a", "b"\n', {2: {"x": ' "a"', "y": ' "b"'}}),
    "blank before quotes around a delimiter": ('x,y\n "a,b"\n', {2: {"x": ' "a', "y": 'b"'}}),
    "blanks behind quotes": ('x,y\n"a" ,"b"\n"c","d"\t\ne,f\n', {2: BEHIND, 3: BEHIND, 4: {"x": "e", "y": "f"}}),
    "text behind quotes": ('x,y\n"a"b,c\n"a""b"c,d\ne,f\n', {2: BEHIND, 3: BEHIND, 4: {"x": "e", "y": "f"}}),
    "quote that is not written twice": ('x,y\n"a "b" c",d\ne,f\n', {2: BEHIND, 3: {"x": "e", "y": "f"}}),
    "quotes escaped by a backslash": ('x,y\n"a\\"b",c\nd,e\n', {2: BEHIND, 3: {"x": "d", "y": "e"}}),
    "quote that is not closed": ('x,y\na,b\n"c,d\ne,f\n', {**AB, 3: UNCLOSED}),
    "quote that is closed by a later record": ('x,y\n"a,b\nc","d"\ne,f\n', {2: {"x": "a,b\nc", "y": "d"},
                                                                           4: {"x": "e", "y": "f"}}),
    "three quotes": ('x,y\na,"""\n', {2: UNCLOSED}),
    "quote alone": ('x,y\n"', {2: UNCLOSED}),
    "single quotes": ("x,y\n'a','b'\n", {2: {"x": "'a'", "y": "'b'"}}),
    "typographic quotes": ("x,y\n“a”,«b»\n", {2: {"x": "“a”", "y": "«b»"}}),
    "backslashes": ("x,y\n\\,\\n\n", {2: {"x": "\\", "y": "\\n"}}),
    # blanks, and texts as they are
    "blanks around columns": ("x,y\n a , b \n\tc,d\t\n", {2: {"x": " a ", "y": " b "}, 3: {"x": "\tc", "y": "d\t"}}),
    "blanks in quotes": ('x,y\n" a "," b"\n', {2: {"x": " a ", "y": " b"}}),
    "blanks around names": (' x , y \na,b\n', AB),
    "no-break space": ("x,y\n\u00a0,\u3000\n", {2: {"x": "\u00a0", "y": "\u3000"}}),
    "numbers, formulas and JSON as they are": ('x,y\n007,=1+1\n"{""a"":1}",1e400\n',
                                               {2: {"x": "007", "y": "=1+1"}, 3: {"x": '{"a":1}', "y": "1e400"}}),
    "UTF-8": ("x,y\nžluťoučký,日本語\n\U0001f600,e\u0301\n",
              {2: {"x": "žluťoučký", "y": "日本語"}, 3: {"x": "\U0001f600", "y": "e\u0301"}}),
    "names in UTF-8": ("x,größe,€\na,b,c\n", {2: {"x": "a", "größe": "b", "€": "c"}}),
    "byte order mark": ("\ufeffx,y\na,b\n", AB),
    "byte order mark before quotes": ('\ufeff"x","y"\na,b\n', AB),
    "byte order mark and blank lines": ("\ufeff\n\nx,y\na,b\n", {4: AB[2]}),
    "byte order mark in a record": ("x,y\n\ufeffa,b\ufeff\n", {2: {"x": "\ufeffa", "y": "b\ufeff"}}),
    "zero bytes": ('x,y\n\0,text of b\na,"\0"\na,b\n', {2: "a zero byte", 3: "a zero byte", 4: AB[2]}),
    "zero byte in a line of quotes": ('x,y\n"a\n\0",b\nc,d\n', {2: "a zero byte", 4: {"x": "c", "y": "d"}}),
    "control characters": ("x,y\n\x01\x08,\x1b\x7f\n", {2: {"x": "\x01\x08", "y": "\x1b\x7f"}}),
    # width
    "short record": ("x,y\na\na,b\n", {2: SHORT, 3: AB[2]}),
    "long record": ("x,y\na,b,c\na,b\n", {2: LONG, 3: AB[2]}),
    "long record with empty columns": ("x,y\na,b,\na,b,,,\n", {2: AB[2], 3: AB[2]}),
    "long record with an empty text": ('x,y\na,b,""\na,b\n', {2: LONG, 3: AB[2]}),
    "long record with a blank": ("x,y\na,b, \na,b\n", {2: LONG, 3: AB[2]}),
    "delimiter at the beginning": (",x,y\n,a,b\nc,d,e\n", {2: AB[2], 3: {"_1": "c", "x": "d", "y": "e"}}),
    "delimiter at the end": ("x,y,\na,b,\nc,d\n", {2: AB[2], 3: {"x": "c", "y": "d"}}),
    "delimiters alone before the header": (",,\n,\nx,y\na,b\n", {4: AB[2]}),
    "name that is empty in quotes": ('x,"",y\na,,b\na,c,b\n', {2: AB[2], 3: {"x": "a", "_2": "c", "y": "b"}}),
    "name with a delimiter": ('x,"a,b"\n1,2\n', {2: {"x": "1", "a,b": "2"}}),
    "name with quotes and a line end": ('x,"a ""b""\nc"\n1,2\n', {3: {"x": "1", 'a "b"\nc': "2"}}),
    "names in another order": ("y,z,x\nb,c,a\n", {2: {"y": "b", "z": "c", "x": "a"}}),
    "a hundred columns": ("x" + "".join(f",c{n}" for n in range(99)) + "\na" + "," * 98 + ",z\n",
                          {2: {"x": "a", "c98": "z"}}),
    "long text": ('x,y\na,"' + "line\n" * 5000 + '"\nc,d\n', {2: {"x": "a", "y": "line\n" * 5000},
                                                           5003: {"x": "c", "y": "d"}}),
}  # fmt: skip
DECLARED: Final[Mapping[str, tuple[str, dict[str, Any], Records]]] = {
    "trimmed quotes": ('x,y\n "a" , "b"\n" c ",\td\n', {"trim": True}, {**AB, 3: {"x": " c ", "y": "d"}}),
    "trimmed text behind quotes": ('x,y\n"a" b,c\n', {"trim": True}, {2: BEHIND}),
    "trimmed blank of one column": ("x\n \na\n", {"trim": True}, {3: {"x": "a"}}),
    "empty text as no value": ('x,y\n"",b\n', {"null": [""]}, {2: {"y": "b"}}),
    "word as no value": ('x,y\nNA,"NA"\nna,NA \n', {"null": "NA"}, {2: {}, 3: {"x": "na", "y": "NA "}}),
    "single quotes": ("x,y\n'a,''b','\"'\n", {"quote": "'"}, {2: {"x": "a,'b", "y": '"'}}),
    "no quotes": ('x,y\n"a,b"\n', {"quote": ""}, {2: {"x": '"a', "y": 'b"'}}),
    "no header": ('a,b\nx,y\n"c\n",d\n', {"columns": ["x", "y"]}, {1: AB[2], 2: {"x": "x", "y": "y"},
                                                                   3: {"x": "c\n", "y": "d"}}),
    "tab with an empty column": ("x\ty\n\tb\na\t\n\t\n", {"delimiter": "\t"}, {2: {"y": "b"}, 3: {"x": "a"}, 4: {}}),
    "backslash before a quote": ('x,y\n"a\\"b",c\n', {"escape": "\\"}, {2: {"x": 'a"b', "y": "c"}}),
}  # fmt: skip
COLUMNS: Final = ("_seq", "_reason", "_detail", "x", "y", "_extra")


def as_records(found: list[Any]) -> Records:
    """Return records by their lines, a broken one as its reason."""
    records = {line: record if isinstance(record, dict) else record[0] for line, record in found}
    assert len(records) == len(found)
    return records


def expected_rows(records: Records) -> list[dict[str, Any]]:
    """Return the rows of RecordReader: absent columns have their default, undeclared ones are in `_extra`."""
    rows = []
    for line, record in records.items():
        row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"_seq": line}
        if isinstance(record, str):
            row |= {"_reason": str(Reason.UNPARSEABLE), "_detail": record}
        else:
            extra = {name: value for name, value in sorted(record.items()) if name not in FIELDS}
            row |= {"x": record.get("x", "none"), "y": record.get("y")}
            row["_extra"] = json.dumps(extra, ensure_ascii=False, separators=(",", ":")) if extra else None
        rows.append(row)
    return rows


def check(text: str, options: CsvOptions, expected: Records) -> None:
    data = text.encode()
    for chunk_bytes in (1, 2, 3, 7, 1 << 16) if len(data) < 1000 else (1000, 1 << 16):
        assert as_records(csv_records(data, options, chunk_bytes=chunk_bytes)) == expected, chunk_bytes
    parts = read_file(io.BytesIO(data), "a.csv", options, record_bytes=RECORD_BYTES, declared=READER.names)
    rows = [{name: row[name] for name in COLUMNS} for part in parts for row in READER.read(part, {}).to_pylist()]
    assert rows == expected_rows(expected)


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_csv_file_has_the_records_of_its_case(text: str, expected: Records) -> None:
    check(text, CsvOptions(), expected)


@pytest.mark.parametrize(("text", "options", "expected"), DECLARED.values(), ids=DECLARED)
def test_csv_file_has_the_records_of_its_case_when_options_are_declared(
    text: str, options: dict[str, Any], expected: Records
) -> None:
    check(text, CsvOptions.of(options), expected)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"], ids=["semicolon", "tab", "pipe"])
def test_csv_file_has_the_same_records_when_its_delimiter_is_declared(delimiter: str) -> None:
    def swapped(text: str) -> str:
        return text.translate({ord(","): delimiter, ord(delimiter): ","})

    options = CsvOptions(declared_delimiter=delimiter)
    for idea, (text, expected) in CASES.items():
        if delimiter not in text:  # a tab is a blank too
            records = {
                line: {swapped(name): swapped(value) for name, value in record.items()}
                if isinstance(record, dict)
                else record
                for line, record in expected.items()
            }
            assert as_records(csv_records(swapped(text).encode(), options)) == records, idea
