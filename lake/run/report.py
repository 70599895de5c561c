"""The status of a project for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from lake.run.render import as_table, plain
from lake.run.status import Status, Stopper, Stream, TableStatus

DONE_WITH: Final = {"correct": "corrected", "drop": "dropped"}


def as_data(status: Status) -> dict[str, Any]:
    """The status as JSON; instants are ISO 8601 in UTC, lags and lateness in seconds."""
    edition, newest = status.edition, status.newest
    data = {
        "cut": asdict(status.cut) if status.cut else None,
        "edition": {"number": edition.number, "cut": edition.cut, "at": edition.published_at} if edition else None,
        "newest_edition": newest.number if newest else None,
        "pinned": status.pin,
        "stoppers": [
            {"table": s.check.table, "cut": s.check.cut, "reasons": s.reasons, "blocks": s.blocks}
            for s in status.stoppers
        ],
        "streams": [asdict(stream) for stream in status.streams],
        "tables": [
            asdict(each) | {"lag": None if each.lag is None else each.lag.total_seconds(), "late": _late(each)}
            for each in status.tables
        ],
    }
    found: dict[str, Any] = plain(data)
    return found


def as_text(status: Status) -> Iterator[str]:
    """The status as lines: the heads, what stopped, streams, tables."""
    yield from _heads(status)
    for stopper in status.stoppers:
        yield from _stopped(stopper)
    for stream in status.streams:
        if stream.held:
            yield f"held     {stream.held}: lake quarantine accept {stream.name}, or repair them"
        if stream.accepted and stream.quarantined:
            upto, reason = stream.accepted["batch"], stream.accepted["reason"]
            yield f"accepted what {stream.name} refused up to batch {upto}: {reason}"
    yield ""
    names = ["stream", "batches", "events", "event time", "pending files", "quarantine"]
    yield from as_table(names, map(_stream, status.streams))
    yield ""
    names = ["table", "cut", "batches behind", "event time behind", "rows", "late events", "last run"]
    yield from as_table(names, map(_table, status.tables))


def _heads(status: Status) -> Iterator[str]:
    cut, edition, newest = status.cut, status.edition, status.newest
    yield f"cut      {cut.number}, {_instant(cut.made_at)}" if cut else "cut      none yet: lake cut"
    if edition is None:
        yield "edition  none yet: lake run"
        return
    yield f"edition  {edition.number} of cut {edition.cut}, {_instant(edition.published_at)}"
    if status.pin is not None and newest is not None:
        yield f"pinned   readers stay at edition {status.pin}, the newest is {newest.number}: lake publish --resume"


def _stopped(stopper: Stopper) -> Iterator[str]:
    check = stopper.check
    waiting = ", ".join([*stopper.blocks, "the next edition"])
    yield f"stopped  {check.table} at cut {check.cut}, {_instant(check.checked_at)}; blocks {waiting}"
    for reason in stopper.reasons:
        yield f"         {reason}"


def _stream(stream: Stream) -> list[Any]:
    refused = ", ".join(f"{reason} {count}" for reason, count in stream.quarantined.items())
    total = sum(stream.quarantined.values())
    return [
        stream.name,
        stream.batch,
        stream.events,
        _instant(stream.event_time) if stream.event_time else "",
        stream.pending,
        f"{total} ({refused})" if total else "0",
    ]


def _table(table: TableStatus) -> list[Any]:
    run = table.run
    last = f"{run.verb}, {_instant(run.started_at)}, {run.seconds:.1f} s" if run else ""
    return [
        f"{table.layer}.{table.name}",
        "not built" if table.cut is None else table.cut,
        table.behind,
        "" if table.lag is None else span(table.lag),
        "" if table.rows is None else table.rows,
        "" if table.late is None else f"{table.late.events} {DONE_WITH[table.late.policy]}",
        f"{last}; its definition has changed since: lake plan, lake deploy" if table.changed else last,
    ]


def _late(table: TableStatus) -> dict[str, Any] | None:
    late = table.late
    return None if late is None else asdict(late) | {"lateness": late.lateness.total_seconds()}


def _instant(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M:%SZ}"


def span(lag: timedelta) -> str:
    """`2 d 3 h`, `3 h 20 min`, `40 s`; `0` where there is none."""
    seconds = int(lag.total_seconds())
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "min"), (seconds % 60, "s")]
    told = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(told[:2]) or "0"
