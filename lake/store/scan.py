"""Reader of Delta tables at a version: small ones in this process by DuckDB, large ones by Spark (see `lake.cost`).

A Spark read costs 0.4 to 1.4 s for any size; DuckDB's about 0.02 s, and handing the rows to Spark 0.1 to 0.3 s. Spark's
own reader skips unused columns and holds nothing in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lake import cost
from lake.errors import StorageError
from lake.lazy import DataFrame, F, SparkSession, pa
from lake.session.in_process.mode import HoldsRows, in_process, unsupported
from lake.session.spark_session import hand_over
from lake.store import archive_tier, delta
from lake.store.delta import opened
from lake.store.duckdb_tables import FILE, TableFiles, connection, open_files, query_files
from lake.store.storage import Address
from lake.text import DUCKDB, MICROSECOND, SPARK, quoted

if TYPE_CHECKING:
    import duckdb

    from lake.store.table_log import TableState

    Readers: TypeAlias = Iterator[pa.RecordBatchReader]

Span: TypeAlias = tuple[int, int]
"""First and last instant, in microseconds since 1970."""
TIME: Final = "_time"
WATERMARK: Final = "_watermark"
RANGED: Final = frozenset({"string", "byte", "short", "integer", "long", "date", "timestamp"})
"""Types of columns whose least and greatest value in a file show that a key is not there."""


@dataclass(frozen=True)
class Scan:
    """Delta table at one version, limited to `bounds`: {integer column: (least, greatest)}, inclusive.

    A log is read with its archived parts, and may be limited to the `times` of its events; those without a time are
    left out then.
    """

    path: Address
    version: int | None = None
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    times: Span | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        with opened(self.path, self.version) as table:
            files, rows, few = self._files(table)
            if session := in_process(spark):
                return self._held(session, arrow_schema(table), rows)
            if few:
                return to_frame(spark, read(self._some(table, files), arrow_schema(table), self._where(DUCKDB)))
            return archive_tier.frame(spark, self.path, table, self.bounds.get("_batch")).where(self._where())

    def _held(self, session: HoldsRows, schema: pa.Schema, rows: int) -> DataFrame:
        """Return a frame of the files' rows, of which DuckDB reads what a query needs."""
        from lake.session.in_process.types import from_arrow

        if rows > cost.IN_PROCESS_SCAN_ROWS:
            raise unsupported(f"{rows} rows")
        return session.held(
            from_arrow(schema), lambda con, name: self.registered(con, name, schema.names, "true"), rows
        )

    def near(self, spark: SparkSession, keys: pa.Table, only: Collection[str] | None = None) -> DataFrame:
        """Return at least the rows that equal one of `keys`, nulls included; no others if those are few.

        Columns that are not in `only` may be null.
        """
        some = self.arrow(keys=keys, only=only, limit=cost.SCAN_ROWS + 1)
        return to_frame(spark, some) if some.num_rows <= cost.SCAN_ROWS else self.frame(spark)

    def files(self, keys: pa.Table | None = None) -> list[str]:
        with opened(self.path, self.version) as table:
            return [file for file, _ in self._listed(table, keys)]

    def ranges(self, column: str) -> list[tuple[float, float]]:
        least, most = (quoted(f"{end}.{column}") for end in ("min", "max"))
        with opened(self.path, self.version) as table:
            found = self._listed(
                table, values=lambda stats: f"{least}, {most}" if f"min.{column}" in stats else "NULL, NULL"
            )
        return [(-inf if low is None else low, inf if high is None else high) for _, low, high in found]

    def schema(self) -> pa.Schema:
        with opened(self.path, self.version) as table:
            return arrow_schema(table)

    def is_unreadable(self) -> bool:
        """Return whether this is an old version that lacks commits or files."""
        if self.version in {None, delta.version(self.path)}:
            return False
        try:
            with opened(self.path, self.version) as table:
                return bool(self.path.missing(delta.files(table)))
        except delta.Unreadable:
            return True

    def keys(self, values: Sequence[Mapping[str, Any]]) -> pa.Table:
        schema = self.schema()
        columns = list(values[0]) if values else []
        return pa.Table.from_pylist(list(map(dict, values)), schema=pa.schema([schema.field(c) for c in columns]))

    def rows(self) -> int:
        with opened(self.path, self.version) as table:
            return sum(rows for _, rows in self._listed(table))

    def size(self) -> int:
        with opened(self.path, self.version) as table:
            return sum(size for _, size in self._listed(table, values=lambda _: "size_bytes"))

    def late(self, lateness: timedelta) -> int:
        """Count the events of a log that came more than `lateness` behind the watermark.

        Hardly a file of an ordered log is read: their ranges exclude late events.
        """
        behind = f"to_microseconds({lateness // MICROSECOND})"
        least, most, nulls = f"min.{TIME}", f"max.{WATERMARK}", f"null_count.{WATERMARK}"
        can_be = f'coalesce("{least}" < "{most}" + INTERVAL 1 MILLISECOND - {behind}, "{nulls}" < num_records, true)'
        with opened(self.path, self.version) as table:
            listed = self._listed(table, values=lambda stats: can_be if {least, most, nulls} <= {*stats} else "true")
            files = [file for file, late in listed if late]
            where = f"{self._where(DUCKDB)} AND {TIME} < {WATERMARK} - {behind}"
            counted = query_files(self._some(table, files), f"SELECT count(*) AS late FROM t WHERE {where}")
            return sum(row["late"] for row in counted)

    def select(self, query: str) -> list[dict[str, Any]]:
        with opened(self.path, self.version) as table:
            return query_files(self._some(table, self._files(table)[0]), query)

    @contextmanager
    def registered(
        self, con: duckdb.DuckDBPyConnection, name: str, columns: Sequence[str], where: str
    ) -> Iterator[None]:
        files_of = f"{name} in files"
        with opened(self.path, self.version) as table, ExitStack() as stack:
            files = self._files(table)[0]
            _, stored = stack.enter_context(open_files(self._some(table, files), on=con, name=files_of))
            wanted = _picked(dict.fromkeys(columns), stored)
            rows = f"SELECT {wanted} FROM {quoted(files_of)} WHERE {self._where(DUCKDB)} AND ({where})"
            con.execute(f"CREATE TEMP VIEW {quoted(name)} AS {rows}")
            yield

    def arrow(  # noqa: PLR0913 which rows, said by name
        self,
        columns: Sequence[str] = (),
        *,
        where: str = "true",
        keys: pa.Table | None = None,
        lookup: pa.Table | None = None,
        limit: int | None = None,
        only: Collection[str] | None = None,
    ) -> pa.Table:
        """Return the rows that meet `where`, DuckDB's SQL. Columns that are not in `only` are null.

        With `keys`, only rows that equal one of them, nulls included. `lookup` are rows that `where` may name as `k`.
        """
        test = f"{self._where(DUCKDB)} AND ({where})" + ("" if keys is None else f" AND {has_key(keys)}")
        with opened(self.path, self.version) as table:
            files, rows, _ = self._files(table, keys)
            few = keys if keys is not None and keys.num_rows < cost.KEYS_PER_FILE * len(files) else None
            if few is not None and rows > cost.SOUGHT_ROWS:
                files = self._having(table, files, few, test)
            schema = arrow_schema(table)
            if columns:
                schema = pa.schema([schema.field(column) for column in columns])
            few_rows = test if limit is None else f"{test} LIMIT {limit}"
            return read(self._some(table, files), schema, few_rows, lookup=lookup if keys is None else keys, only=only)

    @contextmanager
    def files_having(self, keys: pa.Table, more: str, parts: Iterable[str]) -> Iterator[tuple[list[str], Readers]]:
        """Yield the files with rows of `keys`, and a reader of their rows for each of `parts`, SQL over `t`.

        The rows get the column `more` of `keys`, null without a key; the other columns of `keys` are unique.
        """
        sought = keys.drop_columns([more])
        with opened(self.path, self.version) as table:
            schema = arrow_schema(table)
            files = self._having(table, self._files(table, sought)[0], keys, has_key(sought))
            with open_files(self._some(table, files)) as (con, stored):
                con.register("k", keys)
                rows = f"(SELECT {_picked(schema.names, stored)} FROM t) t LEFT JOIN k ON {equal_keys(sought)}"
                found = (con.sql(f"SELECT t.*, k.{quoted(more)} FROM {rows} WHERE {part}") for part in parts)
                whole = schema.append(keys.schema.field(more))
                yield files, (part.to_arrow_reader(cost.STREAMED_ROWS).cast(whole) for part in found)

    def _having(self, table: TableState, files: list[str], keys: pa.Table, test: str) -> list[str]:
        """Return those of several files with rows that meet `test`, SQL over the rows `t` and the `keys`, `k`."""
        if len(files) < 2:
            return files
        with open_files(self._some(table, files), by_file=True) as (con, _):
            con.register("k", keys)
            return sorted(file for (file,) in con.sql(f"SELECT DISTINCT {FILE} FROM t WHERE {test}").fetchall())

    def _some(self, table: TableState, files: Sequence[str]) -> TableFiles:
        return TableFiles(self.path, table, files)

    def _files(self, table: TableState, keys: pa.Table | None = None) -> tuple[list[str], int, bool]:
        listed = self._listed(table, keys, values=lambda _: "num_records, size_bytes")
        files, rows = [file for file, *_ in listed], sum(rows for _, rows, _ in listed)
        few = rows <= cost.HANDED_ROWS and sum(size for *_, size in listed) <= cost.HANDED_BYTES
        if gone := self.path.missing(files, to_read=few):
            needed = table.version() == delta.version(self.path) or not gone[0].startswith(f"{self.path.url}/")
            raise StorageError(
                f"{self.path.name}: version {table.version()} can no longer be read: a file is missing",
                where=gone[0],
                fix="restore that file from a backup; lake status lists all damage"
                if needed
                else "use a newer cut: lake maintain deletes what no kept edition needs",
            )
        return files, rows, few

    def _listed(
        self,
        table: TableState,
        keys: pa.Table | None = None,
        values: Callable[[Sequence[str]], str] = lambda _: "num_records",
    ) -> list[tuple[Any, ...]]:
        listed: list[tuple[Any, ...]] = []
        few = keys if keys is not None and keys.num_rows <= cost.PRUNED_KEYS else None
        with archive_tier.opened_parts(self.path, table, self.bounds.get("_batch")) as tables, connection() as con:
            if few is not None:
                con.register("k", few)
            for path, each in tables:
                con.register("a", actions := each.get_add_actions(flatten=True))
                stats = actions.schema.names
                tests = [self._time_test(stats), *(self._file_test(column, stats) for column in self.bounds)]
                if few is not None:
                    tests.append(_key_test(each, few.column_names, stats))
                found = con.execute(
                    f"SELECT path, {values(stats)} FROM a WHERE {' AND '.join(tests)} ORDER BY path"
                ).fetchall()
                listed += [(f"{path}/{file}", *rest) for file, *rest in found]
        return listed

    def _file_test(self, column: str, stats: Sequence[str]) -> str:
        least, greatest = self.bounds[column]
        if f"partition.{column}" in stats:
            return f"{quoted(f'partition.{column}')} BETWEEN {least} AND {greatest}"
        if f"min.{column}" in stats:
            low, high = quoted(f"min.{column}"), quoted(f"max.{column}")
            return f"coalesce({high} >= {least} AND {low} <= {greatest}, true)"
        return "true"

    def _time_test(self, stats: Sequence[str]) -> str:
        if self.times is None or f"min.{TIME}" not in stats:
            return "true"
        first, last = self.times[0] - 1000, self.times[1]  # the greatest time of statistics may be 1 ms too low
        low, high = quoted(f"min.{TIME}"), quoted(f"max.{TIME}")
        return f"coalesce({high} >= make_timestamptz({first}) AND {low} <= make_timestamptz({last}), true)"

    def _where(self, quote: str = SPARK) -> str:
        tests = [f"{quoted(c, quote)} BETWEEN {least} AND {greatest}" for c, (least, greatest) in self.bounds.items()]
        if self.times is not None:
            instant = "make_timestamptz({})" if quote == DUCKDB else "timestamp_micros({}L)"
            first, last = map(instant.format, self.times)
            tests.append(f"{TIME} BETWEEN {first} AND {last}")
        return " AND ".join(tests) or "true"


def read(
    files: TableFiles,
    schema: pa.Schema,
    where: str,
    *,
    lookup: pa.Table | None = None,
    only: Collection[str] | None = None,
) -> pa.Table:
    """Return the rows of the files that meet `where`, DuckDB's SQL over `t`, and over `lookup` as `k`.

    Columns of `schema` that no file has, or that are not in `only`, are null.
    """
    if not files.paths:
        return schema.empty_table()
    with open_files(files) as (con, stored_columns):
        if lookup is not None:
            con.register("k", lookup)
        wanted = _picked(schema.names, [name for name in stored_columns if only is None or name in only])
        return con.sql(f"SELECT {wanted} FROM t WHERE {where}").to_arrow_table().cast(schema)


def has_key(keys: pa.Table) -> str:
    return f"EXISTS (SELECT 1 FROM k WHERE {equal_keys(keys)})"


def equal_keys(keys: pa.Table) -> str:
    import pyarrow.types as is_

    def same(column: str, values: pa.ChunkedArray) -> str:
        # DuckDB skips parts of files by = alone; not for floats, whose NaN no statistics of a file show.
        plain = not values.null_count and not is_.is_nested(values.type) and not is_.is_floating(values.type)
        return f"k.{quoted(column)} {'=' if plain else 'IS NOT DISTINCT FROM'} t.{quoted(column)}"

    return " AND ".join(map(same, keys.column_names, keys.columns))


def _picked(columns: Iterable[str], stored: Collection[str]) -> str:
    return ", ".join(quoted(name) if name in stored else f"NULL AS {quoted(name)}" for name in columns)


def _key_test(table: TableState, columns: Sequence[str], stats: Sequence[str]) -> str:
    types = {field.name: str(field.type.type) for field in table.schema().fields}
    tests = []
    for column in columns:
        if f"min.{column}" not in stats or types[column] not in RANGED:
            continue
        key, low, high = f"k.{quoted(column)}", quoted(f"min.{column}"), quoted(f"max.{column}")
        least = f"{key} - INTERVAL 1 MILLISECOND" if types[column] == "timestamp" else key
        # Nulls have no range, nor does a column that is null in the whole file.
        tests.append(f"coalesce({low} <= {key} AND {high} >= {least}, true)")
    return f"EXISTS (SELECT 1 FROM k WHERE {' AND '.join(tests)})" if tests else "true"


def to_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    if session := in_process(spark):
        return session.of_arrow(rows)
    from pyspark.sql.pandas.types import from_arrow_schema

    if not rows.num_rows:
        # Spark refuses a column without chunks, as in an empty result.
        rows = pa.Table.from_arrays([pa.array([], f.type) for f in rows.schema], schema=rows.schema)
    hand_over(rows.nbytes)
    # Explicit types: otherwise times without a zone get the session's, and Connect has no types without rows.
    frame = spark.createDataFrame(rows, from_arrow_schema(rows.schema))
    # One partition satisfies every grouping and join, so a small job is one task without a shuffle.
    return frame.coalesce(1) if rows.num_rows <= cost.SCAN_ROWS else frame


def spooled(spark: SparkSession, parts: Iterator[pa.Table]) -> DataFrame:
    """Return the rows of all parts, those of several from Spark's disks."""
    first, second = next(parts), next(parts, None)
    if second is None:
        return to_frame(spark, first)
    frames = (on_disk(to_frame(spark, part)) for part in chain((first, second), parts))
    return reduce(lambda rows, more: rows.union(more), frames)


def on_disk(rows: DataFrame) -> DataFrame:
    from pyspark import StorageLevel

    return rows.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


def distinct(rows: pa.Table) -> pa.Table:
    with connection() as con:
        con.register("t", rows)
        return con.sql("SELECT DISTINCT * FROM t").to_arrow_table().cast(rows.schema)


def to_arrow(rows: DataFrame) -> pa.Table:
    """Collect a DataFrame, with all columns and their parts nullable.

    Arrow refuses a null struct whose field Spark declares as never null, as that of an event's place.
    """
    optional = {field.name: field.dataType for field in rows.schema.toNullable()}
    if stricter := {field.name for field in rows.schema if field.dataType != optional[field.name]}:
        columns = {name: F.col(quoted(name, SPARK)) for name in optional}
        rows = rows.select(*[c.cast(optional[n]).alias(n) if n in stricter else c for n, c in columns.items()])
    table = rows.toArrow()
    return pa.Table.from_arrays(table.columns, schema=pa.schema([f.with_nullable(True) for f in table.schema]))


def arrow_schema(table: TableState) -> pa.Schema:
    return pa.schema([pa.field(f.name, may_be_null(f.type), metadata=f.metadata) for f in pa.schema(table.schema())])


def may_be_null(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, may_be_null(f.type), metadata=f.metadata) for f in kind])
    if pa.types.is_list(kind):
        field = kind.value_field
        return pa.list_(pa.field(field.name, may_be_null(field.type)))
    return kind
