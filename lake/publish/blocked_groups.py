"""Publishing by groups: groups without a fault are published, the others stay at the last edition.

A group is held if one of its tables is not at the cut, the gate stops one, too much of one of its streams was rejected,
or one of its tables is derived from a held table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lake.errors import LakeError, QualityError, Unavailable
from lake.progress import OnProgress
from lake.project.groups import held_with, published_cuts
from lake.project.project import Project
from lake.publish.check import checked_tables
from lake.session import SessionFactory
from lake.session.spark_session import raise_if_gone
from lake.store.ledger.cuts import Cut
from lake.store.ledger.editions import Edition, EditionTable

if TYPE_CHECKING:
    from lake.project.declaration import Declaration


@dataclass(frozen=True)
class BlockedGroups:
    """Held `groups` with the reason of each, and the `error` behind the first reasons; `others` are published."""

    groups: Mapping[str, str]
    others: tuple[str, ...]
    error: Exception

    def __str__(self) -> str:
        return f"{', '.join(self.others)}; held: {', '.join(self.groups)}"

    def tables(self, project: Project) -> set[str]:
        return {table.name for group in self.groups for table in project.groups[group]}


def failure_of(project: Project, work: Callable[[], object]) -> Exception | None:
    """Return the error of `work` on tables; raise it if tables are not published by groups."""
    try:
        work()
    except Exception as error:
        if not project.settings.publish.groups:
            raise
        raise_if_gone(error)
        return error
    return None


def tables_by_group(
    project: Project, cut: Cut, latest: Edition | None, spark: SessionFactory, on_progress: OnProgress
) -> tuple[dict[str, EditionTable], BlockedGroups | None]:
    """Check all groups; return the tables of the next edition, and the held groups. `latest` is the last edition.

    Raises the error if all groups are held.
    """
    if not project.settings.publish.groups:
        return checked_tables(project, cut, spark, on_progress), None
    passed: dict[str, dict[str, EditionTable]] = {}
    errors: dict[str, LakeError] = {}
    waiting_groups = _waiting_groups(project, cut)
    for group, members in project.groups.items():
        try:
            passed[group] = checked_tables(project, cut, spark, on_progress, [table.name for table in members])
        except Unavailable:
            raise
        except LakeError as error:
            errors[group] = error
    causes = {group: error for group, error in errors.items() if group not in waiting_groups} or errors
    # A waiting group reports the group that it waits for, not its own late tables.
    reasons = {group: error.what for group, error in errors.items()} | held_with(project.groups, causes)
    reasons |= held_with(project.groups, reasons)
    at = published_cuts(project.settings, project.groups, latest)
    for line in _held_lines(reasons, errors, at):
        on_progress(line)
    others = tuple(group for group in project.groups if group not in reasons)
    if not others:
        raise QualityError.joined(causes.values())
    tables = {name: entry for group in others for name, entry in passed[group].items()}
    for group in reasons:
        tables |= _last_published(latest, project.groups[group], cut)
    return tables, BlockedGroups(reasons, others, QualityError.joined(causes.values())) if reasons else None


def _held_lines(reasons: Mapping[str, str], errors: Mapping[str, LakeError], at: Mapping[str, int]) -> Iterator[str]:
    """Yield a line for each cause, with the groups that it holds at the same cut."""
    held: dict[tuple[str, int], list[str]] = {}
    for group, why in reasons.items():
        error = errors.get(group)
        causes = [cause.what for cause in error.causes or (error,)] if error and error.what == why else [why]
        for cause in causes:
            held.setdefault((cause, at[group]), []).append(group)
    for (cause, cut), groups in held.items():
        verb = "is" if len(groups) == 1 else "are"
        yield f"publish {', '.join(groups)} {verb} held{f' at cut {cut}' if cut else ''}: {cause}"


def _waiting_groups(project: Project, cut: Cut) -> set[str]:
    """Return the groups that are late only because they wait for tables of other groups."""
    late = {name for name, table in project.tables.items() if project.table(table).head_at(cut.number) is None}
    late_first = {name for name in late if not any(source.name in late for source in project.tables[name].inputs)}
    names = {group: {table.name for table in members} for group, members in project.groups.items()}
    return {group for group, members in names.items() if members & late and not members & late_first}


def _last_published(latest: Edition | None, members: Iterable[Declaration], cut: Cut) -> dict[str, EditionTable]:
    if latest is None:
        return {}
    cuts_of = {table.name: latest.cut_of(table.name) for table in members if table.name in latest.tables}
    return {
        name: replace(latest.tables[name], cut=None if own_cut == cut.number else own_cut)
        for name, own_cut in cuts_of.items()
    }
