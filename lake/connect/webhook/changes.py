"""Change messages as JSON, each with an id that is stable across retries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lake.connect.webhook.receiver import WebhookMessage
from lake.sinks.json_rows import json_rows
from lake.sinks.sink import TableChanges

COLUMNS: Final = ("change", "key", "before", "after")


@dataclass(frozen=True)
class DeliveryInfo:
    """`number` counts the deliveries of the sink."""

    sink: str
    number: int
    edition: int
    cut: int
    published_at: datetime

    @property
    def at(self) -> str:
        return self.published_at.astimezone(UTC).isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class ChangeMessage:
    """`far` is the table in the target. `key`, `before` and `after` are JSON."""

    about: DeliveryInfo
    table: str
    far: str
    change: str
    key: str
    before: str | None
    after: str | None

    @property
    def id(self) -> str:
        """It depends on the delivery number, since readers may be rolled back and forth again."""
        about = self.about
        return _hash("chg", [about.sink, about.number, about.at, self.table, self.key, self.change])

    @property
    def type(self) -> str:
        return f"{self.far}.{self.change}"

    @property
    def data(self) -> str:
        about: dict[str, str | int] = {"id": self.id, "table": self.far, "change": self.change}
        about |= {"edition": self.about.edition, "cut": self.about.cut}
        rows = f'"key": {self.key}, "before": {self.before or "null"}, "after": {self.after or "null"}'
        return f"{json.dumps(about)[:-1]}, {rows}}}"


BodyFormat = Callable[[ChangeMessage], str]


def as_event(changed: ChangeMessage) -> str:
    return _body(changed.type, changed.about, changed.data)


def message(batch: Sequence[ChangeMessage], *, is_array: bool, form: BodyFormat = as_event) -> WebhookMessage:
    keys = tuple(f"{changed.table} {changed.key}" for changed in batch)
    if not is_array:
        return WebhookMessage(batch[0].id, keys, form(batch[0]).encode())
    data = f"[{', '.join(changed.data for changed in batch)}]"
    id = _hash("msg", [changed.id for changed in batch])
    return WebhookMessage(id, keys, _body("changes", batch[0].about, data).encode())


def changed_rows(changes: TableChanges, about: DeliveryInfo) -> Iterator[ChangeMessage]:
    table = changes.table
    for batch in json_rows(changes):
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            yield ChangeMessage(about, table.name, table.far, *row)


def _body(type: str, about: DeliveryInfo, data: str) -> str:
    return f'{{"type": {json.dumps(type)}, "timestamp": "{about.at}", "data": {data}}}'


def _hash(prefix: str, of: Any) -> str:
    return f"{prefix}_{hashlib.sha256(json.dumps(of).encode()).hexdigest()[:32]}"
