"""Batches of logs that readers see; in tables of held groups they see fewer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lake.config import Settings
from lake.store import delta
from lake.store.ledger import cuts
from lake.store.ledger.editions import Edition
from lake.store.warehouse import Warehouse


def visible_batches(settings: Settings, edition: Edition, tables: Collection[str] | None = None) -> Mapping[str, int]:
    """Return the last batch per stream that all derived `tables` have."""
    seen = dict(cuts.get_cut(settings, edition.cut).batches)
    for name in edition.tables if tables is None else tables:
        if edition.cut_of(name) != edition.cut:
            behind = cuts.get_cut(settings, edition.cut_of(name)).batches
            streams = _source_streams(settings, edition, name)
            for stream in [*seen] if streams is None else streams:
                seen[stream] = min(seen.get(stream, 0), behind.get(stream, 0))
    return seen


def _source_streams(settings: Settings, edition: Edition, name: str) -> set[str] | None:
    """Return a table's streams, from its commits; None if they are not recorded."""
    entry = edition.tables[name]
    head = delta.commit_metadata(Warehouse(settings).root / entry.path, entry.version)
    if "inputs" not in head:
        return None
    homes = head["homes"]
    streams = {source for source in head["inputs"] if source not in homes}
    for parent in homes:
        of_parent = _source_streams(settings, edition, parent) if parent in edition.tables else None
        if of_parent is None:
            return None
        streams |= of_parent
    return streams
