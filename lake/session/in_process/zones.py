"""Time zones."""

from __future__ import annotations

from lake.session.in_process.mode import unsupported
from lake.session.in_process.types import Value


def from_utc(at: Value, zone: str) -> Value:
    raise unsupported(f"the time zone {zone}, from UTC")


def to_utc(at: Value, zone: str) -> Value:
    raise unsupported(f"the time zone {zone}, to UTC")
