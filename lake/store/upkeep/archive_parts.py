"""Writer of archived parts of a log (lake.store.archive_tier), and the commit that removes their rows from the log.

Files of the log that also have later batches are replaced in the same commit by files of only these. No row of the log
and its parts together changes: an append-only log stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lake import cost
from lake.errors import LakeError, LawError
from lake.lazy import DataFrame, SparkSession, pa, pc
from lake.store import archive_tier, delta, delta_writer
from lake.store.archive_tier import ArchivedPart, Batches
from lake.store.delta import Position
from lake.store.duckdb_tables import TableFiles
from lake.store.log_head import LogHead
from lake.store.positioned_commit import Action, StagingTable, commit_actions, commit_staged, remove_actions, stage
from lake.store.proof import chain
from lake.store.proof.fingerprints import Fingerprint
from lake.store.scan import Scan, arrow_schema, read
from lake.store.storage import Address
from lake.store.upkeep.compaction import TARGET_BYTES, count_and_hash
from lake.store.warehouse import Location
from lake.text import SPARK, literal

if TYPE_CHECKING:
    from lake.store.table_log import TableState

PROPERTIES: Final = ("delta.dataSkippingStatsColumns",)
"""Properties that a part inherits from the log, so that it is searched in the same way."""


def faults(path: Address, heads: Sequence[LogHead]) -> list[str]:
    try:
        found = [*chain.changes(path, heads)]
        with delta.opened(path) as table:
            rows = sum(delta.file_actions(table).column("num_records").to_pylist())
    except LakeError as error:
        return [f"{error.what}: {error.where}"]
    wanted = rows_of(heads)
    return found if found or rows == wanted else [f"{wanted} rows were written, {rows} were found"]


def rows_of(heads: Iterable[LogHead]) -> int:
    prints = (prints for head in heads for prints in head.content["buckets"].values())
    return sum(Fingerprint.parse(clear).rows for clear, *_ in prints)


@dataclass(frozen=True)
class PartWriter:
    """Writer of a log's rows to another table: in this process if they are few, else by `spark`.

    Rows of a bucket are sorted by the columns `order`, as compaction sorts them, in files of the same size.
    """

    spark: Callable[[], SparkSession]
    order: Sequence[str]

    def write(self, log: Address, batches: Batches, to: Address) -> None:
        with delta.opened(log) as table, archive_tier.opened_parts(log, table, batches) as tables:
            inherited = table.metadata().configuration
            properties = {name: inherited[name] for name in PROPERTIES if name in inherited}
            properties["delta.enableDeletionVectors"] = "false"
            delta_writer.create(to, table.schema(), properties, partition_by=["_bucket"])
            position = Position(f"cold:{to.name}", delta.version(to) + 1)
            size = _size([delta.file_actions(each) for _, each in tables])
            with delta_writer.read_back(to, position.writer):
                if _is_small(*size):
                    rows = self._ordered(Scan(log, table.version(), {"_batch": batches}).arrow())
                    delta_writer.write(to, rows, position, mode="overwrite", schema_mode="merge")
                    return
                staging = stage(to)
                frame = archive_tier.frame(self.spark(), log, table, batches)
                self._append(frame.where(f"_batch BETWEEN {batches[0]} AND {batches[1]}"), staging, *size)
                commit_staged(staging, position, overwrites=True)

    def stage_rest(self, log: Address, table: TableState, mixed: Sequence[str], through: int) -> StagingTable | None:
        """Write the rows after batch `through` of the files `mixed` to a staging table; None without rows.

        Raises LawError if rows would change.
        """
        later, paths = f"_batch > {through}", [str(log / path) for path in mixed]
        files = TableFiles(log, table, paths)
        wanted = count_and_hash(files, later)
        if not wanted[0]:
            return None
        staging, actions = stage(log), delta.file_actions(table)
        chosen = actions.filter(pc.is_in(actions.column("path"), pa.array(mixed)))
        size = _size([chosen])
        if _is_small(*size):
            delta_writer.add(staging.path, self._ordered(read(files, arrow_schema(table), later)))
        else:
            self._append(_rows_by_spark(self.spark(), log, table, chosen).where(later), staging, *size)
        with delta.opened(staging.path) as written:
            found = count_and_hash(TableFiles(staging.path, written, delta.files(written)))
        if found != wanted:
            raise LawError(
                f"the rows after batch {through} would have changed: {wanted[0]} rows ({wanted[1]}) became {found[0]}"
                f" ({found[1]}); nothing was archived",
                where=str(log),
                fix="keep this warehouse as it is and report a bug",
            )
        return staging

    def _ordered(self, rows: pa.Table) -> pa.Table:
        return rows.sort_by([(name, "ascending") for name in self.order])

    def _append(self, rows: DataFrame, staging: StagingTable, count: int, size: int) -> None:
        ordered = rows.repartition("_bucket").sortWithinPartitions("_bucket", *self.order)
        writer = ordered.write.format("delta").mode("append").partitionBy("_bucket").option("mergeSchema", "true")
        writer = writer.option("maxRecordsPerFile", max(1, count * TARGET_BYTES // max(size, 1)))
        writer.save(staging.path.url)


def _size(actions: Iterable[pa.Table]) -> tuple[int, int]:
    files = pa.concat_tables([each.select(["num_records", "size_bytes"]) for each in actions])
    count, size = (pc.sum(column).as_py() or 0 for column in files.columns)
    return count, size


def _is_small(count: int, size: int) -> bool:
    return count <= cost.APPENDED_ROWS and size <= cost.LOADED_BYTES


def commit(at: Location, named: Sequence[ArchivedPart], writer: PartWriter | None = None) -> None:
    """Record the parts `named` in the log and, with a `writer`, remove their batches from it.

    The caller holds the lease, and has verified the parts. Raises Unavailable if another writer was first, LawError if
    the files of later batches have other rows than those that they replace.
    """
    through, rest, moved = max((part.through for part in named), default=0), None, list[Action]()
    with delta.opened(at.path) as table:
        version, changed = table.version(), delta.metadata_action(table)
        if writer:
            old, mixed = _old(delta.file_actions(table), through)
            moved += remove_actions(table, old, changes=False)
            if mixed and (rest := writer.stage_rest(at.path, table, mixed, through)):
                added = (action["add"] for action in rest.changes()[1] if "add" in action)
                moved += [{"add": {**add, "dataChange": False}} for add in added]
    changed["metaData"]["configuration"] |= archive_tier.parts_property(named)
    position = delta.head_or_start(at.path, at.app).again()
    with delta_writer.read_back(at.path, position.writer):
        commit_actions(at.path, position, [changed, *moved], version=version + 1, info={"operation": "ARCHIVE"})
    if rest is not None:
        rest.delete_log()


def released_files(at: Location, through: int) -> tuple[int, int]:
    with delta.opened(at.path) as table:
        actions = delta.file_actions(table)
    old, _ = _old(actions, through)
    sizes = [file["size_bytes"] for file in actions.select(["path", "size_bytes"]).to_pylist() if file["path"] in old]
    return len(sizes), sum(sizes)


def _old(actions: pa.Table, through: int) -> tuple[set[str], list[str]]:
    """Return the files with batches up to `through`, and those of them that also have later ones."""
    if "min._batch" not in actions.column_names:  # an empty log has no statistics
        paths = actions.column("path").to_pylist()
        return set(paths), paths
    files = zip(*(actions.column(name).to_pylist() for name in ("path", "min._batch", "max._batch")), strict=True)
    old = {path: last for path, first, last in files if first is None or first <= through}
    return set(old), sorted(path for path, last in old.items() if last is None or last > through)


def _rows_by_spark(spark: SparkSession, log: Address, table: TableState, actions: pa.Table) -> DataFrame:
    buckets = actions.column("partition._bucket").to_pylist()
    names = ", ".join(literal(path.rpartition("/")[2], SPARK) for path in actions.column("path").to_pylist())
    rows = spark.read.format("delta").option("versionAsOf", table.version()).load(log.url)
    return rows.where(f"_bucket IN ({', '.join(map(str, sorted(set(buckets))))}) AND _metadata.file_name IN ({names})")
