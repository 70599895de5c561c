"""Raw values: members of records before they are typed, records in columns, and faults of files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from lake.errors import LakeError, full, out_of_memory, unreached

ABSENT: Final = msgspec.UNSET
NO_CHARACTER: Final = "\uffff"
"""Code point that replaces undecodable bytes. It is no character, so a text with it is rejected."""
LONGEST_FAULT: Final = 300
OF_CONTENT: Final = frozenset({None, errno.EINVAL})
"""`errno` of an OSError that a file's bytes cause: None from a library, EINVAL for a position that they name."""


class JsonNumber(str):
    """Digits of a JSON number, as written."""

    __slots__ = ()


class OutsideCalendar(str):
    """Text of a date or time outside the years 1 to 9999, or of a time beyond a day. No field accepts it."""

    __slots__ = ()


RawValue: TypeAlias = (
    "str | int | float | bool | bytes | Decimal | date | datetime | time | list[RawValue] | dict[str, RawValue]"
    " | msgspec.UnsetType | None"
)
"""JSON: text, JsonNumber, bool, None, list, dict. CSV: text. Parquet and Avro: typed values."""


@dataclass(frozen=True)
class TextRecords:
    """JSON texts, each with its place: a line of a file, or a number from 1."""

    places: Sequence[int]
    texts: Sequence[bytes]


@dataclass(frozen=True)
class ColumnRecords:
    """Records in columns, by the file's names.

    A Parquet column may be an Arrow array of a plain type; `as_list` makes it a list. `broken` maps the index of a
    record that cannot be parsed to the reason and its text.
    """

    places: Sequence[int]
    columns: Mapping[str, Sequence[RawValue]]
    broken: Mapping[int, tuple[str, str]] = field(default_factory=dict)


def as_list(column: Sequence[RawValue]) -> Sequence[RawValue]:
    to_list = getattr(column, "to_pylist", None)  # only an Arrow array has it
    return column if to_list is None else to_list()


class FileFault(ValueError):
    """Raised to reject a whole file; the message is the reason."""


class WrongValue(ValueError):
    """Raised for a value that does not fit its field's type; the message names the type."""


def is_caused_by_content(error: Exception) -> bool:
    """Return whether an error was caused by a file's bytes, not by a storage, this machine, or access to it."""
    of_machine = out_of_memory(error) or (isinstance(error, OSError) and error.errno not in OF_CONTENT)
    return not (of_machine or isinstance(error, FileNotFoundError | LakeError) or unreached(error) or full(error))


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:LONGEST_FAULT]


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MOST_RESULTS: Final = 1024


class Memo(Generic[K, V]):
    """Cache of a function's results that, unlike `functools.lru_cache`, can be sent to Spark's executors."""

    def __init__(self, function: Callable[[K], V]) -> None:
        self._function, self._cached = function, lru_cache(MOST_RESULTS)(function)

    def __call__(self, argument: K) -> V:
        return self._cached(argument)

    def __reduce__(self) -> tuple[type[Memo[K, V]], tuple[Callable[[K], V]]]:
        return Memo, (self._function,)
