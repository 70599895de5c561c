"""Session of Spark Connect that DuckDB answers in this process: no server, no JVM. `store.duckdb_tables` makes it.

Its frames are those of `pyspark.sql.connect`, so a kind and a job's function are the same text for both engines. A
query that DuckDB is not known to answer as Spark does raises Unsupported, before it reads a row or instead of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

import duckdb
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.connect.column import Column
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.plan import SQL, LocalRelation, LogicalPlan, SubqueryAlias
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.connect.sql_formatter import SQLStringFormatter
from pyspark.sql.pandas.types import to_arrow_schema

from lake import cost
from lake.session.in_process import python_functions
from lake.session.in_process.mode import Attach, Unsupported, reason, unsupported
from lake.session.in_process.relation import Relation
from lake.session.in_process.relations import Relations
from lake.session.in_process.types import from_arrow, nullable_columns, parsed_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as Frame
    from pyspark.sql import SparkSession as Session
    from pyspark.sql.connect.proto import base_pb2, relations_pb2

_NUMBERS: Final = count()


def session_of(database: duckdb.DuckDBPyConnection) -> Session:
    """Return a session; Spark's two types of sessions share no class, and differ in nothing that is used here."""
    return cast("Session", InProcessSession(database))


class HeldRows(LogicalPlan):
    """Rows of this process as a leaf of a plan; `attach` names them in the connection of a query that reads them.

    Their values may depend on the `scan_columns`. `rows` is their number, or that of the rows they are computed from.
    """

    def __init__(self, schema: T.StructType, attach: Attach, scan_columns: frozenset[str], rows: int) -> None:
        super().__init__(None)
        self.scan_columns, self.rows = scan_columns, rows
        self.name, self.schema, self.attach = f"held{next(_NUMBERS)}", nullable_columns(schema), attach

    def plan(self, session: Any) -> relations_pb2.Relation:
        relation = self._create_proto_relation()
        relation.local_relation.data = self.name.encode()
        return relation


class InProcessSession(SparkSession):
    """Session whose queries run on cursors of `database`."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._client: Any = _Client(self)
        self._session_id = "in-process"
        self._database, self._held = database, WeakValueDictionary[str, HeldRows]()
        self._relations = Relations(lambda name: (self._held[name].schema, self._held[name].scan_columns))
        self._kept = list[HeldRows]()

    def createDataFrame(self, data: Any, schema: Any = None, *_: Any, **__: Any) -> DataFrame:  # noqa: N802 of Spark
        """Return a frame without rows. Raises Unsupported if there are some."""
        types = parsed_schema(schema) if isinstance(schema, str) else schema
        if isinstance(data, Sequence) and not data and isinstance(types, T.StructType):
            return DataFrame(LocalRelation(table=None, schema=types.json()), self)
        raise unsupported("rows of Python")

    def sql(self, sqlQuery: str, args: Any = None, **kwargs: Any) -> DataFrame:  # noqa: N803 of Spark
        """Return the rows of a query of frames by name. Raises Unsupported, also for braces without an argument."""
        if args or any(isinstance(value, Column) for value in kwargs.values()):
            raise unsupported("a query with arguments other than frames")
        formatter = SQLStringFormatter(self)
        try:
            text = formatter.format(sqlQuery, **kwargs) if kwargs else sqlQuery
        except Exception as error:
            raise Unsupported(reason(error)) from error
        views = [SubqueryAlias(frame._plan, name) for frame, name in formatter._temp_views]
        query = DataFrame(SQL(text, [], {}, views), self)
        query.schema  # noqa: B018 translates the text
        return query

    def of_arrow(self, rows: pa.Table) -> DataFrame:
        return self.held(from_arrow(rows.schema), _registering(rows), rows.num_rows)

    def held(self, schema: T.StructType, attach: Attach, rows: int) -> DataFrame:
        return DataFrame(self._hold(schema, attach, rows=rows), self)

    def mapped(self, rows: Frame, work: Callable[[pa.RecordBatch], pa.RecordBatch], out: T.StructType) -> DataFrame:
        """Return what `work` makes of all rows at once, in their order; `kinds.grouped_map` calls this."""

        def attach(con: duckdb.DuckDBPyConnection, name: str) -> AbstractContextManager[Any]:
            ordered = rows.toArrow()
            _check_few(ordered.num_rows, cost.IN_PROCESS_MAPPED_ROWS)
            try:
                made = [work(batch) for batch in ordered.combine_chunks().to_batches() if batch.num_rows]
            except Exception as error:
                raise Unsupported(reason(error)) from error
            return _registering(pa.Table.from_batches(made, to_arrow_schema(out, timezone="UTC")))(con, name)

        plan: Any = rows
        of = self.relation(plan._plan.to_proto(self._client))
        return DataFrame(self._hold(out, attach, of.scanned, rows=self._rows_read(of)), self)

    def keep(self, relation: relations_pb2.Relation) -> None:
        """Compute rows now, once for all later queries."""
        of = self._relations.of(relation)
        rows = self.result(of)
        kept = self._hold(of.schema, _registering(rows), rows=rows.num_rows)
        self._kept.append(kept)
        self._relations.keep(relation, kept.name)

    def _hold(
        self, schema: T.StructType, attach: Attach, scan_columns: frozenset[str] = frozenset(), *, rows: int
    ) -> HeldRows:
        held = HeldRows(schema, attach, scan_columns, rows)
        self._held[held.name] = held
        return held

    def _rows_read(self, relation: Relation) -> int:
        return sum(self._held[name].rows for name in relation.leaves)

    def relation(self, plan: base_pb2.Plan) -> Relation:
        return self._relations.of(plan.root)

    def result(self, relation: Relation) -> pa.Table:
        """Return the rows. Raises Unsupported if DuckDB fails: Spark decides whether that is an error."""
        with self._database.cursor() as con, ExitStack() as attached:
            try:
                if python_functions.PREFIX in (query := relation.query()):
                    _check_few(self._rows_read(relation), cost.IN_PROCESS_CALLED_ROWS)
                    python_functions.register(self._database)
                    query = attached.enter_context(python_functions.arrow_functions(con, query))
                for name in relation.leaves:
                    attached.enter_context(self._held[name].attach(con, name))
                return _collected(con.sql(query).to_arrow_reader())
            except (duckdb.Error, UnicodeDecodeError) as error:  # a message that cuts a letter is not decoded
                raise Unsupported(reason(error)) from error


def _check_few(rows: int, limit: int) -> None:
    if rows > limit:
        raise unsupported("a Python function of so many rows")


def _collected(batches: pa.RecordBatchReader) -> pa.Table:
    collected, size = list[pa.RecordBatch](), 0
    for batch in batches:
        size += batch.nbytes
        if size > cost.IN_PROCESS_RESULT_BYTES:
            raise unsupported("so large a result")
        collected.append(batch)
    return pa.Table.from_batches(collected, batches.schema)


def _registering(rows: pa.Table) -> Attach:
    return lambda con, name: nullcontext(con.register(name, rows))


class _Client:
    """Part of Connect's client that frames ask."""

    def __init__(self, session: InProcessSession) -> None:
        self.session = session

    def schema(self, plan: base_pb2.Plan) -> T.StructType:
        return self.session.relation(plan).schema

    def to_table(self, plan: base_pb2.Plan, _: Any) -> tuple[pa.Table, T.StructType, None]:
        relation = self.session.relation(plan)
        return self.session.result(relation), relation.schema, None

    def _analyze(self, method: str, relation: relations_pb2.Relation | None = None, **_: Any) -> None:
        if method not in {"persist", "unpersist"} or relation is None:
            raise unsupported(f"the request {method}")
        if method == "persist":
            self.session.keep(relation)

    def explain_string(self, plan: base_pb2.Plan, _: str) -> str:
        """Return the operators of a plan and the columns that it may scan, under the headings of Spark's plans."""
        relation = self.session.relation(plan)
        operators, scanned = "\n".join(step.operator for step in relation.plan()), "#0, ".join(relation.scanned)
        logical = f"== Analyzed Logical Plan ==\n{operators}\n== Optimized Logical Plan ==\n"
        return f"{logical}== Physical Plan ==\nFileScan json [{scanned}#0]\n"

    def _set_relation_in_plan(self, plan: base_pb2.Plan, relation: relations_pb2.Relation) -> None:
        plan.root.CopyFrom(relation)

    def __getattr__(self, name: str) -> Any:
        raise unsupported(f"the request {name}")
