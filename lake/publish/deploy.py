"""Deploy: build changed tables beside the live ones, check them, and publish all of them in one edition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lake.engine import integrity
from lake.engine.advance import advance
from lake.engine.content_proof import with_fingerprints
from lake.engine.inputs import Inputs
from lake.engine.pending_change import check_columns_kept, column_losses
from lake.engine.plan import load_suites, stale
from lake.engine.rebuild import rebuild
from lake.engine.verbs import Advanced, after_inputs
from lake.errors import Unavailable
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.publish.blocked_groups import BlockedGroups, failure_of, tables_by_group
from lake.publish.cut import pick_cut
from lake.publish.deploy_finish import finish_deploy
from lake.store.ledger import runs
from lake.store.ledger.cuts import Cut, latest_cut
from lake.store.ledger.editions import Edition, EditionTable, latest_edition, pinned, record_edition
from lake.store.snapshot import write_manifest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def deploy(
    project: Project,
    connect: Callable[[], SparkSession],
    on_progress: Callable[[Advanced], None],
    warn: Callable[[str], None],
    *,
    yes: bool = False,
) -> Edition:
    """Publish all tables by their current definitions, at the newest cut, in one edition.

    A table whose definition, or that of an input, has changed is built in a new home, or was by an interrupted deploy.
    The live table and its old jobs go on until the edition is published, and pinned readers stay at theirs. Then the
    tables are copied to their usual folders, as an edition of the same rows. A held publish group stays at its
    edition; built tables are copied once it is released.

    Raises as `advance`, `check` and `finish_deploy` do; DeclarationError if without `yes` a visible column would be
    removed or change its type; Unavailable if another deploy, or an edition of a later cut, was first. Then readers
    see what they saw before.
    """
    settings = project.settings
    with runs.recording(settings, "deploy", runs.EDITION) as counts:
        edition = _deploy(project, connect, on_progress, warn, yes=yes)
        counts["edition"] = edition.number
    runs.record_nothing_to_do(settings, runs.ADVANCE, [*edition.tables], edition.cut)  # their definition has changed
    return edition


def _deploy(
    project: Project,
    connect: Callable[[], SparkSession],
    on_progress: Callable[[Advanced], None],
    warn: Callable[[str], None],
    *,
    yes: bool = False,
) -> Edition:
    load_suites(project)  # report faulty suites before building
    staged, changed = _staged(project, connect)
    sound = integrity.check_integrity(project, [project.tables[name] for name in staged.staged])
    if not yes:
        check_columns_kept(Inputs(connect, staged, pick_cut(staged, None)), changed)

    cut, tables, held = _build(staged, connect, sound, on_progress, warn)
    edition = record_edition(staged.settings, cut.number, with_fingerprints(staged, tables), seen=project.seen)
    write_manifest(staged.settings, edition)
    if (pin := pinned(project.settings)) is not None:
        warn(f"readers are pinned to edition {pin} until `lake publish --resume`")
    try:
        edition = finish_deploy(project, edition, connect) if held is None else edition
    except Unavailable as error:
        how = "run `lake publish` to move its tables to their usual paths"
        warn(f"edition {edition.number} is published; {how}: {error}")
    return edition


def _build(
    staged: Project,
    connect: Callable[[], SparkSession],
    sound: set[str],
    on_progress: Callable[[Advanced], None],
    warn: Callable[[str], None],
) -> tuple[Cut, dict[str, EditionTable], BlockedGroups | None]:
    def build(declaration: Declaration) -> Advanced:
        head = staged.table(declaration).head()
        is_current = head is None or staged.is_built(declaration, head)
        done = advance(inputs, declaration) if is_current else rebuild(inputs, declaration, yes=True)
        on_progress(done)
        return done

    def build_all() -> None:
        after_inputs(staged.tables.values(), build, workers=staged.settings.tables_at_once)

    while True:
        cut = pick_cut(staged, None)
        inputs = Inputs(connect, staged, cut, sound_logs=sound)
        failure = failure_of(staged, build_all)
        tables, held = tables_by_group(staged, cut, latest_edition(staged.settings), connect, warn)
        if held is not None and staged.staged.keys() & held.tables(staged):
            raise failure or held.error
        if latest_cut(staged.settings) == cut:  # otherwise a newer cut was made meanwhile
            return cut, tables, held


def confirmations_needed(project: Project, connect: Callable[[], SparkSession]) -> dict[str, str]:
    """Return {table: why `deploy` needs --yes}. Starts a session if a definition has changed.

    Raises as `deploy` does before it builds anything.
    """
    staged, changed = _staged(project, connect)
    if not changed or latest_edition(project.settings) is None:
        return {}
    return column_losses(Inputs(connect, staged, pick_cut(staged, None)), changed)


def _staged(project: Project, connect: Callable[[], SparkSession]) -> tuple[Project, list[Declaration]]:
    staged = project.with_staged(_homes(project, connect))
    return staged, [staged.tables[name] for name in staged.tables if name in staged.staged]


def _homes(project: Project, connect: Callable[[], SparkSession]) -> dict[str, str]:
    """Return deterministic homes for the tables to build beside live ones: {table: home}."""
    homes = {}
    for name in stale(project, connect):
        declaration = project.tables[name]
        home, live = f"{name}@{project.lineage(declaration)}", project.table(declaration).home
        homes[name] = f"{home}.2" if home == live else home
    return homes
