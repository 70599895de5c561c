"""Expected duration of work: that of its last run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lake.config import Settings
from lake.store.ledger import runs


def last_durations(settings: Settings, verb: str) -> Mapping[str, float]:
    """Return the seconds of the last completed run of `verb`, by subject; empty if the ledger cannot be read."""
    with suppress(Exception):
        return {name: run.seconds for name, run in runs.last_runs(settings, verb, outcome="done").items()}
    return {}
