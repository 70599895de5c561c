"""The shop of `lake init`, run and published, as it is before the bad input: made without a JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import arro3.core
from deltalake import write_deltalake

from lake.config import Settings, load_settings
from lake.project import Project, load
from lake.scaffold import init
from lake.store import delta
from lake.store.ledger import contract_versions, cuts, editions
from lake.store.log import Log
from lake.store.storage import Address
from lake.store.warehouse import Warehouse

AT = datetime(2024, 3, 31, tzinfo=UTC)
EVENTS = """
    SELECT * REPLACE (NULL::VARCHAR AS customer), NULL::VARCHAR AS _subject, changed::TIMESTAMPTZ AS _time,
        changed::TIMESTAMPTZ AS placed_at, changed::TIMESTAMPTZ AS changed_at, NULL::TIMESTAMPTZ AS _watermark,
        now() AS _ingested_at, '' AS _id, '' AS _source, 1 AS _version, '' AS _extra
    FROM (VALUES
      (1::BIGINT, 1::INTEGER, 0::BIGINT, 1::BIGINT, 'ada',   'placed', 19.90::DECIMAL(10, 2), '2024-03-30 09:12Z'),
      (1,         2,          0,         2,         'grace', 'placed', 250.00,                '2024-03-30 10:40Z'),
      (2,         1,          1,         1,         'ada',   'paid',   19.90,                 '2024-03-30 11:05Z')
    ) t(_batch, _bucket, _offset, order_id, customer, status, amount, changed)"""
ORDERS = """
    SELECT 1::BIGINT AS order_id, 'ada' AS customer, 'paid' AS status, 19.90::DECIMAL(10, 2) AS amount,
        TIMESTAMPTZ '2024-03-30 09:12Z' AS placed_at, TIMESTAMPTZ '2024-03-30 11:05Z' AS changed_at
    UNION ALL
    SELECT 2, 'grace', 'placed', 250.00, TIMESTAMPTZ '2024-03-30 10:40Z', TIMESTAMPTZ '2024-03-30 10:40Z'"""
DAILY = """
    SELECT customer, placed_at::DATE AS "day", count(*)::BIGINT AS orders, count(*) FILTER (status = 'cancelled') AS
        cancelled, sum(amount)::DECIMAL(20, 2) AS amount
    FROM ({orders}) GROUP BY ALL"""


def published(folder: Path) -> Project:
    """The project in `folder`: two batches of orders in the log, both tables at cut 1 and in edition 1."""
    init(folder)
    project = load(load_settings(folder))
    settings, contract = project.settings, project.contracts["orders"]
    contract_versions.register(settings, contract)
    for batch in (1, 2):
        said: dict[str, Any] = {"offsets": {"1": batch, "2": 1}, "watermark": AT.isoformat(), "files": []}
        said |= {"counts": _read(3 - batch)}
        position = Log(settings, "orders").head().next(**said, contract=1, at=AT.isoformat())
        events = f"SELECT * EXCLUDE (changed) FROM ({EVENTS}) WHERE _batch = {batch}"
        _write(Warehouse(settings).log("orders").path, events, position)
    cut = cuts.record_cut(settings, {"orders": 2}, 0)
    tables = {}
    for name, query, inputs in (
        ("current_order", ORDERS, {"orders": 2}),
        ("customer_daily", DAILY.format(orders=ORDERS), {"current_order": 0}),
    ):
        declaration = project.tables[name]
        table, fingerprint = project.table(declaration), project.fingerprint(declaration)
        position = delta.start(table.app).next(
            verb="build",
            cut=cut.number,
            voids=0,
            inputs=inputs,
            homes={},
            counts={"inserted": 2, "updated": 0, "deleted": 0},
            fingerprint=fingerprint,
            definition=project.definition(declaration),
        )
        _write(table.path, query, position)
        tables[name] = editions.EditionTable(declaration.layer, f"{declaration.layer}/{name}", 0, fingerprint)
    editions.record_edition(settings, cut.number, tables)
    return project


def fall_behind(settings: Settings) -> None:
    """Adds a batch to the log of orders that no cut has."""
    head = Log(settings, "orders").head()
    said: dict[str, Any] = {
        "offsets": {},
        "watermark": None,
        "counts": _read(1),
        "files": [],
        "contract": 1,
        "at": AT.isoformat(),
    }
    events = f"SELECT * EXCLUDE (changed) REPLACE (3 AS _batch) FROM ({EVENTS}) WHERE _batch = 2"
    _write(Warehouse(settings).log("orders").path, events, head.next(**said))


def _read(events: int) -> dict[str, int]:
    return {"read": events, "accepted": events, "duplicates": 0, "quarantined": 0, "control": 0}


def _write(path: Address, query: str, position: delta.Position, **options: Any) -> None:
    with delta.connection() as con:
        rows = arro3.core.Table.from_arrow(con.sql(query))
    write_deltalake(str(path), rows, mode="append", commit_properties=position.commit_properties, **options)
