"""PySpark and Delta by hand: one process for each batch, in the environment of this project."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from infra.bench.orders.work import TABLES


@dataclass(frozen=True)
class Spark:
    environment: None = None

    def prepare(self, home: Path) -> None: ...

    def command(self, home: Path) -> Sequence[str]:
        return [sys.executable, str(Path(__file__).with_name("spark_job.py"))]

    def tables(self, home: Path) -> dict[str, Any]:
        return {name: DeltaTable(home / "tables" / name).to_pyarrow_table() for name in TABLES}
