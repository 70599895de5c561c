"""Bearer tokens: that of a request, one that a server generates, and those of readers.

The grants of readers are reloaded twice a second, so that a revoked token is soon rejected.
"""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError
from lake.serve.problems import Problem
from lake.store.ledger import grants
from lake.store.ledger.grants import Grant

LOOK_SECONDS: Final = 0.5
AT_ONCE: Final = 0.02
"""Seconds after which grants are reloaded for an unknown token: it may be new."""


def bearer_token(headers: Mapping[str, str]) -> str:
    """Return the bearer token or a browser's Basic password; "" if there is none."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(shown, validate=True).decode("utf-8").partition(":")[2].strip()
        except ValueError:
            return ""
    return shown.strip() if scheme.lower() == "bearer" else ""


def generated_token(file: Path) -> str:
    """Return the token in `file`, made on first use. Raises DeclarationError if others can read the file."""
    if not file.exists():
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
            new.write(secrets.token_urlsafe(32))
    if file.stat().st_mode & 0o077:
        raise DeclarationError(
            "others can read the server's token", where=str(file), fix=f"rm {file}: the next start makes a new one"
        )
    return file.read_text("utf-8").strip()


@dataclass
class ReaderTokens:
    """Cache of the project's grants. Thread-safe."""

    settings: Settings
    _grants: list[Grant] = field(default_factory=list)
    _looked: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def of(self, headers: Mapping[str, str]) -> Grant:
        """Return the grant of the request's token. Raises Problem if it has none, or an expired one."""
        shown = bearer_token(headers)
        if not shown:
            raise Problem("no-reader", "no token")
        found = grants.of_token(self._now(), shown) or grants.of_token(self._now(AT_ONCE), shown)
        if found is None:
            raise Problem("no-reader", "a wrong token, or one that was revoked")
        if not found.is_valid(datetime.now(UTC)):
            raise Problem("no-reader", f"the token of {found.name} has expired")
        return found

    def covers(self, grant: str, schema: str, table: str) -> bool:
        now = datetime.now(UTC)
        return any(one.id == grant and one.is_valid(now) and one.covers(schema, table) for one in self._now())

    def _now(self, seconds: float = LOOK_SECONDS) -> list[Grant]:
        with self._lock:
            if time.monotonic() - self._looked >= seconds:
                self._grants, self._looked = grants.grants(self.settings), time.monotonic()
            return self._grants
