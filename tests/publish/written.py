"""A published edition made without Spark, for the tests of what reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import arro3.core
from deltalake import DeltaTable, write_deltalake

from lake.config import Settings
from lake.store import delta
from lake.store.ledger import editions
from lake.store.tables import Table

Mode = Literal["append", "overwrite"]


def write(settings: Settings, layer: str, name: str, query: str, *, mode: Mode = "append", merge: bool = False) -> int:
    """Writes what a DuckDB `query` answers as one commit of a table; its new version."""
    path = Table(settings, layer, name, name).path
    with delta.connection() as con:
        rows = arro3.core.Table.from_arrow(con.sql(query))
    about = f"One row per {name}."
    if mode == "overwrite":
        write_deltalake(
            str(path), rows, mode=mode, schema_mode="merge" if merge else None, description=about, name=name
        )
    else:
        write_deltalake(
            str(path), rows, mode=mode, schema_mode="merge" if merge else None, description=about, name=name
        )
    return DeltaTable(str(path)).version()


def publish(settings: Settings, cut: int = 1, **tables: tuple[str, int]) -> editions.Edition:
    """An edition of `name=(layer, version)`."""
    entries: Mapping[str, editions.EditionTable] = {
        name: editions.EditionTable(layer, f"{layer}/{name}", version, "f") for name, (layer, version) in tables.items()
    }
    return editions.record_edition(settings, cut, entries)
