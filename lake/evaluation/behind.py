"""Tables that have not reached a cut: what is said of them, and how they get there."""

from __future__ import annotations

from lake.declaration import Declaration
from lake.errors import DeclarationError
from lake.gate import failures
from lake.project import Project
from lake.store.ledger import checks
from lake.store.ledger.checks import Check


def not_at(project: Project, declaration: Declaration, cut: int) -> DeclarationError:
    """Return the error that a table is not at a cut.

    If a gate stops the table there, or one that it is derived from, advancing it would be stopped again: the fix is
    that of the gate.
    """
    stopped = _stopped(project, declaration, cut)
    if stopped is None:
        return declaration.fault(
            f"not at cut {cut}", fix=f"lake advance {declaration.name} --cut {cut}, then try again"
        )
    return declaration.fault(
        f"not at cut {cut}: the gate stopped {stopped.table} at cut {stopped.cut}", fix=failures.fix_text([stopped])
    )


def _stopped(project: Project, declaration: Declaration, cut: int) -> Check | None:
    """The check that keeps a table, or one that it is derived from, from a cut."""
    newest, waiting, seen = checks.last_checks(project.settings, "diff"), [declaration], set[str]()
    while waiting:
        table = waiting.pop()
        if table.name in seen:
            continue
        seen.add(table.name)
        check, head = newest.get(table.name), project.table(table).head()
        if check is not None and check.outcome == "stopped" and (head.cut if head else 0) < check.cut <= cut:
            return check
        waiting += [source.table for source in table.inputs if source.table is not None]
    return None
