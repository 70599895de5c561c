"""Check: evaluates the expectations of tables at a cut. Raises an error if one stops publication."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lake.engine.catalog import not_at
from lake.engine.explain import causes
from lake.engine.inputs import Inputs
from lake.engine.plan import load_suites
from lake.errors import DeclarationError, QualityError
from lake.progress import step
from lake.project import rejection_limits
from lake.publish.cut import pick_cut
from lake.quality import gate
from lake.quality.suite import Suite
from lake.store.view import view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake.project.declaration import Declaration
    from lake.project.project import Project
    from lake.store.ledger.checks import Check
    from lake.store.tables import Table


@view()
def check(
    project: Project,
    spark: Callable[[], SparkSession],
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
    versions = {table.name: _version(project, table, at) for table in picked}
    faults = [not_at(project, table, at) for table in picked if versions[table.name] is None]
    faults += [_no_suite(table) for table in picked if strict and table.name not in suites]
    if faults:
        raise DeclarationError.all(faults)
    judged = {**{t.name: Suite(t.name, t.where, ()) for t in picked if t.kind.invariants}, **suites}
    checks = _judge(project, [(table, judged.get(table.name), versions[table.name]) for table in picked], at)
    gate_error = causes.gate_error(Inputs(spark, project, picked_cut), checks)
    errors = [error for error in (gate_error, rejection_limits.stop_error(project, picked, picked_cut)) if error]
    if errors:
        raise errors[0] if len(errors) == 1 else QualityError("\n".join(map(str, errors)))
    return checks


def _judge(project: Project, tables: Iterable[tuple[Declaration, Suite | None, int | None]], cut: int) -> list[Check]:
    """Judge versions of tables, and record the checks; after an error those made before it."""
    made: list[tuple[Table, Check]] = []
    try:
        for table, suite, version in tables:
            if suite is not None and version is not None:
                stored = project.table(table)
                with step("check", table.name) as work:
                    made.append(
                        (
                            stored,
                            gate.judge_table(stored, table.kind, suite, where=table.where, version=version, cut=cut),
                        )
                    )
                    work.rows = stored.rows(version)
    except Exception:
        gate.record_checks(project.settings, made)
        raise
    return gate.record_checks(project.settings, made)


def _version(project: Project, declaration: Declaration, cut: int) -> int | None:
    head = project.table(declaration).head_at(cut)
    return head.version if head else None


def _no_suite(declaration: Declaration) -> DeclarationError:
    return declaration.fault("has no expectations", fix=f"write quality/{declaration.name}.json, or leave out --strict")
