"""The horizon of a log whose contract names producers: up to when nothing is expected any more.

It is the running maximum, batch by batch, of the least that an open producer has told, which is the greatest time of
its records. A producer is open from the batch with its first record on; it is closed by an event in the log, and opened
anew by its next record. So the horizon never goes back: who is behind it on coming is late.

Pure: what it is after a batch follows from what it was, from the batch, and from when the log says that it arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lake.contracts.contract import Contract
from lake.store.log import LogHead

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True)
class Producer:
    """An open producer: the greatest time that it told, and when the newest batch with a record of it was made."""

    latest: datetime
    heard: datetime


@dataclass(frozen=True)
class Horizon:
    """Where a log stands by its producers: nothing before `at` is expected any more, None while all is.

    `latest` is the greatest time that any record told, `producer` the field that names producers. `punctuation` and
    `closed` are what records of the newest batch that are no events told, and whom it closed. It `is_ended` while
    producers have been closed and none is open: then nothing is expected.
    """

    producer: str
    at: datetime | None = None
    latest: datetime | None = None
    producers: Mapping[str, Producer] = field(default_factory=dict)
    punctuation: Mapping[str, datetime] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    is_ended: bool = False

    @classmethod
    def of(cls, head: LogHead, contract: Contract) -> Horizon:
        """That of a log; with no producers yet where its batches so far were written without, or by another field."""
        assert contract.horizon is not None
        recorded, names = head.horizon, contract.field(contract.horizon.producer).names
        same = recorded.get("producer") in names
        still_open = recorded.get("open", {}) if same else {}
        return cls(
            contract.horizon.producer,
            head.watermark,
            head.latest,
            {name: Producer(_instant(latest), _instant(heard)) for name, (latest, heard) in still_open.items()},
            {name: _instant(at) for name, at in recorded.get("told", {}).items()},
            tuple(recorded.get("closed", ())),
            same and head.is_ended,
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """What the log's commit says of it; instants of producers are microseconds since 1970."""
        data: dict[str, Any] = {
            "producer": self.producer,
            "latest": self.latest.astimezone(UTC).isoformat() if self.latest else None,
            "open": {name: [_micros(one.latest), _micros(one.heard)] for name, one in self.producers.items()},
        }
        data |= {"told": {name: _micros(at) for name, at in self.punctuation.items()}} if self.punctuation else {}
        data |= {"ended": True} if self.is_ended else {}
        return data | ({"closed": list(self.closed)} if self.closed else {})

    def after(
        self, times: Mapping[str, datetime], punctuated: Mapping[str, datetime], latest: datetime | None, at: datetime
    ) -> Horizon:
        """The horizon after a batch of `at`: by producer, the greatest times of events and of its punctuation.

        `latest` is the greatest of all times in the batch, whosever.
        """
        producers = dict(self.producers)
        for name, time in [*times.items(), *punctuated.items()]:
            producers[name] = Producer(max(time, producers[name].latest) if name in producers else time, at)
        return replace(
            self,
            at=_latest(self.at, _least(producers)),
            latest=_latest(self.latest, latest),
            producers=producers,
            punctuation=punctuated,
            closed=(),
            is_ended=self.is_ended and not producers,
        )

    def without(self, names: Iterable[str]) -> Horizon:
        """The horizon after a batch that closes the producers `names`. Where none is left, all that came is final."""
        closed = tuple(sorted({*names} & self.producers.keys()))
        left = {name: one for name, one in self.producers.items() if name not in closed}
        reached = _least(left) if left or not closed else self.latest
        ended = not left and (self.is_ended or bool(closed))
        return replace(
            self, at=_latest(self.at, reached), producers=left, punctuation={}, closed=closed, is_ended=ended
        )

    def idle(self, at: datetime, silence: timedelta) -> tuple[str, ...]:
        """The producers of whom nothing came in the `silence` before `at`."""
        return tuple(sorted(name for name, one in self.producers.items() if at - one.heard >= silence))

    @property
    def slowest(self) -> str | None:
        """The open producer that is furthest behind; None where there is none."""
        return min(self.producers, key=lambda name: (self.producers[name].latest, name), default=None)


def _least(producers: Mapping[str, Producer]) -> datetime | None:
    return min((one.latest for one in producers.values()), default=None)


def _latest(*times: datetime | None) -> datetime | None:
    return max((time for time in times if time is not None), default=None)


def _micros(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


def _instant(micros: int) -> datetime:
    return EPOCH + micros * MICROSECOND
