"""Status of a project as JSON, and as text lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from lake.ops.external_systems import ConsumerStatus, SinkStatus, SourceStatus
from lake.ops.status_records import GroupStatus, HorizonStatus, Status, StoppedCheck, StreamStatus, TableStatus
from lake.sources.describe import position
from lake.store.damage import name_of
from lake.store.table_head import DUCKDB, SPARK
from lake.text import as_table, counted, moment, plain, printable, span

NO_CUT: Final = "cut      none yet: lake cut"
ENGINES: Final = {SPARK: "Spark", DUCKDB: "DuckDB"}
NO_REASON: Final = "no reason recorded"
LATE_POLICIES: Final = {"correct": "corrected", "drop": "dropped"}


def as_data(status: Status) -> dict[str, Any]:
    """Instants are ISO 8601 in UTC, lags and lateness are seconds."""
    edition, newest = status.edition, status.newest
    data = {
        "cut": asdict(status.cut) if status.cut else None,
        "edition": {"number": edition.number, "cut": edition.cut, "at": edition.published_at} if edition else None,
        "newest_edition": newest.number if newest else None,
        "pinned": status.pin,
        "stoppers": [
            {"table": s.check.table, "cut": s.check.cut, "reasons": s.reasons, "blocks": s.blocks}
            | ({"groups": s.groups} if s.groups else {})
            for s in status.stoppers
        ],
        **({"groups": [asdict(group) for group in status.groups]} if status.groups else {}),
        "at": status.at,
        "checks": asdict(status.checks) if status.checks else None,
        "damaged": [
            {"what": name_of(damage.path), "found": damage.found, "file": str(damage.file)} for damage in status.damaged
        ],
        "failed": [asdict(run) for run in status.failed],
        "sources": [asdict(source) for source in status.sources],
        "consumers": [asdict(consumer) for consumer in status.consumers],
        "sinks": [asdict(sink) for sink in status.sinks],
        "firing": [asdict(episode) for episode in status.firing],
        "unordered": status.unordered,
        "faults": status.faults,
        "warm_servers": status.warm_servers,
        "streams": [asdict(stream) | {"drift": stream.drift.as_json} for stream in status.streams],
        "tables": [
            asdict(table) | {"lag": None if table.lag is None else table.lag.total_seconds(), "late": _late_data(table)}
            for table in status.tables
        ],
    }
    as_json: dict[str, Any] = plain(data)
    return as_json


def as_text(status: Status) -> Iterator[str]:
    yield from _head_lines(status)
    for fault in status.faults:
        yield f"faulty   {printable(fault)}: omitted here, with everything downstream"
    for damage in status.damaged:
        yield f"damaged  {printable(f'{name_of(damage.path)}: {damage.found} ({damage.file})')}"
    for run in status.failed:
        why = printable(run.counts.get("error", NO_REASON))
        yield f"failed   {run.verb} of {run.subject}, {_age(status, run.started_at)}: {why}"
    for stopper in status.stoppers:
        yield from _stop_lines(stopper)
    for stream in status.streams:
        yield from _stream_lines(status, stream)
    yield from (f"warning  {line}" for line in status.unordered)
    for episode in status.firing:
        yield f"alert    {episode.alert}, since {episode.began}: {printable(episode.what)}"
    yield from (f"spark    {server}" for server in status.warm_servers)
    if status.checks:
        checks = status.checks
        yield f"checks   {checks.passed} of {checks.total} checks passed, at cut {checks.cut}"
    yield from _connection_lines(status)
    yield ""
    names = ["stream", "batches", "newest batch", "events", "event time", "pending files", "quarantine"]
    yield from as_table(names, (_stream_row(status, stream) for stream in status.streams))
    yield ""
    names = ["table", "cut", "batches behind", "event time behind", "rows", "late events", "last run"]
    yield from as_table(names, (_table_row(status, table) for table in status.tables))


def _stream_lines(status: Status, stream: StreamStatus) -> Iterator[str]:
    if stream.horizon:
        yield f"horizon  {_horizon_text(status, stream, stream.horizon)}"
    for line in stream.drift.lines():
        yield f"drift    {stream.name}: {printable(line)}: lake schemas"
    if stream.folders:
        names = ", ".join(stream.folders)
        yield f"warning  {stream.name}: files in sub-folders of its landing folder are not read: {names}"
    if stream.missing:
        yield f"missing  {stream.name}: {stream.missing}: lake log {stream.name} --missing"
    if stream.held:
        yield f"held     {stream.held}"
    if stream.accepted and stream.quarantined:
        upto, reason = stream.accepted["batch"], stream.accepted["reason"]
        yield f"accepted what {stream.name} refused up to batch {upto}: {reason}"


def _connection_lines(status: Status) -> Iterator[str]:
    if status.sources:
        yield ""
        names = ["source", "kind", "streams", "deliveries", "read up to", "waiting", "for", "kept there", "trouble"]
        yield from as_table(names, map(_source_row, status.sources))
    if status.consumers:
        yield ""
        names = ["consumer", "table", "edition", "editions behind", "for", "trouble"]
        yield from as_table(names, map(_consumer_row, status.consumers))
    if status.sinks:
        yield ""
        names = ["sink", "kind", "edition", "editions behind", "for", "rejected", "undelivered", "trouble"]
        yield from as_table(names, map(_sink_row, status.sinks))


def failed_conditions(status: Status, kinds: Collection[str]) -> list[str]:
    lines = [f"{name_of(damage.path)} is damaged: {damage.found}" for damage in status.damaged]
    for kind, conditions in CONDITIONS.items():
        if kind in kinds:
            lines += [f"{kind}: {what}" for what in conditions(status)]
    return lines


def _stopped_conditions(status: Status) -> Iterator[str]:
    yield from (f"a declaration is faulty: {fault}" for fault in status.faults)
    yield from (f"{stopper.check.table} at cut {stopper.check.cut}" for stopper in status.stoppers)
    yield from (stream.held for stream in status.streams if stream.held)
    yield from (f"{run.verb} of {run.subject} failed" for run in status.failed)
    yield from (f"{source.name} is unreachable: {source.error}" for source in status.sources if source.error)
    yield from (f"sink {sink.name}: {sink.error}" for sink in status.sinks if sink.error)


def _behind_conditions(status: Status) -> Iterator[str]:
    for stream in status.streams:
        if stream.pending:
            yield f"{counted(stream.pending, 'file')} of {stream.name} wait to be ingested"
    yield from (source.waits for source in status.sources if source.waits)
    for table in status.tables:
        if table.behind:
            yield f"{table.name} by {counted(table.behind, 'batch', 'batches')}"
    for sink in status.sinks:
        if sink.editions or (sink.edition is None and not sink.error):
            has = "nothing" if sink.edition is None else f"edition {sink.edition}"
            yield f"sink {sink.name} has {has}"


def _stale_conditions(status: Status) -> Iterator[str]:
    if status.edition is None:
        yield "no edition has been published"
    elif status.cut and status.edition.cut < status.cut.number:
        yield f"readers see cut {status.edition.cut}, the newest is {status.cut.number}"
    else:
        yield from (f"group {group.group} is held" for group in status.groups if _is_behind(status, group))
    yield from (f"the definition of {table.name} has changed" for table in status.tables if table.changed)


def _quarantine_conditions(status: Status) -> Iterator[str]:
    for stream in status.streams:
        if count := sum((stream.quarantined or {}).values()):
            yield f"{counted(count, 'record')} of {stream.name}"
    for sink in status.sinks:
        if lacking := len(sink.rejected) + sink.undelivered:
            yield f"{counted(lacking, 'row')} that sink {sink.name} cannot take, or has not taken"


CONDITIONS: Final[dict[str, Callable[[Status], Iterator[str]]]] = {
    "stopped": _stopped_conditions,
    "failed": lambda status: (
        f"{run.verb} of {run.subject}: {printable(run.counts.get('error', NO_REASON))}" for run in status.failed
    ),
    "behind": _behind_conditions,
    "stale": _stale_conditions,
    "missing": lambda status: (f"{stream.name}: {stream.missing}" for stream in status.streams if stream.missing),
    "drift": lambda status: (
        f"{stream.name}: {printable(line)}" for stream in status.streams for line in stream.drift.lines()
    ),
    "quarantine": _quarantine_conditions,
}


def _head_lines(status: Status) -> Iterator[str]:
    cut, edition, newest = status.cut, status.edition, status.newest
    yield f"cut      {cut.number}, {moment(cut.made_at)} ({_age(status, cut.made_at)})" if cut else NO_CUT
    if edition is None:
        is_stopped = status.faults or status.failed or status.stoppers or any(stream.held for stream in status.streams)
        yield f"edition  none yet{'' if is_stopped else ': lake run'}"
        return
    published = f"{moment(edition.published_at)} ({_age(status, edition.published_at)})"
    yield f"edition  {edition.number} of cut {edition.cut}, {published}"
    if status.pin is not None and newest is not None:
        yield f"pinned   to edition {status.pin}; the newest is {newest.number}: lake publish --resume"
    for group in status.groups:
        yield f"group    {group.group}: {_group_text(status, group)}"


def _group_text(status: Status, group: GroupStatus) -> str:
    if not group.cut:
        return "not published yet"
    held = group.held_since
    return f"at cut {group.cut}{f', held since {moment(held)} ({_age(status, held)})' if held else ''}"


def _is_behind(status: Status, group: GroupStatus) -> bool:
    return status.newest is not None and group.cut < status.newest.cut


def _stop_lines(stopper: StoppedCheck) -> Iterator[str]:
    check = stopper.check
    edition = f"the next edition of {', '.join(stopper.groups)}" if stopper.groups else "the next edition"
    waiting = ", ".join([*stopper.blocks, edition])
    yield f"stopped  {check.table} at cut {check.cut}, {moment(check.checked_at)}; blocks {waiting}"
    for reason in stopper.reasons:
        yield f"         {reason}"


def _horizon_text(status: Status, stream: StreamStatus, held: HorizonStatus) -> str:
    at = moment(held.at) if held.at else "none yet"
    behind = f", {span(stream.event_time - held.latest)} behind the newest event" if stream.event_time else ""
    silent = span(max(status.at - held.heard, timedelta()))
    of = f" of {held.producers} producers" if held.producers > 1 else ""
    return f"{stream.name}: {at}, held back by {printable(held.producer)!r}{of}{behind}; nothing from it for {silent}"


def _source_row(source: SourceStatus) -> list[Any]:
    trouble = source.error or (source.waits if source.lacking else "")
    return [
        source.name,
        source.kind,
        ", ".join(source.streams),
        source.delivery,
        printable(position(source.progress)) if source.progress else "",
        source.waiting,
        "" if source.seconds is None else span(timedelta(seconds=source.seconds)),
        "" if source.retained is None else f"{source.retained / 2**20:.1f} MiB",
        printable(trouble),
    ]


def _consumer_row(consumer: ConsumerStatus) -> list[Any]:
    again = f"must start over: lake changes {consumer.table} --consumer {consumer.consumer} --start-over"
    return [
        consumer.consumer,
        consumer.table,
        "none yet" if consumer.edition is None else consumer.edition,
        consumer.editions,
        "" if consumer.seconds is None else span(timedelta(seconds=consumer.seconds)),
        again if consumer.must_start_over else "",
    ]


def _sink_row(sink: SinkStatus) -> list[Any]:
    reasons = ", ".join(dict.fromkeys(f"{row.table}: {row.reason}" for row in sink.rejected))
    return [
        sink.name,
        sink.kind,
        "none yet" if sink.edition is None else sink.edition,
        sink.editions,
        "" if sink.seconds is None else span(timedelta(seconds=sink.seconds)),
        len(sink.rejected),
        sink.undelivered,
        sink.error or reasons,
    ]


def _stream_row(status: Status, stream: StreamStatus) -> list[Any]:
    return [
        stream.name,
        _if_known(stream.batch),
        _age(status, stream.at) if stream.at else "",
        _if_known(stream.events),
        moment(stream.event_time) if stream.event_time else "",
        _if_known(stream.pending),
        _quarantine_text(stream.quarantined),
    ]


def _quarantine_text(counts: Mapping[str, int] | None) -> str:
    if not counts:
        return "" if counts is None else "0"
    return f"{sum(counts.values())} ({', '.join(f'{reason} {count}' for reason, count in counts.items())})"


def _if_known(count: int | None) -> int | str:
    return "" if count is None else count


def _table_row(status: Status, table: TableStatus) -> list[Any]:
    run = table.run
    last = ""
    if run:
        by = f" by {ENGINES[engine]}" if (engine := run.counts.get("engine")) in ENGINES else ""
        last = f"{run.verb}{by}, {moment(run.started_at)}, {run.seconds:.1f} s ({_age(status, run.started_at)})"
    last = f"{last}; failed" if table.error else last
    return [
        f"{table.layer}.{table.name}",
        "damaged" if table.damaged else "not built" if table.cut is None else table.cut,
        _if_known(table.behind),
        "" if table.lag is None else span(table.lag),
        _if_known(table.rows),
        "" if table.late is None else f"{table.late.events} {LATE_POLICIES[table.late.policy]}",
        f"{last}; its definition has changed since: lake plan, lake deploy" if table.changed else last,
    ]


def _late_data(table: TableStatus) -> dict[str, Any] | None:
    late = table.late
    return None if late is None else asdict(late) | {"lateness": late.lateness.total_seconds()}


def _age(status: Status, at: datetime) -> str:
    return f"{span(max(status.at - at, timedelta()))} ago"
