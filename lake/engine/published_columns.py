"""What readers have: columns that may go, or lose values to another type, only where somebody said so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lake.contracts.evolution import is_lossless
from lake.declaration import Declaration
from lake.engine.pending_change import column_changes
from lake.errors import DeclarationError
from lake.evaluation.inputs import Inputs
from lake.evaluation.validate import analyse
from lake.kinds.columns import visible
from lake.store import delta
from lake.store.ledger import editions
from lake.store.ledger.editions import EditionTable
from lake.store.scan import Scan, to_frame
from lake.store.warehouse import Warehouse


def must_keep(inputs: Inputs, tables: Iterable[Declaration]) -> None:
    """Raise DeclarationError if a build of `tables` would take columns from readers, or values to another type."""
    if found := losses(inputs, tables):
        fix = "add --yes, or make the function return them as they were"
        raise DeclarationError.all([inputs.project.tables[name].fault(what, fix=fix) for name, what in found.items()])


def losses(inputs: Inputs, tables: Iterable[Declaration]) -> dict[str, str]:
    """Return by table what readers would lose by a build of `tables`: published columns, or values to another type."""
    latest = editions.latest_edition(inputs.project.settings)
    published = latest.tables if latest else {}
    return {
        declaration.name: what
        for declaration in tables
        if declaration.name in published and (what := _loss(inputs, declaration, published[declaration.name]))
    }


def _loss(inputs: Inputs, declaration: Declaration, entry: EditionTable) -> str:
    before, now = _columns(inputs, entry), analyse(inputs, declaration).columns
    lost = {
        name: what
        for name, what in column_changes(before, now).items()
        if name in before and visible([name]) and not (name in now and is_lossless(before[name], now[name]))
    }
    changes = ", ".join(f"{name} {change}" for name, change in lost.items())
    return f"published columns would change: {changes}" if lost else ""


def _columns(inputs: Inputs, entry: EditionTable) -> Mapping[str, str]:
    """The columns of a published table with Spark's types; none where it is gone."""
    path = Warehouse(inputs.project.settings).root / entry.path
    if not delta.exists(path):
        return {}
    return dict(to_frame(inputs.spark, Scan(path, entry.version).schema().empty_table()).dtypes)
