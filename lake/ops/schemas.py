"""Status of contracts: changes since their logs were last written, and unknown fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract, load_contracts
from lake.errors import LakeError, StorageError
from lake.ingest.drift import UnknownField, sealed_events, unknown_fields
from lake.project.project import Project, load
from lake.store import delta
from lake.store.ledger import contract_versions


@dataclass(frozen=True)
class FieldChange:
    """A changed field; `was` or `now` is None if a contract lacks it. `tables` were built from it."""

    field: str
    was: str | None
    now: str | None
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContractStatus:
    """A contract, and the `version` its log last wrote (0: none).

    Events have `unknown` fields that it does not declare, and `sealed` events have encrypted ones.
    """

    contract: Contract
    version: int
    changed: bool
    changes: tuple[FieldChange, ...]
    unknown: tuple[UnknownField, ...]
    sealed: int


def contract_statuses(settings: Settings) -> list[ContractStatus]:
    """Return all contracts; a damaged log has no unknown fields. Raises DeclarationError."""
    contracts = []
    project: Project | None = None
    unknown: tuple[UnknownField, ...]
    for contract in load_contracts(settings).values():
        stored = contract_versions.versions(settings, contract.name)
        changed = len(evolution.with_current(stored, contract)) > len(stored) > 0
        if changed and project is None:
            project = _load_if_sound(settings)
        changes = tuple(_field_changes(contract, stored[-1], project)) if changed else ()
        unknown, sealed = (), 0
        with suppress(StorageError, delta.Unreadable):
            unknown, sealed = tuple(unknown_fields(settings, contract)), sealed_events(settings, contract)
        contracts.append(ContractStatus(contract, len(stored), changed, changes, unknown, sealed))
    return contracts


def _load_if_sound(settings: Settings) -> Project | None:
    try:
        return load(settings)
    except LakeError:
        return None


def _field_changes(contract: Contract, before: Contract, project: Project | None) -> Iterator[FieldChange]:
    handled: set[str] = set()
    for field in contract.fields:
        old = evolution.predecessor(field, before)
        handled |= {old.name} if old else set()
        if old is None:
            yield FieldChange(field.name, None, field.type)
        elif old.type != field.type or old.name != field.name:
            yield FieldChange(
                field.name, old.type, field.type, tuple(_reading_tables(contract.name, old.name, project))
            )
    for old in before.fields:
        if old.name not in handled:
            yield FieldChange(old.name, old.type, None, tuple(_reading_tables(contract.name, old.name, project)))


def _reading_tables(stream: str, field: str, project: Project | None) -> Sequence[str]:
    if project is None:
        return ()
    heads = [(declaration, project.table(declaration).head()) for declaration in project.tables.values()]
    return [
        declaration.name
        for declaration, head in heads
        if head and field in head.columns.get(stream, {}).get("read", {})
    ]
