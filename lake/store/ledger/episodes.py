"""What alerts of the project's state have told: an episode begins when a measure is too high, and ends. A book.

An episode is noted before anybody is told of it, and so is that somebody was: after a crash between the two the same
message is sent again, with the same id.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from lake.config import Settings
from lake.store.ledger_table import LedgerTable


@dataclass(frozen=True)
class Episode:
    """Episode `number` of an alert: began at a time, with a value, as `what` told; ended, None while it lasts.

    `told`: how many of its messages were taken, the first when it began, the second when it ended. `of`: the table,
    stream or sink that was measured; "" of a measure of the whole project.
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
        """Whether there is something of it that nobody was told."""
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
    """The newest episode of each alert that had one."""
    said = EPISODES.head(settings).data.get("alerts", {})
    return {name: Episode(**episode) for name, episode in said.items()}


def note(settings: Settings, episode: Episode) -> Episode:
    """Notes how an episode stands, which is the newest of its alert."""
    with EPISODES.written(settings):
        head = EPISODES.head(settings)
        alerts = {**head.data.get("alerts", {}), episode.alert: asdict(episode)}
        EPISODES.add(settings, head, [*asdict(episode).values()], alerts=alerts)
    return episode
