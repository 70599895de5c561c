"""SQLMesh on DuckDB: incremental models by key; the history of customers is of kind SCD type 2, or by partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.bench.peers.peer import copied, outside, program, tables_of

FOLDER = Path(__file__).with_name("projects") / "sqlmesh"


@dataclass(frozen=True)
class SqlMesh:
    history: str
    environment: dict[str, str] = field(default_factory=lambda: outside(SQLMESH__DISABLE_ANONYMIZED_ANALYTICS="true"))

    def prepare(self, home: Path) -> None:
        copied(home, FOLDER / "base", FOLDER / self.history)

    def command(self, home: Path) -> Sequence[str]:
        """Return the command that a schedule would run; the first time it also creates the tables."""
        plan = ["plan", "--auto-apply", "--no-prompts", "--run"]
        verb = ["run"] if (home / "lake.duckdb").exists() else plan
        return [program("sqlmesh", "sqlmesh"), *verb, "--ignore-cron"]

    def tables(self, home: Path) -> dict[str, Any]:
        return tables_of(home / "lake.duckdb", "orders")
