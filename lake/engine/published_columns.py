"""What readers have: columns that may go, or lose values to another type, only where somebody said so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lake.contracts.evolution import keeps
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
    """Raises DeclarationError where a build of `tables` would take columns from readers, or values to another type."""
    latest = editions.latest_edition(inputs.project.settings)
    published = latest.tables if latest else {}
    faults = [
        fault
        for declaration in tables
        if declaration.name in published
        for fault in _losses(inputs, declaration, published[declaration.name])
    ]
    if faults:
        raise DeclarationError.all(faults)


def _losses(inputs: Inputs, declaration: Declaration, entry: EditionTable) -> Iterator[DeclarationError]:
    before, now = _columns(inputs, entry), analyse(inputs, declaration).columns
    lost = {
        name: what
        for name, what in column_changes(before, now).items()
        if name in before and visible([name]) and not (name in now and keeps(before[name], now[name]))
    }
    if lost:
        what = ", ".join(f"{name} {change}" for name, change in lost.items())
        fix = "add --yes, or make the function return them as they were"
        yield declaration.fault(f"published columns would change: {what}", fix=fix)


def _columns(inputs: Inputs, entry: EditionTable) -> Mapping[str, str]:
    """The columns of a published table with Spark's types; none where it is gone."""
    path = Warehouse(inputs.project.settings).root / entry.path
    if not delta.exists(path):
        return {}
    return dict(to_frame(inputs.spark, Scan(path, entry.version).schema().empty_table()).dtypes)
