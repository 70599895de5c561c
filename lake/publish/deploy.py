"""Deploy: build changed tables beside the live ones, check them, and publish all of them in one edition.

The last step copies tables from the homes in which they were built to their usual folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from lake.engine import integrity
from lake.engine.advance import advance
from lake.engine.content_proof import with_fingerprints
from lake.engine.engines import by_either
from lake.engine.inputs import Inputs
from lake.engine.pending_change import check_columns_kept, column_losses
from lake.engine.plan import load_suites, stale
from lake.engine.rebuild import rebuild
from lake.engine.verbs import Advanced, after_inputs
from lake.errors import Unavailable
from lake.lazy import pa
from lake.progress import OnProgress, step
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.publish.blocked_groups import BlockedGroups, failure_of, tables_by_group
from lake.publish.cut import pick_cut
from lake.session import SessionFactory
from lake.store import commit
from lake.store.ledger import consumers, runs
from lake.store.ledger.cuts import Cut, latest_cut
from lake.store.ledger.editions import Edition, EditionTable, expire_editions, latest_edition, pinned, record_edition
from lake.store.locks.lease import lease
from lake.store.rows import Rows
from lake.store.scan import Scan
from lake.store.snapshot import write_manifest
from lake.store.table_head import CHANGE, Counts, TableHead
from lake.store.tables import Table
from lake.store.warehouse import Warehouse


def deploy(
    project: Project,
    connect: SessionFactory,
    on_progress: Callable[[Advanced], None],
    warn: OnProgress,
    *,
    yes: bool = False,
) -> Edition:
    """Publish all tables by their current definitions, at the newest cut, in one edition.

    Builds each table whose definition, or that of an input, has changed in a new home; reuses a home that an
    interrupted deploy has built. Live tables and old jobs continue until the edition is published, and pinned readers
    stay at theirs. Then the tables are copied to their usual folders, as an edition of the same rows. A held publish
    group stays at its edition; its new tables are copied once it is released.

    Raises as `advance`, `check` and `finish_deploy` do; DeclarationError if without `yes` a visible column would be
    removed or change its type; Unavailable if another deploy, or an edition of a later cut, was first. After an error,
    readers see the edition from before.
    """
    settings = project.settings
    with runs.recording(settings, "deploy", runs.EDITION) as counts:
        edition = _deploy(project, connect, on_progress, warn, yes=yes)
        counts["edition"] = edition.number
    runs.record_nothing_to_do(settings, runs.ADVANCE, [*edition.tables], edition.cut)  # their definition has changed
    return edition


def _deploy(
    project: Project,
    connect: SessionFactory,
    on_progress: Callable[[Advanced], None],
    warn: OnProgress,
    *,
    yes: bool = False,
) -> Edition:
    load_suites(project)  # report faulty suites before building
    staged, changed = _staged(project, connect)
    sound = integrity.check_integrity(project, [project.tables[name] for name in staged.staged])
    if not yes:
        at = pick_cut(staged, None)
        by_either(staged.settings, connect, lambda session: check_columns_kept(Inputs(session, staged, at), changed))

    cut, tables, held = _build(staged, connect, sound, on_progress, warn)
    edition = record_edition(staged.settings, cut.number, with_fingerprints(staged, tables), seen=project.seen)
    write_manifest(staged.settings, edition)
    if (pin := pinned(project.settings)) is not None:
        warn(f"readers are pinned to edition {pin} until `lake publish --resume`")
    try:
        edition = finish_deploy(project, edition, connect) if held is None else edition
    except Unavailable as error:
        fix = "run `lake publish` to move its tables to their usual paths"
        warn(f"edition {edition.number} is published; {fix}: {error}")
    return edition


def _build(
    staged: Project, connect: SessionFactory, sound: set[str], on_progress: Callable[[Advanced], None], warn: OnProgress
) -> tuple[Cut, dict[str, EditionTable], BlockedGroups | None]:
    def build(declaration: Declaration) -> Advanced:
        head = staged.table(declaration).head()
        is_current = head is None or staged.is_built(declaration, head)
        return advance(inputs, declaration) if is_current else rebuild(inputs, declaration, yes=True)

    while True:
        cut = pick_cut(staged, None)
        inputs = Inputs(connect, staged, cut, sound_logs=sound)
        build_all = partial(after_inputs, staged.settings, staged.tables.values(), build, on_progress)
        failure = failure_of(staged, build_all)
        tables, held = tables_by_group(staged, cut, latest_edition(staged.settings), connect, warn)
        if held is not None and staged.staged.keys() & held.tables(staged):
            raise failure or held.error
        if failure is not None:
            warn(f"a table that is not deployed failed: {failure}")
        if latest_cut(staged.settings) == cut:  # otherwise a newer cut was made meanwhile
            return cut, tables, held


def confirmations_needed(project: Project, connect: SessionFactory) -> dict[str, str]:
    """Return {table: why `deploy` needs --yes}. Starts a session if a definition has changed.

    Raises as `deploy` does before it builds anything.
    """
    staged, changed = _staged(project, connect)
    if not changed or latest_edition(project.settings) is None:
        return {}
    at = pick_cut(staged, None)
    return by_either(staged.settings, connect, lambda session: column_losses(Inputs(session, staged, at), changed))


def _staged(project: Project, connect: SessionFactory) -> tuple[Project, list[Declaration]]:
    """Return the project with deterministic homes for the tables to build beside live ones, and these tables."""
    homes = {}
    for name in stale(project, connect):
        declaration = project.tables[name]
        home, live = f"{name}@{project.lineage(declaration)}", project.table(declaration).home
        homes[name] = f"{home}.2" if home == live else home
    return replace(project, staged=homes), [table for name, table in project.tables.items() if name in homes]


def finish_deploy(project: Project, edition: Edition, spark: SessionFactory) -> Edition:
    """Copy the tables of `edition`, the newest, that are in staged homes to the folders of their names.

    Publishes and returns an edition of the same rows there, and expires `edition` unless a consumer has it. Returns
    `edition` if no table is staged. Raises Unavailable if another writer holds a table or was first; readers then stay
    at `edition`.
    """
    staged = {
        name for name, table in edition.tables.items() if table.home != name and _is_declared(project, name, table)
    }
    if not staged:
        return edition
    work = _StagedTables(project, staged, dict(edition.tables), spark)
    with work.leases():
        for declaration in work.affected():
            with step("settle", declaration.name) as at_work:
                work.tables[declaration.name] = work.finish(declaration)
                at_work.rows = work.tables[declaration.name].rows
        settled = record_edition(project.settings, edition.cut, work.tables, seen=edition)
        write_manifest(project.settings, settled)
    with consumers.needed_editions(project.settings) as needed:
        expire_editions(project.settings, {edition.number} - needed)
    return settled


@dataclass(frozen=True)
class _StagedTables:
    """`tables` of an edition, and the names of those in `staged` homes instead of their usual folders."""

    project: Project
    staged: set[str]
    tables: dict[str, EditionTable]
    spark: SessionFactory

    def affected(self) -> list[Declaration]:
        return [
            table
            for table in self.project.tables.values()
            if table.name in self.staged
            or (table.name in self.tables and any(source.name in self.staged for source in table.inputs))
        ]

    def finish(self, declaration: Declaration) -> EditionTable:
        """Copy the table to its usual folder if it is staged, and record the folders of its inputs."""
        name = declaration.name
        entry = self.tables[name]
        live, own = (self.project.table_in(declaration, home) for home in (entry.home, name))
        heads = [head for head in live.heads() if head.version <= entry.version]
        moved = {source: self.tables[source] for source in heads[0].physical if source in self.staged}
        if name not in self.staged and (not moved or live.version() != entry.version):
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
        if name in self.staged:
            self._copy(declaration, live, entry.version, own, head)
        else:
            no_rows = own.schema().empty_table().append_column(CHANGE, pa.array([], pa.string()))
            commit.commit(own, Rows(no_rows), Counts(), declaration.kind.identity, head.committed)
        path = own.path.relative_to(Warehouse(self.project.settings).root)
        return replace(entry, path=path, version=own.version())

    def _copy(self, declaration: Declaration, live: Table, version: int, own: Table, head: TableHead) -> None:
        scan, meanings = Scan(live.path, version), live.meanings(version)
        few = scan.rows() <= self.project.settings.collected_rows
        rows = Rows(scan.arrow() if few else scan.frame(self.spark()))
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
