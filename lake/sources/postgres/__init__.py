"""PostgreSQL as a source, by logical replication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg  # noqa: F401 who lacks the extra is told when the source is declared, not when it is read

from lake.contracts.contract import Contract
from lake.sources.postgres.options import read_options
from lake.sources.postgres.reader import PostgresSource


def of(name: str, options: Mapping[str, Any], contracts: Mapping[str, Contract], where: str) -> PostgresSource:
    """Return the source that the file `where` declares, not connected. Raises DeclarationError with all faults."""
    return PostgresSource(read_options(name, options, contracts, where))
