"""Facts of files as fields of records: the name without folder, a part of it, or the mtime.

They follow from the log, so replayed records have the same ones.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from lake.contracts.contract import Contract
from lake.contracts.fields import Field

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def fields_of(contract: Contract) -> list[Field]:
    """Return the fields that are facts of files."""
    return [field for field in contract.fields if field.of_file]


def texts(contract: Contract, name: str, mtime: int | None) -> dict[str, str | None]:
    """Return a file's facts by field; `mtime` is in nanoseconds since 1970."""
    return {field.name: _text(field, name, mtime) for field in fields_of(contract)}


def _text(field: Field, name: str, mtime: int | None) -> str | None:
    if field.path[-1] == "time":
        return None if mtime is None else _time(mtime)
    if not field.pattern:
        return name
    part = re.search(field.pattern, name)
    return part and part[part.re.groups]


def _time(nanoseconds: int) -> str | None:
    try:
        return (EPOCH + timedelta(microseconds=nanoseconds // 1000)).isoformat()
    except OverflowError:
        return None
