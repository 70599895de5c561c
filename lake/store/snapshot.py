"""Published table as a reader needs it: the exact files of one version, its visible columns and their types.

In a bucket an edition has a manifest in `manifests/NUMBER.json`, which saves readers the logs of the tables. If it is
missing, truncated, altered, or of other versions, they open the tables.

    the SHA-256 of the second line, in hexadecimal digits
    {"number": 3, "published_at": "2024-03-31T00:00:00+00:00", "tables": {NAME: {
        "path": "gold/sums", "version": 7, "fingerprint": "…", "doc": "…", "schema": "…", "files": ["part-….parquet"]}}}

The schema is Delta's, as JSON text, without state columns; files are relative to the table's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from deltalake.exceptions import DeltaError

from lake.config import Settings
from lake.contracts.fields import DUCKDB
from lake.errors import LakeError, StorageError
from lake.session.spark_session import first_line
from lake.store import delta
from lake.store.damage import damage
from lake.store.ledger.editions import Edition
from lake.store.storage import Address
from lake.store.table_head import COMMENT, UNIT, meaning_of
from lake.store.table_log import TableState
from lake.store.table_logs import table_log
from lake.store.view import view
from lake.store.warehouse import Warehouse
from lake.text import quoted

MANIFEST_FILES: Final = 10_000
# Reader features that do not change how a Parquet file is read.
HARMLESS: Final = frozenset({"timestampNtz"})

TYPES: Final = {**DUCKDB, "long": "BIGINT", "integer": "INTEGER", "short": "SMALLINT", "byte": "TINYINT"}
"""Delta's primitive types as DuckDB's; `decimal(p,s)` is the same in both."""


@dataclass(frozen=True)
class Column:
    """Visible column of DuckDB's `type`; `comment` is its meaning. `comment` and `unit` may be ""."""

    name: str
    type: str
    comment: str
    unit: str

    @property
    def description(self) -> str:
        unit = f"[{self.unit}]" if self.unit else ""
        return self.comment if unit in self.comment else f"{self.comment} {unit}".lstrip()


@dataclass(frozen=True)
class Published:
    """Table at one version. State columns, whose names begin with `_`, are left out, also of the Delta `schema`."""

    name: str
    layer: str
    version: int
    doc: str
    columns: tuple[Column, ...]
    files: tuple[str, ...]
    schema: str

    @property
    def title(self) -> str:
        return f"{self.layer}.{self.name}"

    @property
    def has_versions(self) -> bool:
        return {"valid_from", "valid_to", "version_id"} <= {column.name for column in self.columns}


def published(settings: Settings, name: str, edition: Edition) -> Published:
    """Return the table from the edition's manifest, else opened at the edition's version.

    Raises LakeError if the version is gone or its files cannot be read as they are.
    """
    recorded = manifest_entry(settings, edition, name)
    if recorded is None:
        return opened(settings, name, edition)
    folder = Warehouse(settings).root / edition.tables[name].path
    files = tuple(str(folder / file) for file in recorded["files"])
    return _published(name, edition, recorded["doc"], recorded["schema"], files)


def _published(name: str, edition: Edition, doc: str, schema: str, files: tuple[str, ...]) -> Published:
    entry, columns = edition.tables[name], tuple(map(_column, json.loads(schema)["fields"]))
    return Published(name, entry.layer, entry.version, doc, columns, files, schema)


def write_manifest(settings: Settings, edition: Edition) -> None:
    """Write the manifest of `edition` if the warehouse is remote. Ignores errors."""
    if not Warehouse(settings).root.storage.is_remote:
        return
    with suppress(LakeError, OSError, DeltaError), view():
        tables = {}
        for name, entry in edition.tables.items():
            with suppress(StorageError):  # a later reader reports it
                table = opened(settings, name, edition)
                if len(table.files) <= MANIFEST_FILES:
                    folder = f"{Warehouse(settings).root}/{entry.path}/"
                    files = [file.removeprefix(folder) for file in table.files]
                    record = {"doc": table.doc, "schema": table.schema, "files": files}
                    tables[name] = {**_identity(edition, name), **record}
        manifest = {"number": edition.number, "published_at": edition.published_at.isoformat(), "tables": tables}
        content = json.dumps(manifest, separators=(",", ":")).encode()
        Warehouse(settings).manifest(edition.number).put_if_absent(_digest(content) + b"\n" + content)


def opened(settings: Settings, name: str, edition: Edition) -> Published:
    entry = edition.tables[name]
    path = Warehouse(settings).root / entry.path
    try:
        table = table_log(path).state(entry.version)
    except (DeltaError, OSError, ValueError) as error:
        damaged = damage(path)
        raise StorageError(
            f"{name}: version {entry.version} cannot be opened: {damaged.found if damaged else first_line(error)}",
            where=str(damaged.file if damaged else path),
            fix="restore it from a backup of the warehouse, or read another edition",
        ) from None
    cut = edition.cut_of(name)
    if delta.commit_metadata(path, entry.version).get("cut", cut) != cut:
        raise StorageError(
            f"{name}: version {entry.version} of edition {edition.number} was lost, and another commit has its number",
            where=str(path),
            fix="read another edition; without --edition, the current one is read",
        )
    protocol = table.protocol()
    features = sorted(set(protocol.reader_features or ()) - HARMLESS)
    if features or protocol.min_reader_version == 2:
        raise StorageError(
            f"{name}: its rows cannot be read from its files alone: {', '.join(features) or 'column mapping'}",
            where=str(path),
            fix="rebuild the table without these Delta features",
        )
    described = [{**field, "metadata": meaning_of(field["metadata"])} for field in _fields(table)]
    schema = json.dumps({"type": "struct", "fields": described})
    return _published(name, edition, table.metadata().description or "", schema, tuple(delta.files(table)))


def columns(table: TableState) -> tuple[Column, ...]:
    return tuple(map(_column, _fields(table)))


def _fields(table: TableState) -> list[dict[str, Any]]:
    fields = json.loads(table.schema().to_json())["fields"]
    return [field for field in fields if not field["name"].startswith("_")]


def _column(field: Mapping[str, Any]) -> Column:
    metadata = field["metadata"]
    return Column(field["name"], duckdb_type(field["type"]), metadata.get(COMMENT, ""), metadata.get(UNIT, ""))


def duckdb_type(kind: str | Mapping[str, Any]) -> str:
    if isinstance(kind, str):
        return TYPES.get(kind) or kind.upper()
    if kind["type"] == "array":
        return f"{duckdb_type(kind['elementType'])}[]"
    if kind["type"] == "map":
        return f"MAP({duckdb_type(kind['keyType'])}, {duckdb_type(kind['valueType'])})"
    fields = (f"{quoted(field['name'])} {duckdb_type(field['type'])}" for field in kind["fields"])
    return f"STRUCT({', '.join(fields)})"


def manifest_entry(settings: Settings, edition: Edition, name: str) -> Mapping[str, Any] | None:
    try:
        manifest = _read_manifest(Warehouse(settings).manifest(edition.number))
        if (manifest["number"], manifest["published_at"]) != (edition.number, edition.published_at.isoformat()):
            return None
        table: Mapping[str, Any] = manifest["tables"][name]
        return table if table.items() >= _identity(edition, name).items() else None
    except (LakeError, OSError, ValueError, LookupError, TypeError):
        return None


def _identity(edition: Edition, name: str) -> dict[str, Any]:
    entry = edition.tables[name]
    return {"path": entry.path, "version": entry.version, "fingerprint": entry.fingerprint}


@lru_cache(maxsize=16)
def _read_manifest(file: Address) -> Mapping[str, Any]:
    """Raises ValueError if it is truncated, FileNotFoundError if there is none."""
    digest, _, content = file.read().partition(b"\n")
    if digest != _digest(content):
        raise ValueError(file.url)
    manifest: Mapping[str, Any] = json.loads(content)
    return manifest


def _digest(content: bytes) -> bytes:
    return sha256(content).hexdigest().encode()
