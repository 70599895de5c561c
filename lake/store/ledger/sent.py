"""Deliveries to receivers that cannot report their position, such as webhooks, and episodes of alerts. Ledger tables.

For each sink: its position, the progress of a delivery, and the rows whose changes the receiver rejected, with the
edition it has of them. Progress and rejected rows are one commit.

An episode is the time from a measure's rise above its limit to its end. It is recorded before its message is sent, and
so is the delivery. After a crash between the two the message is sent again with the same id.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from lake.config import Settings
from lake.store.ledger.editions import RESTORED
from lake.store.ledger_table import LedgerTable, columns_of
from lake.text import quoted

Action = Literal["failed", "waiting", "taken", "dropped"]
OPEN: Final = ("failed", "waiting")
NEVER: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Undelivered:
    """Row of `table` with `key` (JSON), of which the receiver has edition `since`, None for nothing.

    `change` is its change up to edition `upto`, which delivery `number` of the sink was to send. Later changes wait for
    it (`waiting`). `reason` is why the receiver rejected it.
    """

    sink: str
    table: str
    key: str
    since: int | None
    upto: int
    number: int
    change: str
    reason: str
    action: Action = "failed"
    attempts: int = 0
    at: datetime = NEVER

    def now(self, **what: Any) -> Undelivered:
        """Return it as of now, but later than before even if the clock was set back: the newest row counts."""
        return replace(self, at=max(datetime.now(UTC), self.at + timedelta(microseconds=1)), **what)


@dataclass(frozen=True)
class Underway:
    """Delivery to `edition`, of content `digest`; `done` changes of `table` are sent. With `anew`, of all rows."""

    edition: int
    digest: str
    table: str = ""
    done: int = 0
    anew: bool = False


@dataclass(frozen=True)
class State:
    position: str | None = None
    number: int = 0
    underway: Underway | None = None


SENT: Final = LedgerTable("sent", columns_of(Undelivered))
IDENTITY: Final = ("sink", "table", "key", "since", "at")
"""Columns that identify a record."""
NEWEST: Final = """QUALIFY row_number() OVER (PARTITION BY sink, "table", key, since ORDER BY "at" DESC) = 1"""
_OPEN: Final = f"(SELECT * FROM t {NEWEST}) WHERE list_contains($1, action)"
"""Newest record of each undelivered row, of which $1 are the actions."""


def state(settings: Settings, sink: str) -> State:
    recorded = SENT.head(settings).state.get("sinks", {}).get(sink)
    if recorded is None:
        return State()
    underway = Underway(**recorded["underway"]) if recorded["underway"] else None
    return State(recorded["position"], recorded["number"], underway)


def record(settings: Settings, sink: str, now: State, rows: Iterable[Undelivered] = ()) -> None:
    with SENT.writing(settings) as head:
        head.add(*rows, sinks={**head.state.get("sinks", {}), sink: asdict(now)})


def continue_elsewhere(settings: Settings, names: Collection[str]) -> None:
    """Let deliveries of a copy of the warehouse, which no other process knows yet, have numbers of their own.

    The sinks of these names need a resync: their receivers may have got more than the copy knows.
    """
    head = SENT.head(settings)
    sinks = {
        name: {**known, "number": known["number"] + RESTORED} for name, known in head.state.get("sinks", {}).items()
    }
    for name in sinks.keys() & {*names}:
        position = sinks[name]["position"]
        unknown = position and json.dumps(json.loads(position) | {"published_at": ""})
        sinks[name] |= {"position": unknown, "underway": None}
    if sinks:
        head.add(sinks=sinks)


def forget(settings: Settings, sink: str) -> bool:
    rows = [row.now(action="dropped") for row in undelivered(settings, sink)]
    with SENT.writing(settings) as head:
        sinks = dict(head.state.get("sinks", {}))
        known = sinks.pop(sink, None) is not None
        if known:
            head.add(*rows, sinks=sinks)
        return known


def undelivered(settings: Settings, sink: str) -> list[Undelivered]:
    rows = SENT.rows(settings, f'SELECT * FROM {_OPEN} AND sink = $2 ORDER BY upto, "table", key', list(OPEN), sink)
    return [Undelivered(**row) for row in rows]


def open_records(settings: Settings) -> list[dict[str, Any]]:
    """Return the newest record of each undelivered row, by IDENTITY."""
    return SENT.rows(settings, f"SELECT {', '.join(map(quoted, IDENTITY))} FROM {_OPEN}", list(OPEN))


def counts(settings: Settings) -> dict[str, int]:
    rows = SENT.rows(settings, f"SELECT sink, count(*) AS n FROM {_OPEN} GROUP BY sink", list(OPEN))
    return {row["sink"]: row["n"] for row in rows}


@dataclass(frozen=True)
class Episode:
    """It `began` with `value`, as `what` describes; `ended` is None while it lasts.

    `told` is the number of delivered messages: the first is about its begin, the second about its end. `of` is the
    measured table, stream or sink; "" for a measure of the whole project.
    """

    alert: str
    number: int
    began: str
    value: float
    what: str
    ended: str | None = None
    told: int = 0
    of: str = ""

    @property
    def waits(self) -> bool:
        return self.told < (1 if self.ended is None else 2)


EPISODES: Final = LedgerTable("alerts", columns_of(Episode))


def newest_episodes(settings: Settings) -> dict[str, Episode]:
    alerts = EPISODES.head(settings).state.get("alerts", {})
    return {name: Episode(**episode) for name, episode in alerts.items()}


def record_episode(settings: Settings, episode: Episode) -> Episode:
    with EPISODES.writing(settings) as head:
        head.add(episode, alerts={**head.state.get("alerts", {}), episode.alert: asdict(episode)})
    return episode
