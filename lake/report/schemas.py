"""The contracts of a project, as they are declared and as their logs know them."""

from __future__ import annotations

from dataclasses import dataclass

from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract, load_contracts
from lake.store.ledger import contract_versions


@dataclass(frozen=True)
class Declared:
    """A contract, the version its log last wrote under (0 before the first), and whether it has changed since."""

    contract: Contract
    version: int
    changed: bool


def declared(settings: Settings) -> list[Declared]:
    """Every contract. Raises DeclarationError that lists those that are faulty or cannot read their log."""
    contracts = []
    for contract in load_contracts(settings).values():
        stored = contract_versions.versions(settings, contract.name)
        contracts.append(
            Declared(contract, len(stored), len(evolution.with_current(stored, contract)) > len(stored) > 0)
        )
    return contracts
