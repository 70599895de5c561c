"""Checks: what a declaration of this kind must not do, and what must hold of its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lake.errors import DeclarationError
from lake.kinds.law import Law

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Checks(Law):
    """What plans, gates and expectations ask."""

    def faults(self, *sides: DataFrame) -> Iterator[DeclarationError]:
        """What this declaration could not repeat, or would round, over the function's rows; by their types alone."""
        yield from ()

    @property
    def may_recurse(self) -> bool:
        """Whether the query of a function that sees whole inputs may be recursive."""
        return False

    @property
    def invariants(self) -> Mapping[str, str]:
        """What always holds of a result: {name: DuckDB SQL over `{table}` for the rows that break it}; a gate."""
        return {}

    @property
    def current(self) -> str:
        """DuckDB SQL over rows of the table: which of them are valid now, and are compared between editions."""
        return "true"

    @property
    def current_identity(self) -> tuple[str, ...]:
        """The columns that tell the current rows apart."""
        return self.identity
