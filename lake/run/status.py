"""Where everything stands: cut, edition, what stopped it, how far streams have come and tables are behind. No JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lake.config import Settings
from lake.declaration import Declaration
from lake.kinds.aggregate import Aggregate
from lake.project import Project
from lake.run import limits
from lake.run.graph import Graph, graph
from lake.store import delta, editions, log, meta, quarantine, sources


@dataclass(frozen=True)
class Stream:
    """A log: its newest batch, events accepted so far, greatest event time; files that wait, quarantine by reason.

    `held`: why what is made of it is not published; `accepted`: up to which batch refusals are, and why.
    """

    name: str
    batch: int
    events: int
    event_time: datetime | None
    pending: int
    quarantined: Mapping[str, int]
    held: str | None = None
    accepted: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Late:
    """How many events of its log came more than `lateness` behind the watermark, and what the table does with them."""

    policy: str
    lateness: timedelta
    events: int


@dataclass(frozen=True)
class TableStatus:
    """A table: the cut it is at (None before it was built) and how far that is behind the logs it is derived from.

    `behind` is in batches, that of the stream furthest ahead; `lag` is in event time, None where streams have none.
    `late` is there for windows over a log with event time.
    """

    name: str
    layer: str
    cut: int | None
    behind: int
    lag: timedelta | None
    rows: int | None
    changed: bool
    late: Late | None
    run: meta.Run | None


@dataclass(frozen=True)
class Stopper:
    """A stopped check that nothing has overcome yet, the failed expectations, and the tables that wait for it."""

    check: meta.Check
    blocks: tuple[str, ...]

    @property
    def reasons(self) -> list[str]:
        """`expect_column_values_to_be_between(flights): 3 of 90 rows, such as carrier=AA day=2013-01-01`."""
        failed = [each for each in self.check.results if not each["success"] and each["severity"] == "stop"]
        return [_reason(each) for each in failed]


@dataclass(frozen=True)
class Status:
    """The whole picture."""

    cut: meta.Cut | None
    edition: editions.Edition | None
    newest: editions.Edition | None
    pin: int | None
    stoppers: tuple[Stopper, ...]
    streams: tuple[Stream, ...]
    tables: tuple[TableStatus, ...]


def status(project: Project) -> Status:
    """Where `project` stands now."""
    settings = project.settings
    newest = editions.latest_edition(settings)
    runs = meta.last_runs(settings)
    walks = {name: _Walk(settings, name) for name in project.contracts}
    cuts = _Cuts(settings)
    return Status(
        cut=cuts.latest,
        edition=editions.current_edition(settings),
        newest=newest,
        pin=editions.pinned(settings),
        stoppers=tuple(_stoppers(settings, graph(project), newest)),
        streams=tuple(_stream(project, walk, cuts.latest) for walk in walks.values()),
        tables=tuple(_table(project, each, walks, cuts, runs.get(each.name)) for each in project.tables.values()),
    )


class _Walk:
    """The heads of one log, read backwards only as far as somebody asks."""

    def __init__(self, settings: Settings, stream: str) -> None:
        self.stream = stream
        self.head = log.head(settings, stream)
        self._settings = settings
        self._watermarks: dict[int, datetime | None] = {self.head.batch: self.head.watermark, 0: None}

    def event_time(self, batch: int) -> datetime | None:
        """The greatest event time up to `batch`."""
        if batch not in self._watermarks:
            self._watermarks |= {head.batch: head.watermark for head in log.heads(self._settings, self.stream)}
        return self._watermarks.get(batch)


class _Cuts:
    """Cuts by number, each read once."""

    def __init__(self, settings: Settings) -> None:
        self.latest = meta.latest_cut(settings)
        self._settings = settings
        self._known = {self.latest.number: self.latest} if self.latest else {}

    def __getitem__(self, number: int) -> meta.Cut:
        if number not in self._known:
            self._known[number] = meta.get_cut(self._settings, number)
        return self._known[number]


def _stream(project: Project, walk: _Walk, cut: meta.Cut | None) -> Stream:
    head, settings = walk.head, project.settings
    held = limits.excess(settings, project.contracts[walk.stream], cut) if cut else None
    marks = sources.landed(settings, walk.stream, log.app(walk.stream))
    query = "SELECT reason, _batch, _number FROM t WHERE _batch <= $1 ORDER BY reason"
    refused = delta.rows(settings.quarantine_path(walk.stream), query, head.batch)
    taken = {name for name, *_ in marks}
    waiting = Counter(row["reason"] for row in refused if quarantine.mark(row["_batch"], row["_number"]) not in taken)
    return Stream(
        name=walk.stream,
        batch=head.batch,
        events=head.events,
        event_time=head.watermark,
        pending=sum(file.mark not in marks for file in sources.listing(settings, walk.stream)),
        quarantined=dict(waiting.most_common()),
        held=str(held) if held else None,
        accepted=head.accepted,
    )


def _table(
    project: Project, table: Declaration, walks: Mapping[str, _Walk], cuts: _Cuts, run: meta.Run | None
) -> TableStatus:
    there = project.table(table)
    position = there.position()
    built = delta.open_table(there.path, position.version) if position else None
    batches = cuts[position.data["cut"]].batches if position else {}
    streams = [walks[name] for name in project.logs(table)]
    lags = [
        walk.head.watermark - reached
        for walk in streams
        if walk.head.watermark and (reached := walk.event_time(batches.get(walk.stream, 0)))
    ]
    return TableStatus(
        name=table.name,
        layer=table.layer,
        cut=position.data["cut"] if position else None,
        behind=max((walk.head.batch - batches.get(walk.stream, 0) for walk in streams), default=0),
        lag=max(lags, default=None),
        rows=built.count() if built else None,
        changed=position is not None and position.data["fingerprint"] != project.fingerprint(table),
        late=_late(project, table, batches),
        run=run,
    )


def _late(project: Project, table: Declaration, batches: Mapping[str, int]) -> Late | None:
    """Of a table with windows over a log: what came late up to its cut."""
    kind, source = table.kind, table.inputs[0]
    if not isinstance(kind, Aggregate) or kind.window is None or not source.is_log:
        return None
    if project.contracts[source.name].time is None:
        return None
    query = "SELECT count(*) AS late FROM t WHERE _batch <= $1 AND _time < _watermark - $2"
    found = delta.rows(project.settings.log_path(source.name), query, batches.get(source.name, 0), kind.lateness)
    return Late(kind.late, kind.lateness, sum(row["late"] for row in found))


def _stoppers(settings: Settings, found: Graph, newest: editions.Edition | None) -> Iterator[Stopper]:
    """A stop binds its cut: an edition published since has overcome it."""
    for check in meta.last_checks(settings).values():
        if check.outcome == "stopped" and (newest is None or check.cut > newest.cut) and check.table in found.nodes:
            waits = [check.table] if check.scope == "diff" else []
            yield Stopper(check, tuple(found.below(check.table, including=waits)))


def _reason(result: Mapping[str, Any]) -> str:
    named = result["kwargs"]
    about = ", ".join(str(value) for name, value in named.items() if name.startswith("column"))
    what = f"{result['type']}({about})"
    if result["failed"] is None:
        return what if result["observed"] is None else f"{what}: found {result['observed']}"
    example = next(iter(result["examples"]), None)
    such = f", such as {' '.join(f'{name}={value}' for name, value in example.items())}" if example else ""
    return f"{what}: {result['failed']} of {result['rows']} rows{such}"
