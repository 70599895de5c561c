"""Text and JSON of declared files: digits, and the place of a fault."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lake.contracts.declared_text import declared_text, json_text, parse_json
from lake.errors import DeclarationError

DIGITS = "12345678901234567.89"
VALUES = [None, True, "ä\n", 7, -3, 0.1, 1.5, [1, ["a"], {}], {"a": [0.5, None], "b": {"c": False}}]
FAULTS = {
    '{"a": 1,\n "b": 2,\n "a": 3,\n "c": 4}': '"a" occurs twice (f:3)',
    '[{"a": 1},\n {"a": 1, "a": 2}, {"a": 3}]': '"a" occurs twice (f:2)',
    f"[1,\n {'9' * 5000},\n 2]": "not valid JSON: a number of more than 1,000 digits (f:2)",
    "[1,\n 1e5000]": "not valid JSON: a number of more than 1,000 digits (f:2)",
    f"1e{'9' * 30}": "not valid JSON: a number of more than 1,000 digits (f:1)",
    '["NaN",\n NaN,\n "NaN"]': "not valid JSON: NaN is no number of JSON (f:2)",
    "[1,\n -Infinity]": "not valid JSON: -Infinity is no number of JSON (f:2)",
    "[1,\n 2": "not valid JSON: Expecting ',' delimiter (f:2)",
    "[" * 100_000: "not valid JSON: nested too deeply (f:1)",
}


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_json_is_written_as_it_was_read(value: Any) -> None:
    assert json_text(value) == json.dumps(value)
    assert parse_json(json.dumps(value), where="f") == value


@pytest.mark.parametrize("text", [DIGITS, "-0.12345678901234567890", "1E+400", "1E-400", "0.1", "1.5", "7", "9" * 900])
def test_number_keeps_its_digits(text: str) -> None:
    number = parse_json(f'{{"a": [{text}]}}', where="f")["a"][0]
    assert Decimal(str(number)) == Decimal(text)
    assert json_text([number]) == f"[{text}]"


@pytest.mark.parametrize(("text", "message"), FAULTS.items(), ids=FAULTS.values())
def test_faulty_json_is_reported_with_its_line(text: str, message: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        parse_json(text, where="f", fix="correct it")
    assert str(raised.value).splitlines()[0] == message
    assert raised.value.fix


@pytest.mark.parametrize(("content", "reason"), [(b"a\xff", "not UTF-8 at byte 1"), (None, "Is a directory")])
def test_unreadable_file_is_reported(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "a.txt"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(DeclarationError) as raised:
        declared_text(file, "the contract", where="a.txt", fix="write text")
    assert str(raised.value) == f"the contract cannot be read: {reason} (a.txt)\n  fix: write text"
