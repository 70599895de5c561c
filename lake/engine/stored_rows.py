"""Stored rows of logs and tables at a cut as DataFrames, and their changes since a head."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lake.contracts.encryption import KEY, SUBJECT
from lake.engine.catalog import Catalog
from lake.engine.columns import leaf_frame, without_files
from lake.ingest import event_columns
from lake.kinds.columns import ORDER, SIGN, visible
from lake.project.declaration import Declaration, Input
from lake.session import SessionFactory
from lake.store import erasures, log_rows
from lake.store.log import EventFilter, Log
from lake.store.recovery import has_commit, has_void
from lake.store.scan import Span, to_frame
from lake.store.table_head import TableHead
from lake.store.tables import FeedGap
from lake.store.voids import Void, only_voided, voids_between

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HIDDEN = ("_ingested_at",)


class StoredRows(Catalog):
    """Reader of logs and tables, in the session that `connect` returns when one is needed."""

    connect: SessionFactory

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
        settings, upto = self.project.settings, self.cut.batches.get(source.name, 0)
        if source.table is not None or not Log(settings, source.name).has_refusals(upto=upto):
            return None
        contract = self.project.contracts[source.name]
        rows = Log(settings, source.name).refusals(self.spark, contract, upto=upto, voids=self.cut.voids)
        return event_columns.without_fields(event_order(rows.drop(*HIDDEN)), contract)

    def changes(self, source: Input, head: TableHead) -> DataFrame | None:
        """Return the rows added (+1) and removed (-1) since `head`, or None. Raises FeedGap."""
        settings, before = self.project.settings, head.inputs[source.name]
        if source.table is not None:
            return self._changes_of_table(source.table, head)
        after, voids = self.cut.batches.get(source.name, 0), head.voids
        if voids and not has_void(settings, voids):
            raise FeedGap(f"void {voids}, which was applied then, was lost")
        if erasures.erasures_between(settings, source.name, voids, self.cut.voids):
            raise FeedGap(f"people of {source.name} were forgotten since")
        voided = self.voided_since(source, head)
        frames = [self._events(source.name, EventFilter(after=before))] if after > before else []
        frames += [self._voided(source.name, before, voids, voided)] if voided else []
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
    from pyspark.sql import functions as F

    return rows.withColumns({ORDER: F.struct("_batch", "_arrival", "_bucket", "_offset"), SIGN: F.lit(sign)})


def ordered(rows: DataFrame, table: Declaration) -> DataFrame:
    """Add the order of rows of a table, their identity, and the sign +1 unless they have one."""
    from pyspark.sql import functions as F

    sign = F.col(SIGN) if SIGN in rows.columns else F.lit(1)
    return rows.withColumns({ORDER: F.struct(*table.kind.identity), SIGN: sign})
