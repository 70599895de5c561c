"""One of several hosts that write to a table of one bucket: `python -m tests.s3.hosts FOLDER URL`, until it is killed.

Each entry has the epoch of its lease. The host retries every lease, continues after every rejection, and prints each
rejection.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from lake.connect.s3.place import S3Settings
from lake.errors import Unavailable
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.locks import lease as lease_module
from lake.store.locks.lease import lease, must_hold
from lake.store.warehouse import Warehouse
from tests.shop import empty

HELD: Final = 0.2
"""Seconds between looking where the table stands and committing to it."""


def main() -> None:
    """Acquire the lease of a table and append to it, repeatedly."""
    folder, warehouse, endpoint = Path(sys.argv[1]), *sys.argv[2:]
    storage = S3Settings(endpoint=endpoint, region="us-east-1", path_style=True)
    settings = replace(empty(folder), warehouse=warehouse, storage=storage)
    for name, value in {"BEAT": 0.7, "EXPIRED": 3.0, "LOOK": 0.1}.items():
        setattr(lease_module, name, value)
    table = Warehouse(settings).table("gold", "sums")
    while True:
        try:
            with lease(settings, table.lease, seconds=3600) as held:
                position = delta.head_or_start(table.path, table.app)
                must_hold(settings, table.lease)  # So that the position of the table was read within the epoch
                time.sleep(HELD)
                duckdb_tables.append(table.path, "epoch BIGINT", [(held.epoch,)], position.next(epoch=held.epoch))
        except (Unavailable, delta_writer.Beaten) as error:
            print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
