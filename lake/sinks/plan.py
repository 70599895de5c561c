"""Plan of a delivery: for each table, the net changes since the target's edition, or all rows.

All rows are sent if the target has none or a different shape, or if its edition has expired or belongs to another life
of the warehouse (after a restore). Tables of mode upsert and append keep rows that the edition lacks, so they are
replaced only on request (`--resync`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from itertools import chain

from lake.config import Settings
from lake.errors import DeclarationError, StartOver, did_you_mean
from lake.lazy import pa
from lake.read.net_changes import NetChanges, TableInEdition, stream
from lake.session.duck import connect
from lake.sinks.condition import query_batch
from lake.sinks.kind import DeclaredSink, DeclaredTable
from lake.sinks.sink import SinkDelivery, SinkPosition, TableChanges, TargetTable
from lake.store.ledger import editions
from lake.store.ledger.editions import Edition
from lake.text import literal, quoted


@dataclass(frozen=True)
class DeclaredChanges:
    """Changes of a table's declared columns that satisfy its condition. Updates of other columns only are dropped."""

    net: NetChanges
    table: DeclaredTable

    def batches(self) -> pa.RecordBatchReader:
        changes = stream(self._selected()) if self.table.columns or self._common else self.net.arrow()
        return stream(self.table.condition.of(changes)) if self.table.condition else changes

    def _selected(self) -> Iterator[pa.RecordBatch]:
        was, now = (_image(row, self._common or self.table.columns, self._retyped) for row in ("before", "after"))
        sides = {"before": self.net.before, "after": self.net.after}
        images = ", ".join(f"{_image(row, self._named(side))} AS {row}" for row, side in sides.items())
        sql = f"SELECT change, {images} FROM changes WHERE change <> 'update' OR {was} IS DISTINCT FROM {now}"
        changes = self.net.arrow()
        with connect() as con:
            for batch in chain([pa.RecordBatch.from_pylist([], schema=changes.schema)], changes):
                yield query_batch(con, batch, sql)

    @property
    def _common(self) -> list[str]:
        """Columns that both versions of the table have; [] if their types are the same anyway."""
        before, after = self.net.before, self.net.after
        if before is None or after is None or before.types == after.types:
            return []
        return [column for column in self.table.columns or after.types if column in before.types]

    @property
    def _retyped(self) -> set[str]:
        before, after = self.net.before, self.net.after
        return {c for c in self._common if before and after and before.types[c] != after.types[c]}

    def _named(self, side: TableInEdition | None) -> list[str]:
        types = (side or self.net.after or self.net.before).types  # type: ignore[union-attr]  # one of them is there
        return [column for column in self.table.columns or types if column in types]


def _image(row: str, columns: Iterable[str], retyped: Collection[str] = ()) -> str:
    """Return SQL of a struct. Columns of two types are comparable: as JSON, which rounds decimals, and as text."""
    values = {column: f"{row}.{quoted(column)}" for column in columns}
    values |= {c: f"{{json: to_json({values[c]}), text: CAST({values[c]} AS VARCHAR)}}" for c in retyped}
    fields = ", ".join(f"{literal(column)}: {value}" for column, value in values.items())
    return f"CASE WHEN {row} IS NOT NULL THEN {{{fields}}} END"


@dataclass(frozen=True)
class DeliveryPlan:
    settings: Settings
    sink: DeclaredSink
    position: SinkPosition | None
    edition: Edition
    resync: bool = False

    @cached_property
    def base(self) -> Edition | None:
        return self.base_of(self.settings, self.position) if self.position else None

    @staticmethod
    def base_of(settings: Settings, position: SinkPosition) -> Edition | None:
        """Return the edition at `position`; None if this warehouse did not publish it or no longer keeps it."""
        if not editions.is_kept(settings, position.edition):
            return None
        edition = editions.get_edition(settings, position.edition)
        return edition if _moment(edition) == position.published_at else None

    @property
    def is_done(self) -> bool:
        if self.position is None or self.resync:
            return False
        edition, rejected = self.edition, self.position.rejected
        tables = {table.name: (target.shape, target.description) for table, target, _ in self.tables}
        return self.position == SinkPosition(edition.number, edition.cut, _moment(edition), tables, rejected)

    def delivery(self) -> SinkDelivery:
        """Raises DeclarationError for tables missing from the edition, StartOver if a resync is required."""
        base = self.base
        changes = [self._changes(table, target, current, base) for table, target, current in self.tables]
        return SinkDelivery(
            self.sink.name,
            self.position,
            self.edition.number,
            self.edition.cut,
            self.edition.published_at,
            changes,
            anew=self.resync,
        )

    @cached_property
    def tables(self) -> list[tuple[DeclaredTable, TargetTable, TableInEdition]]:
        return [self.table(name) for name in self.sink.tables]

    def table(self, name: str) -> tuple[DeclaredTable, TargetTable, TableInEdition]:
        table, current = self.sink.tables[name], TableInEdition.of(self.settings, name, self.edition)
        if current is None:
            raise DeclarationError(
                f"no table {name!r} in edition {self.edition.number}",
                where=self.sink.where,
                fix=did_you_mean(name, self.edition.tables),
            )
        return table, self._target_table(table, current), current

    def _target_table(self, table: DeclaredTable, current: TableInEdition) -> TargetTable:
        columns = {column.name: column for column in current.table.columns}
        named = table.columns or tuple(columns)
        for column in named:
            if column not in columns:
                raise DeclarationError(
                    f"{table.name} has no column {column!r}", where=self.sink.where, fix=did_you_mean(column, columns)
                )
        if missing := [column for column in current.identity if column not in named]:
            raise DeclarationError(
                f"{table.name}: the columns leave out {', '.join(missing)}, by which its rows are told apart",
                where=self.sink.where,
                fix=f"name all of {', '.join(current.identity)}",
            )
        chosen = tuple(columns[column] for column in named)
        return TargetTable(
            table.name,
            table.far,
            columns=chosen,
            identity=current.identity,
            doc=current.table.doc,
            mode=table.mode,
            options=table.options,
            shaped=table.shaped,
        )

    def _changes(
        self, table: DeclaredTable, target: TargetTable, current: TableInEdition, base: Edition | None
    ) -> TableChanges:
        stored = self.position.tables.get(table.name) if self.position else None
        before = TableInEdition.of(self.settings, table.name, base)
        whole = self.resync or before is None or stored is None or stored[0] != target.shape
        if whole and stored is not None and table.mode != "mirror" and not self.resync:
            raise self._start_over(table, expired=before is None)
        is_first = stored is None and not self.resync
        if is_first and self.sink.begin == "now":
            before, whole = current, False
        source = DeclaredChanges(NetChanges(self.settings, None if whole else before, current), table)
        rejected = () if self.position is None else self.position.rejected
        keys = frozenset(row.key for row in rejected if row.table == table.name)
        described = whole or is_first or (stored is not None and stored[1] != target.description)
        return TableChanges(target, source, whole, described, keys)

    def _start_over(self, table: DeclaredTable, *, expired: bool) -> StartOver:
        assert self.position is not None
        has = f"edition {self.position.edition}, which it has, has expired"
        why = has if expired else "what is there has other columns, or is another table"
        return StartOver(
            f"sink {self.sink.name} must begin anew with {table.name}, of mode {table.mode}: {why}",
            where=self.sink.where,
            fix=f"lake deliver {self.sink.name} --resync sends all rows of the edition in the place of what is there",
        )


def _moment(edition: Edition) -> str:
    """Return the time that distinguishes editions with the same number."""
    return edition.published_at.astimezone(UTC).isoformat()
