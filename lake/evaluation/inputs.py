"""What a declaration's function reads: its inputs at a cut, and what changed in them since a head."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from lake.contracts import evolution
from lake.contracts.encryption import KEY, SUBJECT
from lake.declaration import Declaration, Input
from lake.errors import DeclarationError
from lake.evaluation import function_output, room
from lake.evaluation.behind import not_at
from lake.evaluation.carrying_frame import CarryingFrame
from lake.evaluation.columns import Analysed, Given, given, leaf, no_files, withheld, without
from lake.ingest import integrity, refusals
from lake.kinds.columns import CARRIED, ORDER, SIGN, visible
from lake.kinds.floats import with_one_zero
from lake.kinds.kind import ALL_FINAL
from lake.project import Project
from lake.session import raise_if_gone
from lake.store import erasures, log
from lake.store.dialects import unchanged
from lake.store.ledger import contract_versions
from lake.store.ledger.cuts import Cut
from lake.store.log import Log
from lake.store.recovery import had, has_void
from lake.store.scan import Scan, Span, to_frame
from lake.store.table_head import Meanings, TableHead
from lake.store.tables import FeedGap, Table
from lake.store.voids import Void, taken_back, voided

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

HIDDEN = ("_ingested_at",)


@dataclass
class Inputs:
    """The inputs of a project's tables at `cut`, read through the session that `connect` gives when one is needed.

    With `recompute`, a table that is an input is evaluated from the logs instead of read, unless its version is one of
    those `proved` to be what the evaluation gives. `kept` are logs that Spark keeps while several tables read them.
    The tables `declared` are evaluated as they are declared now; any other is given the columns that it was built with,
    and what is `withheld` of the others is noted: {table: {input: columns}}. `sound` are logs that were found whole.
    """

    connect: Callable[[], SparkSession]
    project: Project
    cut: Cut
    recompute: bool = False
    proved: dict[str, int] = field(default_factory=dict)
    kept: dict[str, DataFrame] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    withheld: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    analysed: dict[str, Analysed] = field(default_factory=dict)
    meanings: dict[str, Meanings] = field(default_factory=dict)
    sound: set[str] = field(default_factory=set)
    _evaluated: dict[str, DataFrame] = field(default_factory=dict)
    _nothing: dict[str, DataFrame] = field(default_factory=dict)
    _given: dict[str, Given] = field(default_factory=dict)
    _looking: Lock = field(default_factory=Lock)

    @cached_property
    def spark(self) -> SparkSession:
        return self.connect()

    def table(self, declaration: Declaration) -> Table:
        return self.project.table(declaration)

    @property
    def connected(self) -> bool:
        """Whether a session has been needed so far."""
        return "spark" in vars(self)

    def must_be_whole(self, declaration: Declaration) -> None:
        """Raises LakeError where a log that the table reads is damaged; each log is looked at once."""
        with self._looking:  # by one of the tables that read it; the others wait for what it finds
            streams = {source.name for source in declaration.inputs if source.is_log} - self.sound
            if fault := integrity.of_inputs(self.project, streams):
                raise fault
            self.sound |= streams

    def evaluate(self, declaration: Declaration) -> DataFrame:
        """The whole table at the cut, state columns included."""
        if declaration.name not in self._evaluated:
            room.tell(self.project.settings, declaration.name, lambda: self.file_size(declaration))
            sides = self.sides(declaration, [self.whole(source) for source in declaration.inputs])
            self._evaluated[declaration.name] = self.evaluated(declaration, sides)
        return self._evaluated[declaration.name]

    def file_size(self, declaration: Declaration) -> int:
        """How many bytes the files take that evaluating the table reads first of all."""
        read = [source for source in declaration.inputs if source.is_log or not self.recompute]
        return sum(self._scan(source).size() for source in read if not source.is_log or self.version(source))

    def evaluated(self, declaration: Declaration, sides: Sequence[DataFrame]) -> DataFrame:
        """What the declaration's kind makes of `sides`, as of the cut."""
        return self._finished(declaration, declaration.kind.evaluate(*sides))

    def absorbed(self, declaration: Declaration, old: DataFrame, changes: Sequence[DataFrame]) -> DataFrame:
        """What the declaration's kind makes of its rows `old` and of `changes`, as of the cut."""
        return self._finished(declaration, declaration.kind.absorb(old, *changes))

    def _finished(self, declaration: Declaration, rows: DataFrame) -> DataFrame:
        return with_one_zero(declaration.kind.at_horizon(rows, *self.horizons(declaration)))

    def sides(self, declaration: Declaration, frames: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
        """What the declared function makes of `frames`, of which it is given the columns that its table was built with.

        Raises DeclarationError where the function loses columns that its kind needs.
        """
        held = withheld(declaration, frames, self.given(declaration))
        if any(held.values()):
            self.withheld[declaration.name] = held
        return self.called(declaration, frames, held)

    def given(self, declaration: Declaration) -> Given:
        """What the function is given of each input; all columns of one that is not named."""
        name = declaration.name
        if name in self.declared:
            return {}
        if name not in self._given:
            self._given[name] = self._built_with(declaration)
        return self._given[name]

    def _built_with(self, declaration: Declaration) -> Given:
        """What the function was given when its table was built; nothing said where that was another function."""
        table = self.table(declaration)
        head = table.head()
        if head is not None and head.cut > self.cut.number:
            head = table.head_at(self.cut.number) or head
        if head is None or not self.project.is_built(declaration, head):
            return {}
        return given(head.columns)

    def called(
        self, declaration: Declaration, frames: Sequence[DataFrame], held: Mapping[str, Sequence[str]] | None = None
    ) -> tuple[DataFrame, ...]:
        """What the declared function makes of `frames`, but for the columns `held` back of each input, ready for its
        kind: a frame per input, or the one of a View.
        """
        kind = declaration.kind
        refused = [self._refusals(source) if kind.heeds_refusals else None for source in declaration.inputs]
        frames = [
            f if r is None else refusals.delivered(f, self.project.contracts[s.name])
            for s, f, r in zip(declaration.inputs, frames, refused, strict=True)
        ]
        frames = [*map(with_one_zero, without(declaration, frames, held) if held else frames)]
        try:
            result = declaration(*(CarryingFrame(f) if kind.row_by_row else f.drop(*CARRIED) for f in frames))
        except Exception as error:
            raise_if_gone(error)
            columns = [column for frame in frames for column in frame.columns]
            raise function_output.fault(declaration, error, columns, of="the function") from error
        sides = function_output.frames(declaration, result, len(frames))
        if kind.row_by_row and kind.broadcast is None:
            sides = [self._keyed(source, rows) for source, rows in zip(declaration.inputs, sides, strict=True)]
        try:
            sides = [
                kind.prepare(with_one_zero(function_output.complete(declaration, rows, side)), side)
                for side, rows in enumerate(sides)
            ]
        except DeclarationError as fault:
            raise fault if fault.where else declaration.fault(fault.what, fix=fault.fix) from fault
        if not kind.heeds_refusals:
            return tuple(sides)
        both = zip(sides, refused, strict=True)
        return tuple(rows if r is None else rows.unionByName(r, allowMissingColumns=True) for rows, r in both)

    def _refusals(self, source: Input) -> DataFrame | None:
        """What a log says of records that were refused up to the cut; None where it says nothing."""
        settings, upto = self.project.settings, self.cut.batches.get(source.name, 0)
        if source.table is not None or not Log(settings, source.name).has_refusals(upto=upto):
            return None
        contract = self.project.contracts[source.name]
        rows = Log(settings, source.name).read(
            self.spark, contract, upto=upto, bucket=log.BROADCAST, voids=self.cut.voids, refusals=True
        )
        return refusals.without_fields(event_order(rows.drop(*HIDDEN)), contract)

    def _keyed(self, source: Input, rows: DataFrame) -> DataFrame:
        """The rows that have a key: a kind that heeds no broadcast events never sees one."""
        if not self.has_broadcasts(source) or ORDER not in rows.columns:
            return rows
        return rows.where(f"{ORDER}._bucket <> {log.BROADCAST}")

    def horizons(self, declaration: Declaration) -> tuple[datetime | None, ...]:
        """Of each input of the table `horizon`; none where its kind does not go by them."""
        return tuple(map(self.horizon, declaration.inputs)) if declaration.kind.needs_time else ()

    def horizon(self, source: Input) -> datetime | None:
        """Return the watermark of a log at the cut: None without events, ALL_FINAL if all its producers are closed."""
        head = Log(self.project.settings, source.name).head_at(self.version(source))
        return ALL_FINAL if head.is_ended else head.watermark

    def nothing(self, source: Input) -> DataFrame:
        """What `whole` gives, without its rows and without reading any."""
        if source.name not in self._nothing:
            self._nothing[source.name] = self._without_rows(source)
        return self._nothing[source.name]

    def _without_rows(self, source: Input) -> DataFrame:
        if source.table is None:
            return event_order(log.empty(self.spark, self.project.contracts[source.name]).drop(*HIDDEN))
        sides = self.sides(source.table, [self.nothing(parent) for parent in source.table.inputs])
        rows = self.evaluated(source.table, sides)
        empty = self.spark.createDataFrame([], rows.select(*visible(rows.columns)).schema)
        return _ordered(empty, source.table)

    def blank(self, source: Input, side: int) -> DataFrame:
        """As `nothing`; of its columns a plan shows which are read of input number `side`, see `columns.leaf`."""
        if source.table is None:
            types = log.types(self.project.contracts[source.name])
            return event_order(leaf(self.spark, {c: t for c, t in types.items() if c not in HIDDEN}, side))
        types = dict(self.nothing(source).drop(ORDER, SIGN).dtypes)
        return _ordered(leaf(self.spark, types, side), source.table)

    def stored(self, source: Input, side: int) -> tuple[DataFrame, list[str]]:
        """As `blank`, of a log made of leaves that are the columns of its files; with the names of the leaf's columns.

        So a plan shows what is read of the files.
        """
        if source.table is not None:
            types = dict(self.empty(source).drop(ORDER, SIGN).dtypes)
            return _ordered(leaf(self.spark, types, side), source.table), [*types]
        types = dict(to_frame(self.spark, self._scan(source).schema().empty_table()).dtypes)
        log, contract = Log(self.project.settings, source.name), self.project.contracts[source.name]
        keys = no_files(self.spark, {SUBJECT: "string", KEY: "binary"})
        rows = log.events_of(leaf(self.spark, types, side), contract, keys, voids=self.cut.voids)
        return event_order(rows.drop(*HIDDEN)), [*types]

    def columns(self, source: Input) -> dict[str, str]:
        """The columns that functions may be given of a log now, or of a table at the cut, each with its type."""
        if source.table is None:
            return self.project.fields(source.name)
        return self.table(source.table).columns(self.version(source))

    def broadcasts(self, source: Input) -> DataFrame | None:
        """All broadcast events of a log up to the cut; None where its contract has none."""
        return self._events(source.name, after=0, bucket=log.BROADCAST) if self.has_broadcasts(source) else None

    def has_broadcasts(self, source: Input) -> bool:
        """Whether `source` is a log whose contract declares broadcast events."""
        return source.table is None and self.project.contracts[source.name].broadcast is not None

    def whole(self, source: Input, times: Span | None = None) -> DataFrame:
        """All rows of `source` at the cut, each with its order and the sign +1; of a log those at `times`."""
        if source.table is None and times is not None:
            return self._events(source.name, after=0, times=times)
        if source.table is None:
            return self.kept[source.name] if source.name in self.kept else self._events(source.name, after=0)
        if self.recompute and not self._is_proved(source.table):
            rows = self.evaluate(source.table)
            return _ordered(rows.select(*visible(rows.columns)), source.table)
        rows = self.table(source.table).read(self.spark, self.version(source))
        return _ordered(rows.select(*visible(rows.columns)), source.table)

    def narrowed(
        self,
        source: Input,
        keys: Sequence[Mapping[str, Any]],
        times: Span | None = None,
        only: Collection[str] | None = None,
    ) -> DataFrame:
        """As `whole`, at least the rows that equal one of `keys` in its `searchable` columns, nulls included.

        Of a log what is made of other columns of its files than `only` may be null.
        """
        scan = self._scan(source)
        if source.table is None:
            return self._events(source.name, after=0, keys=scan.keys(keys), times=times, only=only)
        rows = scan.near(self.spark, scan.keys(keys))
        return _ordered(rows.select(*visible(rows.columns)), source.table)

    def empty(self, source: Input) -> DataFrame:
        """As `nothing`, by the schema that a table has."""
        if source.table is None or not self.has(source.table):
            return self.nothing(source)
        schema = self._scan(source).schema()
        rows = schema.empty_table().select(visible(schema.names))
        return _ordered(to_frame(self.spark, rows), source.table)

    def searchable(self, source: Input) -> set[str]:
        """The columns of `source` that its files have as they are, and that tell which rows concern a key."""
        if source.table is not None:
            return set(visible(self._scan(source).schema().names)) if self.has(source.table) else set()
        if self.has_broadcasts(source):
            return set()
        contract = self.project.contracts[source.name]
        stored = contract_versions.versions(self.project.settings, contract.name)
        return unchanged(evolution.with_current(stored, contract))

    def _scan(self, source: Input) -> Scan:
        """All that is stored of a log, or a table at the cut."""
        if source.table is None:
            return Scan(Log(self.project.settings, source.name).path)
        return Scan(self.table(source.table).path, self.version(source))

    def has(self, declaration: Declaration) -> bool:
        """Whether a table is at the cut."""
        return self.table(declaration).head_at(self.cut.number) is not None

    def _is_proved(self, declaration: Declaration) -> bool:
        head = self.table(declaration).head_at(self.cut.number)
        return head is not None and self.proved.get(declaration.name) == head.version

    def changes(self, source: Input, head: TableHead) -> DataFrame | None:
        """Signed rows: what came to `source` (+1) and went from it (-1) since `head`; None if nothing did."""
        settings, before = self.project.settings, head.inputs[source.name]
        if source.table is not None:
            table, now = self.table(source.table), self._at_cut(source.table)
            if head.physical.get(source.name) != table.home:
                raise FeedGap(f"{source.name} was another Delta table then")
            if not had(table.heads(), before, head.cut):
                raise FeedGap(f"{source.name} has lost versions that were read then")
            if now.origin == before:
                return None
            return _ordered(table.changes(self.spark, after=before, upto=now.version), source.table)
        after, voids = self.cut.batches.get(source.name, 0), head.voids
        if voids and not has_void(settings, voids):
            raise FeedGap(f"void {voids}, which was applied then, was lost")
        if erasures.erased(settings, source.name, voids, self.cut.voids):
            raise FeedGap(f"people of {source.name} were forgotten since")
        voided = self.voided_since(source, head)
        frames = [self._events(source.name, after=before)] if after > before else []
        frames += [self._voided(source.name, before, voids, voided)] if voided else []
        return frames[0].unionByName(frames[1]) if len(frames) == 2 else next(iter(frames), None)

    def voided_since(self, source: Input, head: TableHead) -> list[Void]:
        """The voids since `head` of what a table had read of a log by then."""
        before, heeded = head.inputs[source.name], head.voids
        voids = voided(self.project.settings, source.name, heeded, self.cut.voids)
        return [void for void in voids if void.batch <= before or void.source is not None]

    def voided(self, source: Input) -> DataFrame | None:
        """The events of a log up to the cut that do not count there, each with the sign -1; None where all count."""
        if source.table is not None:
            return None
        upto = self.version(source)
        voids = voided(self.project.settings, source.name, 0, self.cut.voids)
        return self._voided(source.name, upto, 0, voids) if voids else None

    def versions(self, declaration: Declaration) -> dict[str, int]:
        """What the table is derived from at this cut: {stream: last batch, table: Delta version}.

        A version that compaction made counts as the one whose rows it has.
        """
        return {
            source.name: self.version(source) if source.table is None else self._at_cut(source.table).origin
            for source in declaration.inputs
        }

    def homes(self, declaration: Declaration) -> dict[str, str]:
        """Which Delta tables those versions are of: {table: its home}."""
        return {s.name: self.table(s.table).home for s in declaration.inputs if s.table is not None}

    def version(self, source: Input) -> int:
        """The last batch of a log, or the Delta version of a table, at the cut.

        Raises DeclarationError where the table has not reached the cut.
        """
        if source.table is None:
            return self.cut.batches.get(source.name, 0)
        return self._at_cut(source.table).version

    def _at_cut(self, declaration: Declaration) -> TableHead:
        head = self.table(declaration).head_at(self.cut.number)
        if head is None:
            raise not_at(self.project, declaration, self.cut.number)
        return head

    def rows(self, declaration: Declaration) -> int:
        """How many rows an evaluation of the whole table reads."""
        return sum(self.size(source) for source in declaration.inputs)

    def size(self, source: Input, *, after: int = 0) -> int:
        """How many rows there are to read at most: all, or of a log those after batch `after`."""
        if source.table is None:
            path, upto = Log(self.project.settings, source.name).path, self.version(source)
            return Scan(path, bounds={"_batch": (after + 1, upto)}).rows() if upto else 0
        return Scan(self.table(source.table).path, self.version(source)).rows()

    def size_of_changes(self, source: Input, head: TableHead) -> int:
        """How many rows came to `source`, or changed or went from it, since `head`, at most."""
        before = head.inputs[source.name]
        if source.table is None:
            return self.size(source, after=before) + self.size_of_voided(source, head)
        return self.table(source.table).changed(after=before, upto=self._at_cut(source.table).version)

    def size_of_voided(self, source: Input, head: TableHead) -> int:
        """How many events have been voided since `head`, at most."""
        path, voids = Log(self.project.settings, source.name).path, self.voided_since(source, head)
        batches = [void.batch for void in voids if void.whole and void.source is None]
        if any(void.source is not None for void in voids):
            return Scan(path, bounds={"_batch": (1, max(void.batch for void in voids))}).rows()
        return len(voids) + sum(Scan(path, bounds={"_batch": (batch, batch)}).rows() for batch in batches)

    def _events(  # noqa: PLR0913 which part of a log, said by name
        self,
        stream: str,
        *,
        after: int,
        bucket: int | None = None,
        keys: pa.Table | None = None,
        times: Span | None = None,
        only: Collection[str] | None = None,
    ) -> DataFrame:
        rows = Log(self.project.settings, stream).read(
            self.spark,
            self.project.contracts[stream],
            upto=self.cut.batches.get(stream, 0),
            after=after,
            bucket=bucket,
            keys=keys,
            only=only,
            times=times,
            voids=self.cut.voids,
        )
        return event_order(rows.drop(*HIDDEN))

    def _voided(self, stream: str, upto: int, heeded: int, voids: Sequence[Void]) -> DataFrame:
        """Events up to batch `upto` that were there at void number `heeded` and went by `voids` since, as -1."""
        first = 1 if any(void.source is not None for void in voids) else min(void.batch for void in voids)
        rows = Log(self.project.settings, stream).read(
            self.spark,
            self.project.contracts[stream],
            upto=min(upto, max(void.batch for void in voids)),
            after=first - 1,
            voids=heeded,
        )
        return event_order(taken_back(rows, voids).drop(*HIDDEN), sign=-1)


def event_order(rows: DataFrame, *, sign: int | Column = 1) -> DataFrame:
    """Events of a log carry as their order when they came, and their place."""
    from pyspark.sql import functions as F

    return rows.withColumns({ORDER: F.struct("_batch", "_arrival", "_bucket", "_offset"), SIGN: F.lit(sign)})


def _ordered(rows: DataFrame, table: Declaration) -> DataFrame:
    """Rows of a table carry their identity as their order, and +1 unless they have a sign."""
    from pyspark.sql import functions as F

    sign = F.col(SIGN) if SIGN in rows.columns else F.lit(1)
    return rows.withColumns({ORDER: F.struct(*table.kind.identity), SIGN: sign})
