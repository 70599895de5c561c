"""Ledger table: an append-only Delta table that is small enough to be read completely without a JVM.

An entry of a numbered table is one commit: one row, or several checks made together, and in the commit's position the
table's state after it, so the latest entry is read from one commit. Numbers have no gaps: they are taken and written
under a lease, or a writer whose number is taken uses the next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from functools import cache, cached_property
from types import UnionType
from typing import Any, Final, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.store import delta, delta_writer, duckdb_tables, durable
from lake.store.locks.lease import lease
from lake.store.view import view
from lake.store.warehouse import Location, Warehouse
from lake.text import quoted

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
COMPACT_EVERY: Final = 32
"""Entries after which the one-row files are compacted, so that reading stays cheap."""
Record = TypeVar("Record")
Entry: TypeAlias = Any
"""Record (a dataclass), or values by column."""


@dataclass(frozen=True)
class LedgerTable:
    """Table `meta/<name>`; `columns` are DuckDB types. Nested values are stored as JSON text.

    A commit to a `durable` one is flushed before the writer continues, because nothing else has its content.
    """

    name: str
    columns: Mapping[str, str]
    durable: bool = False

    def location(self, settings: Settings) -> Location:
        return Warehouse(settings).book(self.name)

    def hold_lease(self, settings: Settings, *, hosts: bool = True) -> AbstractContextManager[object]:
        return lease(settings, self.location(settings).lease, hosts=hosts)

    def head(self, settings: Settings) -> LedgerHead:
        location = self.location(settings)
        return LedgerHead(self, settings, delta.head(location.path, location.app) or delta.start(location.app))

    @contextmanager
    def writing(self, settings: Settings) -> Iterator[LedgerHead]:
        """Hold the lease while the block runs, and yield the head to add entries to."""
        with self.hold_lease(settings):
            yield self.head(settings)

    def record(self, settings: Settings, entries: Callable[[int], Sequence[Entry]]) -> int:
        """Commit the `entries` of the next number and return it; of the one after if another host was first."""
        while True:
            with view(), self.hold_lease(settings, hosts=False):
                head = self.head(settings)
                position = head.position.next()
                try:
                    self.append(settings, entries(position.txn), position)
                except Unavailable:
                    if delta_writer.is_committed(self.location(settings).path, position.writer):
                        self._flush(settings)
                    elif self.head(settings).position.txn == head.position.txn:
                        raise
                    else:
                        continue
                with suppress(Unavailable):  # the next one due does it
                    self.tidy(settings, position)
                return position.txn

    def tidy(self, settings: Settings, newest: delta.Position) -> None:
        """Compact the files if an entry at `newest` makes that due. The caller holds the lease."""
        if newest.txn % COMPACT_EVERY == 0:
            with delta_writer.changing(self.location(settings).path) as (table, properties):
                table.optimize.compact(commit_properties=properties)
            self._flush(settings)

    def append(self, settings: Settings, entries: Iterable[Entry], position: delta.Position | None = None) -> None:
        stored = [[_stored(value) for value in _values(entry)] for entry in entries]
        duckdb_tables.append(self.location(settings).path, self._schema, stored, position)
        self._flush(settings)

    @cached_property
    def _schema(self) -> str:
        return ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns.items())

    def _flush(self, settings: Settings) -> None:
        if self.durable:
            durable.flush(self.location(settings).path)

    def rows(self, settings: Settings, query: str, *parameters: Any) -> list[dict[str, Any]]:
        return duckdb_tables.rows(self.location(settings).path, query, *parameters)

    def greatest(self, settings: Settings, column: str, where: str = "true", *parameters: Any) -> int:
        return duckdb_tables.greatest(self.location(settings).path, column, where, *parameters)

    def find(self, settings: Settings, condition: str, *parameters: Any) -> list[dict[str, Any]]:
        return self.rows(settings, f"SELECT * FROM t WHERE {condition}", *parameters)


@dataclass(frozen=True)
class LedgerHead:
    """Newest entry of a numbered `table`."""

    table: LedgerTable
    settings: Settings
    position: delta.Position

    @property
    def state(self) -> Mapping[str, Any]:
        """State of the table after the entry, {} before the first."""
        return self.position.data

    def add(self, *entries: Entry, **state: Any) -> None:
        """Commit `entries` and the new `state` on top of this head. The caller holds the lease."""
        position = self.position.next(**state)
        self.table.append(self.settings, entries, position)
        self.table.tidy(self.settings, position)


def _values(entry: Entry) -> Iterable[Any]:
    return entry if isinstance(entry, Sequence) else asdict(entry).values()


_SQL_TYPES: Final = {int: "BIGINT", float: "DOUBLE", datetime: "TIMESTAMPTZ"}


def columns_of(record: type) -> dict[str, str]:
    """Return the columns for the fields of a dataclass: texts and nested values are VARCHAR."""
    types = {name: [_SQL_TYPES[kind] for kind in kinds if kind in _SQL_TYPES] for name, kinds in _kinds(record).items()}
    return {name: next(iter(sql), "VARCHAR") for name, sql in types.items()}


def record_of(record: Callable[..., Record], values: Mapping[str, Any]) -> Record:
    """Return a record from a row, which has nested values as JSON text, or from a state, which has times as text.

    Values that are no field of the record are ignored.
    """
    kinds = _kinds(record)
    return record(**{name: _parsed(kinds[name], value) for name, value in values.items() if name in kinds})


def _parsed(kinds: Sequence[Any], value: Any) -> Any:
    if isinstance(value, str) and datetime in kinds:
        return datetime.fromisoformat(value)
    for kind in kinds:
        if get_origin(kind) in (Mapping, Sequence, tuple):
            return _nested(kind, json.loads(value) if isinstance(value, str) else value)
    return value


def _nested(kind: Any, value: Any) -> Any:
    part = get_args(kind)[-1]
    if isinstance(part, type) and is_dataclass(part):
        return {name: part(**fields) for name, fields in value.items()}
    return tuple(value) if get_origin(kind) is tuple else value


@cache
def _kinds(record: Hashable) -> dict[str, tuple[Any, ...]]:
    """Return the types of each field, of which None may be one."""
    hints = get_type_hints(record).items()
    return {name: get_args(hint) if isinstance(hint, UnionType) else (hint,) for name, hint in hints}


def as_state(record: Any) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(record).items()}


def check_name(name: str, noun: str) -> None:
    """Raise DeclarationError if it is no name of a `noun`, such as a consumer or a reader."""
    if not NAME.fullmatch(name):
        raise DeclarationError(f"{name!r} is not a valid name of a {noun}", fix="use up to 63 letters, digits, _ or -")


def unknown_entry(what: str, number: int, latest: int, fix: str) -> DeclarationError:
    if latest == 0:
        return DeclarationError(f"no {what} {number}: there is no {what} yet", fix=fix)
    if latest == 1:
        return DeclarationError(f"no {what} {number}: only {what} 1 exists", fix=f"name {what} 1")
    return DeclarationError(f"no {what} {number}: {what}s 1 to {latest} exist", fix="name one of those")


def _stored(value: Any) -> Any:
    return json.dumps(value, default=str) if isinstance(value, Mapping | list | tuple) else value
