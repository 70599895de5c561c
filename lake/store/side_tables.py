"""What stands beside a log: small tables of rows under the number of a batch.

They are written before the log's commit. Rows above the log's head are what a crash left behind; the next append
deletes them, and makes again what it finds that damage has taken.
"""

from __future__ import annotations

from lake.store import delta
from lake.store.scan import Scan
from lake.store.storage import Address


def counts(path: Address, *, upto: int) -> dict[int, int]:
    """How many rows each batch has, up to batch `upto`."""
    query = "SELECT _batch, count(*)::INTEGER AS n FROM t WHERE _batch <= $1 GROUP BY _batch"
    return {row["_batch"]: row["n"] for row in delta.rows(path, query, upto)}


def there(path: Address) -> int:
    """How many rows there are, as the table's commits count them. No file is read."""
    return Scan(path).rows() if delta.exists(path) else 0


def clear(path: Address, batch: int) -> None:
    """Deletes the rows of one batch."""
    table = delta.open_table(path)
    if table is not None:
        table.delete(f"_batch = {batch}")
