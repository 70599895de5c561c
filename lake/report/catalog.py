"""The tables of a project: what each is, and where its published version is found."""

from __future__ import annotations

from typing import Any

from lake.project import Project
from lake.store import delta, editions
from lake.store.damage import damages


def catalogue(project: Project) -> list[dict[str, Any]]:
    """One object a table, in dependency order.

    `rows` are those of the table's newest version; `version` is the one of the current edition and `path` its Delta
    table, relative to the project folder; both are None for a table that is not in it. Of a damaged one, `damage` says
    what is wrong with it.
    """
    settings = project.settings
    damaged = {damage.path: damage for damage in damages(settings, quickly=True)}
    sound = settings.meta_path("editions") not in damaged
    edition = editions.current_edition(settings) if sound else None
    published = edition.tables if edition else {}
    rows = []
    for table in project.tables.values():
        path = project.table(table).path if sound else settings.warehouse_path / table.layer / table.name
        built = None if path in damaged else delta.open_table(path)
        entry = published.get(table.name)
        shown = settings.warehouse_path / entry.path if entry else path
        shown = shown.relative_to(settings.project) if shown.is_relative_to(settings.project) else shown
        rows.append(
            {
                "table": f"{table.layer}.{table.name}",
                "name": table.name,
                "layer": table.layer,
                "kind": table.kind.name,
                "key": list(table.kind.key),
                "description": table.doc,
                "rows": built.count() if built else None,
                "edition": edition.number if edition and entry else None,
                "version": entry.version if entry else None,
                "path": str(shown) if entry else None,
                "damage": damaged[path].found if path in damaged else None,
            }
        )
    return rows
