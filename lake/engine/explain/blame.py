"""Causes of changed rows: changes of their inputs between two editions, traced down to the logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lake.engine.explain.explain import Cause, ExplainedRow, InputCauses, attach_causes
from lake.engine.explain.lineage import WAS, trace_changes
from lake.engine.inputs import Inputs
from lake.engine.lookup import Few, Finding, Found, Values
from lake.kinds.columns import visible
from lake.project.declaration import Declaration, Input
from lake.project.project import Project
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import Edition
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.table_head import TableHead
from lake.store.tables import FeedGap, heads
from lake.store.warehouse import Location, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Key = tuple[Any, ...]
Images = tuple[Values | None, Values | None]
"""A row before and after a change, with state columns."""


@dataclass(frozen=True)
class RowCauses:
    """Causes of each row, one `InputCauses` per input; `notes` on causes that are unknown."""

    sides: list[tuple[InputCauses, ...]]
    notes: list[str]


def find_causes(  # noqa: PLR0913, PLR0917 which rows, between which editions
    project: Project,
    connect: Callable[[], SparkSession],
    declaration: Declaration,
    editions: tuple[Edition, Edition],
    keys: Sequence[Values],
    few: Few,
) -> RowCauses:
    """Return the input changes between two editions that concern rows `keys` of a table."""
    name = declaration.name
    earlier, later = sorted(editions, key=lambda edition: edition.cut_of(name))
    entries = [edition.tables[name] for edition in (earlier, later)]
    versions = [(Warehouse(project.settings).root / e.path, e.version) for e in entries]
    head = _head_at(*versions[0])
    if head is None or earlier.cut_of(name) == later.cut_of(name):
        return RowCauses([() for _ in keys], [])
    search = CauseSearch(Inputs(connect, project, get_cut(project.settings, later.cut_of(name))))
    images = _row_images(versions, keys)
    return RowCauses(search.sides(declaration, head, images, few), search.notes)


@dataclass(frozen=True)
class CauseSearch:
    """Search for input changes up to the cut of `inputs`, from a table down to the logs."""

    inputs: Inputs
    notes: list[str] = field(default_factory=list)

    def sides(
        self, declaration: Declaration, head: TableHead, rows: Sequence[Images], few: Few
    ) -> list[tuple[InputCauses, ...]]:
        frames = [self._changes(source, head) for source in declaration.inputs]
        images = [image for of_row in rows for image in of_row if image is not None]
        by_image = iter(trace_changes(self.inputs, declaration, frames, images, few) if images else ())
        findings = [
            _merged_images([next(by_image) for image in of_row if image is not None], len(frames)) for of_row in rows
        ]

        def parents(parent: Declaration, shown: Sequence[Found]) -> list[Cause]:
            return self._parents(parent, head, shown, few.fewer())

        return attach_causes(self.inputs, declaration, findings, parents)

    def _changes(self, source: Input, head: TableHead) -> DataFrame | None:
        if source.name not in head.inputs:
            self.notes.append(f"{source.name} was not an input before")
            return None
        try:
            return self.inputs.changes(source, head)
        except FeedGap:
            self.notes.append(f"{source.name} was rebuilt in between: which of its rows changed is not known")
            return None

    def _parents(self, parent: Declaration, child: TableHead, shown: Sequence[Found], few: Few) -> list[Cause]:
        last = {_key(version.order): version for version in shown}
        if not last:
            return []
        table, before = self.inputs.table(parent), child.inputs[parent.name]
        versions = [(table.path, table.stored(before)), (table.path, self.inputs.version(Input(parent.name, parent)))]
        images = dict(zip(last, _row_images(versions, [version.order for version in last.values()]), strict=True))
        head, sides = _head_at(table.path, before), dict[Key, tuple[InputCauses, ...]]()
        if head is not None:
            sides = dict(zip(last, self.sides(parent, head, list(images.values()), few), strict=True))
        causes = []
        for version in shown:
            key = _key(version.order)
            was, now = images[key]
            image = (was if version.role == WAS else now) or version.order
            values = {column: image[column] for column in visible(image)}
            row = ExplainedRow(parent.name, version.order, values, sides.get(key, ()) if version is last[key] else ())
            causes.append(Cause(version.role, version.nth, version.values, row=row))
        return causes


def _merged_images(findings: Sequence[Sequence[Finding]], inputs: int) -> list[Finding]:
    """Merge the findings for the images of one row, per input."""
    merged = []
    for side in range(inputs):
        different: list[Finding] = []
        for finding in findings:
            if finding[side] not in different:
                different.append(finding[side])
        merged.append(sum(different, Finding()))
    return merged


def _head_at(path: Address, version: int) -> TableHead | None:
    return next((head for head in heads(Location("table", path)) if head.version == version), None)


def _row_images(versions: Sequence[tuple[Address, int]], keys: Sequence[Values]) -> list[Images]:
    before, after = (_rows(path, version, keys) for path, version in versions)
    return list(zip(before, after, strict=True))


def _rows(path: Address, version: int, keys: Sequence[Values]) -> list[Values | None]:
    scan, columns = Scan(path, version), list(keys[0])
    if not set(columns) <= set(scan.schema().names):
        return [None for _ in keys]
    rows = scan.arrow(keys=scan.keys(keys)).to_pylist()
    by_key = {tuple(row[column] for column in columns): row for row in rows}
    return [by_key.get(_key(key)) for key in keys]


def _key(identity: Values) -> Key:
    return tuple(identity.values())
