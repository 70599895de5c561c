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
    for one in consumers.consumers(settings):
        if one.is_sink:
            continue
        away = current is not None and one.edition is not None and one.edition != current.number
        since = consumers.behind_since(settings, one) if away else None
        yield ConsumerStatus(
            consumer=one.name,
            table=one.table,
            edition=one.edition,
            editions=abs(current.number - one.edition) if away and current and one.edition else 0,
            seconds=max((now - since).total_seconds(), 0.0) if since else None,
            kept_until=consumers.held_until(settings, one),
            must_start_over=consumers.must_start_over(settings, one),
        )
