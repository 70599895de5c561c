"""Status of consumers: the edition that each has, and its lag behind the current one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from lake.config import Settings
from lake.store.ledger import consumers, editions


@dataclass(frozen=True)
class ConsumerStatus:
    """A consumer that has `edition` (None before its first acknowledgement) of `table`.

    `seconds` count from the publication of the first edition it lacks. Its edition is kept until `kept_until`.
    """

    consumer: str
    table: str
    edition: int | None
    editions: int
    seconds: float | None
    kept_until: datetime | None
    must_start_over: bool


def consumer_statuses(settings: Settings, now: datetime) -> Iterator[ConsumerStatus]:
    """Yield the status of every consumer that is no sink, by table and name."""
    current = editions.current_edition(settings)
    for consumer in consumers.consumers(settings):
        if consumer.is_sink:
            continue
        has = consumer.edition
        differs = current is not None and has is not None and has != current.number
        since = consumers.behind_since(settings, consumer) if differs else None
        yield ConsumerStatus(
            consumer=consumer.name,
            table=consumer.table,
            edition=has,
            editions=abs(current.number - has) if differs and current and has else 0,
            seconds=max((now - since).total_seconds(), 0.0) if since else None,
            kept_until=consumers.held_until(settings, consumer),
            must_start_over=consumers.must_start_over(settings, consumer),
        )
