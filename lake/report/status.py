"""The state of everything: cut, edition, stopped gates, and the lag of sources, streams and tables. No JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from lake import groups
from lake.config import Settings
from lake.contracts.contract import Contract
from lake.declaration import Declaration
from lake.errors import LakeError
from lake.gate import failures, rejection_limits
from lake.graph import graph
from lake.ingest import landing
from lake.ingest.completeness import missing
from lake.ingest.drift import Drift
from lake.ingest.horizon import Horizon
from lake.ingest.unordered import unordered
from lake.project import Project
from lake.report.consumers import ConsumerStatus, consumer_statuses
from lake.report.sinks import SinkStatus, firing, sinks
from lake.report.sources import SourceStatus, sources
from lake.session import first_line
from lake.store import delta, quarantine, recovery, small
from lake.store.damage import Damage, damage, damages
from lake.store.ledger import checks, cuts, editions, runs
from lake.store.ledger.episodes import Episode
from lake.store.log import Log, LogHead
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.view import view
from lake.store.warehouse import Warehouse

T = TypeVar("T")
OF_TABLES: Final = (runs.MAKE, "verify")
"""What runs do whose subject is a table."""


@dataclass(frozen=True)
class Held:
    """The horizon `at` of a stream, and the producer that holds it back: of `producers` that are waited for, the one
    that has told the least.

    `latest` is the greatest time that it told, `heard` when its newest batch was made.
    """

    at: datetime | None
    producer: str
    latest: datetime
    heard: datetime
    producers: int


@dataclass(frozen=True)
class Stream:
    """A log: its newest batch and when that was made, events accepted so far, greatest event time; files that wait,
    quarantine by reason. One of a damaged log is empty.

    `horizon`: who holds it back, where the contract names producers and one of them is behind the greatest event time;
    `missing`: what should have come and has not; `held`: why what is made of it is not published; `accepted`: up to
    which batch refusals are, and why; `drift`: how its records differ from the contract;
    `folders`: the sub-folders of its landing folder, whose files are not read.
    """

    name: str
    batch: int = 0
    at: datetime | None = None
    events: int = 0
    event_time: datetime | None = None
    pending: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    run: runs.Run | None = None
    horizon: Held | None = None
    missing: str = ""
    held: str | None = None
    accepted: Mapping[str, Any] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)
    folders: Sequence[str] = ()


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
    `late` is there for windows over a log with event time. Nothing is known of a damaged one.
    """

    name: str
    layer: str
    cut: int | None = None
    behind: int = 0
    lag: timedelta | None = None
    rows: int | None = None
    changed: bool = False
    late: Late | None = None
    run: runs.Run | None = None
    damaged: bool = False

    @property
    def error(self) -> str:
        """Why its last run failed, "" where it did not."""
        return self.run.counts.get("error", "no reason recorded") if self.run and self.run.outcome == "failed" else ""


@dataclass(frozen=True)
class Stopper:
    """A stopped check that no later edition has superseded, its failed expectations, and the tables it blocks.

    `groups` are those that it holds, where the settings name groups.
    """

    check: checks.Check
    blocks: tuple[str, ...]
    groups: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        return [failures.failure_message(result) for result in failures.stopping_results(self.check)]


@dataclass(frozen=True)
class Checks:
    """How many expectations passed in the newest checks of whole tables, of how many, at which cut."""

    passed: int
    total: int
    cut: int


@dataclass(frozen=True)
class GroupStatus:
    """A publish group and the cut at which the newest edition has it, 0 where it has nothing of it yet.

    `held_since`: when the first edition was published that left it behind.
    """

    group: str
    cut: int
    held_since: datetime | None = None


@dataclass(frozen=True)
class Status:
    """The whole picture at the moment `at`, but for what is `damaged`."""

    at: datetime
    cut: cuts.Cut | None
    edition: editions.Edition | None
    newest: editions.Edition | None
    pin: int | None
    stoppers: tuple[Stopper, ...]
    checks: Checks | None
    streams: tuple[Stream, ...]
    tables: tuple[TableStatus, ...]
    damaged: tuple[Damage, ...]
    failed: tuple[runs.Run, ...]
    """Runs that failed, and since which the same work on the same subject has not been done."""
    sources: tuple[SourceStatus, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    sinks: tuple[SinkStatus, ...] = ()
    firing: tuple[Episode, ...] = ()
    """What alerts have told of the state, and is not over."""
    unordered: tuple[str, ...] = ()
    """What goes by an order of events that nothing says."""
    faults: tuple[str, ...] = ()
    """What is wrong with declarations, of which nothing else is told."""
    groups: tuple[GroupStatus, ...] = ()
    """Where the settings name groups."""


@view()
def status(project: Project, faults: Iterable[LakeError] = ()) -> Status:
    """The current state of `project`, of which the `faults` leave something out."""
    settings = project.settings
    looks = _Looks(settings)
    warehouse = Warehouse(settings)

    def book(name: str) -> Address:
        return warehouse.book(name).path

    newest = looks.at(book("editions"), editions.latest_edition, settings)
    newest_runs = looks.at(book("runs"), runs.newest_runs, settings) or []
    made = {run.subject: run for run in newest_runs if run.work in OF_TABLES}
    others = {run.subject: run for run in newest_runs if run.work not in OF_TABLES}
    newest_checks = looks.at(book("checks"), checks.last_checks, settings) or {}
    whole = looks.at(book("checks"), checks.last_checks, settings, "table") or {}
    cut = looks.at(book("cuts"), cuts.latest_cut, settings)
    at_cuts = _Cuts(settings, cut, sound=looks.is_sound(book("cuts")))
    walked = {name: looks.at(warehouse.log(name).path, _Walk, settings, name) for name in project.contracts}
    walks = {name: walk for name, walk in walked.items() if walk}
    held_by = cut if looks.is_sound(book("editions")) else None
    streams = [
        looks.at(warehouse.quarantine(name).path, _stream, project, walk, held_by, others.get(name)) or Stream(name)
        for name, walk in walks.items()
    ]
    tables = []
    for declaration in project.tables.values():
        home = (
            project.table(declaration).path if looks.is_sound(book("editions")) else warehouse.root / declaration.name
        )
        looked = looks.at(home, _table, project, declaration, walks, at_cuts, made.get(declaration.name))
        tables.append(
            looked or TableStatus(declaration.name, declaration.layer, run=made.get(declaration.name), damaged=True)
        )
    read = recovery.read_by_tables(settings)
    for name in walks:
        looks.add(looks.at(warehouse.log(name).path, recovery.lost_batches, settings, name, read) or [])
    looks.add(looks.at(book("editions"), recovery.lost_editions, settings) or [])
    return Status(
        at=datetime.now(UTC),
        cut=at_cuts.latest,
        edition=looks.at(book("editions"), editions.current_edition, settings),
        newest=newest,
        pin=looks.at(book("editions"), editions.pinned, settings),
        stoppers=tuple(_stoppers(newest_checks, project, newest)),
        checks=_met(project, whole),
        streams=(*streams, *(Stream(name) for name, walk in walked.items() if walk is None)),
        tables=tuple(tables),
        damaged=tuple(looks.damaged.values()),
        failed=tuple(
            run
            for run in newest_runs
            if run.outcome == "failed" and (run.subject in project.tables or run.work not in OF_TABLES)
        ),
        sources=tuple(sources(settings, project.contracts)),
        consumers=tuple(looks.at(book("consumers"), _consumers, settings) or ()),
        sinks=tuple(looks.at(book("editions"), _sinks, settings) or ()),
        firing=tuple(looks.at(book("alerts"), _firing, settings) or ()),
        unordered=tuple(unordered(project, walks)),
        faults=tuple(f"{fault.what} ({fault.where})" if fault.where else fault.what for fault in faults),
        groups=tuple(looks.at(book("editions"), _groups, project, newest) or ()),
    )


class _Looks:
    """Reads tables of which some may be damaged: those are left out and reported."""

    def __init__(self, settings: Settings) -> None:
        self.damaged = {damage.path: damage for damage in damages(settings, quickly=True)}

    def is_sound(self, path: Address) -> bool:
        return path not in self.damaged

    def add(self, more: Iterable[Damage]) -> None:
        """Reports what is missing although everything present can be read."""
        self.damaged |= {damage.path: damage for damage in more}

    def at(self, path: Address, look: Callable[..., T], *about: Any) -> T | None:
        """What `look` finds that reads the table at `path`; None where that is damaged."""
        if path in self.damaged:
            return None
        try:
            return look(*about)
        except LakeError as error:
            self.damaged[path] = Damage(path, error.where or path.url, error.what)
        except Exception as error:
            self.damaged[path] = damage(path) or Damage(path, path.url, first_line(error))
        return None


def _met(project: Project, checks: Mapping[str, checks.Check]) -> Checks | None:
    met = [check for name, check in checks.items() if name in project.tables]
    results = [result["success"] for check in met for result in check.results]
    return Checks(sum(results), len(results), max(check.cut for check in met)) if results else None


class _Walk:
    """The heads of one log, read backwards only as far as somebody asks."""

    def __init__(self, settings: Settings, stream: str) -> None:
        self.stream = stream
        self.head = Log(settings, stream).head()
        self._settings = settings
        self._latest: dict[int, datetime | None] = {self.head.batch: self.head.latest, 0: None}

    def event_time(self, batch: int) -> datetime | None:
        """The greatest event time up to `batch`."""
        if batch not in self._latest:
            self._latest |= {head.batch: head.latest for head in Log(self._settings, self.stream).heads()}
        return self._latest.get(batch)


class _Cuts:
    """Cuts by number, each read once; of a damaged book nothing is known."""

    def __init__(self, settings: Settings, latest: cuts.Cut | None, *, sound: bool) -> None:
        self.latest = latest
        self._settings = settings
        self._sound = sound
        self._known = {self.latest.number: self.latest} if self.latest else {}

    def batches(self, number: int | None) -> Mapping[str, int] | None:
        """How far the logs were at cut `number`, at no cut nowhere; None where that cannot be known."""
        if number is None:
            return {}
        if not self._sound:
            return None
        if number not in self._known:
            self._known[number] = cuts.get_cut(self._settings, number)
        return self._known[number].batches


def _consumers(settings: Settings) -> list[ConsumerStatus]:
    return list(consumer_statuses(settings, datetime.now(UTC)))


def _sinks(settings: Settings) -> list[SinkStatus]:
    return list(sinks(settings, datetime.now(UTC)))


def _firing(settings: Settings) -> list[Episode]:
    return list(firing(settings))


def _stream(project: Project, walk: _Walk, cut: cuts.Cut | None, run: runs.Run | None) -> Stream:
    head, settings = walk.head, project.settings
    readers = rejection_limits.tables_by_stream(project, project.tables.values()).get(walk.stream, [])
    held = rejection_limits.find_excess(project, walk.stream, cut, readers) if cut else None
    marks = landing.landed(Log(settings, walk.stream))
    query = "SELECT reason, _batch, _number FROM t WHERE _batch <= $1 ORDER BY reason"
    rows = small.rows(Warehouse(settings).quarantine(walk.stream).path, query, head.batch)
    taken = {name for name, *_ in marks}
    refused = [row for row in rows if quarantine.mark(row["_batch"], row["_number"]) not in taken]
    return Stream(
        name=walk.stream,
        batch=head.batch,
        at=datetime.fromisoformat(head.at) if head.at else None,
        events=head.events,
        event_time=head.latest,
        pending=sum(file.mark not in marks for file in landing.listing(settings, walk.stream)),
        quarantined=dict(Counter(row["reason"] for row in refused).most_common()),
        run=run,
        horizon=_held(head, project.contracts[walk.stream]),
        missing=missing(settings, project.contracts[walk.stream]).summary,
        held=str(held) if held else None,
        accepted=head.accepted,
        drift=Drift.of(head, project.contracts[walk.stream]),
        folders=landing.ignored_folders(settings, walk.stream),
    )


def _held(head: LogHead, contract: Contract) -> Held | None:
    horizon = Horizon.of(head, contract) if contract.horizon else None
    if horizon is None or horizon.holding is None:
        return None
    one, name = horizon.producers[horizon.holding], horizon.holding
    if horizon.latest is not None and one.latest >= horizon.latest:
        return None
    return Held(horizon.at, name, one.latest, one.heard, len(horizon.producers))


def _table(
    project: Project, table: Declaration, walks: Mapping[str, _Walk], cuts: _Cuts, run: runs.Run | None
) -> TableStatus:
    stored = project.table(table)
    head = stored.head()
    built = delta.open_table(stored.path, head.version) if head else None
    batches = cuts.batches(head.cut if head else None)
    streams = [walks[name] for name in project.logs(table) if name in walks and batches is not None]
    batches = batches or {}
    lags = [
        walk.head.latest - reached
        for walk in streams
        if walk.head.latest and (reached := walk.event_time(batches.get(walk.stream, 0)))
    ]
    return TableStatus(
        name=table.name,
        layer=table.layer,
        cut=head.cut if head else None,
        behind=max((walk.head.batch - batches.get(walk.stream, 0) for walk in streams), default=0),
        lag=max(lags, default=None),
        rows=built.count() if built else None,
        changed=head is not None and not project.is_built(table, head),
        late=_late(project, table, batches),
        run=run,
    )


def _late(project: Project, table: Declaration, batches: Mapping[str, int]) -> Late | None:
    policy, source = table.kind.late_policy, table.inputs[0]
    if policy is None or not source.is_log or project.contracts[source.name].time is None:
        return None
    late, lateness = policy
    events = Scan(Log(project.settings, source.name).path, bounds={"_batch": (1, batches.get(source.name, 0))})
    return Late(late, lateness, events.late(lateness))


def _groups(project: Project, newest: editions.Edition | None) -> list[GroupStatus]:
    settings = project.settings
    if not settings.publish.groups:
        return []
    return [
        GroupStatus(group, cut, editions.left_behind_at(settings, cut) if cut else None)
        for group, cut in groups.cuts(settings, project.groups, newest).items()
    ]


def _stoppers(
    checks: Mapping[str, checks.Check], project: Project, newest: editions.Edition | None
) -> Iterator[Stopper]:
    """A stop binds its cut: an edition published since has overcome it."""
    lineage, settings = graph(project), project.settings
    for check in checks.values():
        overcome = newest is not None and check.cut <= editions.cut_of(settings, newest, check.table)
        if check.outcome == "stopped" and not overcome and check.table in lineage.nodes:
            waits = [check.table] if check.scope == "diff" else []
            holds = groups.held_by(project.groups, check.table) if settings.publish.groups else ()
            yield Stopper(check, tuple(lineage.below(check.table, including=waits)), tuple(holds))
