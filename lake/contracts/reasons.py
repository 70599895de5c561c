"""Why a record is not accepted."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """What the quarantine, and whoever counts what is in it, calls it."""

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


BLANK: Final = "blank line"
"""In the place of a reason: it is no record."""
CONTROL: Final = "control message"
"""In the place of a reason: it is no event of the stream."""
PUNCTUATION: Final = "punctuation"
"""The detail of a control message that a contract declares in its `horizon`."""
