"""Contract versions that a log was written with: their texts, numbered, in `meta/contracts`."""

from __future__ import annotations

from functools import cache
from typing import Final

from lake.config import Settings
from lake.contracts.contract import Contract, read_contract
from lake.contracts.evolution import with_current
from lake.store.ledger_table import LedgerTable

CONTRACTS: Final = LedgerTable("contracts", {"stream": "VARCHAR", "version": "INTEGER", "text": "VARCHAR"})


def versions(settings: Settings, stream: str) -> tuple[Contract, ...]:
    rows = CONTRACTS.rows(settings, "SELECT version, text FROM t WHERE stream = $1 ORDER BY version", stream)
    return tuple(_read(row["text"], f"{stream} version {row['version']}") for row in rows)


def register(settings: Settings, contract: Contract) -> tuple[Contract, ...]:
    """Return every version up to `contract`, the last, which is recorded if it is new.

    Raises DeclarationError if `contract` cannot read events of an older one.
    """
    stored = versions(settings, contract.name)
    if len(contracts := with_current(stored, contract)) == len(stored):
        return contracts
    with CONTRACTS.hold_lease(settings):
        stored = versions(settings, contract.name)
        contracts = with_current(stored, contract)
        if len(contracts) > len(stored):
            CONTRACTS.append(settings, [(contract.name, len(contracts), contract.text)])
    return contracts


@cache
def _read(text: str, file: str) -> Contract:
    return read_contract(text, file=file)
