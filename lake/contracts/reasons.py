"""Reasons for rejecting a record."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    OVERSIZED = "oversized"
    UNPARSEABLE = "unparseable"
    MISSING = "missing field"
    UNKNOWN = "unknown field"
    WRONG_TYPE = "wrong type"
    NOT_IN_ENUM = "not in enum"
    OUT_OF_BOUNDS = "out of bounds"
    NULL_KEY = "null key"
    NULL_SUBJECT = "null subject"
    EXPRESSION = "expression"
    NULL_TIME = "null event time"
    AHEAD = "too far ahead"
    TOO_MANY_PRODUCERS = "too many producers"
    CONFLICT = "conflict"
    FILE = "file"
    ENVELOPE = "envelope"
    OTHER_TABLE = "other table"
    OLDER_VERSION = "older version"
    """Only in a replay."""


BLANK: Final = "blank line"
CONTROL: Final = "control message"
"""BLANK and CONTROL are counted, but reject no record."""
PUNCTUATION: Final = "punctuation"
"""Detail of CONTROL: up to this record a producer has sent everything."""
