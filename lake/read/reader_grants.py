"""Grants for remote readers: tables, logs and ledgers that exist, or will once they are published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lake.config import Settings
from lake.contracts.contract import streams_of
from lake.errors import DeclarationError, did_you_mean
from lake.project.project import sound_project
from lake.read import logs, system_tables
from lake.store.ledger import editions, grants
from lake.store.ledger.grants import EVERY, Grant
from lake.store.warehouse import LAYERS


def grant(settings: Settings, name: str, tables: Sequence[str], *, days: float | None = None) -> tuple[Grant, str]:
    """Return the new grant and its token, which is not stored. Raises DeclarationError."""
    if not tables:
        raise DeclarationError(
            "nothing is granted", fix=f"--table NAME for one table, --table '{EVERY}' for all tables"
        )
    known = _grantable(settings)
    unknown = [name for name in tables if name not in known]
    if unknown:
        faults = [DeclarationError(f"no table {name!r} to grant", fix=did_you_mean(name, known)) for name in unknown]
        raise DeclarationError.all(faults)
    duration = None if days is None else timedelta(days=days)
    return grants.add(settings, name, list(dict.fromkeys(tables)), lasts=duration)


def revoke(settings: Settings, name: str) -> None:
    """Raise DeclarationError if there is no such grant."""
    if not grants.revoke(settings, name):
        hint = did_you_mean(name, [grant.name for grant in grants.grants(settings)])
        raise DeclarationError(f"no reader {name!r}", fix=hint)


def records(settings: Settings) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    return [
        {
            "reader": grant.name,
            "grant_id": grant.id,
            "tables": list(grant.tables),
            "granted_at": grant.granted_at,
            "expires": grant.expires,
            "expired": not grant.is_valid(now),
        }
        for grant in grants.grants(settings)
    ]


def profile(grant: Grant, token: str, url: str) -> str:
    fields = {"shareCredentialsVersion": 1, "endpoint": f"{url.rstrip('/')}/delta-sharing/", "bearerToken": token}
    if grant.expires is not None:
        fields["expirationTime"] = grant.expires.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps(fields, indent=2)


def _grantable(settings: Settings) -> list[str]:
    edition = editions.current_edition(settings)
    tables = {table.name: table.layer for table in sound_project(settings)[0].tables.values()}
    tables |= {name: table.layer for name, table in edition.tables.items()} if edition else {}
    streams, every = streams_of(settings), (*LAYERS, logs.SCHEMA, system_tables.LEDGER_SCHEMA)
    return [
        *tables,
        *(f"{layer}.{name}" for name, layer in tables.items()),
        *(f"{logs.SCHEMA}.{stream}" for stream in streams),
        *(f"{system_tables.LEDGER_SCHEMA}.{name}" for name in system_tables.LEDGERS),
        *(f"{schema}.{EVERY}" for schema in every),
        EVERY,
    ]
