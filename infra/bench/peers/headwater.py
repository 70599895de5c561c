"""Headwater: a cold `lake run` for each batch, or `lake run --follow`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.bench.orders.__main__ import LAKE, PROJECT, published_tables
from infra.bench.peers.peer import copied


@dataclass(frozen=True)
class Headwater:
    environment: None = None

    def prepare(self, home: Path) -> None:
        copied(home, PROJECT)

    def command(self, home: Path) -> Sequence[str]:
        return [LAKE, "run"]

    def tables(self, home: Path) -> dict[str, Any]:
        return published_tables(home)
