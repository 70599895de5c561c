"""Plan: what has changed in the declarations since their tables were built, what it would cost and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from lake.declaration import Declaration
from lake.project import Project
from lake.run.graph import graph
from lake.run.suites import load_suites
from lake.store import delta, meta
from lake.store.scan import Scan
from lake.store.tables import Table

State = Literal["unchanged", "changed", "follows", "new", "removed"]


@dataclass(frozen=True)
class Planned:
    """One table beside what it was built with.

    `changes` says what is other than it was, `follows` names the tables derived from a table that is to be built.
    `rows` is how many rows its evaluation reads; `seconds` what that would take at the `rate` (rows a second) at which
    it, or else the whole project, was last evaluated. Both are None of tables that stay as they are.
    """

    table: str
    state: State
    changes: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    rows: int | None = None
    rate: int | None = None
    seconds: float | None = None


def plan(project: Project, names: Iterable[str] = ()) -> list[Planned]:
    """The named tables (all, for none) in dependency order, then those whose jobs are gone. No JVM.

    A table follows where its own definition is unchanged and that of a table it is derived from is not.
    """
    names = list(names)
    changed = {each.name for each in project.tables.values() if _is_changed(project, each)}
    derived = graph(project)
    following = set(derived.below(*changed))
    rates = _rates(project)
    planned = [
        replace(each, follows=tuple(derived.below(each.table))) if each.rows is not None else each
        for each in (_planned(project, one, changed, following, rates) for one in project.pick(names))
    ]
    if names:
        return planned
    latest = meta.latest_edition(project.settings)
    gone = sorted(set(latest.tables) - set(project.tables)) if latest else ()
    return [*planned, *(Planned(name, "removed", ("its job is gone: retired by the next edition",)) for name in gone)]


def _is_changed(project: Project, declaration: Declaration) -> bool:
    """Whether the table was built, and by another definition."""
    position = project.table(declaration).position()
    return position is not None and position.data["fingerprint"] != project.fingerprint(declaration)


def _planned(
    project: Project, declaration: Declaration, changed: set[str], following: set[str], rates: Mapping[str, float]
) -> Planned:
    name, table = declaration.name, project.table(declaration)
    state: State
    changes: Iterable[str]
    judged = tuple(_judgement(project, declaration))
    if table.position() is None:
        state, changes = "new", ("never built",)
    elif name in changed:
        state, changes = "changed", _parts(project, declaration, table)
    elif name in following:
        parents = [source.name for source in declaration.inputs if source.name in changed | following]
        state, changes = "follows", (f"derived from {', '.join(parents)}",)
    else:
        return Planned(name, "unchanged", judged)
    rows = _rows(project, declaration)
    rate = rates.get(name) or rates.get("")
    seconds = round(rows / rate, 1) if rate else None
    return Planned(name, state, (*changes, *judged), (), rows, int(rate) if rate else None, seconds)


def _parts(project: Project, declaration: Declaration, table: Table) -> Iterator[str]:
    """What of the definition is other than when the table was last evaluated whole."""
    then = _built(table)
    if then is None:
        yield "which part is not known: built before definitions were kept"
        return
    now = project.definition(declaration)
    for part in dict.fromkeys([*then, *now]):
        old, new = then.get(part), now.get(part)
        if old == new:
            continue
        if part in ("function", "rest of the file") or part.startswith("imported"):
            yield f"{part} changed" if old and new else f"{part} {'added' if new else 'removed'}"
        else:
            yield f"{part}: {old or 'none'} → {new or 'none'}"


def _built(table: Table) -> Mapping[str, str] | None:
    found = (p.data["definition"] for p in delta.positions(table.path, table.app) if "definition" in p.data)
    return next(found, None)


def _judgement(project: Project, declaration: Declaration) -> Iterator[str]:
    check = meta.last_checks(project.settings, "table").get(declaration.name)
    suite = load_suites(project).get(declaration.name)
    if check is not None and suite is not None and check.suite != suite.hash:
        yield "expectations changed: judged again, nothing is evaluated"


def _rows(project: Project, declaration: Declaration) -> int:
    """How many rows the inputs have now."""
    paths = [
        project.settings.log_path(source.name) if source.table is None else project.table(source.table).path
        for source in declaration.inputs
    ]
    return sum(Scan(path).rows() for path in paths if delta.exists(path))


def _rates(project: Project) -> dict[str, float]:
    """Rows a second by table, as its last evaluation of everything read them; "" is the rate of all together."""
    runs = {name: run for name, run in meta.last_runs(project.settings, *meta.WHOLE).items() if run.counts.get("read")}
    rates = {name: run.counts["read"] / run.seconds for name, run in runs.items() if run.seconds}
    seconds = sum(run.seconds for run in runs.values())
    return rates | ({"": sum(run.counts["read"] for run in runs.values()) / seconds} if seconds else {})
