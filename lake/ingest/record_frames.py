"""Records as frames of Spark: files or texts go to tasks that read them (see `lake.records.read_tasks`)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

import pyarrow as pa

from lake import file_modes
from lake.config import Settings
from lake.ingest.files import Content, File
from lake.kinds.grouped_map import pickled
from lake.records.decompression import OVERSIZED
from lake.records.read_tasks import FILES, TEXTS, FileTask, TextTask
from lake.session import shares_disk
from lake.store import staging_upload
from lake.store.scan import to_frame
from lake.store.storage import Address, objects
from lake.store.storage.objects import Object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGEST: Final = 2_000_000_000
"""Bytes of the largest file whose content Spark passes to a task: it has to fit in one value."""
Place = Content | Address
"""A file of this machine, an object of a bucket, or the address of a file."""
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


def of_files(spark: SparkSession, sizes: Mapping[Place, int]) -> DataFrame:
    """Return the paths of files of this machine, divided into tasks by their sizes: columns FILES, without content."""
    tasks, total = list[int](), 0
    for size in sizes.values():
        total += size
        begins = not tasks or total > TASK_BYTES
        tasks.append(tasks[-1] + begins if tasks else 0)
        total = size if begins else total
    rows = to_frame(spark, paths(sizes).append_column("task", pa.array(tasks, pa.int32())))
    return rows.repartitionById(tasks[-1] + 1, "task").drop("task")


def paths(places: Iterable[Place]) -> pa.Table:
    """Return the addresses of files: columns FILES, without content."""
    addresses = [quote_from_bytes(address_of(place)) for place in places]
    return pa.table([addresses, pa.nulls(len(addresses), pa.binary())], schema=FILES)


def address_of(path: Place) -> bytes:
    """Return the bytes by which a FileTask knows a file; they may be no text."""
    return os.fsencode(str(path))


def here(task: FileTask | TextTask, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return what `task` reads of `batches` in this process."""
    return pa.Table.from_batches(task(iter(batches)), task.schema)


def fault_of_size(settings: Settings, file: File) -> str:
    """Return why Spark cannot read a file that its tasks cannot open; "" if it can, or if they can open it."""
    if file.size <= LARGEST or shares_disk(settings):
        return ""
    size = f"{file.size:,} bytes, limit {LARGEST:,} for a Spark that does not share this disk"
    return f"{OVERSIZED}{size}: divide it into smaller files"


def contents(spark: SparkSession, places: Iterable[Place]) -> DataFrame:
    """Return the content of files that Spark reads itself: columns FILES."""
    files = spark.read.format("binaryFile").load([_spelled(place) for place in places])
    return files.selectExpr("_metadata.file_path AS path", "content")


def of_texts(spark: SparkSession, texts: pa.Table) -> DataFrame:
    """Return texts of this process's memory: columns TEXTS."""
    return to_frame(spark, texts.cast(TEXTS))


def of_spool(spark: SparkSession, address: str, source: str) -> DataFrame:
    """Return what `source` has spooled at `address`: columns TEXTS."""
    where = f"concat('{source}:', _at) AS _source"
    return spark.read.parquet(address).selectExpr("_seq AS _position", where, "_raw", "_facts")


def _spelled(place: Place) -> str:
    """Return the path by which Spark reads this file and no other: what is a pattern to Hadoop is escaped."""
    path = place.address.spark if isinstance(place, Object) else str(place)
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", path)


@dataclass
class FileCopies:
    """Copies that a delivery shares with its parts. They exist until it is closed."""

    _places: dict[Content, Place] = field(default_factory=dict)
    _folders: list[TemporaryDirectory[str]] = field(default_factory=list)

    def places(self, settings: Settings, files: Collection[Content]) -> Mapping[Content, Place]:
        """Return where Spark reads each of `files`, copied if it cannot read it where it is.

        Raises FileNotFoundError if an object is gone or replaced.
        """
        new = [file for file in files if file not in self._places]
        if not shares_disk(settings):
            self._places.update(
                staging_upload.upload(settings, [file for file in new if isinstance(file, Path)]).items()
            )
        elif of_bucket := [file for file in new if isinstance(file, Object)]:
            staging = file_modes.scratch(settings, "staging")
            folder = TemporaryDirectory(prefix="objects-", dir=staging, ignore_cleanup_errors=True)
            self._folders.append(folder)
            self._places.update(objects.copy_all(of_bucket, Path(folder.name)).items())
        return {file: self._places.get(file, file) for file in files}

    def delete(self) -> None:
        staging_upload.remove(place for place in self._places.values() if isinstance(place, Address))
        self._places.clear()
        while self._folders:
            self._folders.pop().cleanup()
