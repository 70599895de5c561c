"""Warehouse written without Spark: tables, editions of them, and the published shop of `lake init`."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, Literal

import arro3.core
from deltalake import write_deltalake

from lake.config import Settings, load_settings
from lake.ops.scaffold import init
from lake.project.project import Project, load
from lake.store import delta, duckdb_tables
from lake.store.delta import Position
from lake.store.ledger import contract_versions, cuts, editions
from lake.store.log import Log
from lake.store.proof import chain
from lake.store.storage import Address
from lake.store.tables import Table
from lake.store.warehouse import Warehouse

EVENTS: Final = """
    SELECT * REPLACE (NULL::VARCHAR AS customer), NULL::VARCHAR AS _subject, changed::TIMESTAMPTZ AS _time,
        changed::TIMESTAMPTZ AS placed_at, changed::TIMESTAMPTZ AS changed_at, NULL::TIMESTAMPTZ AS _watermark,
        TIMESTAMPTZ '2024-03-31' AS _ingested_at, _bucket::BIGINT AS _arrival, '' AS _id, '' AS _source,
        1 AS _version, '' AS _extra
    FROM (VALUES
      (1::BIGINT, 1::INTEGER, 0::BIGINT, 1::BIGINT, 'ada',   'placed', 19.90::DECIMAL(10, 2), '2024-03-30 09:12Z'),
      (1,         2,          0,         2,         'grace', 'placed', 250.00,                '2024-03-30 10:40Z'),
      (2,         1,          1,         1,         'ada',   'paid',   19.90,                 '2024-03-30 11:05Z')
    ) t(_batch, _bucket, _offset, order_id, customer, status, amount, changed)"""
ORDERS: Final = """
    SELECT 1::BIGINT AS order_id, 'ada' AS customer, 'paid' AS status, 19.90::DECIMAL(10, 2) AS amount,
        TIMESTAMPTZ '2024-03-30 09:12Z' AS placed_at, TIMESTAMPTZ '2024-03-30 11:05Z' AS changed_at
    UNION ALL
    SELECT 2, 'grace', 'placed', 250.00, TIMESTAMPTZ '2024-03-30 10:40Z', TIMESTAMPTZ '2024-03-30 10:40Z'"""
DAILY: Final = f"""
    SELECT customer, placed_at::DATE AS "day", count(*)::BIGINT AS orders, count(*) FILTER (status = 'cancelled') AS
        cancelled, sum(amount)::DECIMAL(20, 2) AS amount
    FROM ({ORDERS}) GROUP BY ALL"""


def write(
    settings: Settings,
    layer: str,
    name: str,
    query: str,
    *,
    mode: Literal["append", "overwrite"] = "append",
    merge: bool = False,
) -> int:
    """Write the rows of a DuckDB `query` as one commit of a table, and return its new version."""
    path = Table(settings, layer, name, name).path
    commit(
        path, query, mode=mode, schema_mode="merge" if merge else None, description=f"One row per {name}.", name=name
    )
    return delta.version(path)


def commit(path: Address, query: str, position: Position | None = None, **options: Any) -> None:
    """Append the rows of a DuckDB `query` to the table at `path`, in one commit with a position."""
    with duckdb_tables.connection() as con:
        rows = arro3.core.Table.from_arrow(con.sql(query))
    about = position.commit_properties if position else None
    write_deltalake(str(path), rows, commit_properties=about, **{"mode": "append", **options})


def publish(settings: Settings, cut: int = 1, **tables: tuple[str, int]) -> editions.Edition:
    """Record an edition of `name=(layer, version)`."""
    entries: Mapping[str, editions.EditionTable] = {
        name: editions.EditionTable(layer, f"{layer}/{name}", version, "f") for name, (layer, version) in tables.items()
    }
    return editions.record_edition(settings, cut, entries)


def published(folder: Path) -> Project:
    """Return the shop of `lake init`: two batches of orders in the log, both tables at cut 1 and in edition 1. Its
    warehouse is a copy of one made once per process.
    """
    init(folder)
    shutil.copytree(_published() / ".lake", folder / ".lake")
    return load(load_settings(folder))


@cache
def _published() -> Path:
    folder = kept_folder()
    init(folder)
    project = load(load_settings(folder))
    settings = project.settings
    contract_versions.register(settings, project.contracts["orders"])
    at = datetime(2024, 3, 31, tzinfo=UTC).isoformat()
    for batch in (1, 2):
        _append(settings, batch, 3 - batch, offsets={"1": batch, "2": 1}, watermark=at)
    cut = cuts.record_cut(settings, {"orders": 2}, 0).number
    entries = {}
    for name, query, inputs in (
        ("current_order", ORDERS, {"orders": 2}),
        ("customer_daily", DAILY, {"current_order": 0}),
    ):
        declaration = project.tables[name]
        columns = {
            source.name: {
                "read": project.fields(source.name) if source.table is None else project.table(source.table).columns(),
                "unread": [],
            }
            for source in declaration.inputs
        }
        table, fingerprint = project.table(declaration), project.fingerprint(declaration, columns)
        built = {"verb": "build", "cut": cut, "voids": 0, "inputs": inputs, "homes": {}, "fingerprint": fingerprint}
        built |= {"counts": {"inserted": 2, "updated": 0, "deleted": 0}, "columns": columns}
        built |= {"definition": project.definition(declaration, columns)}
        commit(table.path, query, delta.start(table.app).next(**built))
        entries[name] = editions.EditionTable(declaration.layer, f"{declaration.layer}/{name}", 0, fingerprint)
    editions.record_edition(settings, cut, entries)
    return folder


def kept_folder() -> Path:
    """Return an empty folder that exists until the process ends."""
    folder = Path(mkdtemp(prefix="headwater-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fall_behind(settings: Settings) -> None:
    """Add a batch to the log of orders that no cut includes."""
    _append(settings, 2, 1, again=3, offsets={}, watermark=None)


def _append(settings: Settings, batch: int, events: int, *, again: int = 0, **said: Any) -> None:
    """Append the events of a batch to the log of orders, or those of an earlier one `again`."""
    counts = {"read": events, "accepted": events, "duplicates": 0, "quarantined": 0, "control": 0}
    said |= {"counts": counts, "files": [], "contract": 1, "at": "2024-03-31T00:00:00+00:00"}
    query = f"SELECT * EXCLUDE (changed) REPLACE ({again or batch} AS _batch) FROM ({EVENTS}) WHERE _batch = {batch}"
    head = Log(settings, "orders").head()
    with duckdb_tables.connection() as con:
        prints = chain.of_batch(con.sql(query).to_arrow_table())
    position = head.next(**said, content=chain.entry(head.content, head.batch + 1, prints, []))
    commit(Warehouse(settings).log("orders").path, query, position, partition_by=["_bucket"])
