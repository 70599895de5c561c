"""Expected duration of work: that of its last run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lake.config import Settings
from lake.store.ledger import runs


def last_durations(settings: Settings, verb: str) -> Mapping[str, float]:
    """Return seconds of the last run of `verb`, by subject, if known."""
    with suppress(Exception):
        return {name: run.seconds for name, run in runs.last_runs(settings, verb, outcome="done").items()}
    return {}
