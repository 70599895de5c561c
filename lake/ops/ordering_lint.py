"""Lint: tables that depend on the order of records from unordered partitions or sources.

The log keeps the order of ingestion, but another ingestion may have another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import closing, suppress
from typing import TypeAlias

from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.ingest.declared_position import declared_position
from lake.project.project import Project
from lake.sources.declared import DeclaredSource, sound_sources
from lake.sources.source import PartitionedSource

Ordering: TypeAlias = tuple[str, list[set[str]]]
"""Description of the unordered parts, and sets of fields: events equal in all fields of a set are ordered."""


def find_unordered_tables(project: Project, streams: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each table that depends on an arbitrary order of events."""
    wanted = {*streams}
    if not wanted:
        return
    sound, _ = sound_sources(project.settings, project.contracts)
    feeding = [source for source in sound.values() if wanted & {*source.streams}]
    unordered: dict[str, Ordering] = {}
    offsets: set[tuple[str, ...]] = set()
    for source in feeding:
        with suppress(LakeError), closing(source.open()) as reader:  # reported when the source is read
            if isinstance(reader, PartitionedSource):
                offsets.add(reader.offset)
                unordered |= _partitions(project, source, reader)
    for stream, count in Counter(stream for source in feeding for stream in source.streams).items():
        if count > 1:
            unordered[stream] = f"{count} sources", [*_identity(project.contracts[stream], offsets)]
    for stream in sorted({*unordered} & wanted):
        yield from _dependent_tables(project, stream, *unordered[stream])


def _partitions(project: Project, source: DeclaredSource, reader: PartitionedSource) -> Mapping[str, Ordering]:
    progress = declared_position(project.settings, source).progress
    counts = {} if progress is None else reader.partitions(progress)
    return {
        stream: (
            f"{count} partitions",
            [*_identity(contract, {reader.offset}), *_ordered_fields(contract, reader.together)],
        )
        for stream, count in counts.items()
        if count > 1 and (contract := project.contracts.get(stream))
    }


def _identity(contract: Contract, offsets: Set[tuple[str, ...]]) -> Iterator[set[str]]:
    """Yield the event's identity, unless an offset is part of it: offsets order the events of one partition only."""
    if contract.id and not any(contract.field(name).path in offsets for name in contract.id):
        yield {*contract.id}


def _ordered_fields(contract: Contract, together: Iterable[tuple[str, ...]]) -> Iterator[set[str]]:
    for fact in together:
        fields = [field for field in contract.fields if field.path[: len(fact)] == fact]
        whole = [{field.name} for field in fields if field.path == fact]
        yield from whole or ([{field.name for field in fields}] if fields else [])


def _dependent_tables(project: Project, stream: str, between: str, ordered: list[set[str]]) -> Iterator[str]:
    for table in project.tables.values():
        sides = [side for side, given in enumerate(table.inputs) if given.table is None and given.name == stream]
        groups = [group for side in sides for group in table.kind.ordered_within(side)]
        for columns in [[column.strip("`") for column in group] for group in groups]:
            if any(names <= {column.lstrip("_") for column in columns} for names in ordered):
                continue
            alike = f"alike in {', '.join(columns)}" if columns else "of any key"
            yield (
                f"{table.name} goes by which of the events of {stream} {alike} came first, and no order is between "
                f"{between}: order them by a sequence that tells any two apart, or take the key from the record's"
            )
            break
