"""Status of a project: cut, edition, stopped gates, and lags of sources, streams and tables. Needs no JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, TypeVar

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, LakeError
from lake.ingest import landing
from lake.ingest.drift import Drift
from lake.ingest.files import Mark
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
from lake.session import warm_server
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
    logs = {name: reader.at(reader.log(name), Log(settings, name).head) for name in project.contracts}
    sound = {name: head for name, head in logs.items() if head}
    streams = tuple(_stream_statuses(reader, logs, cut, newest_runs))
    tables = tuple(_table_statuses(reader, sound, newest_runs))
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
        streams=streams,
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
        warm_servers=tuple(warm_server.describe_servers(settings)),
    )
    every = (f"{fault.what} ({fault.where})" if fault.where else fault.what for fault in (*faults, *reader.faults))
    return replace(found, damaged=tuple(reader.damaged.values()), faults=tuple(dict.fromkeys(every)))


def _open_episodes(settings: Settings) -> list[sent.Episode]:
    return [episode for episode in sent.newest_episodes(settings).values() if episode.ended is None]


def _stream_statuses(
    reader: _TableReader, logs: Mapping[str, LogHead | None], cut: cuts.Cut | None, newest_runs: Iterable[runs.Run]
) -> Iterator[StreamStatus]:
    project, warehouse = reader.project, reader.warehouse
    by_stream = {run.subject: run for run in newest_runs if run.work not in TABLE_RUNS}
    holding_cut = cut if reader.is_sound(warehouse.book("editions").path) else None
    for name, head in logs.items():
        path, run = warehouse.quarantine(name).path, by_stream.get(name)
        found = reader.at(path, _stream_status, project, head, holding_cut, run) if head else None
        yield found or _damaged_stream(project.settings, name, head)


def _table_statuses(
    reader: _TableReader, logs: Mapping[str, LogHead], newest_runs: Iterable[runs.Run]
) -> Iterator[TableStatus]:
    project, warehouse = reader.project, reader.warehouse
    cuts_are_sound = reader.is_sound(warehouse.book("cuts").path)

    @cache
    def batches_at(cut: int) -> Mapping[str, int]:
        return cuts.get_cut(project.settings, cut).batches if cuts_are_sound else {}

    compared = logs if cuts_are_sound else {}
    by_table = {run.subject: run for run in newest_runs if run.work in TABLE_RUNS}
    for table in project.tables.values():
        addressed = reader.is_sound(warehouse.book("editions").path)
        path = project.table(table).path if addressed else warehouse.root / table.name
        run = by_table.get(table.name)
        yield reader.at(path, _table_status, project, table, compared, batches_at, run) or TableStatus(
            table.name, table.layer, run=run, damaged=not reader.is_sound(path)
        )


def _lost_commits(reader: _TableReader, logs: Iterable[str]) -> Iterator[Damage]:
    settings = reader.project.settings
    read = recovery.read_by_tables(settings)
    for name in logs:
        yield from reader.at(reader.log(name), recovery.lost_batches, settings, name, read) or []
    yield from reader.ledger("editions", editions.lost_editions, settings) or []


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


def _damaged_stream(settings: Settings, stream: str, head: LogHead | None) -> StreamStatus:
    """`head` is known if only the quarantine is damaged."""
    found = StreamStatus(stream, damaged=True)
    if head:
        found = replace(found, batch=head.batch, events=head.events, event_time=head.latest)
    log = Log(settings, stream)
    with suppress(Exception):  # the damage may be where the log lists its files
        if delta.head(log.path, log.app):
            return replace(found, pending=_count_pending(settings, stream, landing.ingested_marks(log)))
    return found


def _count_pending(settings: Settings, stream: str, marks: set[Mark]) -> int:
    return sum(file.mark not in marks for file in landing.list_files(settings, stream))


def _stream_status(project: Project, head: LogHead, cut: cuts.Cut | None, run: runs.Run | None) -> StreamStatus:
    stream, settings = head.stream, project.settings
    readers = rejection_limits.tables_by_stream(project, project.tables.values()).get(stream, [])
    held = rejection_limits.find_excess(project, stream, cut, readers) if cut else None
    marks = landing.ingested_marks(Log(settings, stream))
    query = "SELECT reason, _batch, _number FROM t WHERE _batch <= $1 ORDER BY reason"
    rows = duckdb_tables.rows(Warehouse(settings).quarantine(stream).path, query, head.batch)
    taken = {name for name, *_ in marks}
    refused = [row for row in rows if quarantine.mark(row["_batch"], row["_number"]) not in taken]
    return StreamStatus(
        name=stream,
        batch=head.batch,
        at=datetime.fromisoformat(head.at) if head.at else None,
        events=head.events,
        event_time=head.latest,
        pending=_count_pending(settings, stream, marks),
        quarantined=dict(Counter(row["reason"] for row in refused).most_common()),
        run=run,
        horizon=_horizon_status(head, project.contracts[stream]),
        missing=find_gaps(settings, project.contracts[stream]).summary,
        held=f"{held}: {held.advice}" if held else None,
        accepted=head.accepted,
        drift=Drift.of(head, project.contracts[stream]),
        folders=landing.ignored_folders(settings, stream),
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
    project: Project,
    table: Declaration,
    logs: Mapping[str, LogHead],
    batches_at: Callable[[int], Mapping[str, int]],
    run: runs.Run | None,
) -> TableStatus:
    stored = project.table(table)
    head = stored.head()
    built = delta.open_table(stored.path, head.version) if head else None
    batches = batches_at(head.cut) if head else {}
    streams = project.logs(table)
    newest = [logs[name] for name in streams if name in logs]
    behind = max((log.batch - batches.get(log.stream, 0) for log in newest), default=0)
    lags = [
        log.latest - reached
        for log in newest
        if log.latest
        and (batch := batches.get(log.stream))
        and (reached := Log(project.settings, log.stream).head_at(batch).latest)
    ]
    return TableStatus(
        name=table.name,
        layer=table.layer,
        cut=head.cut if head else None,
        behind=behind if len(newest) == len(streams) else None,
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
        for group, cut in groups.published_cuts(settings, project.groups, newest).items()
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
