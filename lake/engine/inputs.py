"""Evaluation of a project's tables at a cut: their functions over the rows of their inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING, Final

from lake import cost
from lake.config import Settings
from lake.engine import function, integrity
from lake.engine.columns import Analysed, Given, drop_withheld, given_columns, leaf_frame, withheld
from lake.engine.stored_rows import HIDDEN, StoredRows, event_order, ordered
from lake.ingest import event_columns
from lake.kinds.columns import ORDER, SIGN, visible, with_one_zero
from lake.kinds.kind import Kind
from lake.lazy import DataFrame, SparkSession
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.session import SessionFactory
from lake.session.file_modes import device, free
from lake.session.in_process.mode import in_process
from lake.session.remote import is_here
from lake.session.spark_session import local_dirs
from lake.store import log_rows
from lake.store.duckdb_tables import in_process_session
from lake.store.ledger.cuts import Cut
from lake.store.scan import Span, to_frame
from lake.store.table_head import Meanings, TableHead
from lake.store.tables import Table, visible_columns

if TYPE_CHECKING:
    from datetime import datetime

GB: Final = 1 << 30


@dataclass
class Inputs(StoredRows):
    """Inputs of a project's tables at `cut`, and the tables evaluated from them.

    - `recompute`: evaluate input tables from the logs, except those `proved` at a version, {table: version}.
    - `cached`: rows to read in place of logs.
    - `declared`: tables evaluated by their current definition. Others get the columns that they were built with; the
      columns `withheld` from them are recorded, {table: {input: columns}}.
    - `sound_logs`: logs found to be undamaged.
    """

    connect: SessionFactory
    project: Project
    cut: Cut
    recompute: bool = False
    proved: dict[str, int] = field(default_factory=dict)
    cached: dict[str, DataFrame] = field(default_factory=dict)
    declared: set[str] = field(default_factory=set)
    withheld: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    analysed: dict[str, Analysed] = field(default_factory=dict)
    meanings: dict[str, Meanings] = field(default_factory=dict)
    sound_logs: set[str] = field(default_factory=set)
    _evaluated: dict[str, DataFrame] = field(default_factory=dict)
    _no_rows: dict[str, DataFrame] = field(default_factory=dict)
    _given_columns: dict[str, Given] = field(default_factory=dict)
    _checking: Lock = field(default_factory=Lock)

    @cached_property
    def in_process(self) -> Inputs:
        """The same inputs, evaluated by DuckDB in this process."""
        session = in_process_session()
        return self.connected(lambda: session)

    def connected(self, connect: SessionFactory) -> Inputs:
        """Return the same inputs, evaluated in another session."""
        return replace(self, connect=connect, cached={}, _evaluated={}, _no_rows={})

    @property
    def collected_rows(self) -> int:
        return self.project.settings.collected_rows

    def check_integrity(self, declaration: Declaration) -> None:
        """Raise LakeError if a log that the table reads is damaged; check each log once."""
        with self._checking:  # other tables that read the log wait for the result
            streams = {source.name for source in declaration.inputs if source.is_log} - self.sound_logs
            integrity.check_integrity_at(self.project, dict.fromkeys(streams))
            self.sound_logs |= streams

    def whole(self, source: Input, times: Span | None = None) -> DataFrame:
        if times is None and source.is_log and source.name in self.cached:
            return self.cached[source.name]
        if source.table is not None and self._is_recomputed(source.table):
            rows = self.evaluate(source.table)
            return ordered(rows.select(*visible(rows.columns)), source.table)
        return self.stored(source, times)

    def columns(self, source: Input) -> dict[str, str]:
        """Return columns of an input; a recomputed table at the cut may be deleted, so it is not read."""
        if source.table is None or not self._is_recomputed(source.table):
            return super().columns(source)
        return visible_columns(self.no_rows(source).schema.json())

    def has(self, declaration: Declaration) -> bool:
        """Return whether the table is at the cut and not recomputed, so that its rows are read."""
        return not self._is_recomputed(declaration) and super().has(declaration)

    def _is_recomputed(self, declaration: Declaration) -> bool:
        if not self.recompute:
            return False
        head = self.table(declaration).head_at(self.cut.number)
        return head is None or self.proved.get(declaration.name) != head.version

    def no_rows(self, source: Input) -> DataFrame:
        """Return a frame with the columns of `whole`; nothing is read."""
        if source.name not in self._no_rows:
            self._no_rows[source.name] = self._without_rows(source)
        return self._no_rows[source.name]

    def _without_rows(self, source: Input) -> DataFrame:
        if source.table is None:
            return event_order(log_rows.empty(self.spark, self.project.contracts[source.name]).drop(*HIDDEN))
        sides = self.sides(source.table, [self.no_rows(parent) for parent in source.table.inputs])
        rows = self.evaluated(source.table, sides)
        empty = self.spark.createDataFrame([], rows.select(*visible(rows.columns)).schema)
        return ordered(empty, source.table)

    def filled(self, declaration: Declaration, frames: Sequence[DataFrame | None]) -> list[DataFrame]:
        both = zip(declaration.inputs, frames, strict=True)
        return [self.no_rows(source) if frame is None else frame for source, frame in both]

    def no_stored_rows(self, source: Input) -> DataFrame:
        """Do as `no_rows`, but with the schema of the stored table if it is at the cut."""
        if source.table is None or not self.has(source.table):
            return self.no_rows(source)
        schema = self.scan(source).schema()
        rows = schema.empty_table().select(visible(schema.names))
        return ordered(to_frame(self.spark, rows), source.table)

    def probe(self, source: Input, side: int) -> DataFrame:
        """Do as `no_rows`, but as a leaf: plans over it show which columns are read."""
        if source.table is None:
            types = log_rows.types(self.project.contracts[source.name])
            return event_order(leaf_frame(self.spark, {c: t for c, t in types.items() if c not in HIDDEN}, side))
        types = dict(self.no_rows(source).drop(ORDER, SIGN).dtypes)
        return ordered(leaf_frame(self.spark, types, side), source.table)

    def probe_files(self, source: Input, side: int) -> tuple[DataFrame, list[str]]:
        """Do as `probe`, with the names of the leaf's columns; for a log those of its files."""
        if source.table is None:
            return self.files_of_log(source, side)
        types = dict(self.no_stored_rows(source).drop(ORDER, SIGN).dtypes)
        return ordered(leaf_frame(self.spark, types, side), source.table), [*types]

    def evaluate(self, declaration: Declaration) -> DataFrame:
        if declaration.name not in self._evaluated:
            if not in_process(self.spark):
                warn_of_spill(self.project.settings, declaration.name, lambda: self.file_size(declaration))
            sides = self.sides(declaration, [self.whole(source) for source in declaration.inputs])
            self._evaluated[declaration.name] = self.evaluated(declaration, sides)
        return self._evaluated[declaration.name]

    def evaluated(self, declaration: Declaration, sides: Sequence[DataFrame]) -> DataFrame:
        return self._finished(declaration, declaration.kind.evaluate(*sides))

    def absorbed(self, declaration: Declaration, old: DataFrame, changes: Sequence[DataFrame]) -> DataFrame:
        return self._finished(declaration, declaration.kind.absorb(old, *changes))

    def _finished(self, declaration: Declaration, rows: DataFrame) -> DataFrame:
        return with_one_zero(declaration.kind.at_horizon(rows, *self.horizons(declaration)))

    def sides(self, declaration: Declaration, frames: Sequence[DataFrame]) -> tuple[DataFrame, ...]:
        held = withheld(declaration, frames, self.given_columns(declaration))
        if any(held.values()):
            self.withheld[declaration.name] = held
        return self.function_rows(declaration, frames, held)

    def function_rows(
        self, declaration: Declaration, frames: Sequence[DataFrame], held: Mapping[str, Sequence[str]] | None = None
    ) -> tuple[DataFrame, ...]:
        """Return the function's rows for `frames`, prepared for the kind, without columns `held` back.

        Raises DeclarationError if the function fails or loses columns that its kind needs.
        """
        kind, sources = declaration.kind, declaration.inputs
        refused = [self.refusals(source) if kind.needs_refusals else None for source in sources]
        frames = [
            f if r is None else event_columns.with_delivery(f, self.project.contracts[s.name])
            for s, f, r in zip(sources, frames, refused, strict=True)
        ]
        frames = [*map(with_one_zero, drop_withheld(declaration, frames, held) if held else frames)]
        sides = function.call(declaration, frames)
        if kind.row_by_row and kind.broadcast is None:
            sides = [self._without_broadcasts(source, rows) for source, rows in zip(sources, sides, strict=True)]
        sides = function.prepared(declaration, sides)
        if not kind.needs_refusals:
            return tuple(sides)
        both = zip(sides, refused, strict=True)
        return tuple(rows if r is None else rows.unionByName(r, allowMissingColumns=True) for rows, r in both)

    def _without_broadcasts(self, source: Input, rows: DataFrame) -> DataFrame:
        if not self.has_broadcasts(source) or ORDER not in rows.columns:
            return rows
        return rows.where(f"{ORDER}._bucket <> {log_rows.BROADCAST}")

    def given_columns(self, declaration: Declaration) -> Given:
        name = declaration.name
        if name in self.declared:
            return {}
        if name not in self._given_columns:
            self._given_columns[name] = self._built_with(declaration)
        return self._given_columns[name]

    def _built_with(self, declaration: Declaration) -> Given:
        table = self.table(declaration)
        head = table.head()
        if head is not None and head.cut > self.cut.number:
            head = table.head_at(self.cut.number) or head
        if head is None or not self.project.is_built(declaration, head):
            return {}
        return given_columns(head.columns)


@dataclass(frozen=True)
class Evaluation:
    """Declared table at the cut of its `inputs`; `head` is None before it was built."""

    inputs: Inputs
    declaration: Declaration
    table: Table
    head: TableHead | None

    @classmethod
    def of(cls, inputs: Inputs, declaration: Declaration) -> Evaluation:
        table = inputs.table(declaration)
        return cls(inputs, declaration, table, table.head())

    @property
    def in_process(self) -> Evaluation:
        return replace(self, inputs=self.inputs.in_process)

    @property
    def since(self) -> TableHead:
        assert self.head is not None, self.declaration.name
        return self.head

    @property
    def spark(self) -> SparkSession:
        return self.inputs.spark

    @property
    def kind(self) -> Kind:
        return self.declaration.kind

    @property
    def identity(self) -> tuple[str, ...]:
        return self.declaration.kind.identity

    @property
    def horizons(self) -> tuple[datetime | None, ...]:
        return self.inputs.horizons(self.declaration)

    def all_rows(self) -> DataFrame:
        self.inputs.check_integrity(self.declaration)
        return self.inputs.evaluate(self.declaration)

    def is_built(self) -> bool:
        return self.head is not None and self.inputs.project.is_built(self.declaration, self.head)


def warn_of_spill(settings: Settings, table: str, size_of: Callable[[], int]) -> None:
    """Warn of each disk of this machine with less free space than evaluating `size_of()` bytes may spill to it."""
    if not is_here(settings):
        return
    every, size = sorted(local_dirs(settings), key=device), size_of()
    for _, together in groupby(every, device):
        folders = [*together]
        needed, left = size * cost.SPILLED_SHARE * len(folders) / len(every), free(folders[0])
        if needed > left:
            logging.getLogger("lake").warning(
                "%s: Spark may put %.1f GB on the disk while it evaluates %.1f GB of inputs, and %s has %.1f GB free:"
                ' free some space, or have "spark.local.dir" in [tool.lake.spark.conf] name a folder on a larger disk',
                *(table, needed / GB, size / GB, folders[0], left / GB),
            )
