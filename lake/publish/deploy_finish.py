"""Last step of a deploy: copies tables from the homes in which they were built to their usual folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lake.progress import step
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.store import commit
from lake.store.ledger import consumers
from lake.store.ledger.editions import Edition, EditionTable, expire_editions, record_edition
from lake.store.locks.lease import lease
from lake.store.scan import Scan
from lake.store.snapshot import write_manifest
from lake.store.table_head import CHANGE, Counts, TableHead
from lake.store.tables import Table
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def finish_deploy(project: Project, edition: Edition, spark: Callable[[], SparkSession]) -> Edition:
    """Copy the tables of `edition`, the newest, that are in other homes to the folders of their names.

    Publishes and returns an edition of the same rows there, and expires `edition` unless a consumer has it. Returns
    `edition` if no table is away. Raises Unavailable if another writer holds a table or was first: then readers see
    what they saw before.
    """
    away = {name for name, table in edition.tables.items() if table.home != name and _is_declared(project, name, table)}
    if not away:
        return edition
    work = _DeployFinish(project, away, dict(edition.tables), spark)
    with work.leases():
        for declaration in work.affected():
            with step("settle", declaration.name) as at_work:
                work.tables[declaration.name] = work.settle(declaration)
                at_work.rows = work.tables[declaration.name].rows
        settled = record_edition(project.settings, edition.cut, work.tables, seen=edition)
        write_manifest(project.settings, settled)
    with consumers.needed_editions(project.settings) as needed:
        expire_editions(project.settings, {edition.number} - needed)
    return settled


@dataclass(frozen=True)
class _DeployFinish:
    """`tables` of an edition, and names of those `away` from their usual folders."""

    project: Project
    away: set[str]
    tables: dict[str, EditionTable]
    spark: Callable[[], SparkSession]

    def affected(self) -> list[Declaration]:
        return [
            table
            for table in self.project.tables.values()
            if table.name in self.away
            or (table.name in self.tables and any(source.name in self.away for source in table.inputs))
        ]

    def settle(self, declaration: Declaration) -> EditionTable:
        """Bring the table to its usual folder, and its recorded inputs to theirs; return its entry."""
        name = declaration.name
        entry = self.tables[name]
        live, own = (self.project.table_in(declaration, home) for home in (entry.home, name))
        heads = [head for head in live.heads() if head.version <= entry.version]
        moved = {source: self.tables[source] for source in heads[0].physical if source in self.away}
        if name not in self.away and (not moved or live.version() != entry.version):
            return entry
        head = replace(
            heads[0],
            position=own.position_or_start(),
            verb="rebuild",
            inputs={**heads[0].inputs, **{source: table.version for source, table in moved.items()}},
            physical={**heads[0].physical, **{source: table.home for source, table in moved.items()}},
            counts=Counts(),
            definition=next((head.definition for head in heads if head.definition), None),
        )
        if name in self.away:
            self._copy(declaration, live, entry.version, own, head)
        else:
            none = own.schema().empty_table().append_column(CHANGE, pa.array([], pa.string()))
            commit.commit(own, none, Counts(), declaration.kind.identity, head.committed)
        path = own.path.relative_to(Warehouse(self.project.settings).root)
        return replace(entry, path=path, version=own.version())

    def _copy(self, declaration: Declaration, live: Table, version: int, own: Table, head: TableHead) -> None:
        scan, meanings = Scan(live.path, version), live.meanings(version)
        rows = scan.arrow() if scan.rows() <= self.project.settings.small_diff_rows else scan.frame(self.spark())
        if not own.exists():
            own.create(scan.schema(), description=declaration.doc)
        commit.replace(own, rows, declaration.kind.identity, head.committed, meanings=meanings)
        commit.describe(own, declaration.doc, meanings)

    @contextmanager
    def leases(self) -> Iterator[None]:
        tables = self.affected()
        live = [self.project.table_in(table, self.tables[table.name].home) for table in tables]
        names = {table.lease for table in (*live, *(self.project.table_in(table, table.name) for table in tables))}
        with ExitStack() as stack:
            for name in sorted(names):
                stack.enter_context(lease(self.project.settings, name))
            yield


def _is_declared(project: Project, name: str, entry: EditionTable) -> bool:
    declaration = project.tables.get(name)
    return declaration is not None and declaration.layer == entry.layer
