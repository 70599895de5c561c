"""Addresses: who reads a table by its path gets rows that are published, or is told where they are."""

from __future__ import annotations

from collections.abc import Mapping

from lake.config import Settings
from lake.errors import Unavailable
from lake.project import Project
from lake.store import delta
from lake.store.ledger.editions import Edition, current_edition, kept_editions
from lake.store.locks.lease import lease
from lake.store.storage import Address
from lake.store.upkeep import signpost
from lake.store.warehouse import Location, Warehouse


def keep_true(project: Project) -> None:
    """Has readers by path of a table that was published, and is retired or elsewhere by now, told so.

    What another writer holds is left for the next call.
    """
    shown = current_edition(project.settings)
    if shown is None:
        return
    now = _addresses(project.settings, shown)
    for place in Warehouse(project.settings).folders("table"):
        standing = signpost.standing(place.path)
        due = _due(project, place, now, standing)
        if due != standing:
            _say(project.settings, place, due)


def open_up(settings: Settings, edition: Edition) -> None:
    """Lets the tables of `edition` be read by their paths again."""
    shown = _addresses(settings, edition).values()
    for place in Warehouse(settings).folders("table"):
        if place.path in shown and signpost.standing(place.path) is not None:
            _say(settings, place, None)


def _addresses(settings: Settings, edition: Edition) -> dict[str, Address]:
    root = Warehouse(settings).root
    return {name: root / table.path for name, table in edition.tables.items()}


def _due(project: Project, place: Location, now: Mapping[str, Address], standing: str | None) -> str | None:
    """What readers of the table at `place` are to be told; None where they may read it, as nobody else knows it."""
    declared = project.tables.get(place.name)
    is_declared = declared is not None and declared.layer == place.path.parent.name
    if "@" in place.name or is_declared or place.path in now.values():
        return None
    if standing is None and not (_was_published(project.settings, place) and delta.exists(place.path)):
        return None
    return f"{place.path} is {f'at {now[place.name]} now' if place.name in now else 'retired'}"


def _was_published(settings: Settings, place: Location) -> bool:
    path = place.path.relative_to(Warehouse(settings).root)
    return any(table.path == path for kept in kept_editions(settings) for table in kept.tables.values())


def _say(settings: Settings, place: Location, sentence: str | None) -> None:
    try:
        with lease(settings, place.lease, seconds=0):  # which takes away what was said
            if sentence is not None:
                signpost.put(place.path, sentence)
    except Unavailable:
        return
