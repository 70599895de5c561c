"""Job of one batch: merges new landing files into five Delta tables in tables/. It may be run again after a crash.

The changes themselves are kept in two further tables. A batch computes what its keys have from all their changes, so
that late and repeated ones are right. The name of the last file is written last.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

JARS = Path(sys.prefix) / "share/headwater/jars"
CONF = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.jars": ",".join(map(str, sorted(JARS.glob("*.jar")))),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.log.level": "ERROR",
}
FIELDS = {
    "orders": "change long, order_id long, customer_id long, status string, amount decimal(12, 2), "
    "changed_at timestamp",
    "customers": "change long, customer_id long, region string, tier string, changed_at timestamp",
}
HOME, DONE = Path("tables").absolute(), Path("tables/done")
UPDATED = "when matched then update set *"


def main() -> None:
    done = DONE.read_text() if DONE.exists() else ""
    files = {stream: [str(file) for file in Path("landing", stream).iterdir() if file.name > done] for stream in FIELDS}
    if not any(files.values()):
        return
    spark = SparkSession.builder.config(map={**CONF}).getOrCreate()
    orders, customers = (read(spark, stream, paths) for stream, paths in files.items())
    merge("orders", orders, ["change"], matched="")
    merge("customers", customers, ["change"], matched="")
    news = changes(spark, "orders", orders, "order_id")
    merge("order_latest", newest(news, "order_id"), ["order_id"])
    news = changes(spark, "customers", customers, "customer_id")
    merge("customer_latest", newest(news, "customer_id"), ["customer_id"])
    numbers = ",".join(str(row[0]) for row in customers.select("customer_id").distinct().collect())
    gone = f"when not matched by source and t.customer_id in ({numbers}) then delete" if numbers else ""
    merge("customer_history", versions(news), ["customer_id", "valid_from"], gone=gone)
    news = changes(spark, "orders", orders, "change").union(changes(spark, "orders", customers, "customer_id"))
    merge("order_enriched", as_of(news.dropDuplicates(["change"]), table(spark, "customer_history")), ["change"])
    daily(table(spark, "order_latest")).write.format("delta").mode("overwrite").save(str(HOME / "daily_revenue"))
    DONE.with_suffix(".new").write_text(max(Path(file).name for paths in files.values() for file in paths))
    DONE.with_suffix(".new").rename(DONE)


def read(spark: SparkSession, stream: str, files: list[str]) -> DataFrame:
    """Return the changes in new files, each once."""
    if not files:
        return spark.createDataFrame([], FIELDS[stream])
    return spark.read.schema(FIELDS[stream]).json(files).dropDuplicates(["change"]).cache()


def table(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.format("delta").load(str(HOME / name))


def changes(spark: SparkSession, stream: str, news: DataFrame, key: str) -> DataFrame:
    """Return all changes that have the key of a new one."""
    rows = table(spark, stream)
    return rows.join(F.broadcast(news.select(key).distinct()), key, "left_semi").select(rows.columns)


def newest(rows: DataFrame, key: str) -> DataFrame:
    order = Window.partitionBy(key).orderBy(F.desc("changed_at"), F.desc("change"))
    return rows.withColumn("_rank", F.row_number().over(order)).where("_rank = 1").drop("_rank")


def versions(rows: DataFrame) -> DataFrame:
    order = Window.partitionBy("customer_id").orderBy("changed_at", "change")
    state = F.struct("region", "tier")
    begun = rows.withColumn("_changed", ~state.eqNullSafe(F.lag(state).over(order))).where("_changed")
    until = F.lead("changed_at").over(order).alias("valid_to")
    return begun.select("customer_id", "region", "tier", F.col("changed_at").alias("valid_from"), until)


def as_of(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Return orders with the version of their customer at that time."""
    held = "o.customer_id = c.customer_id and valid_from <= changed_at and (valid_to is null or changed_at < valid_to)"
    return orders.alias("o").join(customers.alias("c"), F.expr(held), "left").select("o.*", "region", "tier")


def daily(orders: DataFrame) -> DataFrame:
    days = orders.where("status <> 'cancelled'").groupBy("status", F.date_trunc("day", "changed_at").alias("day"))
    return days.agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))


def merge(name: str, rows: DataFrame, key: list[str], *, matched: str = UPDATED, gone: str = "") -> None:
    """Bring rows into a table, which the first batch creates."""
    path = HOME / name
    if not (path / "_delta_log/00000000000000000000.json").exists():
        rows.write.format("delta").mode("overwrite").save(str(path))
        return
    same = " and ".join(f"t.{column} = s.{column}" for column in key)
    query = f"merge into delta.`{path}` t using {{rows}} s on {same} {matched} when not matched then insert * {gone}"
    rows.sparkSession.sql(query, rows=rows).collect()


if __name__ == "__main__":
    main()
