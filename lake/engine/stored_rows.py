"""Logs and tables at a cut: versions, columns, amounts to read; their rows as DataFrames, and changes since a head."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from lake.contracts import evolution
from lake.contracts.encryption import KEY, SUBJECT
from lake.engine.columns import leaf_frame, without_files
from lake.errors import DeclarationError
from lake.ingest import event_columns
from lake.kinds.columns import ORDER, SIGN, visible
from lake.kinds.kind import ALL_FINAL
from lake.lazy import Column, DataFrame, F, SparkSession
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.quality import failures
from lake.session import SessionFactory
from lake.store import erasures, log_rows
from lake.store.dialects import unchanged
from lake.store.ledger import checks, contract_versions
from lake.store.ledger.checks import Check
from lake.store.ledger.cuts import Cut
from lake.store.log import EventFilter, Log
from lake.store.recovery import has_commit
from lake.store.scan import Scan, Span, to_frame
from lake.store.table_head import TableHead
from lake.store.tables import FeedGap, Table
from lake.store.voids import Void, has_void, only_voided, voids_between

HIDDEN = ("_ingested_at",)


class StoredRows:
    """Base of `Inputs`: logs and tables as they are stored at `cut`, read in the session that `connect` returns."""

    connect: SessionFactory
    project: Project
    cut: Cut
    recompute: bool

    def table(self, declaration: Declaration) -> Table:
        return self.project.table(declaration)

    def has(self, declaration: Declaration) -> bool:
        return self.table(declaration).head_at(self.cut.number) is not None

    def at_cut(self, declaration: Declaration) -> TableHead:
        head = self.table(declaration).head_at(self.cut.number)
        if head is None:
            raise not_at(self.project, declaration, self.cut.number)
        return head

    def version(self, source: Input) -> int:
        """Return the last batch of a log, or the Delta version of a table."""
        if source.table is None:
            return self.cut.batches.get(source.name, 0)
        return self.at_cut(source.table).version

    def versions(self, declaration: Declaration) -> dict[str, int]:
        """Return {stream: last batch, table: Delta version before compactions} of the inputs."""
        return {
            source.name: self.version(source) if source.table is None else self.at_cut(source.table).origin
            for source in declaration.inputs
        }

    def homes(self, declaration: Declaration) -> dict[str, str]:
        return {s.name: self.table(s.table).home for s in declaration.inputs if s.table is not None}

    def columns(self, source: Input) -> dict[str, str]:
        if source.table is None:
            return self.project.fields(source.name)
        return self.table(source.table).columns(self.version(source))

    def searchable(self, source: Input) -> set[str]:
        """Return the columns that the files of `source` store unchanged."""
        if source.table is not None:
            return set(visible(self.scan(source).schema().names)) if self.has(source.table) else set()
        if self.has_broadcasts(source):
            return set()
        contract = self.project.contracts[source.name]
        stored = contract_versions.versions(self.project.settings, contract.name)
        return unchanged(evolution.with_current(stored, contract))

    def has_broadcasts(self, source: Input) -> bool:
        return source.table is None and self.project.contracts[source.name].broadcast is not None

    def horizons(self, declaration: Declaration) -> tuple[datetime | None, ...]:
        return tuple(map(self.horizon, declaration.inputs)) if declaration.kind.needs_time else ()

    def horizon(self, source: Input) -> datetime | None:
        """Return the watermark of a log: None without events, ALL_FINAL if all its producers are closed."""
        head = Log(self.project.settings, source.name).head_at(self.version(source))
        return ALL_FINAL if head.is_ended else head.watermark

    def voided_since(self, source: Input, head: TableHead) -> list[Void]:
        """Return the voids since `head` of events that the table had read."""
        before = head.inputs[source.name]
        voids = voids_between(self.project.settings, source.name, head.voids, self.cut.voids)
        return [void for void in voids if void.batch <= before or void.source is not None]

    def scan(self, source: Input) -> Scan:
        if source.table is None:
            return Scan(Log(self.project.settings, source.name).path)
        return Scan(self.table(source.table).path, self.version(source))

    def rows(self, declaration: Declaration) -> int:
        return sum(self.size(source) for source in declaration.inputs)

    def size(self, source: Input, *, after: int = 0) -> int:
        """Return an upper bound of the rows to read, of a log those after batch `after`."""
        if source.table is None:
            path, upto = Log(self.project.settings, source.name).path, self.version(source)
            return Scan(path, bounds={"_batch": (after + 1, upto)}).rows() if upto else 0
        return self.scan(source).rows()

    def size_of_changes(self, source: Input, head: TableHead) -> int:
        """Return an upper bound of the rows to read of what changed since `head`: all if that is not known."""
        before = head.inputs[source.name]
        if source.table is None:
            return self.size(source, after=before) + self.size_of_voided(source, head)
        try:
            return self.table(source.table).changed_rows(after=before, upto=self.at_cut(source.table).version)
        except FeedGap:
            return self.size(source)

    def size_of_voided(self, source: Input, head: TableHead) -> int:
        path, voids = Log(self.project.settings, source.name).path, self.voided_since(source, head)
        batches = [void.batch for void in voids if void.is_whole and void.source is None]
        if any(void.source is not None for void in voids):
            return Scan(path, bounds={"_batch": (1, max(void.batch for void in voids))}).rows()
        return len(voids) + sum(Scan(path, bounds={"_batch": (batch, batch)}).rows() for batch in batches)

    def file_size(self, declaration: Declaration) -> int:
        read = [source for source in declaration.inputs if source.is_log or not self.recompute]
        return sum(self.scan(source).size() for source in read if not source.is_log or self.version(source))

    @cached_property
    def spark(self) -> SparkSession:
        return self.connect()

    def stored(self, source: Input, times: Span | None = None) -> DataFrame:
        """Return all rows of `source` with their order and the sign +1; those of a log at `times`."""
        if source.table is None:
            return self._events(source.name, EventFilter(times=times))
        rows = self.table(source.table).read(self.spark, self.version(source))
        return ordered(rows.select(*visible(rows.columns)), source.table)

    def narrowed(
        self,
        source: Input,
        keys: Sequence[Mapping[str, Any]],
        times: Span | None = None,
        only: Collection[str] | None = None,
    ) -> DataFrame:
        """Return at least the `stored` rows that equal one of `keys`, nulls included.

        Columns of a log that do not derive from `only` may be null.
        """
        scan = self.scan(source)
        if source.table is None:
            return self._events(source.name, EventFilter(keys=scan.keys(keys), times=times, only=only))
        rows = scan.near(self.spark, scan.keys(keys))
        return ordered(rows.select(*visible(rows.columns)), source.table)

    def broadcasts(self, source: Input) -> DataFrame | None:
        if not self.has_broadcasts(source):
            return None
        return self._events(source.name, EventFilter(bucket=log_rows.BROADCAST))

    def refusals(self, source: Input) -> DataFrame | None:
        log, upto = Log(self.project.settings, source.name), self.cut.batches.get(source.name, 0)
        if source.table is not None or not log.has_refusals(upto=upto):
            return None
        contract = self.project.contracts[source.name]
        rows = log.refusals(self.spark, contract, upto=upto, voids=self.cut.voids)
        return event_columns.markers_with_delivery(event_order(rows.drop(*HIDDEN)), contract)

    def changes(self, source: Input, head: TableHead) -> DataFrame | None:
        """Return the rows added (+1) and removed (-1) since `head`, or None. Raises FeedGap."""
        settings, read = self.project.settings, head.inputs[source.name]
        if source.table is not None:
            return self._changes_of_table(source.table, head)
        upto, voids = self.version(source), head.voids
        if voids and not has_void(settings, voids):
            raise FeedGap(f"void {voids}, which was applied then, was lost")
        if erasures.erasures_between(settings, source.name, voids, self.cut.voids):
            raise FeedGap(f"people of {source.name} were forgotten since")
        voided = self.voided_since(source, head)
        frames = [self._events(source.name, EventFilter(after=read))] if upto > read else []
        frames += [self._voided(source.name, read, voids, voided)] if voided else []
        return frames[0].unionByName(frames[1]) if len(frames) == 2 else next(iter(frames), None)

    def _changes_of_table(self, declaration: Declaration, head: TableHead) -> DataFrame | None:
        name, table, now = declaration.name, self.table(declaration), self.at_cut(declaration)
        if head.physical.get(name) != table.home:
            raise FeedGap(f"{name} was another Delta table then")
        if not has_commit(table.heads(), head.inputs[name], head.cut):
            raise FeedGap(f"{name} has lost versions that were read then")
        if now.origin == head.inputs[name]:
            return None
        return ordered(table.changes(self.spark, after=head.inputs[name], upto=now.version), declaration)

    def voided(self, source: Input) -> DataFrame | None:
        """Return the voided events of a log, each with the sign -1, or None."""
        if source.table is not None:
            return None
        upto = self.version(source)
        voids = voids_between(self.project.settings, source.name, 0, self.cut.voids)
        return self._voided(source.name, upto, 0, voids) if voids else None

    def files_of_log(self, source: Input, side: int) -> tuple[DataFrame, list[str]]:
        """Return a log without rows, as a leaf with the columns of its files, and their names."""
        types = dict(to_frame(self.spark, self.scan(source).schema().empty_table()).dtypes)
        log, contract = Log(self.project.settings, source.name), self.project.contracts[source.name]
        keys = without_files(self.spark, {SUBJECT: "string", KEY: "binary"})
        rows = log.events_of(leaf_frame(self.spark, types, side), contract, keys, voids=self.cut.voids)
        return event_order(rows.drop(*HIDDEN)), [*types]

    def _events(self, stream: str, events: EventFilter) -> DataFrame:
        log, contract = Log(self.project.settings, stream), self.project.contracts[stream]
        upto, voids = self.cut.batches.get(stream, 0), self.cut.voids
        rows = log.read(self.spark, contract, upto=upto, voids=voids, events=events)
        return event_order(rows.drop(*HIDDEN))

    def _voided(self, stream: str, upto: int, applied: int, voids: Sequence[Void]) -> DataFrame:
        first = 1 if any(void.source is not None for void in voids) else min(void.batch for void in voids)
        rows = Log(self.project.settings, stream).read(
            self.spark,
            self.project.contracts[stream],
            upto=min(upto, max(void.batch for void in voids)),
            voids=applied,
            events=EventFilter(after=first - 1),
        )
        return event_order(only_voided(rows, voids).drop(*HIDDEN), sign=-1)


def event_order(rows: DataFrame, *, sign: int | Column = 1) -> DataFrame:
    return rows.withColumns({ORDER: F.struct("_batch", "_arrival", "_bucket", "_offset"), SIGN: F.lit(sign)})


def ordered(rows: DataFrame, table: Declaration) -> DataFrame:
    """Add the order of rows of a table, their identity, and the sign +1 unless they have one."""
    sign = F.col(SIGN) if SIGN in rows.columns else F.lit(1)
    return rows.withColumns({ORDER: F.struct(*table.kind.identity), SIGN: sign})


def not_at(project: Project, declaration: Declaration, cut: int) -> DeclarationError:
    stopped = _stopped(project, declaration, cut)
    if stopped is None:
        return declaration.fault(
            f"not at cut {cut}", fix=f"lake advance {declaration.name} --cut {cut}, then try again"
        )
    return declaration.fault(
        f"not at cut {cut}: the gate stopped {stopped.table} at cut {stopped.cut}", fix=failures.fix_text([stopped])
    )


def _stopped(project: Project, declaration: Declaration, cut: int) -> Check | None:
    newest, waiting, seen = checks.last_checks(project.settings, "diff"), [declaration], set[str]()
    while waiting:
        table = waiting.pop()
        if table.name in seen:
            continue
        seen.add(table.name)
        check, head = newest.get(table.name), project.table(table).head()
        if check is not None and check.outcome == "stopped" and (head.cut if head else 0) < check.cut <= cut:
            return check
        waiting += [source.table for source in table.inputs if source.table is not None]
    return None
