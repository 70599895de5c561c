"""Checks of tables that a test has recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lake.config import Settings
from lake.store.ledger.checks import Check, Outcome, Scope, record_checks


def record_check(
    settings: Settings,
    table: str,
    *,
    home: str,
    scope: Scope,
    cut: int,
    version: int | None,
    suite: str,
    outcome: Outcome,
    results: Sequence[Mapping[str, Any]],
) -> Check:
    """Record a check of `table`."""
    made = Check(0, table, home, scope, cut, version, suite, outcome, list(results), datetime.now(UTC))
    return record_checks(settings, [made])[0]
