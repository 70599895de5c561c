"""Source offsets in the commit of a log: the newest delivery of each source that the log has.

{"sources": {SOURCE: {"delivery": number, "streams": [stream, …], "progress": {…}, "batch": batch}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

GENERATION: Final = 10**15
"""Distance between the first numbers of two successive folders of posted events: more groups than one ever has."""


@dataclass(frozen=True)
class CommittedDelivery:
    """Delivery `number` of a `source`, which is `batch` of the log.

    `streams` are all that have records of it, `progress` is the source's position after it.
    """

    source: str
    number: int
    streams: tuple[str, ...]
    progress: Mapping[str, Any]
    batch: int

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "delivery": self.number,
            "streams": list(self.streams),
            "progress": dict(self.progress),
            "batch": self.batch,
        }


def by_source(data: Mapping[str, Any]) -> dict[str, CommittedDelivery]:
    """Return the newest delivery of each source, from the `data` of a commit of a log."""
    return {
        name: CommittedDelivery(name, int(one["delivery"]), tuple(one["streams"]), one["progress"], int(one["batch"]))
        for name, one in data.get("sources", {}).items()
    }
