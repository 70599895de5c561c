"""Verification and repair of a target: compare its rows with those of the edition that it claims to have.

Fingerprints are compared first if the target computes them. Else the rows are read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, Literal

import duckdb

from lake.config import Settings
from lake.errors import DeclarationError, LakeError
from lake.lazy import pa
from lake.read.locked_database import connect_spilling
from lake.read.net_changes import TableInEdition
from lake.sinks.deliver import VERB, SentTable
from lake.sinks.kind import DeclaredSink
from lake.sinks.plan import DeliveryPlan
from lake.sinks.sink import (
    FingerprintingTarget,
    ReadableTarget,
    SinkDelivery,
    SinkPosition,
    TableChanges,
    Target,
    TargetTable,
    key_of,
)
from lake.store.ledger import runs
from lake.store.locks.lease import lease
from lake.store.proof.fingerprints import MODULUS, Field, Fingerprint, duck_hash, fields_of
from lake.store.snapshot import Column
from lake.text import literal, quoted

RESHAPED: Final = "it was not delivered as it is declared now"
SHOWN: Final = 10
NOTHING: Final = "SELECT '' AS change, NULL AS before, NULL AS after WHERE false"
WRONG: Final = {
    "missing": "theirs._key IS NULL",
    "extra": "ours._key IS NULL",
    "repeated": "theirs.times > 1",
    "differs": "ours._hash <> theirs._hash",
}


@dataclass(frozen=True)
class TargetVerdict:
    """`why` explains `unproven`, or counts the rows that the target cannot store.

    `differences` lists the first rows: identity, and `change`: missing, extra, repeated, or differs.
    """

    table: str
    verdict: Literal["identical", "differs", "unproven"]
    rows: int = 0
    fingerprint: str = ""
    differing: int = 0
    differences: tuple[dict[str, Any], ...] = ()
    why: str = ""
    fix: str = ""


@dataclass
class Comparison:
    """Comparison of one table. `compare` fills DuckDB tables `ours` and `theirs` (`_key`: hash of the identity,
    `_hash`: of the row) and `wrong` (keys that differ, with the identity's columns).
    """

    settings: Settings
    sink: str
    target: Target
    table: TargetTable
    current: TableInEdition
    position: SinkPosition
    con: duckdb.DuckDBPyConnection = field(init=False)

    def __post_init__(self) -> None:
        self.con = connect_spilling(self.settings)

    def verdict(self) -> TargetVerdict:
        if (unproven := self.not_comparable()) is not None:
            return unproven
        ours = self.ours
        if isinstance(self.target, FingerprintingTarget) and self.target.fingerprint(self.table) == str(ours):
            return TargetVerdict(self.table.name, "identical", ours.rows, str(ours))
        differing, differences = self.compare()
        rejected = sum(row.table == self.table.name for row in self.position.rejected)
        why = f"the target cannot take {rejected} of them: lake status" if rejected else ""
        fix = "lake status lists the rows that the target cannot take" if rejected else ""
        fix = f"lake deliver {self.sink} --repair puts rows right that differ" if differing else fix
        verdict: Literal["identical", "differs"] = "differs" if differing or rejected else "identical"
        return TargetVerdict(self.table.name, verdict, ours.rows, str(ours), differing, differences, why, fix)

    def not_comparable(self) -> TargetVerdict | None:
        if self.position.tables.get(self.table.name, ("",))[0] != self.table.shape:
            why, fix = RESHAPED, f"lake deliver {self.sink}"
        elif self.table.mode == "append":
            why = "it has changes, and not the rows of an edition"
            fix = f"lake changes {self.table.name} lists what it should have"
        elif not isinstance(self.target, FingerprintingTarget | ReadableTarget):
            why = "its rows cannot be read back"
            fix = "ask the receiver, whose messages have the rows' identity"
        else:
            return None
        return TargetVerdict(self.table.name, "unproven", why=why, fix=fix)

    @cached_property
    def ours(self) -> Fingerprint:
        self.con.execute(f"CREATE TEMP TABLE ours AS {self._hashes(self._stored_columns)}")
        count, total = self.con.execute("SELECT count(*), coalesce(sum(_hash::HUGEINT), 0) FROM ours").fetchall()[0]
        return Fingerprint(count, int(total) % MODULUS)

    def compare(self) -> tuple[int, tuple[dict[str, Any], ...]]:
        """Return the number of differing rows, and the first ones, without those known to be rejected."""
        self._read_theirs()
        identity = ", ".join(
            f"coalesce({self._typed('ours', column)}, {self._typed('theirs', column)}) AS {quoted(column.name)}"
            for column in self.table.columns
            if column.name in self.table.identity
        )
        is_wrong = " OR ".join(sql for kind, sql in WRONG.items() if kind != "extra" or self.table.mode == "mirror")
        change = " ".join(f"WHEN {sql} THEN '{kind}'" for kind, sql in WRONG.items())
        self.con.execute(
            f"CREATE TEMP TABLE wrong AS SELECT coalesce(ours._key, theirs._key) AS _key, CASE {change} END AS change,"
            f" {identity} FROM ours FULL JOIN (SELECT *, count(*) OVER (PARTITION BY _key) AS times FROM theirs"
            f" QUALIFY row_number() OVER (PARTITION BY _key) = 1) theirs ON ours._key = theirs._key WHERE {is_wrong}"
        )
        self._exclude_rejected()
        names = ", ".join(map(quoted, self.table.identity))
        shown = self.con.sql(f"SELECT {names}, change FROM wrong ORDER BY ALL LIMIT {SHOWN}").to_arrow_table()
        [(count,)] = self.con.execute("SELECT count(*) FROM wrong").fetchall()
        return count, tuple(shown.to_pylist(maps_as_pydicts="strict"))

    def repairs(self, *, differs: bool) -> TableChanges:
        return TableChanges(self.table, _QueriedChanges(self.con, self._repair_sql if differs else NOTHING))

    @property
    def _repair_sql(self) -> str:
        rows = ", ".join(f"{literal(c)}: {quoted(c)}" for c in self.table.types)
        key = ", ".join(
            f"{literal(c)}: {quoted(c) if c in self.table.identity else f'CAST(NULL AS {kind})'}"
            for c, kind in self.table.types.items()
        )
        hashed = duck_hash(self._fields(self._stored_columns, only=self.table.identity))
        theirs = (
            "SELECT 1 AS n, 'delete' AS change, {{{}}} AS before, NULL AS after FROM wrong WHERE change <> 'missing'"
        )
        ours = (
            "SELECT 2 AS n, 'insert' AS change, NULL AS before, image AS after"
            f" FROM (SELECT {{{rows}}} AS image, {self._stored_columns} FROM ({self.current.sql(self.con)}))"
            f" WHERE {hashed} IN (SELECT _key FROM wrong WHERE change <> 'extra')"
        )
        return f"SELECT change, before, after FROM ({theirs.format(key)} UNION ALL {ours}) ORDER BY n"

    @property
    def _stored_columns(self) -> str:
        if isinstance(self.target, FingerprintingTarget):
            stored_as = self.target.stored_as
            return ", ".join(f"{stored_as(column)} AS {quoted(column.name)}" for column in self.table.columns)
        return ", ".join(quoted(column.name) for column in self.table.columns)

    def _hashes(self, columns: str, rows: str | None = None) -> str:
        key = duck_hash(self._fields(columns, only=self.table.identity, rows=rows))
        names = ", ".join(map(quoted, self.table.identity))
        source = rows or self.current.sql(self.con)
        hashed = duck_hash(self._fields(columns, rows=rows))
        return f"SELECT {names}, {key} AS _key, {hashed} AS _hash FROM (SELECT {columns} FROM ({source}))"

    def _fields(self, columns: str, *, only: Sequence[str] = (), rows: str | None = None) -> list[Field]:
        source = rows or self.current.sql(self.con)
        schema = self.con.sql(f"SELECT {columns} FROM ({source}) LIMIT 0").to_arrow_table().schema
        return [field for field in fields_of(schema) if not only or field[0] in only]

    def _read_theirs(self) -> None:
        if isinstance(self.target, FingerprintingTarget):
            unsigned = ", ".join(f"(({n}::HUGEINT + {MODULUS}) % {MODULUS})::UBIGINT AS {n}" for n in ("_key", "_hash"))
            self._load("theirs", f"* REPLACE ({unsigned})", self.target.hashes(self.table))
        elif isinstance(self.target, ReadableTarget):
            typed = ", ".join(f"CAST({quoted(c)} AS {kind}) AS {quoted(c)}" for c, kind in self.table.types.items())
            self._load("back", typed, self.target.rows(self.table))
            self.con.execute(f"CREATE TEMP TABLE theirs AS {self._hashes(self._stored_columns, 'FROM back')}")

    def _load(self, table: str, columns: str, rows: pa.RecordBatchReader) -> None:
        """Load batch by batch, since DuckDB wraps errors raised in a stream that it reads."""
        self.con.from_arrow(rows.schema.empty_table()).select(columns).create(table)
        for batch in rows:
            self.con.from_arrow(batch).select(columns).insert_into(table)

    def _typed(self, of: str, column: Column) -> str:
        """A fingerprinting target returns texts, and may store JSON."""
        value = f"{of}.{quoted(column.name)}"
        if not isinstance(self.target, FingerprintingTarget):
            return value
        if self.target.stored_as(column) != quoted(column.name):
            return f"CAST({value}::JSON AS {column.type})"
        if of == "ours":
            return value
        return f"unhex(substr({value}, 3))" if column.type == "BLOB" else f"TRY_CAST({value} AS {column.type})"

    def _exclude_rejected(self) -> None:
        keys = {row.key for row in self.position.rejected if row.table == self.table.name}
        if keys:
            names = ", ".join(map(quoted, self.table.identity))
            rows = (
                self.con.sql(f"SELECT _key, {names} FROM wrong WHERE change = 'missing'").to_arrow_table().to_pylist()
            )
            known = [row["_key"] for row in rows if key_of(row, self.table.identity) in keys]
            self.con.execute("DELETE FROM wrong WHERE list_contains(?, _key)", [known])


@dataclass(frozen=True)
class _QueriedChanges:
    con: duckdb.DuckDBPyConnection
    sql: str

    def batches(self) -> pa.RecordBatchReader:
        return self.con.sql(self.sql).to_arrow_reader(10_000)


@contextmanager
def _compared(
    settings: Settings, sink: DeclaredSink, target: Target
) -> Iterator[tuple[SinkPosition, list[Comparison]]]:
    position = sink.position(target)
    if position is None:
        raise DeclarationError(
            f"nothing was delivered to {sink.name} yet", where=sink.where, fix=f"lake deliver {sink.name}"
        )
    base = DeliveryPlan.base_of(settings, position)
    if base is None:
        raise DeclarationError(
            f"edition {position.edition}, which {sink.name} has, has expired: there is nothing to compare with",
            where=sink.where,
            fix=f"lake deliver {sink.name}, which brings it to the edition that readers see",
        )
    with ExitStack() as stack:
        comparisons = []
        for _, table, current in DeliveryPlan(settings, sink, position, base).tables:
            comparisons.append(Comparison(settings, sink.name, target, table, current, position))
            stack.enter_context(closing(comparisons[-1].con))
        yield position, comparisons


def verify_sink(settings: Settings, sink: DeclaredSink) -> tuple[int, list[TargetVerdict]]:
    """Compare all tables. Raises DeclarationError if the edition is not kept, Unavailable if the target is down."""
    with (
        lease(settings, f"sink.{sink.name}"),
        closing(sink.open()) as target,
        _compared(settings, sink, target) as (position, tables),
    ):
        return position.edition, [table.verdict() for table in tables]


def repair(settings: Settings, sink: DeclaredSink) -> tuple[int, list[SentTable]]:
    """Correct rows that differ. Raises as `verify_sink` does, and LakeError if a table cannot be compared."""
    began = datetime.now(UTC)
    with (
        lease(settings, f"sink.{sink.name}"),
        runs.failing(settings, VERB, sink.name),
        closing(sink.open()) as target,
        _compared(settings, sink, target) as (position, tables),
    ):
        verdicts = [table.verdict() for table in tables]
        _check_comparable(sink, verdicts)
        changes = [
            table.repairs(differs=bool(verdict.differing)) for table, verdict in zip(tables, verdicts, strict=True)
        ]
        at = datetime.fromisoformat(position.published_at)
        now = target.deliver(SinkDelivery(sink.name, position, position.edition, position.cut, at, changes))
        sent = [SentTable.of(repaired, now) for repaired in changes]
        runs.record_outcome(settings, VERB, sink.name, position.cut, began, repaired=sum(v.differing for v in verdicts))
        return position.edition, sent


def _check_comparable(sink: DeclaredSink, verdicts: Sequence[TargetVerdict]) -> None:
    unproven = [verdict for verdict in verdicts if verdict.verdict == "unproven"]
    reshaped = [verdict for verdict in unproven if verdict.why == RESHAPED]
    if reshaped or len(unproven) == len(verdicts):
        first = (reshaped or unproven)[0]
        fix = first.fix if reshaped else f"lake deliver {sink.name} --resync sends all rows anew"
        raise LakeError(f"{first.table} cannot be repaired: {first.why}", where=sink.where, fix=fix)
