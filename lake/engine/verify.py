"""Verify: compares a table with its recomputation from the first event of every log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from lake.engine import integrity
from lake.engine.compare import as_json_rows, compare, failing_on_duplicates, fingerprints, first_changes
from lake.engine.faults import python_faults
from lake.engine.inputs import Inputs
from lake.engine.pending_change import SAMPLE, column_changes
from lake.engine.verbs import after_inputs
from lake.errors import LakeError, Unavailable
from lake.lazy import DataFrame
from lake.progress import step
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.session import SessionFactory
from lake.store import delta, erasures
from lake.store.ledger import runs
from lake.store.ledger.cuts import get_cut
from lake.store.rows import Rows

if TYPE_CHECKING:
    from lake.store.tables import Table

FOUND: Final = {"insert": "missing", "delete": "extra", "update": "differs"}


@dataclass(frozen=True)
class Verdict:
    """Result of verifying one table at its cut; `unknown` has a `why`, `identical` if new input columns are left out.

    `differences` holds the first rows that differ: the identity, `change` (missing: only the recomputation has the row;
    extra: only the table; differs) and, for `differs`, `columns`: {column: [table's value, recomputed value]}.
    """

    table: str
    cut: int | None
    verdict: Literal["identical", "differs", "unknown"]
    rows: int = 0
    fingerprint: str = ""
    differing: int = 0
    differences: tuple[dict[str, Any], ...] = ()
    why: str = ""
    fix: str = ""


def verify_all(
    connect: SessionFactory,
    project: Project,
    names: Iterable[str] = (),
    *,
    shallow: bool = False,
    on_progress: Callable[[Verdict], None],
) -> list[Verdict]:
    picked, proved = project.pick(names), dict[str, int]()
    damaged = integrity.faults(project, picked)
    cuts = {table.name: head.cut for table in picked if (head := project.table(table).head())}
    by_cut = {
        cut: Inputs(connect, project, get_cut(project.settings, cut), recompute=not shallow, proved=proved)
        for cut in set(cuts.values())
    }

    def work(declaration: Declaration) -> Verdict:
        cut, began = cuts.get(declaration.name), datetime.now(UTC)
        fault = next((damage for stream in project.logs(declaration) if (damage := damaged[stream])), None)
        recording = runs.failing(project.settings, "verify", declaration.name, cut)
        with step("verify", declaration.name) as at_work, recording:
            if cut is None:
                verdict = _never_built(declaration)
            else:
                verdict = _unknown(declaration, cut, fault) if fault else verify(by_cut[cut], declaration)
            at_work.rows = verdict.rows
        _record(project, verdict, began)
        return verdict

    return after_inputs(project.settings, picked, work, on_progress)


def _record(project: Project, verdict: Verdict, began: datetime) -> None:
    about = project.settings, "verify", verdict.table, verdict.cut
    if verdict.verdict == "identical":
        runs.record_outcome(*about, began, rows=verdict.rows)
    else:
        why = f"differs from its recomputation in {verdict.differing} rows" if verdict.differing else verdict.why
        runs.record_outcome(*about, began, error=why)


def verify(inputs: Inputs, declaration: Declaration) -> Verdict:
    """Compare the table with its recomputation at its own cut, that of `inputs`; write nothing.

    With `inputs.recompute` its inputs are recomputed too, unless `inputs.proved`; an identical table is added to these.
    """
    table, cut = inputs.table(declaration), inputs.cut.number
    version = table.version() if table.exists() else 0
    head, then = table.head(), table.head_at(cut)
    if head is None or then is None:
        return _never_built(declaration)
    if head.cut != cut:  # it was advanced meanwhile; its version at the cut is verified
        head, version = then, then.version
    if not inputs.project.is_built(declaration, head):
        why = "its definition has changed since: lake plan, then lake deploy"
        return Verdict(declaration.name, cut, "unknown", why=why)
    settings, logs = inputs.project.settings, inputs.project.logs(declaration)
    if any(erasures.erasures_between(settings, stream, inputs.cut.voids) for stream in logs):
        why = "a person was forgotten since: lake run, then verify again"
        return Verdict(declaration.name, cut, "unknown", why=why)
    try:
        with python_faults(declaration):
            return _compared(inputs, declaration, table, version)
    except Unavailable:
        raise
    except LakeError as error:
        return _unknown(declaration, cut, error)


def _unknown(declaration: Declaration, cut: int, error: LakeError) -> Verdict:
    where = f" ({error.where})" if error.where else ""
    return Verdict(declaration.name, cut, "unknown", why=f"{error.what}{where}", fix=error.fix)


def _withheld_note(inputs: Inputs, table: str) -> str:
    held = [f"{name}.{column}" for name, some in inputs.withheld.get(table, {}).items() for column in some]
    return f"as it was built, without {', '.join(held)}: see lake plan" if held else ""


def _never_built(declaration: Declaration) -> Verdict:
    return Verdict(declaration.name, None, "unknown", why="it has not been built yet")


def _compared(inputs: Inputs, declaration: Declaration, table: Table, version: int) -> Verdict:
    name, cut = declaration.name, inputs.cut.number
    rows, old, total = inputs.evaluate(declaration), table.read(inputs.spark, version), table.rows(version)
    if columns := column_changes(dict(old.dtypes), dict(rows.dtypes)):
        why = "; ".join(f"{column} {what}" for column, what in columns.items())
        return Verdict(name, cut, "differs", total, why=f"its columns would have to change: {why}")
    stored, evaluated = fingerprints(old, rows)
    if stored == evaluated and (reason := _content_difference(table, version)):
        return Verdict(name, cut, "differs", total, stored, why=reason, fix=f"lake rebuild {name} records its rows")
    if stored == evaluated:
        inputs.proved[name] = version
        return Verdict(name, cut, "identical", total, stored, why=_withheld_note(inputs, name))
    identity = declaration.kind.identity
    duplicates = old.groupBy(*identity).count().where("count > 1").count()
    if duplicates:
        return Verdict(name, cut, "differs", total, stored, duplicates, why=f"{duplicates} keys have several rows")
    differing, differences = first_differences(
        table, version, compare(failing_on_duplicates(rows, identity), old, identity), identity
    )
    return Verdict(name, cut, "differs", total, stored, differing, differences)


def _content_difference(table: Table, version: int) -> str:
    recorded = delta.commit_metadata(table.path, version).get("content")
    actual = str(table.content(version)) if recorded else recorded
    return f"its rows are right, but its commit recorded {recorded}, found {actual}" if actual != recorded else ""


def first_differences(
    table: Table, version: int, diff: DataFrame, identity: tuple[str, ...]
) -> tuple[int, tuple[dict[str, Any], ...]]:
    kept = diff.persist()
    try:
        differing, few = kept.count(), first_changes(Rows(kept), identity, SAMPLE)
    finally:
        kept.unpersist()
    rows = as_json_rows(few, table.rows_of(few.select(list(identity)), version), identity)
    return differing, tuple({**row, "change": FOUND[row["change"]]} for row in rows)
