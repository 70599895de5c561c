"""Cut: one number for the newest batch of every log."""

from __future__ import annotations

from lake.errors import DeclarationError
from lake.project import Project
from lake.store.erasures import heed_destroyed
from lake.store.ledger.cuts import CUTS, Cut, get_cut, latest_cut, record_cut
from lake.store.log import Log
from lake.store.voids import voids_head


def cut(project: Project, *, label: str | None = None) -> Cut:
    """Records the heads of all logs as a new cut; the latest cut itself, where nothing has moved since.

    With a `label`, the cut that was recorded under it, if there is one: a retry gets the same cut (idempotent).
    Raises Unavailable where a log has lost what the latest cut counts.
    """
    settings = project.settings
    heed_destroyed(settings, project.contracts.values())
    with CUTS.written(settings):
        latest = latest_cut(settings)
        counted = latest.batches if latest else {}
        heads = {s: Log(settings, s).must_reach(counted.get(s, 0)).batch for s in project.contracts}
        return record_cut(settings, heads, voids_head(settings), label=label)


def pick_cut(project: Project, number: int | None) -> Cut:
    """Cut `number`, or the latest. Raises DeclarationError where there is none."""
    if number is not None:
        return get_cut(project.settings, number)
    latest = latest_cut(project.settings)
    if latest is None:
        raise DeclarationError("there is no cut yet", fix="lake ingest, then lake cut; or lake run, which does it all")
    return latest
