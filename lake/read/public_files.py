"""Public files of a table: its own, or copies without state columns.

There is one copy per table version, in a folder of `.lake/copies` whose time is its last use.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Final

import duckdb

from lake.config import Settings
from lake.errors import Unavailable
from lake.read.locked_database import connect_spilling, select
from lake.read.sql import EditionReader
from lake.session import file_modes
from lake.store import duckdb_tables
from lake.store.ledger.editions import EditionTable, kept_editions
from lake.store.snapshot import Published
from lake.store.storage import Address
from lake.store.temporary_files import delete_files, modified_at
from lake.store.warehouse import Warehouse
from lake.text import literal, parquet_rows

FILE_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class PublicFile:
    """`place` is a path in the warehouse (`w/…`) or in the copies (`c/…`)."""

    place: str
    size: int
    rows: int


def write_copy(reader: EditionReader, table: Published, folder: Path) -> None:
    """Write and sync a copy of the visible columns. Raises LakeError."""
    with connect_spilling(reader.settings) as con:
        con.execute(f"SET memory_limit = '{reader.settings.serve.query_memory}B'")
        options = f"FORMAT parquet, COMPRESSION snappy, FILE_SIZE_BYTES {FILE_BYTES}, OVERWRITE_OR_IGNORE true"
        try:
            con.execute(f"COPY ({select(con, table)}) TO {literal(str(folder))} ({options})")
        except duckdb.Error as error:
            raise reader.unreadable(error, [table]) from None
    for file in folder.iterdir():
        file.chmod(0o600)
    file_modes.flush([*folder.iterdir(), folder])


class PublicFiles:
    """Public files of tables, cached; thread-safe."""

    def __init__(
        self, settings: Settings, copy: Callable[[EditionReader, Published, Path], object] = write_copy
    ) -> None:
        self._settings = settings
        self._copy = copy
        self._own: dict[str, list[PublicFile] | None] = {}
        self._locks: dict[str, Lock] = {}
        self._lock = Lock()

    def parts(self, reader: EditionReader, name: str) -> list[PublicFile]:
        table, entry = reader.table(name), reader.edition.tables[name]
        key = _key(table, entry)
        with self._lock:
            lock = self._locks.setdefault(key, Lock())
        with lock:
            if key not in self._own:
                self._own[key] = self._own_files(table)
            own = self._own[key]
            return own if own is not None else self._copied_files(reader, table, key)

    def sweep(self, *, before: datetime) -> None:
        """Delete copies of tables in no kept edition, unless used since `before`."""
        kept = {_version_key(entry) for edition in kept_editions(self._settings) for entry in edition.tables.values()}
        with self._lock:
            for key in [key for key in self._own if key.rpartition(".")[0] not in kept]:
                del self._own[key]
                self._locks.pop(key, None)
        old = [copy for copy in _copies(self._settings) if copy.name.rpartition(".")[0] not in kept]
        delete_files([copy for copy in old if modified_at(copy) < before.timestamp()], as_far_as_possible=True)

    def path(self, place: str) -> Path:
        root, _, within = place.partition("/")
        return (Warehouse(self._settings).root.local if root == "w" else _folder(self._settings)) / within

    def _own_files(self, table: Published) -> list[PublicFile] | None:
        """Return None if they are remote, or one has other columns or types."""
        columns = sorted((column.name, column.type) for column in table.columns)
        root = Warehouse(self._settings).root
        if root.on_disk is None:
            return None
        parts = []
        with duckdb_tables.connection() as con:
            for file in table.files:
                source = parquet_rows([file])
                found = con.execute(f"DESCRIBE FROM {source}").fetchall()
                if sorted((name, kind) for name, kind, *_ in found) != columns:
                    return None
                place = f"w/{Address(file).relative_to(root)}"
                parts.append(PublicFile(place, _size(self._settings, file), _rows(con, file)))
        return parts

    def _copied_files(self, reader: EditionReader, table: Published, key: str) -> list[PublicFile]:
        folder = _folder(self._settings) / key
        try:
            os.utime(folder)
        except FileNotFoundError:
            self._make_room(table)
            self._make(reader, table, folder)
        with duckdb_tables.connection() as con:
            return [
                PublicFile(f"c/{key}/{file.name}", file.stat().st_size, rows)
                for file in sorted(folder.iterdir())
                if (rows := _rows(con, str(file)))
            ]

    def _make(self, reader: EditionReader, table: Published, folder: Path) -> None:
        new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
        new.mkdir(mode=0o700)
        try:
            self._copy(reader, table, new)
            os.utime(new)
            new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _make_room(self, table: Published) -> None:
        """Delete the least recently used copies until there is room. Raises Unavailable."""
        most, needed = self._settings.serve.copies_bytes, sum(_size(self._settings, file) for file in table.files)
        copies = sorted(_copies(self._settings), key=modified_at)
        sizes = {copy: _bytes(copy) for copy in copies}
        in_use_since = datetime.now().timestamp() - self._settings.serve.link_seconds
        for copy in copies:
            if sum(sizes.values()) + needed <= most:
                break
            if modified_at(copy) < in_use_since:
                delete_files([copy], as_far_as_possible=True)
                del sizes[copy]
        if sum(sizes.values()) + needed > most:
            raise Unavailable(
                f"no room for a copy of {table.title} without its state columns",
                fix="try again later, or raise serve.copies_bytes in [tool.lake]",
            )


def _key(table: Published, entry: EditionTable) -> str:
    content = json.dumps([table.files, [(column.name, column.type) for column in table.columns]])
    return f"{_version_key(entry)}.{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _version_key(entry: EditionTable) -> str:
    return f"{entry.layer}.{entry.home}.{entry.version}"


def _folder(settings: Settings) -> Path:
    return file_modes.scratch(settings, "copies")


def _copies(settings: Settings) -> list[Path]:
    return [path for path in _folder(settings).iterdir() if not path.name.startswith(".")]


def _bytes(copy: Path) -> int:
    """Return 0 if another process has deleted the copy."""
    with suppress(FileNotFoundError):
        return sum(file.stat().st_size for file in copy.iterdir())
    return 0


def _size(settings: Settings, file: str) -> int:
    entry = Warehouse(settings).root.at(file).head()
    return entry.size if entry else 0


def _rows(con: duckdb.DuckDBPyConnection, file: str) -> int:
    row = con.execute("SELECT num_rows FROM parquet_file_metadata(?)", [file]).fetchone()
    return int(row[0]) if row else 0
