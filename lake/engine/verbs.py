"""Work of verbs on tables: reported, recorded, under the table's lease, and in the order of dependencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from lake.config import Settings
from lake.engine.faults import python_faults
from lake.engine.inputs import Evaluation, Inputs
from lake.errors import LakeError
from lake.progress import step
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.store.ledger.runs import WHOLE, Run, background_recording, failing, record_run, seconds_since
from lake.store.locks.lease import lease
from lake.store.table_head import TableHead
from lake.store.view import view

T = TypeVar("T")


@dataclass(frozen=True)
class Advanced:
    """Result of a verb on one table: the Delta `version` it left, the rows it changed, and their engine."""

    table: str
    cut: int
    verb: str
    version: int
    inserted: int
    updated: int
    deleted: int
    seconds: float
    engine: str = ""

    @property
    def rows(self) -> int:
        return self.inserted + self.updated + self.deleted

    @property
    def line(self) -> str:
        if self.verb == "none":
            return f"advance {self.table}: already at cut {self.cut}"
        changed = f"+{self.inserted} ~{self.updated} -{self.deleted}"
        return f"{self.verb:<7} {self.table}: {changed} in {self.seconds:.1f} s"


D = TypeVar("D", bound=Advanced)


def run_verb(
    verb: str,
    inputs: Inputs,
    declaration: Declaration,
    work: Callable[[Evaluation, datetime], D],
    *,
    dry_run: bool = False,
) -> D:
    """Return the result of `work` on a table, under its lease; `work` gets the time at which the verb began.

    Its progress is reported, and its failure is recorded unless this is a `dry_run`. Errors name the line of the job,
    and the events behind them.
    """
    settings, name, began = inputs.project.settings, declaration.name, datetime.now(UTC)
    recording = nullcontext() if dry_run else failing(settings, verb, name, inputs.cut.number)
    with step(verb, name) as at_work, recording, python_faults(declaration, inputs):
        with lease(settings, inputs.table(declaration).lease):
            done = work(Evaluation.of(inputs, declaration), began)
        at_work.rows = done.rows
        return done


def check_definition(project: Project, declaration: Declaration, head: TableHead) -> None:
    if not project.is_built(declaration, head):
        now = project.fingerprint(declaration, head.columns)
        raise declaration.fault(
            f"its definition has changed since it was built ({head.fingerprint}, now {now})",
            fix="lake plan shows what follows from that, lake deploy builds it beside the live tables",
        )


def record_done(evaluation: Evaluation, head: TableHead, began: datetime, why: Exception | None = None) -> Advanced:
    """Record the run and return its result. `why`: the error for which DuckDB did not evaluate few rows."""
    inputs, seconds = evaluation.inputs, seconds_since(began)
    counts: dict[str, Any] = asdict(head.counts)
    name = evaluation.declaration.name
    done = Advanced(name, head.cut, head.verb, head.version, **counts, seconds=seconds, engine=head.engine)
    counts |= {"engine": head.engine, **({} if why is None else {"not_by_duckdb": str(why)})}
    counts |= {"read": inputs.rows(evaluation.declaration)} if done.verb in WHOLE else {}
    run = Run(done.verb, done.table, done.cut, "done", counts, started_at=began, seconds=seconds)
    record_run(inputs.project.settings, run)
    return done


def after_inputs(
    settings: Settings,
    tables: Iterable[Declaration],
    work: Callable[[Declaration], T],
    on_progress: Callable[[T], None],
) -> list[T]:
    """Return the results of `work` on `tables`, in dependency order, `tables_at_once` in parallel.

    Tables derived from one that fails fail too. Raises all failures together, but an unexpected one alone.
    """
    futures: dict[str, Future[T]] = {}

    def wait_and_work(declaration: Declaration) -> T:
        for source in declaration.inputs:
            if source.name in futures and not source.is_log:
                futures[source.name].result()
        done = work(declaration)
        on_progress(done)
        return done

    # Tables are submitted in dependency order, so a thread that waits for a parent waits for a running one.
    workers = settings.tables_at_once
    with view(), background_recording(), ThreadPoolExecutor(workers, thread_name_prefix="tables") as pool:
        for declaration in tables:
            futures[declaration.name] = pool.submit(copy_context().run, wait_and_work, declaration)
    failures = [error for future in futures.values() if (error := future.exception()) is not None]
    for failure in failures:
        if not isinstance(failure, LakeError):
            raise failure
    if failures:
        raise LakeError.joined(failure for failure in failures if isinstance(failure, LakeError))
    return [future.result() for future in futures.values()]
