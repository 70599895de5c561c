"""Changes of an edition: the tables whose rows differ from the edition before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from lake.config import Settings
from lake.store.ledger.editions import Edition, EditionTable, edition_before
from lake.store.table_head import Counts, TableHead
from lake.store.tables import heads
from lake.store.warehouse import Warehouse


def changes(settings: Settings, edition: Edition) -> dict[str, Counts]:
    """Count the changed rows of the tables of `edition` that differ from the edition before.

    All rows of a table that was rebuilt count as inserted.
    """
    before = edition_before(settings, edition.number)
    changed = {}
    for name, table in edition.tables.items():
        counts = _between(settings, before.tables.get(name) if before else None, table)
        if counts is not None:
            changed[name] = counts
    return changed


def _between(settings: Settings, old: EditionTable | None, new: EditionTable) -> Counts | None:
    """Count the rows changed between two versions of a table; None if the rows are the same."""
    in_place = old is not None and old.path == new.path
    commits = list(_commits(settings, new, old.version if old is not None and in_place else -1))
    counts = Counts(
        sum(head.counts.inserted for head in commits),
        sum(head.counts.updated for head in commits),
        sum(head.counts.deleted for head in commits),
    )
    if not in_place:
        counts = Counts(inserted=new.rows if new.rows is not None else counts.inserted - counts.deleted)
    if old is None or old.content is None or new.content is None:
        return counts if counts.total or not in_place else None
    return counts if old.content != new.content else None


def _commits(settings: Settings, table: EditionTable, after: int) -> Iterator[TableHead]:
    home = table.path.rpartition("/")[2]
    newer = takewhile(lambda head: head.version > after, heads(Warehouse(settings).table(table.layer, home)))
    return (head for head in newer if head.version <= table.version and not head.changed_nothing)
