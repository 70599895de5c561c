"""What a commit says of the content of its table: the fingerprint of all rows, kept up from what each commit changes.

It is found by reading the whole table where nothing says what it was: at the first build and at a rebuild. Of a
large table that is done when it is published, and until then no commit says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lake import cost
from lake.errors import DeclarationError
from lake.project import Project
from lake.store import delta
from lake.store.comparison import WAS
from lake.store.ledger.editions import EditionTable, latest_edition
from lake.store.proof.fingerprints import MODULUS, Fingerprint, of_arrow
from lake.store.table_head import CHANGE, TableHead
from lake.store.tables import Table
from lake.store.warehouse import Warehouse


def of_rows(table: Table, rows: pa.Table | object) -> Fingerprint | None:
    """The fingerprint of a whole table that is about to be written; None where it is not in this process's memory."""
    if not isinstance(rows, pa.Table):
        return None
    with suppress(DeclarationError):  # a key store that cannot be read is told by whoever needs it
        return of_arrow(rows, table.content_key)
    return None


def after(
    table: Table, head: TableHead, diff: pa.Table | object, identity: Sequence[str], *, again: bool
) -> Fingerprint | None:
    """The fingerprint of the table once `diff` is applied on top of `head`; None where it is not known.

    With `again` it is found anew, whatever was said of it before: the rows may be damaged, and `diff` be what fixes it.
    """
    if not isinstance(diff, pa.Table):
        return None
    with suppress(DeclarationError):
        base = None if again else of_commit(table, head)
        if base is None:
            version = table.version()
            if not again and table.rows(version) > cost.FINGERPRINTED_TABLE_ROWS:
                return None
            base = table.content(version)
        return base + _come(table, diff) - _gone(table, diff, identity)
    return None


def of_commit(table: Table, head: TableHead) -> Fingerprint | None:
    """The fingerprint of the table as `head` says it, or the edition that has it; None where none does.

    None too where another tool has written to the table since.
    """
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


def completed(project: Project, tables: dict[str, EditionTable]) -> dict[str, EditionTable]:
    """The `tables` of an edition, with fingerprints also of those whose commits did not say them.

    Not of what is personal: only its own commits, which go with its past, say anything about its rows.
    """
    edition = latest_edition(project.settings)
    before = edition.tables if edition else {}
    proven = {}
    for name, entry in tables.items():
        table = project.table(project.tables[name])
        if entry == before.get(name) and before[name].rows is not None:
            proven[name] = before[name]
        elif entry.rows is None and not table.personal:
            content = table.content(entry.version)
            proven[name] = replace(entry, rows=content.rows, content=str(content))
        else:
            proven[name] = entry
    return proven


def written(diff: pa.Table) -> pa.Table:
    """`diff` as it is committed."""
    return diff.drop_columns([WAS]) if WAS in diff.column_names else diff


def _come(table: Table, diff: pa.Table) -> Fingerprint:
    rows = written(diff.filter(pc.not_equal(diff.column(CHANGE), "delete")))
    return of_arrow(rows.drop_columns([CHANGE]), table.content_key)


def _gone(table: Table, diff: pa.Table, identity: Sequence[str]) -> Fingerprint:
    """The rows that are taken away: by the hashes that the diff has of them, else those of the table."""
    gone = diff.filter(pc.not_equal(diff.column(CHANGE), "insert"))
    if WAS in diff.column_names:
        return Fingerprint(gone.num_rows, sum(gone.column(WAS).to_pylist()) % MODULUS)
    if not gone.num_rows:
        return Fingerprint()
    return of_arrow(table.rows_of(gone.select(list(identity)), table.version()), table.content_key)
