"""Catalogue of tables, and where their published versions are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lake.project.project import Project
from lake.store import delta
from lake.store.damage import damages
from lake.store.ledger import editions
from lake.store.snapshot import columns
from lake.store.view import view
from lake.store.warehouse import Warehouse


@view()
def catalogue(project: Project) -> list[dict[str, Any]]:
    """Return one object per table, in dependency order.

    `rows` and `columns` are of the newest version; `version` and `path` (relative to the project) are of the current
    edition, None if it lacks the table. `damage` describes a damaged table.
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
