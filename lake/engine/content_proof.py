"""Fingerprint of all rows of a table, recorded in its commits: that of the last commit, plus the diff.

A first build and a rebuild read the whole table for it; a large table is read at publication.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from lake import cost
from lake.errors import DeclarationError
from lake.lazy import pa, pc
from lake.project.project import Project
from lake.store import delta
from lake.store.comparison import WAS
from lake.store.ledger.editions import EditionTable, latest_edition
from lake.store.proof.fingerprints import MODULUS, Fingerprint, of_arrow
from lake.store.rows import Rows
from lake.store.table_head import CHANGE, TableHead
from lake.store.tables import Table
from lake.store.warehouse import Warehouse


def of_rows(table: Table, rows: Rows) -> Fingerprint | None:
    """Return the fingerprint of a table about to be written; None if Spark has its rows or its key cannot be read."""
    with suppress(DeclarationError):  # a key store that cannot be read is reported by those that need it
        return None if rows.in_memory is None else of_arrow(rows.in_memory, table.content_key)
    return None


def after_diff(
    table: Table, head: TableHead, diff: Rows, identity: Sequence[str], *, again: bool
) -> Fingerprint | None:
    """Return the fingerprint after `diff` to `head`, None if unknown; with `again`, read the table for it."""
    if diff.in_memory is None:
        return None
    with suppress(DeclarationError):
        base = None if again else of_commit(table, head)
        if base is None:
            version = table.version()
            if not again and table.rows(version) > cost.FINGERPRINTED_TABLE_ROWS:
                return None
            base = table.content(version)
        return base + _added(table, diff) - _removed(table, diff.in_memory, identity)
    return None


def of_commit(table: Table, head: TableHead) -> Fingerprint | None:
    """Return the fingerprint that `head` or an edition records; None if neither does, or another tool wrote since."""
    if head.version != delta.version(table.path):
        return None
    if content := head.content:
        return Fingerprint.parse(content)
    edition = latest_edition(table.settings)
    entry = edition.tables.get(table.name) if edition else None
    path = table.path.relative_to(Warehouse(table.settings).root)
    if entry is None or not entry.content or entry.path != path:
        return None
    return Fingerprint.parse(entry.content) if entry.version in {head.version, head.origin} else None


def with_fingerprints(project: Project, tables: dict[str, EditionTable]) -> dict[str, EditionTable]:
    edition = latest_edition(project.settings)
    before = edition.tables if edition else {}
    completed = {}
    for name, entry in tables.items():
        table = project.table(project.tables[name])
        if entry == before.get(name) and before[name].rows is not None:
            completed[name] = before[name]
        elif entry.rows is None and not table.personal:
            content = table.content(entry.version)
            completed[name] = replace(entry, rows=content.rows, content=str(content))
        else:
            completed[name] = entry
    return completed


def without_hashes(diff: Rows) -> Rows:
    return diff.select([name for name in diff.columns if name != WAS])


def _added(table: Table, diff: Rows) -> Fingerprint:
    rows = without_hashes(diff.where(CHANGE, "insert", "update")).arrow()
    return of_arrow(rows.drop_columns([CHANGE]), table.content_key)


def _removed(table: Table, diff: pa.Table, identity: Sequence[str]) -> Fingerprint:
    gone = diff.filter(pc.not_equal(diff.column(CHANGE), "insert"))
    if WAS in diff.column_names:
        return Fingerprint(gone.num_rows, sum(gone.column(WAS).to_pylist()) % MODULUS)
    if not gone.num_rows:
        return Fingerprint()
    return of_arrow(table.rows_of(gone.select(list(identity)), table.version()), table.content_key)
