"""DuckDB alone: a script that makes all tables from all files in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.bench.orders.__main__ import in_duckdb
from infra.bench.orders.work import Landing
from infra.bench.peers.peer import tables_of


@dataclass(frozen=True)
class Script:
    environment: None = None

    def prepare(self, home: Path) -> None: ...

    def command(self, home: Path) -> Sequence[str]:
        return in_duckdb(home / "orders.duckdb", Landing(home / "landing"))

    def tables(self, home: Path) -> dict[str, Any]:
        return tables_of(home / "orders.duckdb")
