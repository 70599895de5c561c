"""Maintenance: compacts files, expires editions beyond the kept ones, and deletes files that nothing needs.

1. Purge the data of forgotten persons; expire old editions, so that no reader begins with them.
2. Find running processes: everything that existed when the oldest of them began stays.
3. Table by table, under its lease: compact, verifying that the rows are the same; delete unneeded files.
4. Delete what crashes left: homes of unpublished tables, staged files, records of leases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from lake import cost
from lake.config import Settings
from lake.engine.integrity import content_fault
from lake.errors import Unavailable
from lake.progress import OnProgress
from lake.project.project import Project
from lake.publish.after_publish import after_publish, raise_failure
from lake.publish.retention import RetentionNeeds, retired, tables
from lake.session import SessionFactory
from lake.store import delta, durable, log_rows, temporary_files
from lake.store.damage import damage
from lake.store.delta import Position
from lake.store.ledger import consumers, editions
from lake.store.ledger.consumers import FOR_EVER
from lake.store.ledger.editions import in_ranges
from lake.store.ledger.runs import WAREHOUSE, recording
from lake.store.locks import activity, lease
from lake.store.locks.activity import Running
from lake.store.table_logs import invalidate
from lake.store.tables import Table
from lake.store.upkeep import compaction, vacuum
from lake.store.upkeep.compaction import Compacted, FileGroup
from lake.store.warehouse import Location

STAGED: Final = timedelta(days=1)
"""Age below which staged files are kept."""


@dataclass(frozen=True)
class Policy:
    """The newest `editions` and all of the last `days` are kept; a call compacts `size` bytes.

    With `drop_retired`, undeclared tables are dropped with the older editions that have them.
    """

    editions: int
    days: float
    size: int
    drop_retired: bool = False
    dry_run: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        return cls(settings.keep_editions, settings.keep_days, settings.maintain_bytes)


@dataclass
class Kept:
    """Parts `due` for compaction, some of them `left` for later calls; deleted `files`, of `freed` bytes."""

    place: Location
    compacted: Compacted | None = None
    due: int = 0
    left: int = 0
    files: int = 0
    freed: int = 0


@dataclass
class Upkeep:
    expired: list[int]
    kept: list[int]
    running: tuple[Running, ...]
    places: list[Kept] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return sum(kept.left for kept in self.places)

    @property
    def editions(self) -> str:
        """`3, 7 to 9 kept, 1 to 2 expired`."""
        return f"{in_ranges(self.kept)} kept, {in_ranges(self.expired)} expired"


def maintain(project: Project, spark: SessionFactory, policy: Policy, on_progress: OnProgress) -> Upkeep:
    """Start a session only to compact a log or a large table. Tables that another writer holds wait for the next call.

    Raises LawError if a compaction changed rows.
    """
    settings = project.settings
    with recording(settings, "maintain", WAREHOUSE, dry_run=policy.dry_run) as counts:
        if not policy.dry_run:
            for hook in after_publish(settings):
                if hook.before_maintenance:
                    hook.run(project, on_progress, raise_failure)
        expired = _expire(project, policy)
        running = tuple(activity.others(settings))
        kept = [edition.number for edition in editions.kept_editions(settings) if edition.number not in expired]
        still_read = editions.expired_since(settings, min(process.seen for process in running)) if running else []
        ignored = expired if policy.dry_run and not running else []
        needed = partial(RetentionNeeds.now, project, days=policy.days, also=still_read, excluded=ignored)
        work = _Work(project, spark, policy, on_progress, needed)
        done = Upkeep(expired, kept, running)
        in_use = [place for place in tables(settings) if not work.maintain(place, done, seconds=0)]
        for place in in_use:
            work.maintain(place, done, seconds=settings.lease_seconds)
        done.cleared = _clear_leftovers(settings, running, dry_run=policy.dry_run)
        counts.update(expired=len(done.expired), files=sum(kept.files for kept in done.places))
    return done


def _expire(project: Project, policy: Policy) -> list[int]:
    settings, oldest = project.settings, datetime.now(UTC) - timedelta(days=min(policy.days, FOR_EVER))
    with consumers.needed_editions(settings) as needed:
        old = [
            edition.number
            for edition in editions.kept_editions(settings)[policy.editions :]
            if edition.published_at < oldest and edition.number not in needed
        ]
        if policy.drop_retired:
            old += [number for home in retired(project) for number in home.editions]
        return editions.expire_editions(settings, old, dry_run=policy.dry_run)


@dataclass
class _Work:
    project: Project
    spark: SessionFactory
    policy: Policy
    on_progress: OnProgress
    needed: Callable[[], RetentionNeeds]
    spent: int = 0

    def maintain(self, place: Location, done: Upkeep, *, seconds: float) -> bool:
        try:
            with lease.lease(self.project.settings, place.lease, seconds=seconds, hosts=not self.policy.dry_run):
                needed = self.needed()
                if needed.is_abandoned(place, drop_retired=self.policy.drop_retired):
                    done.dropped.append(place.name)
                    self._remove_folder(place)
                else:
                    done.places.append(self._kept(place, needed))
        except Unavailable as error:
            done.skipped[str(place)] = error.what
            return False
        done.skipped.pop(str(place), None)
        return True

    def _kept(self, place: Location, needed: RetentionNeeds) -> Kept:
        kept, table = Kept(place), needed.homes.get(place.path)
        position = delta.head(place.path, place.app) if place.kind in {"log", "table"} else None
        due = self._due(place, table, position)
        chosen = self._affordable(due)
        kept.due, kept.left = len(due), len(due) - len(chosen)
        if chosen and not self.policy.dry_run:
            self.on_progress(f"compact {place}: {sum(part.files for part in chosen)} files")
            kept.compacted = self._compact(place, table, position, chosen)
        if place.kind != "log" and not self.policy.dry_run:
            vacuum.checkpoint(place.path)
        self._vacuum(kept)
        return kept

    def _due(self, place: Location, table: Table | None, position: Position | None) -> list[FileGroup]:
        live = {"log": place.name in self.project.contracts, "table": table is not None}.get(place.kind, True)
        timed = live and place.kind == "log" and self.project.contracts[place.name].time is not None
        due = [part for part in compaction.file_groups(place.path, timed=timed) if part.is_due] if live else []
        if due and position and position.version != delta.version(place.path):
            self.on_progress(
                f"skip    {place}: another tool has written to it; lake verify or lake log --check shows what"
            )
            return []
        if due and place.kind == "log" and (fault := content_fault(self.project.settings, place.name)):
            self.on_progress(f"skip    {place}: {fault}")
            return []
        return due

    def _vacuum(self, kept: Kept) -> None:
        place, needed = kept.place, self.needed()
        versions = [*needed.by_editions(place.path).values(), *vacuum.before_newest(place.path)]
        stale = vacuum.unneeded(place.path, keep=versions, since=needed.since(place))
        if stale and place.kind == "log" and (damaged := damage(place.path, quickly=True)):
            self.on_progress(f"skip    {place}: its old files stay: {damaged.found} ({damaged.file})")
            return
        kept.files, kept.freed = len(stale), sum(stale.values())
        if stale and not self.policy.dry_run:
            self.on_progress(f"vacuum  {place}: {kept.files} files")
            durable.flush_all(place.path, delta.version(place.path))
            for file in stale:
                lease.must_hold(self.project.settings, place.lease)
                file.delete()
            place.path.storage.delete_empty_folders(place.path.url)

    def _affordable(self, due: Iterable[FileGroup]) -> list[FileGroup]:
        chosen = []
        for part in due:
            if not self.spent or self.spent + part.size <= self.policy.size:
                self.spent += part.size
                chosen.append(part)
        return chosen

    def _compact(
        self, place: Location, table: Table | None, position: Position | None, chosen: Sequence[FileGroup]
    ) -> Compacted:
        if place.kind == "log" and position is not None:
            contract = self.project.contracts[place.name]
            buckets = [part.bucket for part in chosen if part.bucket is not None]
            by, target = log_rows.clustered(contract), max(part.target for part in chosen)
            return compaction.compact_by_spark(self.spark(), place.path, position, buckets, by, target=target)
        order = self.project.tables[table.name].kind.file_order if table else ()
        is_large = sum(part.size for part in chosen) > cost.ORDERED_BYTES
        if table and position is not None and (is_large or compaction.is_altered(place.path)):
            by = compaction.sortable_columns(place.path, order)
            return compaction.compact_by_spark(self.spark(), place.path, position, key=by)
        return compaction.compact_table(place.path, position, order)

    def _remove_folder(self, place: Location) -> None:
        if not self.policy.dry_run:
            lease.must_hold(self.project.settings, place.lease)
            place.path.storage.delete_table(place.path.url)
            invalidate(place.path)


def _clear_leftovers(settings: Settings, running: tuple[Running, ...], *, dry_run: bool) -> list[str]:
    oldest = min([datetime.now(UTC) - STAGED, *(each.since for each in running)])
    files = temporary_files.leftover_files(settings, oldest)
    uploads = temporary_files.abandoned_uploads(settings, oldest)
    if not dry_run:
        temporary_files.delete_files(files, as_far_as_possible=True)
        temporary_files.remove_uploads(uploads)
    return [str(path) for path in (*files, *uploads, *lease.clear_dead_holders(settings, dry_run=dry_run))]
