"""The contracts that a log was written with: their texts, numbered, in `meta/contracts`."""

from __future__ import annotations

from typing import Final

from lake.config import Settings
from lake.contracts.contract import Contract, read_contract
from lake.contracts.evolution import with_current
from lake.store.book import Book

CONTRACTS: Final = Book("contracts", {"stream": "VARCHAR", "version": "INTEGER", "text": "VARCHAR"})


def versions(settings: Settings, stream: str) -> tuple[Contract, ...]:
    """The contracts that the log of `stream` was written with: version 1 first."""
    rows = CONTRACTS.rows(settings, "SELECT version, text FROM t WHERE stream = $1 ORDER BY version", stream)
    return tuple(read_contract(row["text"], file=f"{stream} version {row['version']}") for row in rows)


def register(settings: Settings, contract: Contract) -> tuple[Contract, ...]:
    """Every version up to `contract`, which is the last and is remembered if it is new.

    Raises DeclarationError where `contract` cannot read what an older one wrote.
    """
    with CONTRACTS.written(settings):
        known = with_current(versions(settings, contract.name), contract)
        if len(known) > len(versions(settings, contract.name)):
            CONTRACTS.append(settings, [(contract.name, len(known), contract.text)])
    return known
