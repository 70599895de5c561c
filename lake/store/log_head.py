"""Head of a log: the record in the commit of its newest batch, and the newest delivery of each source that the log has.

The deliveries are {"sources": {SOURCE: {"delivery": number, "streams": [stream, …], "progress": {…}, "batch": batch}}}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from lake.store.delta import Position

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
    return {
        name: CommittedDelivery(name, int(one["delivery"]), tuple(one["streams"]), one["progress"], int(one["batch"]))
        for name, one in data.get("sources", {}).items()
    }


@dataclass(frozen=True)
class LogHead:
    """State of a log after its newest batch; all zero before the first.

    `offsets` is the next offset of each bucket. `watermark` is that of the next batch: the greatest event time so far,
    or the horizon of the producers. `counts` are the records of the batch read, accepted, dropped as duplicates and
    quarantined, `files` those it read, `contract` is the version of its contract.
    """

    stream: str
    position: Position
    batch: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)
    watermark: datetime | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    files: Sequence[Mapping[str, Any]] = ()
    contract: int = 0
    at: str = ""

    @classmethod
    def of(cls, stream: str, position: Position) -> LogHead:
        data = position.data
        if not data:
            return cls(stream, position)
        return cls(
            stream=stream,
            position=position,
            batch=data["batch"],
            offsets={int(bucket): offset for bucket, offset in data["offsets"].items()},
            watermark=datetime.fromisoformat(data["watermark"]) if data["watermark"] else None,
            counts=data["counts"],
            files=data["files"],
            contract=data["contract"],
            at=data["at"],
        )

    @property
    def version(self) -> int:
        return self.position.version

    @property
    def events(self) -> int:
        return sum(self.offsets.values()) - int(self.position.data.get("refusals", 0))

    @property
    def accepted(self) -> dict[str, Any]:
        return self._recorded("accepted")

    @property
    def accepted_upto(self) -> int:
        return int(self.accepted.get("batch", 0))

    @property
    def sources(self) -> dict[str, CommittedDelivery]:
        return by_source(self.position.data)

    @property
    def delivery(self) -> CommittedDelivery | None:
        return next((one for one in self.sources.values() if one.batch == self.batch), None)

    @property
    def horizon(self) -> dict[str, Any]:
        return self._recorded("horizon")

    @property
    def is_ended(self) -> bool:
        return bool(self.horizon.get("ended"))

    @property
    def latest(self) -> datetime | None:
        """Greatest event time so far, also if the watermark is behind it."""
        latest = self.horizon.get("latest")
        return datetime.fromisoformat(latest) if latest else self.watermark

    @property
    def keys(self) -> dict[str, Any]:
        return self._recorded("keys")

    @property
    def content(self) -> dict[str, Any]:
        return self._recorded("content")

    def _recorded(self, key: str) -> dict[str, Any]:
        value: dict[str, Any] = self.position.data.get(key, {})
        return value

    def next(self, **data: Any) -> Position:
        return self.position.next(batch=self.batch + 1, **data)


def greatest(*times: datetime | None) -> datetime | None:
    return max((time for time in times if time is not None), default=None)
