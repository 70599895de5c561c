"""Records of a project's status: streams, tables, groups and stopped checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lake.ingest.drift import Drift
from lake.ops.external_systems import ConsumerStatus, SinkStatus, SourceStatus
from lake.quality import failures
from lake.store.damage import Damage
from lake.store.ledger import checks, cuts, editions, runs
from lake.store.ledger.sent import Episode


@dataclass(frozen=True)
class HorizonStatus:
    """`producer` has the least time: its greatest event time is `latest`, and its newest batch came at `heard`."""

    at: datetime | None
    producer: str
    latest: datetime
    heard: datetime
    producers: int


@dataclass(frozen=True)
class StreamStatus:
    """A log and its newest batch, made `at`. Values that damage hides are None.

    `missing` describes expected events, `held` why derived tables are not published; `folders` are sub-folders of the
    landing folder, which are not read.
    """

    name: str
    batch: int | None = None
    at: datetime | None = None
    events: int | None = None
    event_time: datetime | None = None
    pending: int | None = None
    quarantined: Mapping[str, int] | None = None
    run: runs.Run | None = None
    horizon: HorizonStatus | None = None
    missing: str = ""
    held: str | None = None
    accepted: Mapping[str, Any] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)
    folders: Sequence[str] = ()
    damaged: bool = False


@dataclass(frozen=True)
class LateEvents:
    policy: str
    lateness: timedelta
    events: int


@dataclass(frozen=True)
class TableStatus:
    """A table at `cut` (None: not built). Empty if it is damaged.

    `behind` counts batches of the stream furthest ahead (None: a log is damaged); `lag` is event time; `late` is set if
    the table has windows or drops late rows, and its log has event times.
    """

    name: str
    layer: str
    cut: int | None = None
    behind: int | None = None
    lag: timedelta | None = None
    rows: int | None = None
    changed: bool = False
    late: LateEvents | None = None
    run: runs.Run | None = None
    damaged: bool = False

    @property
    def error(self) -> str:
        return self.run.counts.get("error", "no reason recorded") if self.run and self.run.outcome == "failed" else ""


@dataclass(frozen=True)
class StoppedCheck:
    check: checks.Check
    blocks: tuple[str, ...]
    groups: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        return [failures.failure_message(result) for result in failures.stopping_results(self.check)]


@dataclass(frozen=True)
class CheckSummary:
    passed: int
    total: int
    cut: int


@dataclass(frozen=True)
class GroupStatus:
    """A publish group at `cut` (0: none), held since the first edition without it."""

    group: str
    cut: int
    held_since: datetime | None = None


@dataclass(frozen=True)
class Status:
    at: datetime
    cut: cuts.Cut | None
    edition: editions.Edition | None
    newest: editions.Edition | None
    pin: int | None
    stoppers: tuple[StoppedCheck, ...]
    checks: CheckSummary | None
    streams: tuple[StreamStatus, ...]
    tables: tuple[TableStatus, ...]
    failed: tuple[runs.Run, ...]
    """Failed runs whose work has not succeeded since."""
    damaged: tuple[Damage, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()
    firing: tuple[Episode, ...] = ()
    unordered: tuple[str, ...] = ()
    """Tables that depend on an order of events that nothing defines."""
    faults: tuple[str, ...] = ()
    """Faulty declarations, which are omitted elsewhere."""
    groups: tuple[GroupStatus, ...] = ()
    warm_servers: tuple[str, ...] = ()
