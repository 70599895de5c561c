"""Erasures: records of persons of a stream forgotten, by token. From the next cut on, no table has their data.

Erasures and voids share one numbering, so one number of a cut covers both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.store.keys import has_store, open_store
from lake.store.locks.lease import lease
from lake.store.voids import ERASURES, VOIDS, Erasure, last_void
from lake.store.warehouse import Warehouse


def entries(settings: Settings, stream: str | None = None) -> list[Erasure]:
    query = """SELECT action, number, stream, subject, "at" FROM t
               WHERE action = 'erased' AND ($1 IS NULL OR stream = $1) ORDER BY number, subject"""
    return [Erasure(**row) for row in ERASURES.rows(settings, query, stream)]


def subjects(settings: Settings, stream: str) -> set[str]:
    return {erasure.subject for erasure in entries(settings, stream)}


def erasures_between(settings: Settings, stream: str, after: int, upto: float = inf) -> list[Erasure]:
    return [erasure for erasure in entries(settings, stream) if after < erasure.number <= upto]


def purged(settings: Settings) -> int:
    return ERASURES.greatest(settings, "number", "action = 'purged'")


def purged_with(settings: Settings) -> int:
    """Return the number of the edition before which everything has been purged; 0 before the first purge."""
    query = """SELECT edition FROM t WHERE action = 'purged' ORDER BY number DESC, "at" DESC LIMIT 1"""
    return next((row["edition"] for row in ERASURES.rows(settings, query)), 0)


def record(settings: Settings, stream: str, tokens: Iterable[str], *, at: datetime, again: bool = False) -> int:
    """Record the erasure of `tokens` under one number and return it; if none is new, the last number of them.

    Without tokens, nothing is recorded, and the last number of all is returned.

    With `again`, tokens that are already recorded are recorded once more, to be purged again.
    """
    with VOIDS.hold_lease(settings):
        wanted, number = set(tokens), last_void(settings) + 1
        recorded = {erasure.subject: erasure.number for erasure in entries(settings, stream)}
        new = sorted(wanted if again else wanted - set(recorded))
        if not new:
            return max((recorded[token] for token in wanted), default=number - 1)
        _append(settings, [("erased", number, stream, token, at, None) for token in new])
        return number


def mark_purged(settings: Settings, number: int, *, edition: int, at: datetime) -> None:
    _append(settings, [("purged", number, "", "", at, edition)])


def _append(settings: Settings, rows: Sequence[Sequence[Any]]) -> None:
    with ERASURES.hold_lease(settings):
        ERASURES.append(settings, rows)


def record_destroyed(settings: Settings, contracts: Iterable[Contract]) -> None:
    """Record the erasures of persons whose keys are destroyed, if damage removed them from the ledger."""
    sealed = [contract.name for contract in contracts if contract.sealed]
    if not sealed or not has_store(settings):
        return
    store = open_store(settings)
    for stream in sealed:
        gone = store.destroyed(stream)
        if gone - subjects(settings, stream):
            log = Warehouse(settings).log(stream)
            with lease(settings, log.lease):  # a running forget may be between the two
                record(settings, stream, gone, at=datetime.now(UTC))
