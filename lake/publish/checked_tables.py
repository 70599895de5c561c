"""Tables of the next edition: their versions at a cut, which passed the gate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lake.engine.catalog import not_at
from lake.engine.verbs import check_definition
from lake.errors import DeclarationError
from lake.project.project import Project
from lake.publish.check import check
from lake.quality import failures
from lake.store import delta
from lake.store.ledger.checks import CHECKS
from lake.store.ledger.cuts import CUTS, Cut
from lake.store.ledger.editions import EditionTable
from lake.store.log import Log
from lake.store.proof.fingerprints import Fingerprint
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def checked_tables(
    project: Project,
    cut: Cut,
    spark: Callable[[], SparkSession],
    on_progress: Callable[[str], None],
    names: Iterable[str] = (),
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
            *(book.location(project.settings).path for book in (CUTS, CHECKS)),
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
    if faults:
        raise DeclarationError.all(faults)
    return entries
