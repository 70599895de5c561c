"""Purge: after an edition without a forgotten person is published, remove them from all older versions.

1. Destroy keys left by a crash. In a bucket, where processes of other machines are not known, wait GRACE after the
   first edition without the person, by the clocks of the hosts.
2. Rewrite every table into a first version with the same rows, and publish that: any may have been derived from the
   stream before it was redefined.
3. Wait for pins, for processes of this machine that began before the edition, and for consumers of older editions, up
   to their limit. Then expire all other editions.
4. Delete old versions of tables and quarantine, retired homes, leftover files, and Spark's logs, which may have values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lake.config import Settings
from lake.privacy.forget import destroy_keys
from lake.project.project import Project
from lake.publish.check import tables_at_cut
from lake.publish.retention import retired
from lake.store import delta, erasures, temporary_files
from lake.store.ledger import consumers, editions
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import Edition, EditionTable
from lake.store.locks import activity
from lake.store.locks.lease import lease, must_hold
from lake.store.log import Log
from lake.store.snapshot import write_manifest
from lake.store.table_logs import invalidate
from lake.store.upkeep import vacuum
from lake.store.view import view
from lake.store.warehouse import Warehouse
from lake.text import moment

GRACE: Final = timedelta(hours=1)
"""How long a process of another machine may go on reading data of the person; later it ends with an error."""


def purge(project: Project, on_progress: Callable[[str], None]) -> None:
    """Purge if people were forgotten since the last purge. If their data may still be read, report why it waits."""
    settings = project.settings
    with view():
        _expire_restored(settings)
        since, all_ = erasures.purged(settings), erasures.entries(settings)
    fresh = [erasure for erasure in all_ if erasure.number > since]
    if not fresh:
        return
    destroy_keys(settings)
    number, streams = max(erasure.number for erasure in fresh), {erasure.stream for erasure in fresh}
    waiting = _not_published(settings, number) or _other_hosts(settings, number) or _rewrite_tables(project, number)
    edition = editions.latest_edition(settings)
    if waiting := waiting or _still_read(settings, edition):
        on_progress(f"purge   is waiting: {waiting}")
        return
    assert edition is not None
    older = [kept.number for kept in editions.kept_editions(settings) if kept.number < edition.number]
    editions.expire_editions(settings, older)
    published = {Warehouse(settings).root / entry.path: entry.version for entry in edition.tables.values()}
    for declaration in project.tables.values():
        table = project.table(declaration)
        with lease(settings, table.lease):
            must_hold(settings, table.lease)
            vacuum.truncate(table.path, upto=published.get(table.path))
        on_progress(f"purge   {declaration.name}: only the published version is left")
    _delete_leftovers(settings)
    for place in (home.place for home in retired(project)):
        with lease(settings, place.lease):
            must_hold(settings, place.lease)
            place.path.storage.delete_table(place.path.url)
            invalidate(place.path)
        on_progress(f"purge   {place.name}: dropped, no longer in use")
    for stream in sorted(streams):
        _truncate_quarantine(settings, stream)
    erasures.mark_purged(settings, number, edition=edition.number, at=edition.published_at)


def _expire_restored(settings: Settings) -> None:
    """Expire editions that a repaired ledger has brought back: their files are gone."""
    if purged := erasures.purged_with(settings):
        back = [kept.number for kept in editions.kept_editions(settings) if kept.number < purged]
        editions.expire_editions(settings, back)


def _truncate_quarantine(settings: Settings, stream: str) -> None:
    path = Warehouse(settings).quarantine(stream).path
    if delta.exists(path):
        with lease(settings, Log(settings, stream).lease):
            vacuum.begin_anew(path)
            must_hold(settings, Log(settings, stream).lease)
            vacuum.truncate(path)


def _delete_leftovers(settings: Settings) -> None:
    oldest = min((other.since for other in activity.others(settings)), default=datetime.now(UTC))
    temporary_files.delete_files(temporary_files.leftover_files(settings, oldest))
    for log in settings.path(".lake/spark").glob("*.log"):
        os.truncate(log, 0)  # its writer appends


def _not_published(settings: Settings, number: int) -> str:
    latest = editions.latest_edition(settings)
    if latest is None or any(get_cut(settings, cut).voids < number for cut in latest.cuts):
        return "no edition without the person has been published yet: lake run"
    return ""


def _rewrite_tables(project: Project, number: int) -> str:
    settings, latest = project.settings, editions.latest_edition(project.settings)
    assert latest is not None
    for declaration in project.tables.values():
        table = project.table(declaration)
        with lease(settings, table.lease):
            head = table.head()
            unseen = bool(settings.publish.groups) and declaration.name not in latest.tables
            if head is None or unseen or head.cut != latest.cut_of(declaration.name):
                return f"{declaration.name} has advanced since edition {latest.number}: lake run"
            # A crash may have come between the commit and its checkpoint.
            if head.purge < number or delta.newest_checkpoint(table.path) != head.version:
                vacuum.begin_anew(table.path, head.position, purge=number)
    write_manifest(
        settings, editions.record_edition(settings, latest.cut, _current_entries(project, latest), seen=project.seen)
    )
    return ""


def _current_entries(project: Project, edition: Edition) -> dict[str, EditionTable]:
    tables: dict[str, EditionTable] = {}
    for cut in {edition.cut_of(name) for name in project.tables}:
        names = [name for name in project.tables if edition.cut_of(name) == cut]
        behind = None if cut == edition.cut else cut
        entries = tables_at_cut(project, get_cut(project.settings, cut), names)
        tables |= {name: replace(entry, cut=behind) for name, entry in entries.items()}
    return tables


def _still_read(settings: Settings, edition: Edition | None) -> str:
    pin = editions.pinned(settings)
    assert edition is not None
    if pin is not None and pin != edition.number:
        return f"readers are pinned to edition {pin}: lake publish --resume"
    for late in consumers.late(settings, datetime.now(UTC), upto=edition.number):
        until = consumers.held_until(settings, late)
        return (
            f"{late} has edition {late.edition} only, and is waited for until {moment(until) if until else 'it comes'}"
        )
    early = [process for process in activity.others(settings) if process.seen < edition.number]
    return f"{early[0]} may still be reading data of the person" if early else ""


def _other_hosts(settings: Settings, number: int) -> str:
    if not activity.has_unlisted(settings):
        return ""
    without = [e for e in editions.kept_editions(settings) if all(get_cut(settings, c).voids >= number for c in e.cuts)]
    until = min(edition.published_at for edition in without) + GRACE
    return f"other hosts may still read data of the person until {moment(until)}" if until > datetime.now(UTC) else ""
