"""Authentication of readers by token. Grants are reloaded twice a second, so a revoked token is soon rejected."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Final

from lake.config import Settings
from lake.serve.bearer_token import bearer_token
from lake.serve.problems import Problem
from lake.store.ledger import grants
from lake.store.ledger.grants import Grant

LOOK_SECONDS: Final = 0.5
AT_ONCE: Final = 0.02
"""Seconds after which grants are reloaded for an unknown token: it may be new."""


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
