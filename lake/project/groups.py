"""Publish groups: tables that readers see at one cut. `[tool.lake.publish] groups` names them; by default all are one.

A table in no named group belongs to the group `default`, one of parked rows to that of the table they are parked of. A
group is held as a whole, and with it every group that derives a table from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, TypeAlias

from lake.config import Settings
from lake.errors import DeclarationError, did_you_mean
from lake.project.declaration import Declaration
from lake.store.ledger.editions import Edition, cut_of

DEFAULT: Final = "default"
WHERE: Final = "[tool.lake.publish] groups"

Groups: TypeAlias = Mapping[str, list[Declaration]]
"""{group: its tables in dependency order}."""


def faults(settings: Settings, tables: Collection[str]) -> Iterator[DeclarationError]:
    first_group: dict[str, str] = {}
    for group, names in settings.publish.groups.items():
        where = f"{WHERE}, group {group!r}"
        if not names:
            yield DeclarationError(f"group {group!r} has no table", where=where, fix="name one, or remove the group")
        for name in names:
            if name not in tables:
                yield DeclarationError(f"unknown table {name!r}", where=where, fix=did_you_mean(name, tables))
            if name in first_group:
                what = f"table {name!r} is named twice, first in group {first_group[name]!r}"
                yield DeclarationError(what, where=where, fix="name a table in one group")
            first_group.setdefault(name, group)


def groups(settings: Settings, tables: Mapping[str, Declaration]) -> Groups:
    group_of = {name: group for group, names in settings.publish.groups.items() for name in names}
    grouped: dict[str, list[Declaration]] = {group: [] for group in settings.publish.groups}
    for name, table in tables.items():
        parked_of = table.parked_of.name if table.parked_of is not None else name
        group = group_of.get(name) or group_of.get(parked_of, DEFAULT)
        grouped.setdefault(group, []).append(table)
    return {group: members for group, members in grouped.items() if members}


def held_with(groups: Groups, held: Collection[str]) -> dict[str, str]:
    """Return the groups that are held because they derive tables from `held` groups, with the reasons."""
    group_of = {table.name: group for group, members in groups.items() for table in members}
    others: dict[str, str] = {}
    while more := _derived(groups, group_of, {*held, *others}):
        others |= more
    return others


def held_by(groups: Groups, table: str) -> list[str]:
    own = [group for group, members in groups.items() if any(member.name == table for member in members)]
    return [*own, *held_with(groups, own)]


def _derived(groups: Groups, group_of: Mapping[str, str], held: Collection[str]) -> dict[str, str]:
    derived: dict[str, str] = {}
    for group, members in groups.items():
        inputs = [(table, source) for table in members for source in table.inputs if not source.is_log]
        for table, source in inputs if group not in held else ():
            if (origin := group_of.get(source.name)) in held:
                derived.setdefault(group, f"{table.name} is derived from {source.name}, of group {origin!r}")
    return derived


def published_cuts(settings: Settings, groups: Groups, edition: Edition | None) -> dict[str, int]:
    """Return the cut at which readers see each group: 0 if they do not see it yet."""
    at = {}
    for group, members in groups.items():
        names = [table.name for table in members if edition is not None and table.name in edition.tables]
        at[group] = min(cut_of(settings, edition, name) for name in names or [table.name for table in members])
    return at


def published_cut(settings: Settings, groups: Groups, edition: Edition | None, tables: Collection[str]) -> int:
    """Return the cut at which readers of an edition see all groups of the `tables`."""
    of_tables = {group for group, members in groups.items() if any(table.name in tables for table in members)}
    at = published_cuts(settings, groups, edition)
    return min((at[group] for group in of_tables), default=edition.cut if edition else 0)
