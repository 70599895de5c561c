"""How long work usually takes: the last time it was done."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lake.config import Settings
from lake.store.ledger import runs


def usual(settings: Settings, verb: str) -> Mapping[str, float]:
    """The seconds that `verb` took when it was last done, by its subject; none where the book cannot be read."""
    with suppress(Exception):
        return {name: run.seconds for name, run in runs.last_runs(settings, verb, outcome="done").items()}
    return {}
