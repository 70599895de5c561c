"""Some of a project's tables: what a benchmark is narrowed to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lake.project.project import Project


def part(project: Project, names: Collection[str]) -> Project:
    """The project with these tables and those that they are derived from; default: all."""
    wanted = set(names or project.tables)
    for name, declaration in reversed(list(project.tables.items())):  # which come in the order of the graph
        if name in wanted:
            wanted |= {source.name for source in declaration.inputs if source.table is not None}
    return replace(project, tables={name: each for name, each in project.tables.items() if name in wanted})
