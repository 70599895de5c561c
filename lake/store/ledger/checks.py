"""Checks of the project: each judgement of a table, or of a diff before its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Literal

from lake.config import Settings
from lake.store.ledger_table import LedgerTable, columns_of, record_of

Scope = Literal["diff", "table"]
Outcome = Literal["passed", "warned", "stopped"]


@dataclass(frozen=True)
class Check:
    """Judgement of `table` at `cut`: of a diff before its commit (`version` is None), or of `version` of its `home`.

    `suite` is the hash of its expectations. `results` holds one object per expectation, with keys of failing rows.
    `number` is that of the commit that recorded it, 0 before.
    """

    number: int
    table: str
    home: str
    scope: Scope
    cut: int
    version: int | None
    suite: str
    outcome: Outcome
    results: Sequence[Mapping[str, Any]]
    checked_at: datetime


CHECKS: Final = LedgerTable("checks", columns_of(Check))


def record_checks(settings: Settings, made: Sequence[Check]) -> list[Check]:
    if not made:
        return []

    def numbered(number: int) -> list[Check]:
        return [replace(check, number=number) for check in made]

    return numbered(CHECKS.record(settings, numbered))


def last_checks(settings: Settings, scope: Scope | None = None) -> Mapping[str, Check]:
    return _last_checks(settings, scope, CHECKS.head(settings).position.writer)


@lru_cache(maxsize=8)
def _last_checks(settings: Settings, scope: Scope | None, _: str) -> Mapping[str, Check]:
    """The writer of the newest entry differs after a restore, although its version may be the same."""
    newest = 'SELECT "table", max(number) FROM t WHERE $1 IS NULL OR scope = $1 GROUP BY "table"'
    rows = CHECKS.find(settings, f'("table", number) IN ({newest}) AND ($1 IS NULL OR scope = $1)', scope)
    return {row["table"]: record_of(Check, row) for row in rows}
