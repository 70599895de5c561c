"""Publishing by groups: those with nothing against them move on, the others stay as the last edition has them.

A group is held where one of its tables is not at the cut, where the gate stops one, where too much of one of its
streams was refused, and where one of its tables is derived from a table that is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lake.errors import DeclarationError, LakeError, QualityError, Unavailable
from lake.groups import cuts, held_with
from lake.project import Project
from lake.publish.checked_tables import checked_tables
from lake.session import raise_if_gone
from lake.store.ledger.cuts import Cut
from lake.store.ledger.editions import Edition, EditionTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.declaration import Declaration


@dataclass(frozen=True)
class BlockedGroups:
    """The `groups` that stayed behind, each with why; `error` is what holds them. The `others` are published."""

    groups: Mapping[str, str]
    others: tuple[str, ...]
    error: Exception

    def __str__(self) -> str:
        return f"{', '.join(self.others)}; held: {', '.join(self.groups)}"

    def tables(self, project: Project) -> set[str]:
        """The names of the tables that are held."""
        return {table.name for group in self.groups for table in project.groups[group]}


def failure_of(project: Project, work: Callable[[], object]) -> Exception | None:
    """What `work` on tables raises, where they are published by groups: it holds some, and others may move on."""
    try:
        work()
    except Exception as error:
        if not project.settings.publish.groups:
            raise
        raise_if_gone(error)
        return error
    return None


def raise_block(held: BlockedGroups) -> None:
    """Raises what holds groups."""
    raise held.error


def tables_by_group(
    project: Project,
    cut: Cut,
    latest: Edition | None,
    spark: Callable[[], SparkSession],
    tell: Callable[[str], None],
) -> tuple[dict[str, EditionTable], BlockedGroups | None]:
    """The tables of the next edition, and what of them is held; all groups are judged. `latest` is the last edition.

    Raises what holds them where all groups are held, so without groups as `checked` does.
    """
    if not project.settings.publish.groups:
        return checked_tables(project, cut, spark, tell), None
    passed: dict[str, dict[str, EditionTable]] = {}
    errors: dict[str, LakeError] = {}
    waiting = _waiting(project, cut)
    for group, members in project.groups.items():
        try:
            passed[group] = checked_tables(project, cut, spark, tell, [table.name for table in members])
        except Unavailable:
            raise
        except LakeError as error:
            errors[group] = error
    first = {group: error for group, error in errors.items() if group not in waiting} or errors
    reasons = {group: error.what for group, error in errors.items()} | held_with(project.groups, first)
    reasons |= held_with(project.groups, reasons)
    at = cuts(project.settings, project.groups, latest)
    for group, why in reasons.items():
        tell(f"publish {group} is held{f' at cut {at[group]}' if at[group] else ''}: {why}")
    others = tuple(group for group in project.groups if group not in reasons)
    if not others:
        raise _one(first.values())
    tables = {name: entry for group in others for name, entry in passed[group].items()}
    for group in reasons:
        tables |= _as_before(latest, project.groups[group], cut)
    return tables, BlockedGroups(reasons, others, _one(first.values())) if reasons else None


def _waiting(project: Project, cut: Cut) -> set[str]:
    """The groups with tables that are not at the cut, all of them because tables of other groups are not."""
    late = {name for name, table in project.tables.items() if project.table(table).head_at(cut.number) is None}
    first = {name for name in late if not any(source.name in late for source in project.tables[name].inputs)}
    names = {group: {table.name for table in members} for group, members in project.groups.items()}
    return {group for group, members in names.items() if members & late and not members & first}


def _as_before(latest: Edition | None, members: Iterable[Declaration], cut: Cut) -> dict[str, EditionTable]:
    """Tables of a group as the last edition has them, each with its cut where that is not the next edition's."""
    if latest is None:
        return {}
    at = {table.name: latest.cut_of(table.name) for table in members if table.name in latest.tables}
    return {
        name: replace(latest.tables[name], cut=None if reached == cut.number else reached)
        for name, reached in at.items()
    }


def _one(errors: Iterable[LakeError]) -> LakeError:
    """One error of all that is different in some (at least one)."""
    different = list({str(error): error for error in errors}.values())
    faults = [error for error in different if isinstance(error, DeclarationError)]
    if len(different) == 1:
        return different[0]
    if len(faults) == len(different):
        return DeclarationError.all(faults)
    return QualityError("\n".join(map(str, different)))
