"""Episodes of alerts on the project's state: from a measure's rise above its limit to its end. A ledger table.

An episode is recorded before its message is sent, and so is the delivery. After a crash between the two the message is
sent again with the same id.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from lake.config import Settings
from lake.store.ledger_table import LedgerTable


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


EPISODES: Final = LedgerTable(
    "alerts",
    {
        "alert": "VARCHAR",
        "number": "BIGINT",
        "began": "VARCHAR",
        "value": "DOUBLE",
        "what": "VARCHAR",
        "ended": "VARCHAR",
        "told": "BIGINT",
        "of": "VARCHAR",
    },
)


def newest(settings: Settings) -> dict[str, Episode]:
    alerts = EPISODES.head(settings).data.get("alerts", {})
    return {name: Episode(**episode) for name, episode in alerts.items()}


def record(settings: Settings, episode: Episode) -> Episode:
    with EPISODES.hold_lease(settings):
        head = EPISODES.head(settings)
        alerts = {**head.data.get("alerts", {}), episode.alert: asdict(episode)}
        EPISODES.add(settings, head, [*asdict(episode).values()], alerts=alerts)
    return episode
