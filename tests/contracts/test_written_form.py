"""Formats of records in a contract: each option of CSV, times, numbers and files, and its faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lake.contracts.contract import Contract, read_contract
from lake.contracts.csv_options import CsvOptions
from lake.contracts.written_form import TextForm
from lake.errors import DeclarationError
from tests import shop

CSV: dict[str, tuple[Any, str]] = {
    "no object": ("semicolon", "invalid csv: 'semicolon'"),
    "an unknown member": ({"delimeter": ";"}, "did you mean 'delimiter'"),
    "a long delimiter": ({"delimiter": "||"}, "invalid delimiter of csv: '||'"),
    "no delimiter": ({"delimiter": ""}, "invalid delimiter of csv: ''"),
    "a delimiter that ends lines": ({"delimiter": "\n"}, r"invalid delimiter of csv: '\n'"),
    "a delimiter that escapes": ({"delimiter": "\\"}, "invalid delimiter of csv"),
    "a delimiter of two units": ({"delimiter": "\U0001f600"}, "invalid delimiter of csv"),
    "a number": ({"delimiter": 7}, "invalid delimiter of csv: 7"),
    "one character for two": ({"delimiter": "'", "quote": "'"}, "delimiter and quote of csv are both"),
    "a quote for a delimiter": ({"delimiter": '"'}, "delimiter and quote of csv are both"),
    "a long quote": ({"quote": "''"}, 'use one character, or "" where nothing is quoted'),
    "a null that is no text": ({"null": [None]}, "invalid null of csv: [None]"),
    "no columns": ({"columns": []}, "invalid columns of csv: []"),
    "a column without a name": ({"columns": ["k", ""]}, "invalid columns of csv"),
    "a column twice": ({"columns": ["k", "K"]}, "columns of csv name 'k' twice"),
    "no encoding": ({"encoding": "latin-nine"}, "unknown encoding of csv: 'latin-nine'"),
    "an encoding of no texts": ({"encoding": "base64"}, "unknown encoding of csv: 'base64'"),
    "an encoding of names": ({"encoding": "punycode"}, "unknown encoding of csv: 'punycode'"),
    "an encoding that is no name": ({"encoding": "a\0b"}, "unknown encoding of csv"),
    "a negative number of lines": ({"skip": -1}, "invalid skip of csv: -1"),
    "a truth for a number of lines": ({"skip": True}, "invalid skip of csv: True"),
    "lines that begin with nothing": ({"skip": ""}, "invalid skip of csv: ''"),
    "an escape that is no backslash": ({"escape": '"'}, "invalid escape of csv: '\"'"),
    "an escape that is a list": ({"escape": []}, "invalid escape of csv: []"),
    "a text for a truth": ({"trim": "yes"}, "invalid trim of csv: 'yes'"),
    "an encoding that is a number": ({"encoding": 8}, "unknown encoding of csv: 8"),
}
TIME, DAY, MONEY = shop.avro("timestamp"), shop.avro("date"), shop.avro("decimal(9, 2)")
FIELDS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a format of a number": ("int", {"format": "yyyy"}, "of type int cannot have a format"),
    "a format that is no text": (DAY, {"format": 7}, "invalid format 7: not text"),
    "an unknown letter": (DAY, {"format": "dd.mm.jjjj"}, "'j' is none of y M d"),
    "letters that are text": (DAY, {"format": "yyyy-MM-ddThh"}, "'T' is none of"),
    "a year of three": (DAY, {"format": "d/M/yyy"}, "'y' cannot stand 3 times side by side"),
    "no year": (TIME, {"format": "d/M HH:mm"}, "it lacks a year"),
    "minutes for months": (DAY, {"format": "dd/mm/yyyy"}, "it has a day, and no month, which is 'M'"),
    "minutes for months alone": (DAY, {"format": "mm/yyyy"}, "it has minutes, 'm', and no hour; a month is 'M'"),
    "half a day": (TIME, {"format": "d/M/yyyy hh:mm"}, "'h' is the hour of half a day, and needs 'a'"),
    "an open quote": (DAY, {"format": "yyyy-MM-dd'T"}, "a quote is not closed"),
    "an open bracket": (DAY, {"format": "yyyy-MM[-dd"}, "brackets are not paired"),
    "a nested bracket": (DAY, {"format": "yyyy[-MM[-dd]]"}, "brackets are not paired"),
    "a character that is kept": (DAY, {"format": "{yyyy}-MM-dd"}, "'{' has a meaning of its own"),
    "numbers without a sign": (DAY, {"format": "dMyyyy"}, "'d' and 'M' cannot be told apart"),
    "numbers without a sign in brackets": (TIME, {"format": "yyyy-D[H]mm"}, "'D' and 'H' cannot be told apart"),
    "a count that is none": (TIME, {"format": "epoch-second"}, "did you mean 'epoch-seconds'"),
    "a pivot of a number": ("int", {"pivot": 1930}, "of type int cannot have a pivot"),
    "a pivot without a year": (DAY, {"format": "d/M/yyyy", "pivot": 1930}, "has a pivot, and no year of two digits"),
    "a pivot of ISO 8601": (DAY, {"pivot": 1930}, "has a pivot, and no year of two digits"),
    "a pivot that is none": (DAY, {"format": "d/M/yy", "pivot": "1930"}, "invalid pivot: '1930'"),
    "a pivot of no year": (DAY, {"format": "d/M/yy", "pivot": 9901}, "from 1 to 9900"),
    "an hour 24 of a text": ("string", {"hour24": True}, "of type string cannot have a hour24"),
    "an hour 24 of a day": (DAY, {"hour24": True}, "has hour24, and no hour of a day"),
    "an hour 24 of half a day": (TIME, {"format": "d/M/yyyy h a", "hour24": True}, "no hour of a day"),
    "an hour 24 of a count": (TIME, {"format": "epoch-seconds", "hour24": True}, "no hour of a day"),
    "an hour 24 that is none": (TIME, {"hour24": 1}, "invalid hour24: 1"),
    "an encoding without an envelope": ("bytes", {"encoding": "hex"}, "has 'encoding', but records have no envelope"),
    "a decimal of a text": ("string", {"decimal": ","}, "of type string cannot have a decimal"),
    "a decimal that is none": (MONEY, {"decimal": ";"}, "invalid decimal: ';'"),
    "thousands that are none": (MONEY, {"thousands": "1"}, "invalid thousands: '1'"),
    "thousands that are no text": (MONEY, {"thousands": 1}, "invalid thousands: 1"),
    "thousands of points": (MONEY, {"thousands": "."}, 'add "decimal": ","'),
    "both of commas": (MONEY, {"decimal": ",", "thousands": ","}, 'add "decimal": "."'),
    "a fact that files do not have": ("string", {"from": "file.size"}, "use file.name or file.time"),
    "a file as a whole": ("string", {"from": "file"}, "comes from 'file', which files do not have"),
    "a list from a file": ({"type": "array", "items": "int"}, {"from": "file.name"}, "comes from a file"),
    "a pattern of nothing": ("string", {"pattern": "a"}, 'patterns are for "from": "file.name"'),
    "a pattern of a time": (TIME, {"from": "file.time", "pattern": "a"}, 'patterns are for "from": "file.name"'),
    "a pattern that is none": ("string", {"from": "file.name", "pattern": "("}, "invalid pattern '('"),
    "a pattern of no text": ("string", {"from": "file.name", "pattern": 7}, "invalid pattern 7"),
    "a pattern of two groups": ("string", {"from": "file.name", "pattern": "(a)(b)"}, "a pattern of 2 groups"),
    "a time of a file, formatted": (DAY, {"from": "file.time", "format": "yyyyMMdd"}, "is the time of a file"),
}


def contract(kind: Any = "string", more: dict[str, Any] | None = None, **about: Any) -> Contract:
    fields = {"k": "string", "v": (kind, more or {})}
    return read_contract(json.dumps(shop.contract("s", fields, **about), indent=1), file="schemas/s.avsc")


@pytest.mark.parametrize("what", CSV)
def test_faulty_csv_option_is_reported_with_its_line(what: str) -> None:
    given, told = CSV[what]
    with pytest.raises(DeclarationError) as raised:
        contract(csv=given)
    assert told in str(raised.value)
    assert "schemas/s.avsc:" in str(raised.value)


@pytest.mark.parametrize("what", FIELDS)
def test_faulty_field_format_is_reported_with_its_line(what: str) -> None:
    kind, more, told = FIELDS[what]
    with pytest.raises(DeclarationError, match=r"schemas/s\.avsc:\d+") as raised:
        contract(kind, more)
    assert told in str(raised.value)


def test_envelope_rejects_csv_formats_and_file_facts() -> None:
    for about, more, told in (
        ({"csv": {}}, {}, '"csv" together with "envelope"'),
        ({}, {"decimal": ","}, "says how it is written with decimal ','"),
        ({}, {"from": "file.name"}, "comes from 'file', which the envelope does not have"),
    ):
        with pytest.raises(DeclarationError) as raised:
            contract("string" if "from" in more else MONEY, more, envelope="debezium", **about)
        assert told in str(raised.value)


def test_csv_options_and_field_formats_are_read() -> None:
    assert contract().csv == CsvOptions()
    given = {"delimiter": "\t", "quote": "", "null": "NA", "columns": ["k", "v"], "encoding": "cp1252"}
    assert contract(csv=given).csv == CsvOptions("\t", "", ("NA",), ("k", "v"), "cp1252")
    assert contract(csv={"encoding": "UTF8", "null": []}).csv == CsvOptions()
    more = {"skip": "#", "escape": "\\", "trim": True}
    assert contract(csv=more).csv == CsvOptions(skip="#", escape="\\", trim=True)
    assert contract(DAY, {"format": "[yyyy-]MM'T''x'dd y"}).field("v").form == TextForm("[yyyy-]MM'T''x'dd y")
    assert contract(MONEY, {"decimal": ",", "thousands": "."}).field("v").form == TextForm("", ",", ".")
    assert contract(TIME, {"format": "epoch-millis"}).field("v").form == TextForm("epoch-millis")
    assert contract(DAY, {"format": "d/M/yy", "pivot": 1930}).field("v").form == TextForm("d/M/yy", pivot=1930)
    for told_apart in ("dMMyyyy", "yDDD", "d MMM y h:mm:ssSSSa", "yyyyMMdd[HHmmssSSS]"):
        assert contract(TIME, {"format": told_apart}).field("v").form == TextForm(told_apart)
    assert contract(TIME, {"hour24": True}).field("v").form == TextForm(hour24=True)


def test_file_fact_is_part_of_the_event_content_only_if_declared() -> None:
    fact = {"from": "file.name"}
    assert contract("string", fact).field("v").transport
    assert contract("string", fact, id="content").field("v").transport
    assert not contract("string", fact | {"transport": False}, id="content").field("v").transport
    for deciding in ({"id": ["k", "v"]}, {"key": ["v"]}, {"dump": "v"}, {"time": "to_timestamp(v)"}):
        assert not contract("string", fact, **deciding).field("v").transport
    assert contract("string", fact | {"transport": True}, dump="v").field("v").transport
