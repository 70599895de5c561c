"""Cut: one number for the newest batch of every log."""

from __future__ import annotations

from collections.abc import Mapping

from lake.errors import DeclarationError
from lake.project import Project
from lake.store.erasures import heed_destroyed
from lake.store.ledger.cuts import CUTS, Cut, get_cut, latest_cut, record_cut
from lake.store.log import Log, LogHead
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
        heads = {s: Log(settings, s).must_reach(counted.get(s, 0)) for s in project.contracts}
        return record_cut(settings, whole(heads), voids_head(settings), label=label)


def whole(heads: Mapping[str, LogHead]) -> dict[str, int]:
    """The newest batches of logs that divide no delivery of a source: {stream: batch}.

    What is not in all of its logs yet is in none, and so is what came after it.
    """
    batches = {stream: head.batch for stream, head in heads.items()}
    for source in {name for head in heads.values() for name in head.sources}:
        said = {stream: head.sources[source] for stream, head in heads.items() if source in head.sources}
        newest = max(one["delivery"] for one in said.values())
        has = {stream: one for stream, one in said.items() if one["delivery"] == newest}
        if not {stream for one in has.values() for stream in one["streams"]} <= {*has}:
            for stream, one in has.items():
                batches[stream] = min(batches[stream], one["batch"] - 1)
    return batches


def pick_cut(project: Project, number: int | None) -> Cut:
    """Cut `number`, or the latest. Raises DeclarationError where there is none."""
    if number is not None:
        return get_cut(project.settings, number)
    latest = latest_cut(project.settings)
    if latest is None:
        raise DeclarationError("there is no cut yet", fix="lake ingest, then lake cut; or lake run, which does it all")
    return latest
