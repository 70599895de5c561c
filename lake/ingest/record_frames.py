"""DataFrames of records that Spark's tasks read (see `lake.records.read_tasks`)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote_from_bytes

import pyarrow as pa

from lake.config import Settings
from lake.ingest.files import Content, File
from lake.kinds.grouped_map import pickled
from lake.lazy import DataFrame, SparkSession
from lake.records.decompression import OVERSIZED
from lake.records.read_tasks import FILES, FileTask, TextTask
from lake.session import file_modes
from lake.session.remote import shares_disk
from lake.store import temporary_files
from lake.store.scan import to_frame
from lake.store.storage import Address, objects
from lake.store.storage.objects import Object

LARGEST: Final = 2_000_000_000
"""Maximum bytes of a file whose content Spark passes to a task: it is one value."""
Place = Content | Address
TASK_BYTES: Final = 8 << 20
"""Stored bytes of the files that one task reads, unless one file is larger."""


def read(rows: DataFrame, task: FileTask | TextTask) -> DataFrame:
    from pyspark.sql.pandas.types import from_arrow_schema

    payload = pickled(task)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        yield from pickle.loads(payload)(batches)

    return rows.mapInArrow(run, from_arrow_schema(task.schema))


def of_files(spark: SparkSession, sizes: Mapping[Place, int]) -> DataFrame:
    """Return paths of local files in tasks of about TASK_BYTES: columns FILES, without content."""
    tasks, total = list[int](), 0
    for size in sizes.values():
        total += size
        begins = not tasks or total > TASK_BYTES
        tasks.append(tasks[-1] + begins if tasks else 0)
        total = size if begins else total
    rows = to_frame(spark, paths(sizes).append_column("task", pa.array(tasks, pa.int32())))
    return rows.repartitionById(tasks[-1] + 1, "task").drop("task")


def paths(places: Iterable[Place]) -> pa.Table:
    addresses = [quote_from_bytes(address_of(place)) for place in places]
    return pa.table([addresses, pa.nulls(len(addresses), pa.binary())], schema=FILES)


def address_of(path: Place) -> bytes:
    """Return a FileTask's key of a file; it may be invalid UTF-8."""
    return os.fsencode(str(path))


def read_locally(task: FileTask | TextTask, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(task(iter(batches)), task.schema)


def fault_of_size(settings: Settings, file: File) -> str:
    if file.size <= LARGEST or shares_disk(settings):
        return ""
    size = f"{file.size:,} bytes, limit {LARGEST:,} for a Spark that does not share this disk"
    return f"{OVERSIZED}{size}: divide it into smaller files"


def with_contents(spark: SparkSession, places: Iterable[Place]) -> DataFrame:
    files = spark.read.format("binaryFile").load([_escaped(place) for place in places])
    return files.selectExpr("_metadata.file_path AS path", "content")


def of_spool(spark: SparkSession, address: str, source: str) -> DataFrame:
    where = f"concat('{source}:', _at) AS _source"
    return spark.read.parquet(address).selectExpr("_seq AS _position", where, "_raw", "_facts")


def _escaped(place: Place) -> str:
    path = place.address.url if isinstance(place, Object) else str(place)
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", path)


@dataclass
class FileCopies:
    """Copies of files for a Spark that cannot open the originals. They exist until `delete`."""

    _places: dict[Content, Place] = field(default_factory=dict)
    _folders: list[TemporaryDirectory[str]] = field(default_factory=list)

    def places(self, settings: Settings, files: Collection[Content]) -> Mapping[Content, Place]:
        """Return where Spark reads `files`. Raises FileNotFoundError if an object is gone or replaced."""
        new = [file for file in files if file not in self._places]
        if not shares_disk(settings):
            uploads = temporary_files.upload(settings, [file for file in new if isinstance(file, Path)])
            self._places.update(uploads.items())
        elif of_bucket := [file for file in new if isinstance(file, Object)]:
            staging = file_modes.scratch(settings, "staging")
            folder = TemporaryDirectory(prefix="objects-", dir=staging, ignore_cleanup_errors=True)
            self._folders.append(folder)
            self._places.update(objects.copy_all(of_bucket, Path(folder.name)).items())
        return {file: self._places.get(file, file) for file in files}

    def delete(self) -> None:
        temporary_files.remove_uploads(place for place in self._places.values() if isinstance(place, Address))
        self._places.clear()
        while self._folders:
            self._folders.pop().cleanup()
