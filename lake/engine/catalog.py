"""Logs and tables at a cut: versions, columns, horizons, and amounts to read. Needs no session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from lake import cost
from lake.config import Settings
from lake.contracts import evolution
from lake.errors import DeclarationError
from lake.kinds.columns import visible
from lake.kinds.kind import ALL_FINAL
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.quality import failures
from lake.session.file_modes import free
from lake.session.spark_session import is_here, local_dirs
from lake.store.dialects import unchanged
from lake.store.ledger import checks, contract_versions
from lake.store.ledger.checks import Check
from lake.store.ledger.cuts import Cut
from lake.store.log import Log
from lake.store.scan import Scan
from lake.store.table_head import TableHead
from lake.store.tables import FeedGap, Table
from lake.store.voids import Void, voids_between

GB = 1 << 30


class Catalog:
    """Facts about the inputs of tables at `cut`; with `recompute`, input tables are not read."""

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
        """Return the `horizon` of each input; none if the kind does not need them."""
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
            return self.table(source.table).changed(after=before, upto=self.at_cut(source.table).version)
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


def warn_of_spill(settings: Settings, table: str, size_of: Callable[[], int]) -> None:
    """Warn if evaluating `size_of()` bytes may spill more than is free on this machine's disk."""
    if not is_here(settings):
        return
    folders, size = local_dirs(settings), size_of()
    folder = min(folders, key=free)
    needed, left = size * cost.SPILLED_SHARE / len(folders), free(folder)
    if needed > left:
        logging.getLogger("lake").warning(
            "%s: Spark may put %.1f GB on the disk while it evaluates %.1f GB of inputs, and %s has %.1f GB free: free"
            ' some space, or have "spark.local.dir" in [tool.lake.spark.conf] name a folder on a larger disk',
            *(table, needed / GB, size / GB, folder, left / GB),
        )


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
