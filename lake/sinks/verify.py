"""Verify the far end: the rows that a target has, beside those of the edition that it says it has; and repair it.

A target that computes fingerprints itself is asked for those, and for the hash of each row where they differ. Of others
the rows are read back, and hashed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import duckdb

from lake.config import Settings
from lake.duck import connect
from lake.errors import DeclarationError, LakeError
from lake.quoting import literal, quoted
from lake.read.net_changes import TableInEdition
from lake.read.sql import spill
from lake.sinks.declared import Declared
from lake.sinks.deliver import VERB, Sent
from lake.sinks.plan import Plan
from lake.sinks.sink import Delivery, FarTable, Hashed, Position, Readable, TableChanges, Target, key_of
from lake.store.ledger import runs
from lake.store.locks.lease import lease
from lake.store.proof.fingerprints import MODULUS, Field, Fingerprint, duck_hash, fields_of
from lake.store.snapshot import Column

if TYPE_CHECKING:
    import pyarrow as pa

RESHAPED: Final = "it was not delivered as it is declared now"
SHOWN: Final = 10
"""So many rows that differ are named."""
WRONG: Final = {
    "missing": "theirs._key IS NULL",
    "extra": "ours._key IS NULL",
    "repeated": "theirs.times > 1",
    "differs": "ours._hash <> theirs._hash",
}


@dataclass(frozen=True)
class FarVerdict:
    """What verifying a table of a sink found: `identical` to that of the edition, `differs`, or `unproven` for `why`.

    `differences` names the first rows: their key, and `change`: missing there, extra, repeated, or differs.
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
    """One table of an edition beside what a target has of it, over a connection of its own.

    After `compare` there are the temporary tables `ours` and `theirs` (`_key`: hash of the identity, `_hash`: of the
    row), and `wrong`, the keys that differ, with the columns of the identity.
    """

    settings: Settings
    sink: str
    target: Target
    table: FarTable
    side: TableInEdition
    position: Position
    con: duckdb.DuckDBPyConnection = field(default_factory=connect, init=False)

    def __post_init__(self) -> None:
        self.con.execute(f"SET temp_directory = {literal(str(spill(self.settings)))}")

    def verdict(self) -> FarVerdict:
        """What is found of it."""
        if (unproven := self.not_comparable()) is not None:
            return unproven
        ours = self.ours
        if isinstance(self.target, Hashed) and self.target.fingerprint(self.table) == str(ours):
            return FarVerdict(self.table.name, "identical", ours.rows, str(ours))
        differing, differences = self.compare()
        rejected = sum(row.table == self.table.name for row in self.position.rejected)
        why = f"the target cannot take {rejected} of them: lake status" if rejected else ""
        fix = "lake status lists the rows that the target cannot take" if rejected else ""
        fix = f"lake deliver {self.sink} --repair puts rows right that differ" if differing else fix
        verdict: Literal["identical", "differs"] = "differs" if differing or rejected else "identical"
        return FarVerdict(self.table.name, verdict, ours.rows, str(ours), differing, differences, why, fix)

    def not_comparable(self) -> FarVerdict | None:
        """Return the verdict if the table cannot be compared; None if it can."""
        if self.position.tables.get(self.table.name, ("",))[0] != self.table.shape:
            why, fix = RESHAPED, f"lake deliver {self.sink}"
        elif self.table.mode == "append":
            why = "it has changes, and not the rows of an edition"
            fix = f"lake changes {self.table.name} lists what it should have"
        elif not isinstance(self.target, Hashed | Readable):
            why = "its rows cannot be read back"
            fix = "ask the receiver, whose messages have the rows' identity"
        else:
            return None
        return FarVerdict(self.table.name, "unproven", why=why, fix=fix)

    @cached_property
    def ours(self) -> Fingerprint:
        """The fingerprint of the edition's rows, in the form that the target has them in."""
        self.con.execute(f"CREATE TEMP TABLE ours AS {self._hashes(self._held)}")
        count, total = self.con.execute("SELECT count(*), coalesce(sum(_hash::HUGEINT), 0) FROM ours").fetchall()[0]
        return Fingerprint(count, int(total) % MODULUS)

    def compare(self) -> tuple[int, tuple[dict[str, Any], ...]]:
        """Makes `wrong`; how many rows differ, and the first of them. What is known to be rejected is left out."""
        self._read_theirs()
        identity = ", ".join(
            f"coalesce({self._typed('ours', column)}, {self._typed('theirs', column)}) AS {quoted(column.name)}"
            for column in self.table.columns
            if column.name in self.table.identity
        )
        unlike = " OR ".join(f"({sql})" for kind, sql in WRONG.items() if kind != "extra" or self._is_mirror)
        change = " ".join(f"WHEN {sql} THEN '{kind}'" for kind, sql in WRONG.items())
        self.con.execute(
            f"CREATE TEMP TABLE wrong AS SELECT coalesce(ours._key, theirs._key) AS _key, CASE {change} END AS change,"
            f" {identity} FROM ours FULL JOIN (SELECT *, count(*) OVER (PARTITION BY _key) AS times FROM theirs"
            f" QUALIFY row_number() OVER (PARTITION BY _key) = 1) theirs ON ours._key = theirs._key WHERE {unlike}"
        )
        self._leave_out_rejected()
        names = ", ".join(map(quoted, self.table.identity))
        shown = self.con.sql(f"SELECT {names}, change FROM wrong ORDER BY ALL LIMIT {SHOWN}").to_arrow_table()
        [(count,)] = self.con.execute("SELECT count(*) FROM wrong").fetchall()
        return count, tuple(shown.to_pylist(maps_as_pydicts="strict"))

    def repairs(self) -> TableChanges:
        """The changes that put the target's rows right: what is wrong goes, what should be there comes."""
        changes = TableChanges(self.table, _Repairs(self))
        changes.counts = {"insert": 0, "update": 0, "delete": 0}
        return changes

    def repairing(self) -> str:
        """DuckDB's SQL of those changes, nothing where nothing was found wrong."""
        rows = ", ".join(f"{literal(c)}: {quoted(c)}" for c in self.table.types)
        key = ", ".join(
            f"{literal(c)}: {quoted(c) if c in self.table.identity else f'CAST(NULL AS {kind})'}"
            for c, kind in self.table.types.items()
        )
        hashed = duck_hash(self._fields(self._held, only=self.table.identity))
        theirs = (
            "SELECT 1 AS n, 'delete' AS change, {{{}}} AS before, NULL AS after FROM wrong WHERE change <> 'missing'"
        )
        ours = (
            "SELECT 2 AS n, 'insert' AS change, NULL AS before, image AS after"
            f" FROM (SELECT {{{rows}}} AS image, {self._held} FROM ({self.side.sql(self.con)}))"
            f" WHERE {hashed} IN (SELECT _key FROM wrong WHERE change <> 'extra')"
        )
        return f"SELECT change, before, after FROM ({theirs.format(key)} UNION ALL {ours}) ORDER BY n"

    @property
    def _is_mirror(self) -> bool:
        return self.table.mode == "mirror"

    @property
    def _held(self) -> str:
        """DuckDB's SQL of the columns as the target has them."""
        as_held = self.target.held_as if isinstance(self.target, Hashed) else lambda column: quoted(column.name)
        return ", ".join(f"{as_held(column)} AS {quoted(column.name)}" for column in self.table.columns)

    def _hashes(self, columns: str, rows: str | None = None) -> str:
        """DuckDB's SQL of the identity, `_key` and `_hash` of rows, by default those of the edition."""
        key = duck_hash(self._fields(columns, only=self.table.identity, rows=rows))
        names = ", ".join(map(quoted, self.table.identity))
        source = rows or self.side.sql(self.con)
        hashed = duck_hash(self._fields(columns, rows=rows))
        return f"SELECT {names}, {key} AS _key, {hashed} AS _hash FROM (SELECT {columns} FROM ({source}))"

    def _fields(self, columns: str, *, only: Sequence[str] = (), rows: str | None = None) -> list[Field]:
        schema = (
            self.con.sql(f"SELECT {columns} FROM ({rows or self.side.sql(self.con)}) LIMIT 0").to_arrow_table().schema
        )
        return [found for found in fields_of(schema) if not only or found[0] in only]

    def _read_theirs(self) -> None:
        failures: list[LakeError] = []
        try:
            self._copy_theirs(failures)
        except duckdb.Error:
            if failures:  # raised in the stream, it is told in words of DuckDB's
                raise failures[0] from None
            raise

    def _copy_theirs(self, failures: list[LakeError]) -> None:
        if isinstance(self.target, Hashed):
            self.con.register("read", _noting(self.target.hashes(self.table), failures))
            unsigned = ", ".join(f"(({n}::HUGEINT + {MODULUS}) % {MODULUS})::UBIGINT AS {n}" for n in ("_key", "_hash"))
            self.con.execute(f"CREATE TEMP TABLE theirs AS SELECT * REPLACE ({unsigned}) FROM read")
        elif isinstance(self.target, Readable):
            self.con.register("read", _noting(self.target.rows(self.table), failures))
            typed = ", ".join(f"CAST({quoted(c)} AS {kind}) AS {quoted(c)}" for c, kind in self.table.types.items())
            self.con.execute(f"CREATE TEMP TABLE back AS SELECT {typed} FROM read")
            self.con.execute(f"CREATE TEMP TABLE theirs AS {self._hashes(self._held, 'FROM back')}")
        self.con.unregister("read")

    def _typed(self, of: str, column: Column) -> str:
        """DuckDB's SQL of a part of a key in its own type: a target that hashes gives texts, and may hold JSON."""
        value = f"{of}.{quoted(column.name)}"
        if not isinstance(self.target, Hashed):
            return value
        if self.target.held_as(column) != quoted(column.name):
            return f"CAST({value}::JSON AS {column.type})"
        if of == "ours":
            return value
        return f"unhex(substr({value}, 3))" if column.type == "BLOB" else f"TRY_CAST({value} AS {column.type})"

    def _leave_out_rejected(self) -> None:
        keys = {row.key for row in self.position.rejected if row.table == self.table.name}
        if keys:
            names = ", ".join(map(quoted, self.table.identity))
            rows = (
                self.con.sql(f"SELECT _key, {names} FROM wrong WHERE change = 'missing'").to_arrow_table().to_pylist()
            )
            known = [row["_key"] for row in rows if key_of(row, self.table.identity) in keys]
            self.con.execute("DELETE FROM wrong WHERE list_contains(?, _key)", [known])


def _noting(rows: pa.RecordBatchReader, failures: list[LakeError]) -> pa.RecordBatchReader:
    """The same rows; where reading them fails, that is noted."""
    import pyarrow as pa

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from rows
        except LakeError as failure:
            failures.append(failure)
            raise

    return pa.RecordBatchReader.from_batches(rows.schema, batches())


@dataclass(frozen=True)
class _Repairs:
    comparison: Comparison

    def batches(self) -> pa.RecordBatchReader:
        """As lake.sinks.sink.Rows has it."""
        return self.comparison.con.sql(self.comparison.repairing()).to_arrow_reader(10_000)


@contextmanager
def _compared(settings: Settings, sink: Declared, target: Target) -> Iterator[tuple[Position, list[Comparison]]]:
    """The comparisons of all tables of a sink, while the block lasts."""
    position = target.position()
    if position is None:
        raise DeclarationError(
            f"nothing was delivered to {sink.name} yet", where=sink.where, fix=f"lake deliver {sink.name}"
        )
    base = Plan.base_of(settings, position)
    if base is None:
        raise DeclarationError(
            f"edition {position.edition}, which {sink.name} has, has expired: there is nothing to compare with",
            where=sink.where,
            fix=f"lake deliver {sink.name}, which brings it to the edition that readers see",
        )
    with ExitStack() as stack:
        made = []
        for far, side in Plan(settings, sink, position, base).sides():
            made.append(Comparison(settings, sink.name, target, far, side, position))
            stack.enter_context(closing(made[-1].con))
        yield position, made


def verify_sink(settings: Settings, sink: Declared) -> tuple[int, list[FarVerdict]]:
    """The edition that the target of a sink has, and the verdicts on its tables. Nobody delivers to it meanwhile.

    Raises DeclarationError where it has none that is kept, Unavailable where it does not answer.
    """
    with (
        lease(settings, f"sink.{sink.name}"),
        closing(sink.open()) as target,
        _compared(settings, sink, target) as (position, tables),
    ):
        return position.edition, [table.verdict() for table in tables]


def repair(settings: Settings, sink: Declared) -> tuple[int, list[Sent]]:
    """Puts right what differs in the target from the edition that it has; what was done to each table.

    Raises as `verify_sink` does, and LakeError where a table cannot be compared.
    """
    began = datetime.now(UTC)
    with (
        lease(settings, f"sink.{sink.name}"),
        runs.failing(settings, VERB, sink.name),
        closing(sink.open()) as target,
        _compared(settings, sink, target) as (position, tables),
    ):
        verdicts = [table.verdict() for table in tables]
        _must_be_comparable(sink, verdicts)
        changes = [
            table.repairs() if verdict.differing else TableChanges(table.table, _Nothing(table.con))
            for table, verdict in zip(tables, verdicts, strict=True)
        ]
        at = datetime.fromisoformat(position.published_at)
        target.deliver(Delivery(sink.name, position, position.edition, position.cut, at, changes))
        sent = [Sent(c.table.name, False, c.counts["insert"], c.counts["update"], c.counts["delete"]) for c in changes]
        runs.note(settings, VERB, sink.name, position.cut, began, repaired=sum(v.differing for v in verdicts))
        return position.edition, sent


def _must_be_comparable(sink: Declared, verdicts: Sequence[FarVerdict]) -> None:
    """Raise LakeError if no table can be compared, or one was delivered in another shape than it has now."""
    unproven = [verdict for verdict in verdicts if verdict.verdict == "unproven"]
    reshaped = [verdict for verdict in unproven if verdict.why == RESHAPED]
    if reshaped or len(unproven) == len(verdicts):
        first = (reshaped or unproven)[0]
        fix = first.fix if reshaped else f"lake deliver {sink.name} --resync sends all rows anew"
        raise LakeError(f"{first.table} cannot be repaired: {first.why}", where=sink.where, fix=fix)


@dataclass(frozen=True)
class _Nothing:
    con: duckdb.DuckDBPyConnection

    def batches(self) -> pa.RecordBatchReader:
        """No changes."""
        return self.con.sql("SELECT '' AS change, NULL AS before, NULL AS after WHERE false").to_arrow_reader(1)
