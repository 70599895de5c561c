"""Views on a Spark Connect server that show the current edition, as gold.carrier_daily and carrier_daily."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake.config import Settings
from lake.quoting import SPARK, literal, quoted
from lake.store.ledger.editions import Edition
from lake.store.snapshot import published
from lake.store.warehouse import LAYERS, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def update_views(settings: Settings, spark: SparkSession, edition: Edition | None, *, shown: Edition | None) -> None:
    """Replace the views of edition `shown` by those of `edition`. Raises LakeError for a damaged table."""
    before, tables = shown.tables if shown else {}, edition.tables if edition else {}
    statements = [f"CREATE DATABASE IF NOT EXISTS {layer}" for layer in LAYERS]
    for name, entry in tables.items():
        if edition and entry != before.get(name):
            statements += _views(settings, edition, name)
    for name, entry in before.items():
        now = tables.get(name)
        if now is None or now.layer != entry.layer:
            statements.append(f"DROP VIEW IF EXISTS {entry.layer}.{quoted(name, SPARK)}")
        if now is None:
            statements.append(f"DROP VIEW IF EXISTS {quoted(name, SPARK)}")
    for statement in statements:
        spark.sql(statement).collect()


def _views(settings: Settings, edition: Edition, name: str) -> list[str]:
    table, entry = published(settings, name, edition), edition.tables[name]
    path = f"{(Warehouse(settings).root / entry.path).spark}@v{entry.version}"
    columns = ", ".join(f"{quoted(c.name, SPARK)} COMMENT {literal(c.description, SPARK)}" for c in table.columns)
    rows = f"SELECT {', '.join(quoted(c.name, SPARK) for c in table.columns)} FROM delta.{quoted(path, SPARK)}"
    return [
        f"CREATE OR REPLACE VIEW {view} ({columns}) COMMENT {literal(table.doc, SPARK)} AS {rows}"
        for view in (f"{entry.layer}.{quoted(name, SPARK)}", quoted(name, SPARK))
    ]
