"""Faults raised by SQL while Spark evaluates rows, and read back from the error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
    """Return the number that `error` reports as too large, if any."""
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
    for cause in causes(error):
        _, found, text = str(cause).partition(mark)
        if found and text.startswith("{"):
            facts, end = json.JSONDecoder().raw_decode(text)
            if text[end : end + 1] == "{":  # otherwise the error shows a plan that may raise it
                return facts, json.JSONDecoder().raw_decode(text, end)[0]
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its causes. An error that is raised again may be its own cause."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is earlier for earlier in seen):
        seen.append(cause)
        yield cause
        cause = getattr(cause, "cause", None) or cause.__cause__
