"""Manifest of an edition of a warehouse in a bucket: the files of its tables, in `manifests/NUMBER.json`.

With it readers need not open the logs of the tables, which contain the same. If it is missing, truncated, altered, or
of other versions, they open the tables. So it is written after the edition, and only if a file costs a request.

    the SHA-256 of the second line, in hexadecimal digits
    {"number": 3, "published_at": "2024-03-31T00:00:00+00:00", "tables": {NAME: {
        "path": "gold/sums", "version": 7, "fingerprint": "…", "doc": "…", "schema": "…", "files": ["part-….parquet"]}}}

The schema is Delta's, as JSON text, without state columns; files are relative to the table's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from lake.config import Settings
from lake.errors import LakeError
from lake.store.ledger.editions import Edition
from lake.store.storage import Address
from lake.store.warehouse import Warehouse

FILES: Final = 10_000
"""Tables with more files are left out."""


def write(settings: Settings, edition: Edition, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Record `doc`, `schema` and `files` of the `tables` of an edition."""
    entries = {
        name: {**_identity(edition, name), **table} for name, table in tables.items() if len(table["files"]) <= FILES
    }
    manifest = {"number": edition.number, "published_at": edition.published_at.isoformat(), "tables": entries}
    content = json.dumps(manifest, separators=(",", ":")).encode()
    Warehouse(settings).manifest(edition.number).put_if_absent(_digest(content) + b"\n" + content)


def table_of(settings: Settings, edition: Edition, name: str) -> Mapping[str, Any] | None:
    """Return the entry of a table of `edition` as `write` recorded it; None if it is missing or of another edition."""
    try:
        manifest = _read(Warehouse(settings).manifest(edition.number))
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
def _read(file: Address) -> Mapping[str, Any]:
    """Return the content of a manifest. Raises ValueError if it is truncated, FileNotFoundError if there is none."""
    digest, _, content = file.read().partition(b"\n")
    if digest != _digest(content):
        raise ValueError(file.url)
    manifest: Mapping[str, Any] = json.loads(content)
    return manifest


def _digest(content: bytes) -> bytes:
    return sha256(content).hexdigest().encode()
