"""Headwater: tables that are reproducible functions of an event log.

A job file needs no more than these names; none of them starts a JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lake.errors import ContractError, DeclarationError, LakeError, LawError, QualityError, StorageError, Unavailable

if TYPE_CHECKING:
    from lake.declaration import log, table
    from lake.kinds.aggregate import Aggregate
    from lake.kinds.enrich import AsOf, Enrich
    from lake.kinds.fold import Fold
    from lake.kinds.history import History
    from lake.kinds.join import Join
    from lake.kinds.latest import First, Latest
    from lake.kinds.measures.measure import Avg, Count, CountIf, FirstValue, LastValue, Max, Min, Sum
    from lake.kinds.measures.sketches import ApproxDistinct, CountDistinct, Quantile
    from lake.kinds.measures.variance import Stddev, Variance
    from lake.kinds.pattern import Pattern
    from lake.kinds.reducer import Refusal
    from lake.kinds.steps import FirstOf, In, LastOf, Step
    from lake.kinds.view import View
    from lake.kinds.windows.hopping import Cumulative, Hopping
    from lake.kinds.windows.late import late
    from lake.kinds.windows.sessions import Session
    from lake.kinds.windows.sliding import Sliding
    from lake.kinds.windows.window import Calendar, Tumbling
    from lake.read.open import open

_HOMES = {
    "lake.kinds.aggregate": ("Aggregate",),
    "lake.kinds.latest": ("First", "Latest"),
    "lake.kinds.fold": ("Fold",),
    "lake.kinds.history": ("History",),
    "lake.kinds.windows.hopping": ("Cumulative", "Hopping"),
    "lake.kinds.windows.late": ("late",),
    "lake.kinds.measures.measure": ("Avg", "Count", "CountIf", "FirstValue", "LastValue", "Max", "Min", "Sum"),
    "lake.kinds.measures.variance": ("Stddev", "Variance"),
    "lake.kinds.windows.sessions": ("Session",),
    "lake.kinds.measures.sketches": ("ApproxDistinct", "CountDistinct", "Quantile"),
    "lake.kinds.windows.sliding": ("Sliding",),
    "lake.kinds.pattern": ("Pattern",),
    "lake.kinds.reducer": ("Refusal",),
    "lake.kinds.steps": ("FirstOf", "In", "LastOf", "Step"),
    "lake.kinds.enrich": ("AsOf", "Enrich"),
    "lake.kinds.join": ("Join",),
    "lake.kinds.view": ("View",),
    "lake.kinds.windows.window": ("Calendar", "Tumbling"),
    "lake.read.open": ("open",),
    "lake.declaration": ("log", "table"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Aggregate",
    "ApproxDistinct",
    "AsOf",
    "Avg",
    "Calendar",
    "ContractError",
    "Count",
    "CountDistinct",
    "CountIf",
    "Cumulative",
    "DeclarationError",
    "Enrich",
    "First",
    "FirstOf",
    "FirstValue",
    "Fold",
    "History",
    "Hopping",
    "In",
    "Join",
    "LakeError",
    "LastOf",
    "LastValue",
    "Latest",
    "LawError",
    "Max",
    "Min",
    "Pattern",
    "QualityError",
    "Quantile",
    "Refusal",
    "Session",
    "Sliding",
    "Stddev",
    "Step",
    "StorageError",
    "Sum",
    "Tumbling",
    "Unavailable",
    "Variance",
    "View",
    "late",
    "log",
    "open",
    "table",
]


def __getattr__(name: str) -> Any:
    """Names are imported on first use: `lake sql` needs none of the kinds."""
    if name not in _HOME:
        raise AttributeError(f"module 'lake' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
