"""Changes as messages: JSON by lake.sinks.json_rows, each with an id that is the same whenever it is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lake.sinks.json_rows import json_rows
from lake.sinks.sink import TableChanges
from lake.sinks.webhook.receiver import Message

COLUMNS: Final = ("change", "key", "before", "after")


@dataclass(frozen=True)
class About:
    """What a change is part of: the delivery `number` of a sink, to an edition."""

    sink: str
    number: int
    edition: int
    cut: int
    published_at: datetime

    @property
    def at(self) -> str:
        """When the edition was published, in UTC."""
        return self.published_at.astimezone(UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class Changed:
    """What became of a row of `table` (`far`, there): `key`, `before` and `after` are JSON, the latter two or null."""

    about: About
    table: str
    far: str
    change: str
    key: str
    before: str | None
    after: str | None

    @property
    def id(self) -> str:
        """Of the change: the number of the delivery is in it, as readers may be taken back, and on again."""
        about = self.about
        return _hash("chg", [about.sink, about.number, about.at, self.table, self.key, self.change])

    @property
    def type(self) -> str:
        return f"{self.far}.{self.change}"

    @property
    def data(self) -> str:
        """As JSON."""
        said: dict[str, str | int] = {"id": self.id, "table": self.far, "change": self.change}
        said |= {"edition": self.about.edition, "cut": self.about.cut}
        rows = f'"key": {self.key}, "before": {self.before or "null"}, "after": {self.after or "null"}'
        return f"{json.dumps(said)[:-1]}, {rows}}}"


Form = Callable[[Changed], str]
"""How the body of a message of one change is made."""


def as_event(changed: Changed) -> str:
    """A change as the body of a message of its own."""
    return _body(changed.type, changed.about, changed.data)


def message(batch: Sequence[Changed], *, is_array: bool, form: Form = as_event) -> Message:
    """The message of a change, or of several."""
    keys = tuple(f"{changed.table} {changed.key}" for changed in batch)
    if not is_array:
        return Message(batch[0].id, keys, form(batch[0]).encode())
    data = f"[{', '.join(changed.data for changed in batch)}]"
    id = _hash("msg", [changed.id for changed in batch])
    return Message(id, keys, _body("changes", batch[0].about, data).encode())


def changed_rows(changes: TableChanges, about: About) -> Iterator[Changed]:
    """What becomes of the rows of a table, one after another."""
    table = changes.table
    for batch in json_rows(changes):
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            yield Changed(about, table.name, table.far, *row)


def _body(type: str, about: About, data: str) -> str:
    return f'{{"type": {json.dumps(type)}, "timestamp": "{about.at}", "data": {data}}}'


def _hash(prefix: str, of: Any) -> str:
    return f"{prefix}_{hashlib.sha256(json.dumps(of).encode()).hexdigest()[:32]}"
