"""Headwater: tables that are reproducible functions of an event log.

A job file needs no more than these names; none of them starts a JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lake.errors import ContractError, DeclarationError, LakeError, LawError, QualityError, Unavailable

if TYPE_CHECKING:
    from lake.declaration import log, table
    from lake.kinds.aggregate import Aggregate
    from lake.kinds.extreme import First, Latest
    from lake.kinds.measures import Avg, Count, CountIf, Max, Min, Sum
    from lake.kinds.view import View
    from lake.kinds.windows import Calendar, Tumbling
    from lake.run.open import open

_HOMES = {
    "lake.kinds.aggregate": ("Aggregate",),
    "lake.kinds.extreme": ("First", "Latest"),
    "lake.kinds.measures": ("Avg", "Count", "CountIf", "Max", "Min", "Sum"),
    "lake.kinds.view": ("View",),
    "lake.kinds.windows": ("Calendar", "Tumbling"),
    "lake.run.open": ("open",),
    "lake.declaration": ("log", "table"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Aggregate",
    "Avg",
    "Calendar",
    "ContractError",
    "Count",
    "CountIf",
    "DeclarationError",
    "First",
    "LakeError",
    "Latest",
    "LawError",
    "Max",
    "Min",
    "QualityError",
    "Sum",
    "Tumbling",
    "Unavailable",
    "View",
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
