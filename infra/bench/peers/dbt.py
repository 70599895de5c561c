"""dbt on DuckDB: incremental models by key; the history of customers is a snapshot, or an incremental model too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.bench.peers.peer import copied, outside, program, tables_of

FOLDER = Path(__file__).with_name("projects") / "dbt"


@dataclass(frozen=True)
class Dbt:
    history: str
    environment: dict[str, str] = field(default_factory=lambda: outside(DBT_SEND_ANONYMOUS_USAGE_STATS="false"))

    def prepare(self, home: Path) -> None:
        copied(home, FOLDER / "base", FOLDER / self.history)

    def command(self, home: Path) -> Sequence[str]:
        return [program("dbt", "dbt"), "build"]

    def tables(self, home: Path) -> dict[str, Any]:
        return tables_of(home / "orders.duckdb")
