"""What always holds of a kind's tables, whatever a quality file says: judged with them, and a stop where it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake.gate.gx import EXAMPLES, Finding
from lake.quality.suite import Expectation
from lake.quoting import quoted
from lake.store import delta

if TYPE_CHECKING:
    from lake.declaration import Declaration
    from lake.store.tables import Table


def judge_invariants(table: Table, declaration: Declaration, version: int) -> list[Finding]:
    """A finding for each invariant of the table's kind, at `version`; examples are the identity of failing rows."""
    total = table.rows(version)
    identity = ", ".join(map(quoted, declaration.kind.identity))
    found = []
    for name, sql in declaration.kind.invariants.items():
        broken = f"SELECT {identity}, count(*) OVER () AS _failed FROM ({sql.format(table='t')})"
        examples = delta.rows(table.path, f"{broken} ORDER BY {identity} LIMIT {EXAMPLES}", version=version)
        failed = next((row["_failed"] for row in examples), 0)
        shown = [{column: value for column, value in row.items() if column != "_failed"} for row in examples]
        expectation = Expectation(name, {}, "stop", f"holds of every {declaration.kind.name}", declaration.where)
        found.append(Finding(expectation, not failed, total, failed, examples=shown))
    return found
