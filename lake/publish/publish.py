"""Publication: readers move to a checked cut, in one commit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import takewhile

from lake.config import Settings
from lake.engine.content_proof import with_fingerprints
from lake.errors import DeclarationError, Unavailable
from lake.progress import OnProgress
from lake.project.project import Project
from lake.publish.blocked_groups import BlockedGroups, tables_by_group
from lake.publish.deploy import finish_deploy
from lake.session import SessionFactory
from lake.store.erasures import erasures_between
from lake.store.ledger import runs
from lake.store.ledger.cuts import Cut
from lake.store.ledger.editions import (
    Edition,
    EditionTable,
    edition_before,
    latest_edition,
    pin_edition,
    pinned,
    record_edition,
    resume_editions,
)
from lake.store.snapshot import write_manifest
from lake.store.table_head import Counts, TableHead
from lake.store.table_logs import invalidate
from lake.store.tables import heads
from lake.store.view import view
from lake.store.voids import ERASURES
from lake.store.warehouse import Warehouse


@view()
def publish(
    project: Project, cut: Cut, spark: SessionFactory, on_progress: OnProgress
) -> tuple[Edition, BlockedGroups | None]:
    """Publish every table at `cut` as one edition; return the latest edition if nothing has changed.

    Checks unchecked tables, reports warnings and finishes a deploy. Raises QualityError if a gate stopped,
    DeclarationError if a table is not at the cut or readers are pinned to an older edition. With publish groups, held
    groups stay at the last edition, and are returned too; if all are held, the error is raised.
    """
    with runs.failing(project.settings, "publish", runs.EDITION, cut.number):
        return _publish(project, cut, spark, on_progress, datetime.now(UTC))


def _publish(
    project: Project, cut: Cut, spark: SessionFactory, on_progress: OnProgress, began: datetime
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
        _check_erasures(project, cut)
        edition = record_edition(settings, cut.number, with_fingerprints(project, tables), seen=project.seen)
        write_manifest(settings, edition)
        runs.record_outcome(settings, "publish", runs.EDITION, cut.number, began, edition=edition.number)
    if held is None:
        return finish_deploy(project, edition, spark), None
    # finish_deploy records the inputs of its copies, which requires all tables to be at one cut.
    runs.record_outcome(settings, "publish", runs.EDITION, cut.number, began, error=runs.reason(held.error))
    return edition, held


def _check_erasures(project: Project, cut: Cut) -> None:
    """Raise Unavailable if a person was forgotten after `cut`: tables advanced before have them, those after do not."""
    settings = project.settings
    streams = {stream for declaration in project.tables.values() for stream in project.logs(declaration)}
    personal = sorted(stream for stream in streams if project.contracts[stream].sealed)
    if personal:
        invalidate(ERASURES.location(settings).path)
    for stream in personal:
        if erasures_between(settings, stream, cut.voids):
            raise Unavailable(
                f"a person of {stream} was forgotten after cut {cut.number} was made",
                fix="lake run: its cut is without them",
            )


def pin(settings: Settings, number: int | None) -> Edition:
    """Pin readers to edition `number`; None removes the pin. Return the edition that they see now."""
    verb = "resume" if number is None else "rollback"
    with runs.recording(settings, verb, runs.EDITION, but=DeclarationError) as counts:
        edition = pin_edition(settings, number) if number is not None else resume_editions(settings)
        if edition is None:
            raise DeclarationError("there is no edition yet", fix="lake publish")
        counts["edition"] = edition.number
    return edition


def changes(settings: Settings, edition: Edition) -> dict[str, Counts]:
    """Count the changed rows of tables that differ from the edition before.

    All rows of a table that is new, or was built in another folder, count as inserted.
    """
    previous = edition_before(settings, edition.number)
    before = previous.tables if previous else {}
    counts = {name: _changed_rows(settings, before.get(name), table) for name, table in edition.tables.items()}
    return {name: changed for name, changed in counts.items() if changed is not None}


def _changed_rows(settings: Settings, old: EditionTable | None, new: EditionTable) -> Counts | None:
    """Return None if the rows are the same."""
    in_place = old is not None and old.path == new.path
    commits = list(_commits(settings, new, old.version if old is not None and in_place else -1))
    counts = Counts(
        sum(head.counts.inserted for head in commits),
        sum(head.counts.updated for head in commits),
        sum(head.counts.deleted for head in commits),
    )
    if not in_place:
        counts = Counts(inserted=new.rows if new.rows is not None else counts.inserted - counts.deleted)
    if old is None or old.content is None or new.content is None:
        return counts if counts.total or not in_place else None
    return counts if old.content != new.content else None


def _commits(settings: Settings, table: EditionTable, after: int) -> Iterator[TableHead]:
    home = table.path.rpartition("/")[2]
    newer = takewhile(lambda head: head.version > after, heads(Warehouse(settings).table(table.layer, home)))
    return (head for head in newer if head.version <= table.version and not head.changed_nothing)
