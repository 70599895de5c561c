"""Spooled delivery: records that a source read in one range, on disk until the next one is committed.

    .lake/spool/<source>/<number>/delivery.json          source, number, progress, streams, at
    .lake/spool/<source>/<number>/<stream>.spool.parquet _seq bigint, _raw string, _at string, _facts map<string,string>

It appears by one rename, after its contents are on the disk. `_seq` counts the records of a stream from 0, `_at` is a
record's place.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from lake.config import Settings
from lake.lazy import pa, pc, pq
from lake.session import file_modes
from lake.sources.source import Progress, SourceRecord

FOLDER: Final = "spool"
DESCRIPTION: Final = "delivery.json"
SUFFIX: Final = ".spool.parquet"
NEW: Final = ".new"
GROUP_ROWS: Final = 20_000
GROUP_BYTES: Final = 16 << 20
SCHEMA: Final = pa.schema(
    [
        ("_seq", pa.int64()),
        ("_raw", pa.large_string()),
        ("_at", pa.string()),
        ("_facts", pa.map_(pa.string(), pa.string())),
    ]
)


@dataclass(frozen=True)
class SpooledDelivery:
    """Delivery on disk; `progress` is the source's position after it."""

    folder: Path
    source: str
    number: int
    progress: Progress
    streams: tuple[str, ...]
    at: datetime

    def file(self, stream: str) -> Path:
        return self.folder / f"{stream}{SUFFIX}"

    @property
    def has_records(self) -> bool:
        """False if `delete_records` was called. A delivery without streams has no records to lose."""
        return all(self.file(stream).exists() for stream in self.streams)


@dataclass
class SpoolWriter:
    """Writer of one delivery: a file for each stream, in bounded memory."""

    folder: Path
    _files: dict[str, _StreamWriter] = field(default_factory=dict)

    def put(self, stream: str, record: SourceRecord) -> None:
        self._file(stream).put(record)

    def put_many(self, stream: str, texts: pa.Array, places: pa.Array, facts: Mapping[str, pa.Array]) -> None:
        if len(texts):
            self._file(stream).put_many(texts, places, facts)

    def begin(self, stream: str) -> None:
        self._file(stream)

    def _file(self, stream: str) -> _StreamWriter:
        file = self._files.get(stream)
        if file is None:
            file = self._files[stream] = _StreamWriter(self.folder / f"{stream}{SUFFIX}")
        return file

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(sorted(self._files))

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _StreamWriter:
    def __init__(self, path: Path) -> None:
        self._path, self._rows, self._tables = path, list[tuple[Any, ...]](), list[pa.Table]()
        self._count, self._bytes, self._seq = 0, 0, 0
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=1)

    def put(self, record: SourceRecord) -> None:
        self._rows.append((self._seq, record.text, record.place, list(record.facts.items())))
        self._count_added(1, len(record.text))

    def put_many(self, texts: pa.Array, places: pa.Array, facts: Mapping[str, pa.Array]) -> None:
        self._gather_rows()
        numbers = pa.array(range(self._seq, self._seq + len(texts)), pa.int64())
        self._tables.append(pa.table([numbers, texts, places, _fact_maps(facts, len(texts))], schema=SCHEMA))
        self._count_added(len(texts), texts.nbytes)

    def _count_added(self, records: int, size: int) -> None:
        self._seq += records
        self._count += records
        self._bytes += size
        if self._count >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _gather_rows(self) -> None:
        if self._rows:
            columns = [list(column) for column in zip(*self._rows, strict=True)]
            self._tables.append(pa.table(columns, schema=SCHEMA))
            self._rows = []

    def _flush(self) -> None:
        self._gather_rows()
        if self._tables:
            self._writer.write_table(pa.concat_tables(self._tables))
            self._tables, self._count, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()
        file_modes.flush([self._path])


def _fact_maps(facts: Mapping[str, pa.Array], length: int) -> pa.Array:
    names = sorted(facts)
    table = pa.table(
        {"row": pa.array([], pa.int64()), "name": pa.array([], pa.string()), "text": pa.array([], pa.string())}
    )
    if names:
        rows = pa.array(np.tile(np.arange(length), len(names)))
        named = pa.array(np.repeat(np.arange(len(names), dtype=np.int32), length))
        keys = pa.DictionaryArray.from_arrays(named, pa.array(names)).cast(pa.string())
        texts = pa.chunked_array([facts[name].cast(pa.string()) for name in names]).combine_chunks()
        table = pa.table({"row": rows, "name": keys, "text": texts}).filter(pc.field("text").is_valid())
        table = table.sort_by([("row", "ascending"), ("name", "ascending")]).combine_chunks()
    counts = np.bincount(table["row"].to_numpy(), minlength=length)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.MapArray.from_arrays(offsets, table["name"].combine_chunks(), table["text"].combine_chunks())


def as_texts(records: pa.RecordBatch, source: str) -> pa.RecordBatch:
    """Return records of a spool file as `_position`, `_source` (the place, prefixed by `source`), `_raw`, `_facts`."""
    places = pc.binary_join_element_wise(f"{source}:", records.column("_at"), "")
    columns = [records.column("_seq"), places, *(records.column(name) for name in ("_raw", "_facts"))]
    return pa.RecordBatch.from_arrays(columns, names=["_position", "_source", "_raw", "_facts"])


@contextmanager
def new_spool(settings: Settings, source: str) -> Iterator[SpoolWriter]:
    """Yield a new spool; remove the rest of an interrupted one."""
    new = _home(settings, source) / NEW
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        yield SpoolWriter(new)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def keep(settings: Settings, source: str, number: int, writer: SpoolWriter, progress: Progress) -> SpooledDelivery:
    writer.close()
    home = _home(settings, source)
    folder = home / str(number)
    delivery = SpooledDelivery(folder, source, number, progress, writer.streams, datetime.now(UTC))
    description = asdict(delivery) | {"at": delivery.at.isoformat(), "progress": dict(progress)}
    del description["folder"]
    (writer.folder / DESCRIPTION).write_text(json.dumps(description))
    file_modes.flush([writer.folder / DESCRIPTION, writer.folder])
    writer.folder.rename(folder)
    file_modes.flush([home])
    file_modes.flush_above(home)
    return delivery


def spooled_deliveries(settings: Settings, source: str) -> list[SpooledDelivery]:
    """Return the deliveries on disk, oldest first."""
    home = settings.path(f".lake/{FOLDER}") / source
    numbers = sorted(int(entry.name) for entry in home.iterdir() if entry.name.isdigit()) if home.is_dir() else []
    return [_read(home / str(number)) for number in numbers]


def sources(settings: Settings) -> list[str]:
    """Return the sources that have spooled a delivery, also those that are no longer declared."""
    home = settings.path(f".lake/{FOLDER}")
    return sorted(folder.name for folder in home.iterdir()) if home.is_dir() else []


def drop(delivery: SpooledDelivery) -> None:
    gone = delivery.folder.with_name(f".{delivery.folder.name}")  # a kill must not leave half a delivery
    shutil.rmtree(gone, ignore_errors=True)
    delivery.folder.rename(gone)
    shutil.rmtree(gone)


def delete_records(delivery: SpooledDelivery) -> None:
    """Delete its records. Its number and position stay: an older copy of the logs is detected by them."""
    for stream in delivery.streams:
        delivery.file(stream).unlink(missing_ok=True)


def _read(folder: Path) -> SpooledDelivery:
    read: Mapping[str, Any] = json.loads((folder / DESCRIPTION).read_text())
    at = datetime.fromisoformat(read["at"])
    return SpooledDelivery(folder, read["source"], read["number"], read["progress"], tuple(read["streams"]), at)


def _home(settings: Settings, source: str) -> Path:
    folder = file_modes.scratch(settings, FOLDER) / source
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
