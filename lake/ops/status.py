"""Status of a project: cut, edition, stopped gates, and lags of sources, streams and tables. Needs no JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, LakeError
from lake.ingest import landing
from lake.ingest.drift import Drift
from lake.ingest.gap_detection import find_gaps
from lake.ingest.horizon import Horizon
from lake.ops.external_systems import consumer_statuses, sink_statuses, source_statuses
from lake.ops.ordering_lint import find_unordered_tables
from lake.ops.status_records import (
    CheckSummary,
    GroupStatus,
    HorizonStatus,
    LateEvents,
    Status,
    StoppedCheck,
    StreamStatus,
    TableStatus,
)
from lake.project import groups, rejection_limits
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.session.spark_session import first_line
from lake.store import delta, duckdb_tables, quarantine, recovery
from lake.store.damage import Damage, damage, damages
from lake.store.ledger import checks, cuts, editions, runs, sent
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.view import view
from lake.store.warehouse import Warehouse

T = TypeVar("T")
TABLE_RUNS: Final = (runs.ADVANCE, "verify")


@view()
def status(project: Project, faults: Iterable[LakeError] = ()) -> Status:
    """`faults` are those of declarations that `project` omits."""
    settings, reader = project.settings, _TableReader(project)
    newest = reader.ledger("editions", editions.latest_edition, settings)
    newest_runs = reader.ledger("runs", runs.newest_runs, settings) or []
    newest_checks = reader.ledger("checks", checks.last_checks, settings) or {}
    whole = reader.ledger("checks", checks.last_checks, settings, "table") or {}
    cut = reader.ledger("cuts", cuts.latest_cut, settings)
    logs = {name: reader.at(reader.log(name), _LogHeads, settings, name) for name in project.contracts}
    sound = {name: heads for name, heads in logs.items() if heads}
    streams = _stream_statuses(reader, sound, cut, newest_runs)
    tables = tuple(_table_statuses(reader, sound, cut, newest_runs))
    for lost in _lost_commits(reader, sound):
        reader.damaged[lost.path] = lost
    now = datetime.now(UTC)
    found = Status(
        at=now,
        cut=cut,
        edition=reader.ledger("editions", editions.current_edition, settings),
        newest=newest,
        pin=reader.ledger("editions", editions.pinned, settings),
        stoppers=tuple(_stopped_checks(newest_checks, project, newest)),
        checks=_check_summary(project, whole),
        streams=(*streams, *(StreamStatus(name) for name, heads in logs.items() if heads is None)),
        tables=tables,
        failed=tuple(
            run
            for run in newest_runs
            if run.outcome == "failed" and (run.subject in project.tables or run.work not in TABLE_RUNS)
        ),
        sources=tuple(source_statuses(settings, project.contracts)),
        consumers=reader.ledger("consumers", lambda: tuple(consumer_statuses(settings, now))) or (),
        sinks=reader.ledger("editions", lambda: tuple(sink_statuses(settings, now))) or (),
        firing=tuple(reader.ledger("alerts", _open_episodes, settings) or ()),
        unordered=tuple(find_unordered_tables(project, sound)),
        groups=tuple(reader.ledger("editions", _group_statuses, project, newest) or ()),
    )
    every = (f"{fault.what} ({fault.where})" if fault.where else fault.what for fault in (*faults, *reader.faults))
    return replace(found, damaged=tuple(reader.damaged.values()), faults=tuple(dict.fromkeys(every)))


def _open_episodes(settings: Settings) -> list[sent.Episode]:
    return [episode for episode in sent.newest_episodes(settings).values() if episode.ended is None]


def _stream_statuses(
    reader: _TableReader, logs: Mapping[str, _LogHeads], cut: cuts.Cut | None, newest_runs: Iterable[runs.Run]
) -> list[StreamStatus]:
    project, warehouse = reader.project, reader.warehouse
    by_stream = {run.subject: run for run in newest_runs if run.work not in TABLE_RUNS}
    holding_cut = cut if reader.is_sound(warehouse.book("editions").path) else None
    return [
        reader.at(warehouse.quarantine(name).path, _stream_status, project, heads, holding_cut, by_stream.get(name))
        or StreamStatus(name)
        for name, heads in logs.items()
    ]


def _table_statuses(
    reader: _TableReader, logs: Mapping[str, _LogHeads], cut: cuts.Cut | None, newest_runs: Iterable[runs.Run]
) -> Iterator[TableStatus]:
    project, warehouse = reader.project, reader.warehouse
    cut_batches = _CutBatches(project.settings, cut, sound=reader.is_sound(warehouse.book("cuts").path))
    by_table = {run.subject: run for run in newest_runs if run.work in TABLE_RUNS}
    for table in project.tables.values():
        addressed = reader.is_sound(warehouse.book("editions").path)
        path = project.table(table).path if addressed else warehouse.root / table.name
        run = by_table.get(table.name)
        yield reader.at(path, _table_status, project, table, logs, cut_batches, run) or TableStatus(
            table.name, table.layer, run=run, damaged=not reader.is_sound(path)
        )


def _lost_commits(reader: _TableReader, logs: Iterable[str]) -> Iterator[Damage]:
    settings = reader.project.settings
    read = recovery.read_by_tables(settings)
    for name in logs:
        yield from reader.at(reader.log(name), recovery.lost_batches, settings, name, read) or []
    yield from reader.ledger("editions", recovery.lost_editions, settings) or []


class _TableReader:
    """Reader of tables that records in `damaged` and `faults` why one cannot be read."""

    def __init__(self, project: Project) -> None:
        self.project, self.warehouse = project, Warehouse(project.settings)
        self.damaged = {damage.path: damage for damage in damages(project.settings, quickly=True)}
        self.faults: list[DeclarationError] = []

    def is_sound(self, path: Address) -> bool:
        return path not in self.damaged

    def log(self, stream: str) -> Address:
        return self.warehouse.log(stream).path

    def ledger(self, name: str, look: Callable[..., T], *about: Any) -> T | None:
        return self.at(self.warehouse.book(name).path, look, *about)

    def at(self, path: Address, look: Callable[..., T], *about: Any) -> T | None:
        if path in self.damaged:
            return None
        try:
            return look(*about)
        except DeclarationError as fault:
            self.faults.append(fault)
        except LakeError as error:
            self.damaged[path] = Damage(path, error.where or path.url, error.what)
        except Exception as error:
            self.damaged[path] = damage(path) or Damage(path, path.url, first_line(error))
        return None


def _check_summary(project: Project, checks: Mapping[str, checks.Check]) -> CheckSummary | None:
    met = [check for name, check in checks.items() if name in project.tables]
    results = [result["success"] for check in met for result in check.results]
    return CheckSummary(sum(results), len(results), max(check.cut for check in met)) if results else None


class _LogHeads:
    def __init__(self, settings: Settings, stream: str) -> None:
        self.stream = stream
        self.head = Log(settings, stream).head()
        self._settings = settings
        self._latest: dict[int, datetime | None] = {self.head.batch: self.head.latest, 0: None}

    def event_time(self, batch: int) -> datetime | None:
        if batch not in self._latest:
            self._latest |= {head.batch: head.latest for head in Log(self._settings, self.stream).heads()}
        return self._latest.get(batch)


class _CutBatches:
    def __init__(self, settings: Settings, latest: cuts.Cut | None, *, sound: bool) -> None:
        self.latest = latest
        self._settings = settings
        self._sound = sound
        self._known = {self.latest.number: self.latest} if self.latest else {}

    def batches(self, number: int | None) -> Mapping[str, int] | None:
        """Return the last batch of each log at cut `number`; empty for no cut, None if unknown."""
        if number is None:
            return {}
        if not self._sound:
            return None
        if number not in self._known:
            self._known[number] = cuts.get_cut(self._settings, number)
        return self._known[number].batches


def _stream_status(project: Project, log: _LogHeads, cut: cuts.Cut | None, run: runs.Run | None) -> StreamStatus:
    head, settings = log.head, project.settings
    readers = rejection_limits.tables_by_stream(project, project.tables.values()).get(log.stream, [])
    held = rejection_limits.find_excess(project, log.stream, cut, readers) if cut else None
    marks = landing.ingested_marks(Log(settings, log.stream))
    query = "SELECT reason, _batch, _number FROM t WHERE _batch <= $1 ORDER BY reason"
    rows = duckdb_tables.rows(Warehouse(settings).quarantine(log.stream).path, query, head.batch)
    taken = {name for name, *_ in marks}
    refused = [row for row in rows if quarantine.mark(row["_batch"], row["_number"]) not in taken]
    return StreamStatus(
        name=log.stream,
        batch=head.batch,
        at=datetime.fromisoformat(head.at) if head.at else None,
        events=head.events,
        event_time=head.latest,
        pending=sum(file.mark not in marks for file in landing.list_files(settings, log.stream)),
        quarantined=dict(Counter(row["reason"] for row in refused).most_common()),
        run=run,
        horizon=_horizon_status(head, project.contracts[log.stream]),
        missing=find_gaps(settings, project.contracts[log.stream]).summary,
        held=str(held) if held else None,
        accepted=head.accepted,
        drift=Drift.of(head, project.contracts[log.stream]),
        folders=landing.ignored_folders(settings, log.stream),
    )


def _horizon_status(head: LogHead, contract: Contract) -> HorizonStatus | None:
    horizon = Horizon.of(head, contract) if contract.horizon else None
    if horizon is None or horizon.slowest is None:
        return None
    slowest = horizon.producers[horizon.slowest]
    if horizon.latest is not None and slowest.latest >= horizon.latest:
        return None
    return HorizonStatus(horizon.at, horizon.slowest, slowest.latest, slowest.heard, len(horizon.producers))


def _table_status(
    project: Project, table: Declaration, logs: Mapping[str, _LogHeads], cuts: _CutBatches, run: runs.Run | None
) -> TableStatus:
    stored = project.table(table)
    head = stored.head()
    built = delta.open_table(stored.path, head.version) if head else None
    batches = cuts.batches(head.cut if head else None)
    streams = [logs[name] for name in project.logs(table) if name in logs and batches is not None]
    batches = batches or {}
    lags = [
        log.head.latest - reached
        for log in streams
        if log.head.latest and (reached := log.event_time(batches.get(log.stream, 0)))
    ]
    return TableStatus(
        name=table.name,
        layer=table.layer,
        cut=head.cut if head else None,
        behind=max((log.head.batch - batches.get(log.stream, 0) for log in streams), default=0),
        lag=max(lags, default=None),
        rows=built.count() if built else None,
        changed=head is not None and not project.is_built(table, head),
        late=_late_events(project, table, batches),
        run=run,
    )


def _late_events(project: Project, table: Declaration, batches: Mapping[str, int]) -> LateEvents | None:
    policy, source = table.kind.late_policy, table.inputs[0]
    if policy is None or not source.is_log or project.contracts[source.name].time is None:
        return None
    late, lateness = policy
    events = Scan(Log(project.settings, source.name).path, bounds={"_batch": (1, batches.get(source.name, 0))})
    return LateEvents(late, lateness, events.late(lateness))


def _group_statuses(project: Project, newest: editions.Edition | None) -> list[GroupStatus]:
    settings = project.settings
    if not settings.publish.groups:
        return []
    return [
        GroupStatus(group, cut, editions.left_behind_at(settings, cut) if cut else None)
        for group, cut in groups.cuts(settings, project.groups, newest).items()
    ]


def _stopped_checks(
    checks: Mapping[str, checks.Check], project: Project, newest: editions.Edition | None
) -> Iterator[StoppedCheck]:
    settings = project.settings
    for check in checks.values():
        overcome = newest is not None and check.cut <= editions.cut_of(settings, newest, check.table)
        if check.outcome == "stopped" and not overcome and check.table in project.tables:
            waits = [check.table] if check.scope == "diff" else []
            holds = groups.held_by(project.groups, check.table) if settings.publish.groups else ()
            yield StoppedCheck(check, tuple(project.below(check.table, including=waits)), tuple(holds))
