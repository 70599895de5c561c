"""The tables of `tables.py` as one would write them by hand: plain PySpark and Delta, no position, gate or proof.

A job computes its table from all events, and brings one batch into it: by a MERGE of what the batch alone gives where
that can be right, late events included, else by computing the touched meters again from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F

from infra.bench.tables import BEGIN, STATE, VIEW, risen

LOGS = ("readings", "tariffs")


def of_meter(order: str) -> WindowSpec:
    return Window.partitionBy("meter").orderBy(order)


def newest(readings: DataFrame) -> DataFrame:
    """Removed meters stay, marked: a late reading must not bring them back."""
    ranked = readings.withColumn("_rank", F.row_number().over(Window.partitionBy("meter").orderBy(F.desc("at"))))
    return ranked.where("_rank = 1").select("meter", "at", "value", "mode", "removed")


def oldest(readings: DataFrame) -> DataFrame:
    ranked = readings.withColumn("_rank", F.row_number().over(of_meter("at")))
    return ranked.where("_rank = 1").select("meter", "at", "value", "mode")


def versions(events: DataFrame, column: str) -> DataFrame:
    in_order = of_meter("at")
    changed = events.withColumn("_changed", ~F.col(column).eqNullSafe(F.lag(column).over(in_order)))
    since = changed.withColumn("valid_from", F.max(F.expr("if(_changed, at, null)")).over(in_order))
    periods = since.groupBy("meter", "valid_from").agg(F.max("at").alias("at"), F.max(column).alias(column))
    return periods.withColumn("valid_to", F.lead("valid_from").over(of_meter("valid_from"))).withColumn(
        "is_current", F.expr("valid_to is null")
    )


def weeks(readings: DataFrame) -> DataFrame:
    measures = ["count(*) as readings", "sum(value) as total", "max(value) as peak", f"{MEAN} as mean"]
    grouped = readings.groupBy("meter", F.window("at", "7 days")).agg(*map(F.expr, measures))
    return grouped.selectExpr("meter", "window.start as window_start", "window.end as window_end", *MEASURES)


MEASURES = ("readings", "total", "mean", "peak")
MEAN = "cast(cast(sum(value) as decimal(38, 6)) / count(*) as decimal(38, 6))"
ADDED = """when matched then update set
    t.readings = t.readings + s.readings, t.total = t.total + s.total, t.peak = greatest(t.peak, s.peak),
    t.mean = cast(cast(t.total + s.total as decimal(38, 6)) / (t.readings + s.readings) as decimal(38, 6))"""


def runs(readings: DataFrame) -> DataFrame:
    grouped = readings.groupBy("meter", F.session_window("at", "3 days")).agg(
        F.count("*").alias("readings"), F.sum("value").alias("total")
    )
    span = ("session_window.start as window_start", "session_window.end as window_end")
    return grouped.selectExpr("meter", *span, "readings", "total")


FOLD = """aggregate(events, named_struct('readings', 0, 'peak', 0, 'rises', 0, 'last', cast(null as int)), (s, e) ->
    named_struct('readings', s.readings + 1, 'peak', greatest(s.peak, e.value),
                 'rises', s.rises + if(e.value > s.last, 1, 0), 'last', e.value)) as state"""


def in_order(readings: DataFrame) -> DataFrame:
    return readings.groupBy("meter").agg(F.expr("sort_array(collect_list(struct(at, value))) as events"))


def folded(readings: DataFrame) -> DataFrame:
    return in_order(readings).selectExpr("meter", FOLD).select("meter", "state.*")


def folded_in_python(readings: DataFrame) -> DataFrame:
    fold = F.udf(lambda events: reduce(risen, events, BEGIN), STATE)
    return in_order(readings).select("meter", fold("events").alias("state")).select("meter", "state.*")


def as_of(readings: DataFrame, tariffs: DataFrame) -> DataFrame:
    """`tariffs` are periods, or changes whose end is the next change."""
    if "valid_to" not in tariffs.columns:
        until = F.lead("at").over(of_meter("at"))
        tariffs = tariffs.select("meter", "tariff", F.col("at").alias("valid_from"), until.alias("valid_to"))
    held = "r.meter = t.meter and t.valid_from <= r.at and (t.valid_to is null or r.at < t.valid_to)"
    return (
        readings.alias("r")
        .join(tariffs.alias("t"), F.expr(held), "left")
        .select("number", "r.meter", "r.at", "value", "tariff")
    )


def near(readings: DataFrame, tariffs: DataFrame) -> DataFrame:
    changes = tariffs.selectExpr("meter", "number as change", "at as since", "tariff")
    soon = "r.meter = t.meter and t.since between r.at - interval 12 hours and r.at + interval 12 hours"
    pairs = readings.alias("r").join(changes.alias("t"), F.expr(soon))
    return pairs.select("r.meter", "number", "r.at", "value", "change", "since", "tariff")


def high(readings: DataFrame) -> DataFrame:
    """Runs of readings above 600: those with as many others before them."""
    ended = F.count_if(F.expr("value <= 600")).over(of_meter("at"))
    return (
        readings.withColumn("_others", ended)
        .where("value > 600")
        .groupBy("meter", "_others")
        .agg(*map(F.expr, ("count(*) as readings", "min(at) as began_at", "max(at) as ended_at", "max(value) as peak")))
        .where("readings >= 3")
        .drop("_others")
    )


def counted(readings: DataFrame, tariffs: DataFrame) -> DataFrame:
    return readings.sparkSession.sql(VIEW, readings=readings, tariffs=tariffs)


class Hand:
    """Hand-written tables under `home`, derived from the logs of a warehouse."""

    def __init__(self, spark: SparkSession, logs: Path, home: Path, jobs: Mapping[str, Job] | None = None) -> None:
        self.spark, self.logs, self.home, self.jobs = spark, logs, home, JOBS if jobs is None else jobs

    def log(self, stream: str, batches: str) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.logs / stream)).where(f"_batch {batches}")

    def table(self, name: str) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.home / name))

    def inputs(self, name: str, batches: str) -> list[DataFrame]:
        return [self.log(each, batches) if each in LOGS else self.table(each) for each in self.jobs[name].reads]

    def result(self, name: str) -> DataFrame:
        """The rows of the table that count."""
        return self.table(name).where(self.jobs[name].there)

    def rebuild(self, name: str, batch: int) -> None:
        """The table from the log up to `batch`."""
        rows = self.jobs[name].whole(*self.inputs(name, f"<= {batch}"))
        rows.write.format("delta").mode("overwrite").save(str(self.home / name))

    def step(self, name: str, batch: int) -> None:
        """Batch number `batch` into the table."""
        self.jobs[name].step(self, name, batch)

    def merge(self, name: str, rows: DataFrame, key: Sequence[str], matched: str, gone: str = "") -> None:
        on = " and ".join(f"t.{k} = s.{k}" for k in key)
        self.spark.sql(
            f"merge into delta.`{self.home / name}` t using {{rows}} s on {on} {matched} "
            f"when not matched then insert * {gone}",
            rows=rows,
        ).collect()


def merged(key: Sequence[str], matched: str) -> Step:
    """Combine the batch's groups with the stored ones."""

    def step(hand: Hand, name: str, batch: int) -> None:
        hand.merge(name, hand.jobs[name].whole(*hand.inputs(name, f"= {batch}")), key, matched)

    return step


def again(*key: str) -> Step:
    """The meters of the batch computed again from the log; rows that they no longer have are deleted."""

    def step(hand: Hand, name: str, batch: int) -> None:
        news = [rows.select("meter") for rows in hand.inputs(name, f"= {batch}")]
        meters = ", ".join(sorted({f"'{row.meter}'" for rows in news for row in rows.collect()}))
        rows = hand.jobs[name].whole(*[each.where(f"meter in ({meters})") for each in hand.inputs(name, f"<= {batch}")])
        gone = f"when not matched by source and t.meter in ({meters}) then delete" if len(key) > 1 else ""
        hand.merge(name, rows, key, REPLACED, gone)

    return step


def enriched(hand: Hand, name: str, batch: int) -> None:
    """The new readings, and those since a change of their meter's tariff."""
    changes = hand.log("tariffs", f"= {batch}").groupBy("meter").agg(F.min("at").alias("_changed_at"))
    readings, tariffs = hand.inputs(name, f"<= {batch}")
    touched = readings.join(F.broadcast(changes), "meter", "left").where(f"_batch = {batch} or at >= _changed_at")
    hand.merge(name, as_of(touched, tariffs), ["number"], REPLACED)


def paired(hand: Hand, name: str, batch: int) -> None:
    """New readings with all changes, and new changes with the readings before."""
    new, old = (hand.log("readings", f"{sign} {batch}") for sign in ("=", "<"))
    pairs = near(new, hand.log("tariffs", f"<= {batch}")).union(near(old, hand.log("tariffs", f"= {batch}")))
    pairs.write.format("delta").mode("append").save(str(hand.home / name))


REPLACED = "when matched then update set *"


@dataclass(frozen=True)
class Job:
    """`whole` makes the rows of what `reads` names, `step` brings a batch into the table. `there`: which rows count."""

    whole: Callable[..., DataFrame]
    step: Step
    reads: tuple[str, ...] = ("readings",)
    there: str = "true"


Step = Callable[[Hand, str, int], None]
JOBS = {
    "latest": Job(newest, merged(["meter"], "when matched and s.at > t.at then update set *"), there="not removed"),
    "first": Job(oldest, merged(["meter"], "when matched and s.at < t.at then update set *")),
    "history": Job(partial(versions, column="mode"), again("meter", "valid_from")),
    "aggregate": Job(weeks, merged(["meter", "window_start"], ADDED)),
    "session": Job(runs, again("meter", "window_start")),
    "fold": Job(folded, again("meter")),
    "fold_python": Job(folded_in_python, again("meter")),
    "tariff": Job(partial(versions, column="tariff"), again("meter", "valid_from"), reads=("tariffs",)),
    "enrich": Job(as_of, enriched, reads=("readings", "tariff")),
    "enrich_log": Job(as_of, enriched, reads=LOGS),
    "join": Job(near, paired, reads=LOGS),
    "pattern": Job(high, again("meter", "began_at")),
    "view": Job(counted, again("meter"), reads=LOGS),
}
