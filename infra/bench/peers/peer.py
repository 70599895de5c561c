"""Protocol of a tool that does the work of `infra/bench/orders`, and the DuckDB file that most of them write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import duckdb

from infra.bench.orders.work import TABLES

ENVIRONMENTS: Final = Path(__file__).parents[3] / ".lake/peers"


class Peer(Protocol):
    """Tool in a folder `home`. Its files arrive in home/landing/orders and home/landing/customers."""

    @property
    def environment(self) -> Mapping[str, str] | None:
        """Environment of the command; None: that of this process."""

    def prepare(self, home: Path) -> None:
        """Put the project into `home`, which exists and is empty."""

    def command(self, home: Path) -> Sequence[str]:
        """Return the command that brings new files into the five tables: the first time, later, and after a crash."""

    def tables(self, home: Path) -> Mapping[str, Any]:
        """Return the five tables in Arrow."""


def copied(home: Path, *folders: Path) -> None:
    """Copy the contents of the folders into `home`."""
    for folder in folders:
        shutil.copytree(folder, home, dirs_exist_ok=True)


def program(environment: str, name: str) -> str:
    """Return the path of a program that `install.sh` installed."""
    file = ENVIRONMENTS / environment / "bin" / name
    assert file.exists(), f"{file} is missing: run infra/bench/peers/install.sh"
    return str(file)


def outside(**more: str) -> dict[str, str]:
    """Return the environment of a program that must not import this project."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more


def tables_of(database: Path, schema: str = "main") -> dict[str, Any]:
    """Return the five tables of a DuckDB file."""
    with duckdb.connect(database, read_only=True) as con:
        con.execute("SET TimeZone = 'UTC'")
        return {name: con.sql(f"FROM {schema}.{name}").to_arrow_table() for name in TABLES}
