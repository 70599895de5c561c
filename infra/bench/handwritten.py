"""The tables of this repository as one would write them by hand: plain PySpark and Delta, no position, gate or proof.

`FULL` computes a table from the log's events, `STEP` merges one batch of events into it; `DUCKDB` is the same
computation over the log's Parquet files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from infra.bench.more_tables import QUERIES

SCHEDULED = "timestampadd(MINUTE, minute, time_hour)"
DEPARTED = "timestampadd(MINUTE, minute + dep_delay, time_hour)"
NEW_YORK = "from_utc_timestamp({}, 'America/New_York')"
ADDED = ("flights", "cancelled", "arrived", "arrived_late", "arrival_delay", "distance")


def flight(events: DataFrame) -> DataFrame:
    legs = events.selectExpr(
        "concat_ws('-', carrier, flight, origin, date_format(time_hour, 'yyyyMMdd\\'T\\'HH')) as leg_id",
        "carrier", "flight", "tailnum", "origin", "dest", f"{SCHEDULED} as scheduled_at", f"{DEPARTED} as departed_at",
        "dep_delay as departure_delay", "arr_delay as arrival_delay", "dep_time is null as cancelled", "distance",
        "_batch", "_arrival",
    )  # fmt: skip
    return _first(legs, ["leg_id"], [F.desc("_batch"), F.desc("_arrival")]).drop("_batch", "_arrival")


def aircraft_position(events: DataFrame) -> DataFrame:
    legs = events.where("tailnum is not null and dep_time is not null").selectExpr(
        "tailnum", "dest as airport", f"{DEPARTED} as at", "carrier", "flight"
    )
    return _first(legs, ["tailnum"], [F.desc("at"), F.desc("carrier"), F.desc("flight")])


def route_first(events: DataFrame) -> DataFrame:
    legs = events.where("dep_time is not null").selectExpr(
        "origin", "dest", f"{DEPARTED} as departed_at", "carrier", "flight"
    )
    return _first(legs, ["origin", "dest"], [F.asc("departed_at"), F.asc("carrier"), F.asc("flight")])


def carrier_daily(events: DataFrame) -> DataFrame:
    return events.groupBy("carrier", F.expr(f"cast({NEW_YORK.format(SCHEDULED)} as date) as day")).agg(
        F.expr("count(*) as flights"),
        F.expr("count_if(dep_time is null) as cancelled"),
        F.expr("count_if(arr_delay is not null) as arrived"),
        F.expr("count_if(arr_delay > 15) as arrived_late"),
        F.expr("sum(arr_delay) as arrival_delay"),
        F.expr("sum(distance) as distance"),
    )


def airport_month(legs: DataFrame) -> DataFrame:
    month = f"cast(date_trunc('month', {NEW_YORK.format('scheduled_at')}) as date) as month"
    return legs.groupBy("origin", F.expr(month)).agg(
        F.expr("count(*) as flights"),
        F.expr("count_if(cancelled) as cancelled"),
        F.expr("sum(departure_delay) as delay_sum"),
        F.expr("count(departure_delay) as delay_n"),
        F.expr("max(departure_delay) as longest_delay"),
    )


def carrier_league(days: DataFrame, airlines: DataFrame) -> DataFrame:
    total = days.groupBy("carrier").agg(*[F.sum(name).alias(name) for name in ADDED])
    shares = total.join(airlines.select("carrier", "name"), "carrier", "left").selectExpr(
        "carrier", "name", "flights",
        "cast(cast(cancelled as decimal(12)) / flights as decimal(7, 5)) as share_cancelled",
        "cast(cast(arrived_late as decimal(12)) / nullif(arrived, 0) as decimal(7, 5)) as share_late",
        "cast(cast(arrival_delay as decimal(12)) / nullif(arrived, 0) as decimal(9, 3)) as mean_delay",
    )  # fmt: skip
    place = Window.orderBy(F.asc_nulls_last("share_late"), "share_cancelled", "carrier")
    return shares.withColumn("rank", F.row_number().over(place))


def _first(rows: DataFrame, key: list[str], order: list[Column]) -> DataFrame:
    ranked = rows.withColumn("_rank", F.row_number().over(Window.partitionBy(*key).orderBy(*order)))
    return ranked.where("_rank = 1").drop("_rank")


class Lake:
    """Hand-written tables under `home`, derived from the logs of a warehouse."""

    def __init__(self, spark: SparkSession, logs: Path, home: Path) -> None:
        self.spark, self.logs, self.home = spark, logs, home

    def events(self, stream: str) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.logs / stream))

    def table(self, name: str) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.home / name))

    def rebuild(self, name: str) -> None:
        if name == "airport_month":
            rows = airport_month(self.table("flight"))
        elif name == "carrier_league":
            rows = carrier_league(self.table("carrier_daily"), self.events("airlines"))
        elif name in QUERIES:
            for table in ("flight", "aircraft_operator", "flight_weather"):
                if table != name and (self.home / table).exists():
                    self.table(table).createOrReplaceTempView(table)
            for stream, view in (("flights", "events"), ("weather", "weather")):
                if (self.logs / stream).exists():
                    self.events(stream).createOrReplaceTempView(view)
            rows = self.spark.sql(QUERIES[name])
        else:
            rows = FULL[name](self.events("flights"))
        rows.write.format("delta").mode("overwrite").save(str(self.home / name))

    def step(self, name: str, batch: int) -> None:
        """One batch of flights into the table, by the MERGE that suits it."""
        if name == "carrier_league":
            self.rebuild(name)
            return
        events = self.events("flights").where(f"_batch = {batch}")
        new = airport_month(flight(events)) if name == "airport_month" else FULL[name](events)
        key, matched = MERGES[name]
        new.createOrReplaceTempView("new")
        on = " and ".join(f"t.{k} = s.{k}" for k in key)
        self.spark.sql(
            f"merge into delta.`{self.home / name}` t using new s on {on} {matched} when not matched then insert *"
        ).collect()


FULL: dict[str, Callable[[DataFrame], DataFrame]] = {
    "flight": flight,
    "aircraft_position": aircraft_position,
    "route_first": route_first,
    "carrier_daily": carrier_daily,
}
_ADD = ", ".join(f"t.{n} = coalesce(t.{n} + s.{n}, t.{n}, s.{n})" for n in ADDED)
_MONTH = ", ".join(f"t.{n} = t.{n} + coalesce(s.{n}, 0)" for n in ("flights", "cancelled", "delay_sum", "delay_n"))
MERGES = {
    "flight": (["leg_id"], "when matched then update set *"),
    "aircraft_position": (["tailnum"], "when matched and s.at > t.at then update set *"),
    "route_first": (["origin", "dest"], "when matched and s.departed_at < t.departed_at then update set *"),
    "carrier_daily": (["carrier", "day"], f"when matched then update set {_ADD}"),
    "airport_month": (
        ["origin", "month"],
        f"when matched then update set {_MONTH}, t.longest_delay = greatest(t.longest_delay, s.longest_delay)",
    ),
}

_EVENTS = "read_parquet('{logs}/flights/*/*.parquet', hive_partitioning = true)"
_AT = "(time_hour + to_minutes(minute))"
_GONE = "(time_hour + to_minutes(minute + dep_delay))"
DUCKDB = {
    "flight": f"""select concat_ws('-', carrier, flight, origin, strftime(time_hour, '%Y%m%dT%H')) as leg_id, *
                  from {_EVENTS} qualify row_number() over (partition by leg_id order by _batch desc,
                  _arrival desc) = 1""",
    "aircraft_position": f"""select tailnum, dest, {_GONE} as gone, carrier, flight from {_EVENTS}
                  where tailnum is not null and dep_time is not null
                  qualify row_number() over (partition by tailnum order by gone desc, carrier desc, flight desc) = 1""",
    "route_first": f"""select origin, dest, {_GONE} as gone, carrier, flight from {_EVENTS} where dep_time is not null
                  qualify row_number() over (partition by origin, dest order by gone, carrier, flight) = 1""",
    "carrier_daily": f"""select carrier, ({_AT} at time zone 'America/New_York')::date as day, count(*),
                  count(*) filter (dep_time is null), count(arr_delay), count(*) filter (arr_delay > 15),
                  sum(arr_delay), sum(distance) from {_EVENTS} group by all""",
    "airport_month": f"""select origin, date_trunc('month', {_AT} at time zone 'America/New_York') as month, count(*),
                  count(*) filter (dep_time is null), avg(dep_delay), max(dep_delay) from {_EVENTS} group by all""",
    "carrier_league": f"""select carrier, count(*) filter (arr_delay > 15) / count(arr_delay) as late,
                  row_number() over (order by late) from {_EVENTS} group by all""",
}
