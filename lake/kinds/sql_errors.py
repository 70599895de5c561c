"""Faults raised while Spark evaluates rows, by SQL or a Python function, and read back from the error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from lake.text import SPARK, literal, quoted

NO_ROOM: Final = "a measure has no room: "


@dataclass(frozen=True)
class NoRoom:
    """Number that does not fit the SQL type `type`: the `measure` of the row with `key`, or a sum behind it."""

    measure: str
    type: str
    key: Mapping[str, Any]


def no_room(error: BaseException) -> NoRoom | None:
    if (found := raised_facts(NO_ROOM, error)) is None:
        return None
    facts, key = found
    return NoRoom(facts["measure"], facts["type"], key)


def raise_sql(mark: str, columns: Sequence[str], **facts: str) -> str:
    """Return SQL that fails with `mark`, `facts`, and the values of `columns`; `raised_facts` reads them."""
    text = literal(mark + json.dumps(facts), SPARK)
    if not columns:
        return f"raise_error(concat({text}, '{{}}'))"
    names = ", ".join(quoted(name, SPARK) for name in columns)
    return f"raise_error(concat({text}, to_json(struct({names}), map('ignoreNullFields', 'false'))))"


def raised_facts(mark: str, error: BaseException) -> tuple[dict[str, str], dict[str, Any]] | None:
    """Return the facts and {column: value} with which `mark` raised `error`, if it did."""
    for objects in raised_objects(mark, error):
        match objects:
            case [facts, key, *_]:  # with facts alone the error shows a plan that may raise it
                return facts, key
    return None


def raised_objects(mark: str, error: BaseException) -> Iterator[list[dict[str, Any]]]:
    """Yield the JSON objects that follow each `mark` in the message of `error` or of a cause."""
    for cause in causes(error):
        message = str(cause)
        for found in re.finditer(re.escape(mark), message):
            if objects := [*_objects_from(message, found.end())]:
                yield objects


def _objects_from(message: str, at: int) -> Iterator[dict[str, Any]]:
    with suppress(ValueError):  # a message that is cut
        while message.startswith("{", at):
            value, at = json.JSONDecoder().raw_decode(message, at)
            yield value


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes. An error that is raised again may be its own cause."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is earlier for earlier in seen):
        seen.append(cause)
        yield cause
        cause = getattr(cause, "cause", None) or cause.__cause__
