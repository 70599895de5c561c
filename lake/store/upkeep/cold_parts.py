"""Parts of a log are written, proved, and named in the commit that takes their rows out of the log: lake.store.cold.

Files of the log that also have later batches are replaced, in the same commit, by files of these alone. Nothing in it
changes a row of the whole: an append-only log stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake import cost
from lake.errors import LakeError, LawError, Unavailable
from lake.quoting import SPARK, literal
from lake.store import cold, delta
from lake.store.cold import Batches, Part
from lake.store.delta import Position
from lake.store.proof import chain
from lake.store.proof.chain import BatchContent
from lake.store.proof.fingerprints import Fingerprint
from lake.store.recovery import commit_nothing
from lake.store.scan import Scan, arrow_schema, read
from lake.store.storage import Address
from lake.store.upkeep.compaction import TARGET_BYTES, fingerprint
from lake.store.warehouse import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake.store.table_log import TableState

PROPERTIES: Final = ("delta.dataSkippingStatsColumns",)
"""What a part has of the log's properties: it is searched as the log is."""
WRITTEN: Final = ("path", "partitionValues", "size", "modificationTime", "stats")
"""What is said of a file wherever it is."""


def faults(path: Address, heads: Sequence[BatchContent]) -> list[str]:
    """What is wrong with the table at `path` as a part that has the batches of `heads`, and no others."""
    try:
        found = [*chain.changes(path, heads)]
        with delta.opened(path) as table:
            rows = sum(_actions(table).column("num_records").to_pylist())
    except LakeError as error:
        return [f"{error.what}: {error.where}"]
    wanted = rows_of(heads)
    return found if found or rows == wanted else [f"{wanted} rows were written, {rows} were found"]


def rows_of(heads: Iterable[BatchContent]) -> int:
    """How many rows the batches of `heads` have, by their fingerprints."""
    prints = (prints for head in heads for prints in head.content["buckets"].values())
    return sum(Fingerprint.parse(clear).rows for clear, *_ in prints)


@dataclass(frozen=True)
class Writer:
    """Who writes rows of a log elsewhere: this process where they are few, else `spark`, or that `always`.

    In each bucket they are in the `order` of those columns, as compaction has them, in files as large as it makes them.
    """

    spark: Callable[[], SparkSession]
    order: Sequence[str]
    always: bool

    def write(self, log: Address, batches: Batches, to: Address) -> None:
        """Writes the rows of `batches` of the `log`, wherever they are now, in place of what the table at `to` has."""
        with delta.opened(log) as table, cold.whole(log, table, batches) as tables:
            self._write(
                lambda: Scan(log, table.version(), {"_batch": batches}).arrow(),
                lambda: cold.frame(self.spark(), log, table, batches).where(
                    f"_batch BETWEEN {batches[0]} AND {batches[1]}"
                ),
                to,
                table,
                [_actions(each) for _, each in tables],
            )

    def rest(self, log: Address, table: TableState, mixed: Sequence[str], through: int) -> Address | None:
        """Writes the rows after batch `through` of the files `mixed` to a table in the `log`'s folder; its address.

        None where there are none. Raises LawError where they would be others than before.
        """
        later, paths = f"_batch > {through}", [str(log / path) for path in mixed]
        wanted = fingerprint(log, table, paths, later)
        if not wanted[0]:
            return None
        rest = log / f"rest-{token_hex(8)}"
        actions = _actions(table)
        mine = actions.filter(pc.is_in(actions.column("path"), pa.array(mixed)))
        self._write(
            lambda: read(log, table, paths, arrow_schema(table), later),
            lambda: _rows_by_spark(self.spark(), log, table, mine).where(later),
            rest,
            table,
            [mine],
        )
        with delta.opened(rest) as written:
            found = fingerprint(rest, written, delta.files(written))
        if found != wanted:
            raise LawError(
                f"the rows after batch {through} would have changed: {wanted[0]} rows ({wanted[1]}) became {found[0]}"
                f" ({found[1]}); nothing was archived",
                where=str(log),
                fix="keep this warehouse as it is and report a bug",
            )
        return rest

    def _write(
        self,
        few: Callable[[], pa.Table],
        many: Callable[[], DataFrame],
        to: Address,
        like: TableState,
        actions: Iterable[pa.Table],
    ) -> None:
        """Writes `few` rows or `many`, in place of what the table at `to` has; how many in how many bytes, the files
        say that they come from.
        """
        said = like.metadata().configuration
        properties = {name: said[name] for name in PROPERTIES if name in said} | {
            "delta.enableDeletionVectors": "false"
        }
        delta.create(to, like.schema(), properties, partition_by=["_bucket"])
        sizes = [_columns(each, "num_records", "size_bytes") for each in actions]
        count, size = (sum(sum(each[column]) for each in sizes) for column in (0, 1))
        position = Position(f"cold:{to.name}", delta.version(to) + 1)
        with delta.read_back(to, position.writer):
            if not self.always and count <= cost.APPENDED_ROWS and size <= cost.LOADED_BYTES:
                rows = few().sort_by([(name, "ascending") for name in self.order])
                delta.write(to, rows, position, mode="overwrite", schema_mode="merge")
                return
            rows_by_spark = many().repartition("_bucket").sortWithinPartitions("_bucket", *self.order)
            writer = rows_by_spark.write.format("delta").mode("overwrite").partitionBy("_bucket")
            writer = writer.options(**position.writer_options).option("mergeSchema", "true")
            writer.option("maxRecordsPerFile", max(1, count * TARGET_BYTES // max(size, 1))).save(to.spark)


def commit(at: Location, named: Sequence[Part], writer: Writer | None = None) -> None:
    """Has the log name those parts, and, where there is a `writer`, has their batches leave it.

    The caller holds the lease, and has proved the parts. Raises Unavailable where another commit came first, LawError
    where the files of later batches have other rows than those that they replace.
    """
    through, rest = max((part.through for part in named), default=0), None
    with delta.opened(at.path) as table:
        version, changed, actions = table.version(), delta.meta_data(table), _actions(table)
        old, mixed = _old(actions, through)
        if writer and mixed:
            rest = writer.rest(at.path, table, mixed, through)
    moved = [{"remove": removed} for removed in _removed(actions, old)] if writer else []
    if rest is not None:
        moved += [{"add": added} for added in _added(rest)]
    changed["metaData"]["configuration"] |= cold.property_of(named)
    newest, position = next(delta.commits(at.path)), delta.standing(at.path, at.app).again()
    same = newest["version"] == version
    if not same or not commit_nothing(at.path, newest, position, changed, *moved, operation="ARCHIVE"):
        raise Unavailable(
            f"the log of {at.name} was written to by another at the same time",
            where=str(at.path),
            fix="try again: nothing was archived",
        )
    if rest is not None:  # of its own log nobody has need any more
        log = rest / "_delta_log"
        for entry in list(log.list(deep=True)):
            (log / entry.name).delete()


def archived(at: Location, through: int) -> tuple[int, int]:
    """How many files, and bytes, leave the log with the batches up to `through`; smaller ones may replace some."""
    with delta.opened(at.path) as table:
        actions = _actions(table)
    old, _ = _old(actions, through)
    gone = [size for path, size in zip(*_columns(actions, "path", "size_bytes"), strict=True) if path in old]
    return len(gone), sum(gone)


def _actions(table: TableState) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _columns(actions: pa.Table, *names: str) -> list[list[Any]]:
    return [actions.column(name).to_pylist() for name in names]


def _old(actions: pa.Table, through: int) -> tuple[set[str], list[str]]:
    """The files that may have batches up to `through`; and those of them that may also have later ones."""
    if "min._batch" not in actions.column_names:  # an empty log says nothing of its files
        paths = actions.column("path").to_pylist()
        return set(paths), paths
    rows = list(zip(*_columns(actions, "path", "min._batch", "max._batch"), strict=True))
    old = {path: last for path, first, last in rows if first is None or first <= through}
    return set(old), sorted(path for path, last in old.items() if last is None or last > through)


def _rows_by_spark(spark: SparkSession, log: Address, table: TableState, actions: pa.Table) -> DataFrame:
    """The rows of some files of the `log`."""
    paths, buckets = _columns(actions, "path", "partition._bucket")
    names = ", ".join(literal(path.rpartition("/")[2], SPARK) for path in paths)
    rows = spark.read.format("delta").option("versionAsOf", table.version()).load(log.spark)
    return rows.where(f"_bucket IN ({', '.join(map(str, sorted(set(buckets))))}) AND _metadata.file_name IN ({names})")


def _removed(actions: pa.Table, old: Iterable[str]) -> list[dict[str, Any]]:
    gone, at = set(old), int(datetime.now(UTC).timestamp() * 1000)
    rows = zip(*_columns(actions, "path", "size_bytes", "partition._bucket"), strict=True)
    about = {"deletionTimestamp": at, "dataChange": False, "extendedFileMetadata": True}
    return [
        {"path": path, "size": size, "partitionValues": {"_bucket": str(bucket)}, **about}
        for path, size, bucket in rows
        if path in gone
    ]


def _added(rest: Address) -> list[dict[str, Any]]:
    """The files of the table `rest`, as the log has them in whose folder it is."""
    version = delta.version(rest)
    added = [action for kind, action in delta.actions(rest, version) if kind == "add"]
    return [
        {name: each[name] for name in WRITTEN if name in each}
        | {"path": f"{rest.name}/{each['path']}", "dataChange": False}
        for each in added
    ]
