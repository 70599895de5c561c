"""Changes of orders and customers in landing files, and the five tables that DuckDB makes of all of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

CUSTOMERS: Final = 20_000

# Changes with numbers from `first`: two of three are of a new order. Customers all begin before the first order.
# Changes happened `late` seconds earlier.
CHANGES: Final[Mapping[str, str]] = {
    "orders": """
        SELECT n AS change, CASE WHEN hash(n, 'new') % 3 > 0 THEN n ELSE hash(n, 'order') % (n + 1) END AS order_id,
            hash(order_id, 'customer') % {customers} AS customer_id,
            ['placed', 'paid', 'shipped', 'cancelled'][1 + (hash(n, 'status') % 4)::INT] AS status,
            ((hash(n, 'amount') % 1000000) / 100)::DECIMAL(12, 2)::VARCHAR AS amount,
            strftime(TIMESTAMP '2024-01-02' + to_seconds(n * 100 - {late}), '%Y-%m-%dT%H:%M:%SZ') AS changed_at {more}
        FROM range({first}, {first} + {count}) t(n)""",
    "customers": """
        SELECT n AS change, CASE WHEN n < {customers} THEN n ELSE hash(n, 'customer') % {customers} END AS customer_id,
            'region ' || hash(n, 'region') % 20 AS region, 'tier ' || hash(n, 'tier') % 4 AS tier,
            strftime(TIMESTAMP '2024-01-01' + to_seconds(greatest(n - {customers} + 1, 0) * 4000 - {late}),
                '%Y-%m-%dT%H:%M:%SZ') AS changed_at {more}
        FROM range({first}, {first} + {count}) t(n)""",
}
FIELDS: Final[Mapping[str, str]] = {
    "orders": "change: 'BIGINT', order_id: 'BIGINT', customer_id: 'BIGINT', status: 'VARCHAR', "
    "amount: 'DECIMAL(12, 2)', changed_at: 'TIMESTAMP'",
    "customers": "change: 'BIGINT', customer_id: 'BIGINT', region: 'VARCHAR', tier: 'VARCHAR', changed_at: 'TIMESTAMP'",
}
LOADED: Final = {"orders": 160_000, "customers": 24_000}
BATCH: Final = {"orders": 1_980, "customers": 20}

# The five tables from all changes, without any code of Headwater.
TABLES: Final[Mapping[str, str]] = {
    "order_latest": """
        SELECT order_id, change, customer_id, status, amount, changed_at FROM orders
        QUALIFY row_number() OVER (PARTITION BY order_id ORDER BY changed_at DESC, change DESC) = 1""",
    "customer_latest": """
        SELECT customer_id, change, region, tier, changed_at FROM customers
        QUALIFY row_number() OVER (PARTITION BY customer_id ORDER BY changed_at DESC, change DESC) = 1""",
    "customer_history": """
        SELECT customer_id, region, tier, changed_at AS valid_from,
            lead(changed_at) OVER (PARTITION BY customer_id ORDER BY changed_at, change) AS valid_to
        FROM (
            SELECT *, lag((region, tier)) OVER (PARTITION BY customer_id ORDER BY changed_at, change) AS before
            FROM customers
        ) WHERE before IS DISTINCT FROM (region, tier)""",
    "order_enriched": """
        SELECT o.*, c.region, c.tier FROM orders o LEFT JOIN customer_history c
        ON c.customer_id = o.customer_id AND c.valid_from <= o.changed_at
            AND (c.valid_to IS NULL OR o.changed_at < c.valid_to)""",
    "daily_revenue": """
        SELECT status, date_trunc('day', changed_at) AS day, count(*) AS orders, sum(amount) AS revenue
        FROM order_latest WHERE status <> 'cancelled' GROUP BY ALL""",
}
COMPARED: Final[Mapping[str, str]] = {
    "order_latest": "order_id, change, customer_id, status, amount, epoch_us(changed_at)",
    "customer_latest": "customer_id, change, region, tier, epoch_us(changed_at)",
    "customer_history": "customer_id, region, tier, epoch_us(valid_from), epoch_us(valid_to)",
    "order_enriched": "change, order_id, customer_id, status, amount, epoch_us(changed_at), region, tier",
    "daily_revenue": "status, orders, revenue",
}


class Landing:
    """Landing files in `folder`: one per stream and delivery, numbered in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = dict.fromkeys(CHANGES, 0)
        self.deliveries = 0

    def deliver(self, counts: Mapping[str, int], *, late: int = 0, more: str = "") -> None:
        """Land the next changes, which happened `late` seconds earlier and have the columns `more` too."""
        self.deliveries += 1
        for stream, count in counts.items():
            file = self.file(stream)
            values = {"first": self.changes[stream], "count": count, "customers": CUSTOMERS, "late": late, "more": more}
            duckdb.execute(f"COPY ({CHANGES[stream].format_map(values)}) TO '{file}.part' (FORMAT json)")
            Path(f"{file}.part").rename(file)
            self.changes[stream] += count

    def deliver_again(self) -> None:
        """Land the changes of the last delivery once more, in files of other names."""
        last = {stream: self.file(stream) for stream in CHANGES}
        self.deliveries += 1
        for stream, file in last.items():
            shutil.copy(file, self.file(stream))

    def age(self, *, hours: int) -> None:
        """Make the files of the last delivery as old as if it had been hours ago."""
        for stream in CHANGES:
            then = self.file(stream).stat().st_mtime - hours * 3600
            os.utime(self.file(stream), (then, then))

    def file(self, stream: str) -> Path:
        """Return the file of the newest delivery."""
        file = self.folder / stream / f"{self.deliveries:09}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def statements(self, what: str, deliveries: int | None = None) -> Iterator[str]:
        """Yield the SQL that makes the tables from the first deliveries, or all; `what` is TABLE or the like."""
        for stream, fields in FIELDS.items():
            files = sorted(map(str, (self.folder / stream).glob("*.jsonl")))[:deliveries]
            yield f"CREATE {what} {stream} AS SELECT DISTINCT * FROM read_json({files}, columns = {{{fields}}})"
        for name, query in TABLES.items():
            yield f"CREATE {what} {name} AS {query}"

    def differing(self, tables: Mapping[str, Any], deliveries: int | None = None) -> dict[str, int]:
        """Return the number of rows, by table, that are only in these Arrow tables or only in DuckDB's.

        DuckDB makes its tables of the first deliveries, or of all.
        """
        counts = {}
        with duckdb.connect() as con:
            con.execute("SET TimeZone = 'UTC'")
            for query in self.statements("TEMP TABLE", deliveries):
                con.execute(query)
            for name, columns in COMPARED.items():
                con.register("theirs", tables[name])
                these, those = (f"SELECT {columns} FROM {each}" for each in ("theirs", name))
                query = f"(({these}) EXCEPT ALL ({those})) UNION ALL (({those}) EXCEPT ALL ({these}))"
                [(counts[name],)] = con.execute(f"SELECT count(*) FROM ({query})").fetchall()
        return counts
