"""Expectations of a table beside the last edition of it: what may have gone, and by how much it may have changed.

A table that no edition has yet meets them all. Of a History they look at the current versions: its rows by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from lake.gate.gx import Finding
from lake.gate.judging import EXAMPLES
from lake.quality import expectation_types
from lake.quality.columns import Column, Key, exact, shown
from lake.quality.statistics import Values
from lake.quoting import quoted
from lake.store import small
from lake.store.ledger.editions import latest_edition
from lake.store.scan import Scan
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from lake.declaration import Declaration
    from lake.quality.suite import Expectation
    from lake.store.tables import Table


@dataclass(frozen=True)
class Beside:
    """A table `now` and as the last edition `had` it, of which `current` rows count; `key` tells them apart.

    Neither is held in this process: DuckDB reads `columns` of the files, within the setting `client_memory`.
    """

    had: Scan
    now: Scan
    key: tuple[str, ...]
    columns: Sequence[str]
    current: str

    def ask(self, query: str) -> list[dict[str, Any]]:
        with small.connection() as con, ExitStack() as stack:
            for name, scan in (("had", self.had), ("now", self.now)):
                stack.enter_context(scan.registered(con, name, self.columns, self.current))
            rows: list[dict[str, Any]] = con.sql(query).to_arrow_table().to_pylist()
            return rows

    def both(self, value: str) -> tuple[Any, Any]:
        """Return the SQL `value` over the edition's rows, and over those of now."""
        [row] = self.ask(f"SELECT (SELECT {value} FROM had) AS had, (SELECT {value} FROM now) AS now")
        return row["had"], row["now"]

    def gone(self, expectation: Expectation) -> Finding:
        """The keys that the edition has and the table lacks."""
        same = " AND ".join(f"had.{quoted(c)} IS NOT DISTINCT FROM now.{quoted(c)}" for c in self.key)
        keys = ", ".join(map(quoted, self.key))
        gone = self.ask(
            f"""SELECT {keys}, count(*) OVER () AS _failed FROM had ANTI JOIN now ON {same}
                ORDER BY {keys} LIMIT {EXAMPLES}"""
        )
        failed = gone[0]["_failed"] if gone else 0
        kwargs, [counted] = expectation.kwargs, self.ask("SELECT count(*) AS rows FROM had")
        allowed = max(exact(kwargs["share"]) * counted["rows"], exact(kwargs.get("rows", 0)))
        shown = [{name: row[name] for name in self.key} for row in gone]
        return Finding(expectation, failed <= allowed, counted["rows"], failed, examples=shown)

    def count(self, expectation: Expectation) -> Finding:
        return _near(expectation, *map(Fraction, self.both("count(*)")))

    def sum(self, expectation: Expectation) -> Finding:
        name = expectation.kwargs["column"]
        sums = []
        for table, scan in (("had", self.had), ("now", self.now)):
            with small.connection() as con, scan.registered(con, table, [name], self.current), expectation.evaluated():
                column = Column(name, scan.schema().field(name).type)
                sums.append(Values(con, table, column, "true").powers().total)
        return _near(expectation, *sums)


JUDGES: Final[Mapping[str, Callable[[Beside, Expectation], Finding]]] = {
    expectation_types.KEYS_GONE: Beside.gone,
    expectation_types.ROWS_CHANGED: Beside.count,
    expectation_types.SUM_CHANGED: Beside.sum,
}


def judge_since(
    table: Table, declaration: Declaration, expectations: Iterable[Expectation], version: int
) -> list[Finding]:
    """The findings of `expectations`, all of them about the last edition, on the table at `version`."""
    expectations = list(expectations)
    edition = latest_edition(table.settings) if expectations else None
    before = edition.tables.get(declaration.name) if edition else None
    if before is None:
        return [Finding(expectation, True) for expectation in expectations]
    old = Scan(Warehouse(table.settings).root / before.path, before.version)
    new = Scan(table.path, version)
    key, current = declaration.kind.current_identity, declaration.kind.current
    findings = []
    for expectation in expectations:
        columns = [*key, *(name for name in expectation.columns or () if name not in key)]
        if not set(columns) <= set(old.schema().names):
            findings.append(Finding(expectation, True))  # the edition is of a definition that had no such column
            continue
        findings.append(JUDGES[expectation.type](Beside(old, new, key, columns, current), expectation))
    return findings


def _near(expectation: Expectation, had: Key, now: Key) -> Finding:
    """Judge whether a number changed by at most a share of it; one that is not finite has to stay."""
    observed = f"{_shown(now)}, where the last edition has {_shown(had)}"
    if not (isinstance(had, Fraction) and isinstance(now, Fraction)):
        return Finding(expectation, str(had) == str(now), observed=observed)
    return Finding(expectation, abs(now - had) <= exact(expectation.kwargs["share"]) * abs(had), observed=observed)


def _shown(number: Key) -> str:
    return str(shown(number) if isinstance(number, Fraction) else number)
