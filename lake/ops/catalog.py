"""Catalogue of tables with their published versions, and of contracts with changes and unknown fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract, load_contracts
from lake.errors import LakeError
from lake.ingest.drift import UnknownField, sealed_events, unknown_fields
from lake.project.project import Project, load
from lake.store import delta
from lake.store.damage import damages, skip_unreadable
from lake.store.ledger import contract_versions, editions
from lake.store.snapshot import columns
from lake.store.view import view
from lake.store.warehouse import Warehouse


@view()
def catalogue(project: Project) -> list[dict[str, Any]]:
    """Return one object per table, in dependency order.

    `rows` and `columns` are of the newest version; `version` and `path` (relative to the project) of the current
    edition, None if it lacks the table.
    """
    settings = project.settings
    damaged = {each.path: each for each in damages(settings, quickly=True)}
    sound = Warehouse(settings).book("editions").path not in damaged
    edition = editions.current_edition(settings) if sound else None
    published = edition.tables if edition else {}
    rows = []
    for table in project.tables.values():
        path = project.table(table).path if sound else Warehouse(settings).table(table.layer, table.name).path
        built = None if path in damaged else delta.open_table(path)
        entry = published.get(table.name)
        visible_path = Warehouse(settings).root / entry.path if entry else path
        rows.append(
            {
                "table": f"{table.layer}.{table.name}",
                "name": table.name,
                "layer": table.layer,
                "kind": table.kind.name,
                "key": list(table.kind.key),
                "description": table.doc,
                "rows": built.count() if built else None,
                "columns": [asdict(column) for column in columns(built)] if built else [],
                "edition": edition.number if edition and entry else None,
                "version": entry.version if entry else None,
                "path": visible_path.url.removeprefix(f"{settings.project}/") if entry else None,
                "damage": damaged[path].found if path in damaged else None,
            }
        )
    return rows


@dataclass(frozen=True)
class FieldChange:
    """`was` or `now` is None if a contract lacks the field. `tables` were built from it."""

    field: str
    was: str | None
    now: str | None
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContractStatus:
    """`version` is the one its log last wrote (0: none); `sealed` events have encrypted unknown fields."""

    contract: Contract
    version: int
    changed: bool
    changes: tuple[FieldChange, ...]
    unknown: tuple[UnknownField, ...]
    sealed: int


def contract_statuses(settings: Settings) -> list[ContractStatus]:
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
        with skip_unreadable():
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
