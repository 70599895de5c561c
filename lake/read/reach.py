"""How far readers of an edition see the logs: where groups are held, not all of its tables see the same batches."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lake.config import Settings
from lake.store import delta
from lake.store.ledger import cuts
from lake.store.ledger.editions import Edition
from lake.store.warehouse import Warehouse


def batches(settings: Settings, edition: Edition, tables: Collection[str] | None = None) -> Mapping[str, int]:
    """The last batch of each stream that all of `tables` have which are derived from it; by default all tables."""
    seen = dict(cuts.get_cut(settings, edition.cut).batches)
    for name in edition.tables if tables is None else tables:
        if edition.cut_of(name) != edition.cut:
            behind = cuts.get_cut(settings, edition.cut_of(name)).batches
            streams = _streams(settings, edition, name)
            for stream in [*seen] if streams is None else streams:
                seen[stream] = min(seen.get(stream, 0), behind.get(stream, 0))
    return seen


def _streams(settings: Settings, edition: Edition, name: str) -> set[str] | None:
    """The streams that a table of the edition is derived from, as its commits say; None where one says nothing."""
    entry = edition.tables[name]
    head = delta.metadata(Warehouse(settings).root / entry.path, entry.version)
    if "inputs" not in head:
        return None
    homes = head["homes"]
    streams = {source for source in head["inputs"] if source not in homes}
    for parent in homes:
        of_parent = _streams(settings, edition, parent) if parent in edition.tables else None
        if of_parent is None:
            return None
        streams |= of_parent
    return streams
