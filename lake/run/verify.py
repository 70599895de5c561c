"""Verify: the promise, proved. A table beside its recomputation from the first event of every log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import SparkSession

from lake.declaration import Declaration
from lake.project import Project
from lake.run.analysis import python_faults
from lake.run.diff import compare
from lake.run.inputs import Inputs
from lake.store.commit import CHANGE
from lake.store.meta import get_cut

FIRST_KEYS = 10


@dataclass(frozen=True)
class Verdict:
    """What verifying one table at its cut found.

    `differences` holds the first rows that differ: the identity, `change` (missing: the table lacks the row; extra:
    the table alone has it; differs) and, for `differs`, {column: [table's value, recomputed value]}.
    """

    table: str
    cut: int | None
    verdict: Literal["identical", "differs", "unknown"]
    rows: int = 0
    differing: int = 0
    differences: tuple[dict[str, Any], ...] = ()
    why: str = ""


def verify(spark: SparkSession, project: Project, declaration: Declaration, *, shallow: bool = False) -> Verdict:
    """Compares the table with its recomputation at the table's own cut; writes nothing.

    Its parents are recomputed too, so that a wrong parent cannot make its child look right; `shallow` trusts them.
    """
    table = project.table(declaration)
    position = table.position()
    if position is None:
        return Verdict(declaration.name, None, "unknown", why="it was never built")
    cut = position.data["cut"]
    if position.data["fingerprint"] != project.fingerprint(declaration):
        return Verdict(declaration.name, cut, "unknown", why="its definition has changed since: lake rebuild first")
    inputs = Inputs(lambda: spark, project, get_cut(project.settings, cut), recompute=not shallow)
    version = table.version()
    rows, old = inputs.evaluate(declaration), table.read(spark, version)
    identity = declaration.kind.identity
    diff = compare(rows, old, identity).persist()
    try:
        with python_faults(declaration):
            differing = diff.count()
        first = diff.orderBy(*identity).limit(FIRST_KEYS).toArrow() if differing else None
    finally:
        diff.unpersist()
    total = table.rows(version)
    duplicates = old.groupBy(*identity).count().where("count > 1").count()
    if duplicates:
        return Verdict(declaration.name, cut, "differs", total, duplicates, why=f"{duplicates} keys have several rows")
    if first is None:
        return Verdict(declaration.name, cut, "identical", total)
    shown = _shown(declaration, first, table.rows_of(first.select(list(identity)), version))
    return Verdict(declaration.name, cut, "differs", total, differing, shown)


def _shown(declaration: Declaration, diff: pa.Table, old: pa.Table) -> tuple[dict[str, Any], ...]:
    identity = declaration.kind.identity
    there = {tuple(row[k] for k in identity): row for row in old.to_pylist()}
    names = {"insert": "missing", "delete": "extra", "update": "differs"}
    found = []
    for row in diff.to_pylist():
        key = {k: row[k] for k in identity}
        shown: dict[str, Any] = {**key, "change": names[row[CHANGE]]}
        if row[CHANGE] == "update":
            held = there[tuple(key.values())]
            shown["columns"] = {
                c: [held[c], row[c]] for c in row if c != CHANGE and c not in identity and held[c] != row[c]
            }
        found.append(shown)
    return tuple(found)
