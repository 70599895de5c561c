"""Records as frames of Spark: files or texts go to tasks that read them (see `lake.records.work`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

import pyarrow as pa

from lake.config import Settings
from lake.ingest.files import Content, File
from lake.kinds.grouped_map import pickled
from lake.records.work import FILES, TEXTS, FileTask, TextTask
from lake.session import shares_disk
from lake.store.scan import to_frame
from lake.store.storage import Address
from lake.store.storage.objects import Object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_BYTES: Final = 8 << 20
"""Stored bytes of the files that one task reads, unless one file is larger."""


def read(rows: DataFrame, task: FileTask | TextTask) -> DataFrame:
    """Return what `task` reads of `rows`, in Spark's tasks."""
    from pyspark.sql.pandas.types import from_arrow_schema

    payload = pickled(task)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        yield from pickle.loads(payload)(batches)

    return rows.mapInArrow(run, from_arrow_schema(task.schema))


def opens_files(settings: Settings, files: Iterable[File]) -> bool:
    """Return whether Spark's tasks can open all of `files` by their paths."""
    return shares_disk(settings) and all(isinstance(file.path, Path) for file in files)


def of_files(spark: SparkSession, files: Sequence[File]) -> DataFrame:
    """Return the paths of `files`, divided into tasks: columns FILES, without content."""
    tasks, size = list[int](), 0
    for file in files:
        size += file.size
        begins = not tasks or size > TASK_BYTES
        tasks.append(tasks[-1] + begins if tasks else 0)
        size = file.size if begins else size
    rows = to_frame(spark, paths(files).append_column("task", pa.array(tasks, pa.int32())))
    return rows.repartitionById(tasks[-1] + 1, "task").drop("task")


def paths(files: Sequence[File]) -> pa.Table:
    """Return the addresses of `files`: columns FILES, without content."""
    addresses = [quote_from_bytes(address_of(file.path)) for file in files]
    return pa.table([addresses, pa.nulls(len(files), pa.binary())], schema=FILES)


def address_of(path: Content | Address) -> bytes:
    """Return the bytes by which a FileTask knows a file; they may be no text."""
    return os.fsencode(str(path))


def here(task: FileTask | TextTask, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return what `task` reads of `batches` in this process."""
    return pa.Table.from_batches(task(iter(batches)), task.schema)


def contents(spark: SparkSession, addresses: Iterable[Address | Object | Path]) -> DataFrame:
    """Return the content of files that Spark reads itself: columns FILES."""
    files = spark.read.format("binaryFile").load([_spelled(address) for address in addresses])
    return files.selectExpr("_metadata.file_path AS path", "content")


def of_texts(spark: SparkSession, texts: pa.Table) -> DataFrame:
    """Return texts of this process's memory: columns TEXTS."""
    return to_frame(spark, texts.cast(TEXTS))


def of_spool(spark: SparkSession, address: str, source: str) -> DataFrame:
    """Return what `source` has spooled at `address`: columns TEXTS."""
    where = f"concat('{source}:', _at) AS _source"
    return spark.read.parquet(address).selectExpr("_seq AS _position", where, "_raw", "_facts")


def _spelled(address: Address | Object | Path) -> str:
    """What Spark is told to read for this address and no other: what is a pattern to Hadoop is escaped."""
    place = address.address.spark if isinstance(address, Object) else str(address)
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", place)
