"""Publish: moves readers to a checked cut, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lake.config import Settings
from lake.engine.content_proof import with_fingerprints
from lake.errors import DeclarationError
from lake.project.project import Project
from lake.publish.blocked_groups import BlockedGroups, raise_block, tables_by_group
from lake.publish.deploy_finish import finish_deploy
from lake.store.ledger import runs
from lake.store.ledger.cuts import Cut
from lake.store.ledger.editions import (
    Edition,
    latest_edition,
    pin_edition,
    pinned,
    record_edition,
    resume_editions,
)
from lake.store.snapshot import write_manifest
from lake.store.view import view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@view()
def publish(
    project: Project,
    cut: Cut,
    spark: Callable[[], SparkSession],
    on_progress: Callable[[str], None],
    *,
    on_held: Callable[[BlockedGroups], None] = raise_block,
) -> Edition:
    """Publish every table at `cut` as one edition; return the latest edition if nothing has changed.

    Checks unchecked tables, reports warnings and finishes a deploy. Raises QualityError if a gate stopped,
    DeclarationError if a table is not at the cut or readers are pinned to an older edition. With publish groups, a held
    group stays at the last edition, and `on_held` is called once the others are published; if all are held, none is
    published and the error is raised.
    """
    with runs.failing(project.settings, "publish", runs.EDITION, cut.number):
        edition, held = _publish(project, cut, spark, on_progress, datetime.now(UTC))
    if held is not None:
        on_held(held)
    return edition


def _publish(
    project: Project, cut: Cut, spark: Callable[[], SparkSession], on_progress: Callable[[str], None], began: datetime
) -> tuple[Edition, BlockedGroups | None]:
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
    tables, held = tables_by_group(project, cut, latest, spark, on_progress)
    if latest is not None and latest.cut == cut.number and dict(latest.tables) == tables:
        edition = latest
        if held is None:
            runs.record_nothing_to_do(settings, "publish", [runs.EDITION], cut.number)
    else:
        edition = record_edition(settings, cut.number, with_fingerprints(project, tables), seen=project.seen)
        write_manifest(settings, edition)
        runs.record_outcome(settings, "publish", runs.EDITION, cut.number, began, edition=edition.number)
    if held is None:
        return finish_deploy(project, edition, spark), None
    # finish_deploy records the inputs of its copies, which requires all tables to be at one cut.
    runs.record_outcome(settings, "publish", runs.EDITION, cut.number, began, error=runs.reason(held.error))
    return edition, held


def pin(settings: Settings, number: int | None) -> Edition:
    """Pin readers to edition `number`; None removes the pin. Return the edition that they see now.

    Raises DeclarationError if there is none.
    """
    verb = "resume" if number is None else "rollback"
    with runs.recording(settings, verb, runs.EDITION, but=DeclarationError) as counts:
        shown = pin_edition(settings, number) if number is not None else resume_editions(settings)
        if shown is None:
            raise DeclarationError("there is no edition yet", fix="lake publish")
        counts["edition"] = shown.number
    return shown
