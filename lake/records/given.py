"""Members of records before they are typed: the types of their values, records in columns, and faults of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final, TypeAlias

import msgspec

from lake.errors import LakeError, full, unreached

ABSENT: Final = msgspec.UNSET
"""In the place of a member that a record does not have."""
NO_CHARACTER: Final = "\uffff"
"""Stands for bytes that are no text, and is no character: a text with it is refused."""


LONGEST: Final = 300
"""Characters of a library's error that a fault has."""


class Number(str):
    """A number of JSON as it is written."""

    __slots__ = ()


Given: TypeAlias = (
    "str | int | float | bool | bytes | Decimal | date | datetime | time | list[Given] | dict[str, Given]"
    " | msgspec.UnsetType | None"
)
"""A member of a record: text, Number, bool, None, list, dict of JSON; text of CSV; typed values of Parquet and Avro."""


@dataclass(frozen=True)
class Lines:
    """Records as JSON texts, each with its place: a line of a file, or a number from 1."""

    places: Sequence[int]
    texts: Sequence[bytes]


@dataclass(frozen=True)
class Rows:
    """Records in columns by the names that the file has for them.

    A column of Parquet may be an Arrow array of a plain type instead of a list; `listed` makes it one.
    `broken` maps the index of a record that cannot be taken apart to the reason and its text.
    """

    places: Sequence[int]
    columns: Mapping[str, Sequence[Given]]
    broken: Mapping[int, tuple[str, str]] = field(default_factory=dict)


def listed(column: Sequence[Given]) -> Sequence[Given]:
    """Return a column of Rows as Python's values."""
    to_list = getattr(column, "to_pylist", None)  # of an Arrow array
    return column if to_list is None else to_list()


class FileFault(ValueError):
    """A file that is refused as a whole; its text is the reason."""


class Wrong(ValueError):
    """A value that is none of its field's type; its text names the type."""


def is_of_content(error: Exception) -> bool:
    """Return whether a library raised `error` because of the bytes of a file.

    Else its storage does not answer, a disk is full, or the file was deleted.
    """
    return not (isinstance(error, FileNotFoundError | LakeError) or unreached(error) or full(error))


def words(error: Exception) -> str:
    """Return the first line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:LONGEST]
