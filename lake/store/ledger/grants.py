"""Grants: which tables of the editions a remote reader may read, by its token. A table under `meta/`.

Only the SHA-256 of a token is stored. A hash suffices: a token is 256 random bits, which cannot be guessed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hmac import compare_digest
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError
from lake.store.ledger_table import LedgerHead, LedgerTable, as_state, check_name, record_of
from lake.store.warehouse import LAYERS

TOKEN_BYTES: Final = 32
ID_DIGITS: Final = 24
"""Hexadecimal digits of a token's digest that are its grant's id: 96 bits."""
EVERY: Final = "*"


@dataclass(frozen=True)
class Grant:
    """`tables` are names (`carrier_daily`, `log.orders`, `lake.runs`), all of a schema (`gold.*`), or EVERY."""

    name: str
    tables: tuple[str, ...]
    digest: str
    granted_at: datetime
    expires: datetime | None = None

    @property
    def id(self) -> str:
        """A name can be granted again after it was revoked; the id cannot."""
        return self.digest[:ID_DIGITS]

    def covers(self, title: str) -> bool:
        schema, _, name = title.partition(".")
        titles = {title, f"{schema}.{EVERY}"} | ({name, EVERY} if schema in LAYERS else set())
        return not titles.isdisjoint(self.tables)

    def is_valid(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires


_GRANTS: Final = LedgerTable(
    "grants",
    {
        "action": "VARCHAR",
        "name": "VARCHAR",
        "tables": "VARCHAR",
        "digest": "VARCHAR",
        "at": "TIMESTAMPTZ",
        "expires": "TIMESTAMPTZ",
    },
    durable=True,
)


def grants(settings: Settings) -> list[Grant]:
    return _listed(_GRANTS.head(settings))


def _listed(head: LedgerHead) -> list[Grant]:
    return [record_of(Grant, entry) for entry in head.state.get("grants", [])]


def add(settings: Settings, name: str, tables: Sequence[str], *, lasts: timedelta | None = None) -> tuple[Grant, str]:
    """Return the grant and its token, which is not stored. Raises DeclarationError for a name in use."""
    check_name(name, "reader")
    token, now = secrets.token_urlsafe(TOKEN_BYTES), datetime.now(UTC)
    grant = Grant(name, tuple(tables), _digest(token), now, now + lasts if lasts else None)
    with _GRANTS.writing(settings) as head:
        listed = _listed(head)
        if any(one.name == name for one in listed):
            raise DeclarationError(
                f"there is a reader {name!r}", fix=f"use another name, or first lake reader revoke {name}"
            )
        _add(head, "add", grant, [*listed, grant])
    return grant, token


def revoke(settings: Settings, name: str) -> bool:
    with _GRANTS.writing(settings) as head:
        listed = _listed(head)
        gone = next((one for one in listed if one.name == name), None)
        if gone is not None:
            _add(head, "revoke", gone, [one for one in listed if one != gone])
        return gone is not None


def of_token(listed: Sequence[Grant], token: str) -> Grant | None:
    """The duration of the search reveals nothing about other tokens."""
    digest = _digest(token)
    found = [one for one in listed if compare_digest(one.digest, digest)]
    return found[0] if found else None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _add(head: LedgerHead, action: str, grant: Grant, listed: Sequence[Grant]) -> None:
    state = [as_state(one) for one in sorted(listed, key=lambda one: one.name)]
    head.add([action, grant.name, grant.tables, grant.digest, datetime.now(UTC), grant.expires], grants=state)
