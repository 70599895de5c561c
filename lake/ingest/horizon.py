"""The horizon of a log whose contract names producers: no event before it is expected.

A producer's time is the greatest of its records. A record opens its producer; a batch of closings closes it. The
horizon is the least time of an open producer, but never goes back. It is a pure function of batches and their arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lake.contracts.contract import Contract, Producers
from lake.contracts.reasons import CONTROL, PUNCTUATION, Reason
from lake.lazy import DataFrame, F, pa
from lake.store.log_head import LogHead, greatest
from lake.store.scan import to_frame
from lake.text import EPOCH, MICROSECOND, SPARK, quoted


@dataclass(frozen=True)
class Producer:
    """An open producer: the greatest time of its records, and the newest arrival of one."""

    latest: datetime
    heard: datetime


@dataclass(frozen=True)
class Horizon:
    """Nothing before `at` is expected. `producer` is the field that names producers.

    `latest` is the greatest time of all records. `punctuation` and `closed` are of the newest batch. `is_ended`: all
    producers are closed.
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
        """Producers' times are microseconds since 1970."""
        data: dict[str, Any] = {
            "producer": self.producer,
            "latest": self.latest.astimezone(UTC).isoformat() if self.latest else None,
            "open": {name: [_micros(state.latest), _micros(state.heard)] for name, state in self.producers.items()},
        }
        data |= {"told": {name: _micros(at) for name, at in self.punctuation.items()}} if self.punctuation else {}
        data |= {"ended": True} if self.is_ended else {}
        return data | ({"closed": list(self.closed)} if self.closed else {})

    def after(
        self, times: Mapping[str, datetime], punctuated: Mapping[str, datetime], latest: datetime | None, at: datetime
    ) -> Horizon:
        """Return the horizon after a batch that arrived `at`.

        `times` and `punctuated` are by producer; `latest` is the greatest time of any record.
        """
        producers = dict(self.producers)
        for name, time in [*times.items(), *punctuated.items()]:
            producers[name] = Producer(max(time, producers[name].latest) if name in producers else time, at)
        return replace(
            self,
            at=greatest(self.at, _least(producers)),
            latest=greatest(self.latest, latest),
            producers=producers,
            punctuation=punctuated,
            closed=(),
            is_ended=self.is_ended and not producers,
        )

    def without(self, names: Iterable[str]) -> Horizon:
        """Close `names`. If none is left open, all events are final."""
        closed = tuple(sorted({*names} & self.producers.keys()))
        still_open = {name: producer for name, producer in self.producers.items() if name not in closed}
        reached = _least(still_open) if still_open or not closed else self.latest
        ended = not still_open and (self.is_ended or bool(closed))
        return replace(
            self, at=greatest(self.at, reached), producers=still_open, punctuation={}, closed=closed, is_ended=ended
        )

    def idle(self, at: datetime, silence: timedelta | None) -> tuple[str, ...]:
        if silence is None:
            return ()
        return tuple(sorted(name for name, producer in self.producers.items() if at - producer.heard >= silence))

    @property
    def slowest(self) -> str | None:
        return min(self.producers, key=lambda name: (self.producers[name].latest, name), default=None)


def _least(producers: Mapping[str, Producer]) -> datetime | None:
    return min((producer.latest for producer in producers.values()), default=None)


def _micros(at: datetime) -> int:
    return (at - EPOCH) // MICROSECOND


def _instant(micros: int) -> datetime:
    return EPOCH + micros * MICROSECOND


PUNCTUATED: Final = f"_reason = '{CONTROL}' AND _detail = '{PUNCTUATION}'"


def latest_times(records: DataFrame, declared: Producers) -> dict[str, datetime]:
    named = records.withColumn("_producer", F.expr(_producer_sql(declared))).where("_producer IS NOT NULL")
    rows = named.groupBy("_producer").agg(F.max("_time").alias("latest")).toArrow()
    return dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def reject_excess(parsed: DataFrame, declared: Producers, known: Collection[str]) -> DataFrame | None:
    """Reject the records of producers above the limit; return None if there are none.

    The `known` producers, and after them the first new ones by name, are accepted: a repeated batch rejects the same.
    """
    spark, limit = parsed.sparkSession, declared.limit
    named = parsed.where(f"(_reason IS NULL OR {PUNCTUATED}) AND {_producer_sql(declared)} IS NOT NULL")
    named = named.withColumn("_producer", F.expr(_producer_sql(declared)))
    before = F.broadcast(to_frame(spark, _producer_table(known)))
    free = max(limit - len(known), 0)
    new = named.join(before, "_producer", "left_anti").select("_producer").distinct()
    first = new.orderBy("_producer").limit(free + 1).toArrow()
    if first.num_rows <= free:
        return None
    accepted = F.broadcast(to_frame(spark, _producer_table([*known, *first.column(0).to_pylist()[:free]])))
    excess = named.join(accepted, "_producer", "left_anti").select("_position", "_producer")
    detail = F.expr(f"concat(_producer, ' is not among the {limit} producers that the horizon waits for')")
    is_excess = F.col("_producer").isNotNull()
    checked = parsed.join(excess, "_position", "left").withColumns(
        {
            "_reason": F.when(is_excess, str(Reason.TOO_MANY_PRODUCERS)).otherwise(F.col("_reason")),
            "_detail": F.when(is_excess, detail).otherwise(F.col("_detail")),
            "_bucket": F.when(~is_excess, F.col("_bucket")),
        }
    )
    return checked.select(*parsed.columns)


def _producer_table(names: Collection[str]) -> pa.Table:
    return pa.table({"_producer": pa.array(sorted(names), pa.string())})


def _producer_sql(declared: Producers) -> str:
    return f"cast({quoted(declared.producer, SPARK)} AS string)"
