"""The contracts of a project, as they are declared and as their logs know them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract, load_contracts
from lake.errors import StorageError
from lake.ingest.unknown_fields import UnknownField, sealed_events, unknown_fields
from lake.store import delta
from lake.store.ledger import contract_versions


@dataclass(frozen=True)
class Declared:
    """A contract, the version its log last wrote under (0 before the first), and whether it has changed since.

    `unknown` are the fields that events carry and it does not know; `sealed` events carry such too, sealed.
    """

    contract: Contract
    version: int
    changed: bool
    unknown: tuple[UnknownField, ...]
    sealed: int


def declared(settings: Settings) -> list[Declared]:
    """Every contract. Raises DeclarationError that lists those that are faulty or cannot read their log.

    Of a damaged log, which `lake status` tells, nothing is unknown.
    """
    contracts = []
    unknown: tuple[UnknownField, ...]
    for contract in load_contracts(settings).values():
        stored = contract_versions.versions(settings, contract.name)
        changed = len(evolution.with_current(stored, contract)) > len(stored) > 0
        unknown, sealed = (), 0
        with suppress(StorageError, delta.Unreadable):
            unknown, sealed = tuple(unknown_fields(settings, contract)), sealed_events(settings, contract)
        contracts.append(Declared(contract, len(stored), changed, unknown, sealed))
    return contracts
