"""Texts that PostgreSQL writes as JSON."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.connect.postgres.source.messages import lsn_in_era, lsn_text, read_lsn
from lake.connect.postgres.source.values import BYTEA, PLACEHOLDER, TIMESTAMP, TIMESTAMPTZ, PgType, codec

TEXT_ARRAY, INT_ARRAY, DOMAIN, ENUM = 1009, 1007, 90_001, 90_002
DECLARED = {
    TEXT_ARRAY: PgType(TEXT_ARRAY, 0, 25),
    INT_ARRAY: PgType(INT_ARRAY, 0, 23),
    DOMAIN: PgType(DOMAIN, 1700, 0),
}
WORDS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8) | st.sampled_from(
    ["NULL", "null", ""]
)
NESTED: st.SearchStrategy[Any] = st.recursive(st.lists(st.none() | WORDS, min_size=1, max_size=4), st.lists)


def array_text(value: Any) -> str:
    """As array_out writes it (documentation, "Array Input and Output Syntax")."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(map(array_text, value)) + "}"
    special = not value or value.upper() == "NULL" or any(c in '{},"\\' or c.isspace() for c in value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if special else value


@pytest.mark.long
@pytest.mark.slow
@given(NESTED)
def test_postgres_array_is_written_as_a_json_array(value: Any) -> None:
    write = codec(TEXT_ARRAY, DECLARED).write
    assert json.loads(write(array_text(value))) == value
    assert json.loads(write("[0:1]=" + array_text(value))) == value


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_postgres_number_keeps_its_digits(number: Decimal) -> None:
    digits = f"{number:f}"
    assert codec(DOMAIN, DECLARED).write(digits) == digits


@given(st.binary())
def test_postgres_bytes_are_written_as_base64(data: bytes) -> None:
    assert base64.b64decode(json.loads(codec(BYTEA, {}).write("\\x" + data.hex()))) == data


@given(st.text())
def test_postgres_text_is_written_unchanged(text: str) -> None:
    assert json.loads(codec(ENUM, {}).write(text)) == text


@pytest.mark.parametrize(
    ("kind", "text", "json_text"),
    [
        (16, "t", "true"),
        (16, "f", "false"),
        (1700, "NaN", '"NaN"'),
        (701, "-Infinity", '"-Infinity"'),
        (701, "1e-05", "1e-05"),
        (TIMESTAMP, "2024-02-29 23:59:59.999999", '"2024-02-29T23:59:59.999999"'),
        (TIMESTAMP, "0044-03-15 12:00:00 BC", '"0044-03-15 12:00:00 BC"'),
        (TIMESTAMP, "infinity", '"infinity"'),
        (TIMESTAMPTZ, "2024-02-29 23:59:59.5+00", '"2024-02-29T23:59:59.5Z"'),
        (TIMESTAMPTZ, "0044-03-15 12:00:00+00 BC", '"0044-03-15 12:00:00+00 BC"'),
        (TIMESTAMPTZ, "12024-01-01 00:00:00+00", '"12024-01-01 00:00:00+00"'),
        (INT_ARRAY, "{}", "[]"),
        (INT_ARRAY, "{{1,NULL},{3,4}}", "[[1,null],[3,4]]"),
    ],
)
def test_postgres_value_is_written_as_json(kind: int, text: str, json_text: str) -> None:
    assert codec(kind, DECLARED).write(text) == json_text


def test_postgres_unchanged_value_is_written_as_the_debezium_placeholder() -> None:
    assert json.loads(codec(25, {}).placeholder) == PLACEHOLDER
    assert json.loads(codec(TEXT_ARRAY, DECLARED).placeholder) == [PLACEHOLDER]
    assert base64.b64decode(json.loads(codec(BYTEA, {}).placeholder)).decode() == PLACEHOLDER


@given(st.integers(0, 2**56 - 1), st.integers(0, 2**56 - 1), st.integers(0, 100), st.integers(0, 100))
def test_position_sorts_by_era_then_log(lsn: int, other: int, era: int, later: int) -> None:
    assert read_lsn(lsn_text(lsn)) == lsn
    assert (lsn_in_era(lsn, era) < lsn_in_era(other, later)) == ((era, lsn) < (later, other))
    assert lsn_in_era(lsn) == lsn
    assert lsn_in_era(lsn, era) < 2**63
