"""Publish: move what readers see to a checked cut, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.engine.content_proof import completed
from lake.engine.write import same_definition
from lake.errors import DeclarationError
from lake.gate import failures
from lake.project import Project
from lake.publish import addresses
from lake.publish.check import check
from lake.publish.settle import settle
from lake.store.ledger import runs
from lake.store.ledger.cuts import Cut
from lake.store.ledger.editions import (
    Edition,
    EditionTable,
    latest_edition,
    pin_edition,
    pinned,
    record_edition,
    resume_editions,
)
from lake.store.proof.fingerprints import Fingerprint
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def publish(project: Project, cut: Cut, spark: Callable[[], SparkSession], tell: Callable[[str], None]) -> Edition:
    """Publishes every table at `cut` as one edition; the edition it already is in, where nothing has changed.

    Checks what has not been checked, and reports warnings; what a deploy has left elsewhere settles. Raises
    QualityError where a gate stopped, DeclarationError where a table is not at the cut or readers are pinned to an
    older edition.
    """
    with runs.failing(project.settings, "publish", runs.EDITION, cut.number):
        edition = _publish(project, cut, spark, tell, datetime.now(UTC))
    addresses.keep_true(project)
    return edition


def _publish(
    project: Project, cut: Cut, spark: Callable[[], SparkSession], tell: Callable[[str], None], began: datetime
) -> Edition:
    settings = project.settings
    pin = pinned(settings)
    if pin is not None:
        raise DeclarationError(f"readers are pinned to edition {pin}", fix="lake publish --resume unpins them")
    latest = latest_edition(settings)
    if latest is not None and latest.cut > cut.number:
        raise DeclarationError(
            f"edition {latest.number} is of cut {latest.cut}, later than cut {cut.number}",
            fix="lake publish --edition N goes back to an older edition",
        )
    tables = checked(project, cut, spark, tell)
    if latest is not None and latest.cut == cut.number and dict(latest.tables) == tables:
        runs.nothing_to_do(settings, "publish", runs.EDITION, cut.number, began)
        return settle(project, latest, spark)
    edition = record_edition(settings, cut.number, completed(project, tables), seen=project.seen)
    runs.note(settings, "publish", runs.EDITION, cut.number, began, edition=edition.number)
    return settle(project, edition, spark)


def pin(settings: Settings, number: int | None) -> Edition:
    """Keeps readers at edition `number`, or for None lets them move on again. Returns the edition that they see now.

    Raises DeclarationError where there is none.
    """
    shown = pin_edition(settings, number) if number is not None else resume_editions(settings)
    if shown is None:
        raise DeclarationError("there is no edition yet", fix="lake publish")
    addresses.open_up(settings, shown)
    return shown


def checked(
    project: Project, cut: Cut, spark: Callable[[], SparkSession], tell: Callable[[str], None]
) -> dict[str, EditionTable]:
    """The versions of all tables at `cut` that the gate let pass. Raises as `at_cut` and `check` do."""
    while True:
        tables = at_cut(project, cut)
        checks = check(project, spark, cut=cut.number)
        if all(tables[check.table].version == check.version for check in checks):  # else one was rebuilt meanwhile
            for warning in failures.warnings(checks):
                tell(f"warning {warning}")
            return tables


def at_cut(project: Project, cut: Cut) -> dict[str, EditionTable]:
    """The exact version of every table at `cut`. Raises DeclarationError that names every missing table."""
    entries, faults = {}, []
    for declaration in project.tables.values():
        table = project.table(declaration)
        head = table.head_at(cut.number)
        if head is None:
            faults.append(
                declaration.fault(f"not at cut {cut.number}", fix=f"lake advance {declaration.name} --cut {cut.number}")
            )
            continue
        try:
            same_definition(project, declaration, head)
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
        )
    if faults:
        raise DeclarationError.all(faults)
    return entries
