"""Checks of tables at a cut by their expectations, and the checked versions that an edition may publish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lake.engine.explain import causes
from lake.engine.inputs import Inputs
from lake.engine.plan import load_suites
from lake.engine.stored_rows import not_at
from lake.engine.verbs import check_definition
from lake.errors import DeclarationError, QualityError
from lake.progress import OnProgress, step
from lake.project import rejection_limits
from lake.project.project import Project
from lake.publish.cut import pick_cut
from lake.quality import failures, gate
from lake.quality.suite import Suite
from lake.session import SessionFactory
from lake.store import delta
from lake.store.ledger.checks import CHECKS
from lake.store.ledger.cuts import CUTS, Cut
from lake.store.ledger.editions import EditionTable
from lake.store.log import Log
from lake.store.proof.fingerprints import Fingerprint
from lake.store.view import view
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from lake.project.declaration import Declaration
    from lake.store.ledger.checks import Check
    from lake.store.table_head import TableHead
    from lake.store.tables import Table


@view()
def check(
    project: Project,
    spark: SessionFactory,
    *,
    tables: Iterable[str] | None = None,
    cut: int | None = None,
    strict: bool = False,
) -> list[Check]:
    """Check the named tables (default: all) at `cut` (default: the latest) and record the results.

    A table without a quality file is checked against the invariants of its kind. A check is valid for its cut only.
    Also checks the limits on rejected records. Raises QualityError, after all checks, if one stopped; DeclarationError
    for faulty quality files, for a table that is not at the cut, and with `strict` for one without a quality file.
    """
    picked_cut = pick_cut(project, cut)
    at = picked_cut.number
    picked = project.pick(tables or ())
    suites = load_suites(project)
    heads = {table.name: project.table(table).head_at(at) for table in picked}
    faults = [not_at(project, table, at) for table in picked if heads[table.name] is None]
    faults += [
        table.fault("has no expectations", fix=f"write quality/{table.name}.json, or leave out --strict")
        for table in picked
        if strict and table.name not in suites
    ]
    DeclarationError.raise_any(faults)
    suites = {**{t.name: Suite(t.name, ()) for t in picked if t.kind.invariants}, **suites}
    checks = _judge(project, [(table, suites.get(table.name), heads[table.name]) for table in picked], at)
    gate_error = causes.gate_error(Inputs(spark, project, picked_cut), checks)
    errors = [*filter(None, [gate_error]), *rejection_limits.stop_errors(project, picked, picked_cut)]
    if errors:
        raise QualityError.joined(errors)
    return checks


def _judge(
    project: Project, tables: Iterable[tuple[Declaration, Suite | None, TableHead | None]], cut: int
) -> list[Check]:
    """Judge the tables and record the checks; after an error, record those made before it."""
    made: list[tuple[Table, Check]] = []
    try:
        for table, suite, head in tables:
            if suite is not None and head is not None:
                stored = project.table(table)
                with step("check", table.name) as work:
                    version = head.version
                    result = gate.judge_table(stored, table.kind, suite, where=table.where, version=version, cut=cut)
                    made.append((stored, result))
                    work.rows = stored.rows(version)
    except Exception:
        gate.record_checks(project.settings, made)
        raise
    return gate.record_checks(project.settings, made)


def checked_tables(
    project: Project, cut: Cut, spark: SessionFactory, on_progress: OnProgress, names: Iterable[str] = ()
) -> dict[str, EditionTable]:
    names = list(names)
    while True:
        tables = tables_at_cut(project, cut, names)
        checks = check(project, spark, tables=names, cut=cut.number)
        if all(tables[check.table].version == check.version for check in checks):  # otherwise one was rebuilt meanwhile
            for warning in failures.warning_messages(checks):
                on_progress(f"warning {warning}")
            return tables


def tables_at_cut(project: Project, cut: Cut, names: Iterable[str] = ()) -> dict[str, EditionTable]:
    """Return the version of each table at `cut`. Raises DeclarationError if any is missing."""
    entries, faults = {}, []
    picked = project.pick(names)
    logs = sorted({stream for declaration in picked for stream in project.logs(declaration)})
    delta.prefetch(
        [
            *(project.table(table).path for table in picked),
            *(Log(project.settings, stream).path for stream in logs),
            *(ledger.location(project.settings).path for ledger in (CUTS, CHECKS)),
        ]
    )
    for declaration in picked:
        table = project.table(declaration)
        head = table.head_at(cut.number)
        if head is None:
            faults.append(not_at(project, declaration, cut.number))
            continue
        try:
            check_definition(project, declaration, head)
        except DeclarationError as fault:
            faults.append(fault)
        path = table.path.relative_to(Warehouse(project.settings).root)
        content = head.content
        entries[declaration.name] = EditionTable(
            declaration.layer,
            path,
            head.version,
            head.fingerprint,
            rows=Fingerprint.parse(content).rows if content else None,
            content=None if table.personal else content,
            identity=declaration.kind.identity,
        )
    DeclarationError.raise_any(faults)
    return entries
