"""Faults that Spark finds while it evaluates rows: an SQL expression raises them, and what it says is read back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lake.quoting import SPARK, literal, quoted

NO_ROOM: Final = "a measure has no room: "


@dataclass(frozen=True)
class NoRoom:
    """A number, the `measure` of the row with `key` or a sum behind it, that does not fit the SQL type `type`."""

    measure: str
    type: str
    key: Mapping[str, Any]


def no_room(error: BaseException) -> NoRoom | None:
    """The number without room that `error` is about; None if it is about something else."""
    if (told := raised(NO_ROOM, error)) is None:
        return None
    facts, key = told
    return NoRoom(facts["measure"], facts["type"], key)


def raising(mark: str, columns: Sequence[str], **facts: str) -> str:
    """SQL that ends the query with `mark`, `facts`, and the values of a row's `columns`; `raised` reads them."""
    text = literal(mark + json.dumps(facts), SPARK)
    if not columns:
        return f"raise_error(concat({text}, '{{}}'))"
    names = ", ".join(quoted(name, SPARK) for name in columns)
    return f"raise_error(concat({text}, to_json(struct({names}), map('ignoreNullFields', 'false'))))"


def raised(mark: str, error: BaseException) -> tuple[dict[str, str], dict[str, Any]] | None:
    """The facts and the values {column: value} with which `error` was raised by `mark`; None if it was not."""
    for cause in causes(error):
        _, found, text = str(cause).partition(mark)
        if found and text.startswith("{"):
            facts, end = json.JSONDecoder().raw_decode(text)
            return facts, json.JSONDecoder().raw_decode(text, end)[0]
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error`, and each error that the one before was raised for. One that is raised again may be its own cause."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is earlier for earlier in seen):
        seen.append(cause)
        yield cause
        cause = getattr(cause, "cause", None) or cause.__cause__
