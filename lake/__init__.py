"""Headwater: tables that are reproducible functions of an event log.

A job file needs only these names; none of them starts a JVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the names of _HOMES, for type checkers
    from lake.project.declaration import log as log, table as table
    from lake.errors import (
        ContractError as ContractError,
        DeclarationError as DeclarationError,
        LakeError as LakeError,
        LawError as LawError,
        QualityError as QualityError,
        StartOver as StartOver,
        StorageError as StorageError,
        Unavailable as Unavailable,
    )
    from lake.kinds.aggregate import Aggregate as Aggregate
    from lake.kinds.enrich import AsOf as AsOf, Enrich as Enrich
    from lake.kinds.fold import Fold as Fold
    from lake.kinds.history import History as History
    from lake.kinds.join import Join as Join
    from lake.kinds.latest import First as First, Latest as Latest
    from lake.kinds.measures.measure import (
        Avg as Avg,
        Count as Count,
        CountIf as CountIf,
        FirstValue as FirstValue,
        LastValue as LastValue,
        Max as Max,
        Min as Min,
        Sum as Sum,
    )
    from lake.kinds.measures.sketches import (
        ApproxDistinct as ApproxDistinct,
        CountDistinct as CountDistinct,
        Quantile as Quantile,
    )
    from lake.kinds.measures.variance import Stddev as Stddev, Variance as Variance
    from lake.kinds.pattern import Pattern as Pattern
    from lake.kinds.reducer import Refusal as Refusal
    from lake.kinds.steps import (
        Absent as Absent,
        Either as Either,
        FirstOf as FirstOf,
        In as In,
        LastOf as LastOf,
        Step as Step,
    )
    from lake.kinds.view import View as View
    from lake.kinds.windows.hopping import Cumulative as Cumulative, Hopping as Hopping
    from lake.kinds.windows.event_windows import Session as Session, Sliding as Sliding
    from lake.kinds.windows.window import Calendar as Calendar, Tumbling as Tumbling, late as late
    from lake.read.open import open as open

_HOMES = {
    "lake.project.declaration": "log table",
    "lake.errors": "ContractError DeclarationError LakeError LawError QualityError StartOver StorageError Unavailable",
    "lake.kinds.aggregate": "Aggregate",
    "lake.kinds.enrich": "AsOf Enrich",
    "lake.kinds.fold": "Fold",
    "lake.kinds.history": "History",
    "lake.kinds.join": "Join",
    "lake.kinds.latest": "First Latest",
    "lake.kinds.measures.measure": "Avg Count CountIf FirstValue LastValue Max Min Sum",
    "lake.kinds.measures.sketches": "ApproxDistinct CountDistinct Quantile",
    "lake.kinds.measures.variance": "Stddev Variance",
    "lake.kinds.pattern": "Pattern",
    "lake.kinds.reducer": "Refusal",
    "lake.kinds.steps": "Absent Either FirstOf In LastOf Step",
    "lake.kinds.view": "View",
    "lake.kinds.windows.hopping": "Cumulative Hopping",
    "lake.kinds.windows.event_windows": "Session Sliding",
    "lake.kinds.windows.window": "Calendar Tumbling late",
    "lake.read.open": "open",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = list(_HOME)

if not TYPE_CHECKING:  # a type checker would take every unknown name for Any

    def __getattr__(name: str) -> Any:
        """Import a name on first use: `lake sql` needs none of the kinds."""
        if name not in _HOME:
            raise AttributeError(f"module 'lake' has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(_HOME[name]), name))
