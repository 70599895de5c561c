"""The sinks of which no search in the warehouse can prove that a forgotten person is gone, and why."""

from __future__ import annotations

from collections.abc import Iterator

from lake.project import Project
from lake.sinks.alerts import row_sinks
from lake.sinks.declared import DeclaredSink, sound_sinks
from lake.store import erasures
from lake.store.ledger import consumers

KEPT = {"upsert": "keeps rows that went from the table", "append": "keeps a row of each change"}
"""What tables of these modes keep in a target."""


def unproven(project: Project, stream: str) -> Iterator[str]:
    """A line for each sink, or table of one, that may still have what was delivered of the people of `stream`."""
    sinks, faults = sound_sinks(project.settings)
    sinks |= row_sinks(project.settings)
    for name in faults:
        yield f"sink {name}, whose declaration is faulty"
    for sink in sinks.values():
        tables = [name for name in sink.tables if name in _derived(project, stream)]
        if tables:
            yield from _of(project, sink, tables)


def _derived(project: Project, stream: str) -> set[str]:
    return {name for name, table in project.tables.items() if stream in project.logs(table)}


def _of(project: Project, sink: DeclaredSink, tables: list[str]) -> Iterator[str]:
    has = consumers.consumer(project.settings, sink.name, consumers.SINK)
    if has.edition is not None and has.edition < erasures.purged_with(project.settings):
        yield f"sink {sink.name}: it has edition {has.edition}, of before the purge: lake deliver {sink.name}"
    elif has.edition is not None and _purge_waits(project):
        yield f"sink {sink.name}: older editions have not been purged yet: lake status"
    if sink.keeps:
        yield f"sink {sink.name}: {sink.keeps}"
    for name in tables:
        if why := KEPT.get(sink.tables[name].mode):
            yield f"sink {sink.name}: its table {sink.tables[name].far} {why}"


def _purge_waits(project: Project) -> bool:
    since = erasures.purged(project.settings)
    return any(erasure.number > since for erasure in erasures.entries(project.settings))
