"""The contracts of a project, as they are declared and as their logs know them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract, load_contracts
from lake.errors import LakeError, StorageError
from lake.ingest.unknown_fields import UnknownField, sealed_events, unknown_fields
from lake.project import Project, load
from lake.store import delta
from lake.store.ledger import contract_versions


@dataclass(frozen=True)
class Change:
    """What has become of a field since the log's newest version: a type that is None is of a contract without it.

    `tables` are built of it as it was: `lake deploy` builds them anew, and what is derived from them.
    """

    field: str
    was: str | None
    now: str | None
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Declared:
    """A contract, the version its log last wrote under (0 before the first), and whether it has changed since.

    `unknown` are the fields that events carry and it does not know; `sealed` events carry such too, sealed.
    """

    contract: Contract
    version: int
    changed: bool
    changes: tuple[Change, ...]
    unknown: tuple[UnknownField, ...]
    sealed: int


def declared(settings: Settings) -> list[Declared]:
    """Every contract. Raises DeclarationError that lists those that are faulty or cannot read their log.

    Of a damaged log, which `lake status` tells, nothing is unknown.
    """
    contracts = []
    project: Project | None = None
    unknown: tuple[UnknownField, ...]
    for contract in load_contracts(settings).values():
        stored = contract_versions.versions(settings, contract.name)
        changed = len(evolution.with_current(stored, contract)) > len(stored) > 0
        if changed and project is None:
            project = _sound(settings)
        changes = tuple(_changes(contract, stored[-1], project)) if changed else ()
        unknown, sealed = (), 0
        with suppress(StorageError, delta.Unreadable):
            unknown, sealed = tuple(unknown_fields(settings, contract)), sealed_events(settings, contract)
        contracts.append(Declared(contract, len(stored), changed, changes, unknown, sealed))
    return contracts


def _sound(settings: Settings) -> Project | None:
    """The project, where its jobs are sound."""
    try:
        return load(settings)
    except LakeError:
        return None


def _changes(contract: Contract, before: Contract, project: Project | None) -> Iterator[Change]:
    """The fields that differ in name, type or whether they are there."""
    handled: set[str] = set()
    for field in contract.fields:
        old = evolution.former(field, before)
        handled |= {old.name} if old else set()
        if old is None:
            yield Change(field.name, None, field.type)
        elif old.type != field.type or old.name != field.name:
            yield Change(field.name, old.type, field.type, tuple(_readers(contract.name, old.name, project)))
    for old in before.fields:
        if old.name not in handled:
            yield Change(old.name, old.type, None, tuple(_readers(contract.name, old.name, project)))


def _readers(stream: str, field: str, project: Project | None) -> Sequence[str]:
    """The tables that were built of a field."""
    if project is None:
        return ()
    heads = [(declaration, project.table(declaration).head()) for declaration in project.tables.values()]
    return [
        declaration.name
        for declaration, head in heads
        if head and field in head.columns.get(stream, {}).get("read", {})
    ]
