"""The tables of `project/` as one would write them by hand for large data, beside those of `plain.py`.

A step touches no more than the meters of its batch, and takes the events of a batch to be later than all before.
"""

from __future__ import annotations

from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from infra.bench.plain import ADDED, MEAN, REPLACED, Hand, Job, merged, newest, versions


def totals(readings: DataFrame) -> DataFrame:
    measures = ["count(*) as readings", "sum(value) as total", f"{MEAN} as mean", "max(value) as peak"]
    return readings.groupBy("meter").agg(*map(F.expr, measures))


def days(readings: DataFrame) -> DataFrame:
    measures = ["count(*) as readings", "count_if(removed) as removed", "sum(value) as total"]
    grouped = readings.groupBy("mode", F.window("at", "1 day")).agg(*map(F.expr, measures))
    span = ("window.start as window_start", "window.end as window_end")
    return grouped.selectExpr("mode", *span, "readings", "removed", "total")


def modes(meters: DataFrame) -> DataFrame:
    there = meters.where("not removed")
    return there.groupBy("mode").agg(F.count("*").alias("meters"), F.sum("value").alias("total"))


def states(meters: DataFrame, totals: DataFrame) -> DataFrame:
    return meters.where("not removed").join(totals, "meter").select("meter", "at", "value", "mean", "readings")


def of_batch(hand: Hand, rows: DataFrame, batch: int) -> DataFrame:
    """The rows of the meters that a batch touches."""
    return rows.join(F.broadcast(hand.log("readings", f"= {batch}").select("meter").distinct()), "meter", "left_semi")


def lengthened(hand: Hand, name: str, batch: int) -> None:
    """The newest period of each touched meter, as the events of its beginning and its end, and the batch."""
    last = of_batch(hand, hand.table(name).where("is_current"), batch)
    events = last.selectExpr("meter", "explode(array(valid_from, at)) as at", "mode")
    news = hand.log("readings", f"= {batch}").select("meter", "at", "mode")
    hand.merge(name, versions(events.union(news), "mode"), ["meter", "valid_from"], REPLACED)


def again(hand: Hand, name: str, batch: int) -> None:
    """The whole table: its parent has no feed of changes."""
    hand.rebuild(name, batch)


def refreshed(hand: Hand, name: str, batch: int) -> None:
    """The touched meters, of which some may be gone."""
    meters, totals = (of_batch(hand, each, batch) for each in hand.inputs(name, ""))
    rows = meters.join(totals, "meter").select("meter", "at", "value", "mean", "readings", "removed")
    hand.spark.sql(
        f"""merge into delta.`{hand.home / name}` t using {{rows}} s on t.meter = s.meter
            when matched and s.removed then delete when matched then update set *
            when not matched and not s.removed then insert *""",
        rows=rows,
    ).collect()


SUMS = ", ".join(f"t.{name} = t.{name} + s.{name}" for name in ("readings", "removed", "total"))
JOBS = {
    "meter_latest": Job(newest, merged(["meter"], "when matched and s.at > t.at then update set *")),
    "meter_mode": Job(partial(versions, column="mode"), lengthened),
    "meter_total": Job(totals, merged(["meter"], ADDED)),
    "day_total": Job(days, merged(["mode", "window_start"], f"when matched then update set {SUMS}")),
    "mode_total": Job(modes, again, reads=("meter_latest",)),
    "meter_state": Job(states, refreshed, reads=("meter_latest", "meter_total")),
}
