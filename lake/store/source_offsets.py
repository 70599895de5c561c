"""What the commit of a log says of a source: the newest delivery of it that the log has.

{"sources": {SOURCE: {"delivery": number, "streams": [stream, …], "progress": {…}, "batch": batch}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SourceDelivery:
    """Delivery `number` of a `source`, which is `batch` of the log.

    `streams` are all that have records of it, `progress` is where the source stands behind it.
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


def by_source(data: Mapping[str, Any]) -> dict[str, SourceDelivery]:
    """The newest delivery of each source, of what a commit of a log says: `data`."""
    return {
        name: SourceDelivery(name, int(one["delivery"]), tuple(one["streams"]), one["progress"], int(one["batch"]))
        for name, one in data.get("sources", {}).items()
    }
