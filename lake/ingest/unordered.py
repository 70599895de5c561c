"""Tables that go by the order of a log, where its records come from partitions that have no order between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from lake.contracts.contract import Contract
from lake.errors import LakeError
from lake.ingest.standing import standing
from lake.project import Project
from lake.sources.declared import Declared, sound_sources
from lake.sources.source import Partitioned


def unordered(project: Project, streams: Iterable[str]) -> Iterator[str]:
    """What neither the events of these streams decide nor the order of one partition, table by table, with the fix."""
    sound, _ = sound_sources(project.settings, project.contracts)
    for source in sound.values():
        try:
            several = dict(_partitions(project, source))
        except LakeError:
            continue  # what is wrong with a source is told where it is read
        for stream in sorted({*several} & {*streams}):
            count, together = several[stream]
            yield from _by_log_order(project, stream, count, together)


def _partitions(project: Project, source: Declared) -> Iterator[tuple[str, tuple[int, list[set[str]]]]]:
    """Of each stream of several partitions how many they are, and fields of which events alike in all are in one."""
    progress = standing(project.settings, source.name, source.streams).progress
    with closing(source.open()) as reader:
        if progress is None or not isinstance(reader, Partitioned):
            return
        for stream, count in reader.partitions(progress).items():
            if count > 1 and stream in project.contracts:
                contract = project.contracts[stream]
                yield stream, (count, [*_alike(contract, reader.together)])


def _alike(contract: Contract, together: Iterable[tuple[str, ...]]) -> Iterator[set[str]]:
    if contract.id:
        yield {*contract.id}  # alike in all of it is one event
    for fact in together:
        fields = [field for field in contract.fields if field.path[: len(fact)] == fact]
        whole = [{field.name} for field in fields if field.path == fact]
        yield from whole or ([{field.name for field in fields}] if fields else [])


def _by_log_order(project: Project, stream: str, count: int, together: list[set[str]]) -> Iterator[str]:
    for table in project.tables.values():
        sides = [side for side, given in enumerate(table.inputs) if given.table is None and given.name == stream]
        for group in [group for side in sides for group in table.kind.ordered_within(side)]:
            columns = [column.strip("`") for column in group]
            if not any(names <= {column.lstrip("_") for column in columns} for names in together):
                alike = f"alike in {', '.join(columns)}" if columns else "of any key"
                yield (
                    f"{table.name} goes by which of the events of {stream} {alike} came first, and no order is between "
                    f"{count} partitions: order them by a sequence that tells any two apart, or take the key from the "
                    f"record's"
                )
