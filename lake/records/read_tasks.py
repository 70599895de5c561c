"""Tasks that read records from files or texts as Arrow batches, in this process or in Spark.

The name of a file declares its format. Executors have no `lake`, so this package's modules are pickled by value.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Final
from urllib.parse import unquote_to_bytes

from lake.contracts.csv_options import CsvOptions
from lake.contracts.reasons import Reason
from lake.lazy import pa, pc
from lake.records import avro, csv_text, json_text, parquet
from lake.records.decompression import PACKINGS, DecompressedFile, check_encoding
from lake.records.raw_values import ColumnRecords, FileFault, RawValue, TextRecords, first_line, is_caused_by_content
from lake.records.reader import RecordReader

TEXT_FORMATS: Final = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv"}
FORMATS: Final = {**TEXT_FORMATS, ".parquet": "parquet", ".avro": "avro"}
CHUNK_RECORDS: Final = 10_000
ENCODING: Final = '"csv": {{"encoding": "{}"}}'


def format_of(name: str) -> str:
    suffix, packing = _suffixes(name)
    return (TEXT_FORMATS if packing else FORMATS).get(suffix, "")


def unknown_format() -> str:
    formats = f"none of {', '.join(FORMATS)}, {', '.join(PACKINGS)} after the text formats"
    return f"unknown format: {formats}; name it by what is in it, as a.csv or a.jsonl.gz"


def _suffixes(name: str) -> tuple[str, str]:
    stem, dot, last = name.lower().rpartition(".")
    packing = dot + last if dot + last in PACKINGS else ""
    if packing:
        _, dot, last = stem.rpartition(".")
    return dot + last, packing


def read_file(
    stream: BinaryIO, name: str, csv: CsvOptions, *, record_bytes: int, declared: Collection[str] = ()
) -> Iterator[TextRecords | ColumnRecords]:
    """Yield the records of a seekable file in parts. Raises FileFault, which invalidates all parts.

    `declared` are the names and aliases of the contract's fields: a CSV header must have one, and none twice.
    """
    try:
        for part in _parts(stream, name, csv, record_bytes, declared):
            yield from _chunks(part)
    except FileFault:
        raise
    except Exception as error:  # of any kind, for bytes of another format
        if not is_caused_by_content(error):
            raise
        raise FileFault(first_line(error)) from error


def _parts(
    stream: BinaryIO, name: str, csv: CsvOptions, record_bytes: int, declared: Collection[str]
) -> Iterator[TextRecords | ColumnRecords]:
    kind = format_of(name)
    if not kind:
        raise FileFault(unknown_format())
    if not stream.seek(0, 2):
        return
    if kind == "parquet":
        yield from parquet.read(stream, name, declared=declared, record_bytes=record_bytes)
    elif kind == "avro":
        yield from avro.read(stream, record_bytes=record_bytes)
    else:
        yield from _texts(stream, name, csv, record_bytes, declared)


def _texts(
    stream: BinaryIO, name: str, csv: CsvOptions, record_bytes: int, declared: Collection[str]
) -> Iterator[TextRecords | ColumnRecords]:
    suffix, packing = _suffixes(name)
    source = DecompressedFile(stream, PACKINGS.get(packing, ""), record_bytes=record_bytes)
    if TEXT_FORMATS[suffix] == "json":
        check_encoding(source.head, "", option="")
        yield from json_text.read(source)
        return
    check_encoding(source.head, csv.encoding, option=ENCODING)
    is_tabs = suffix == ".tsv" and not csv.declared_delimiter
    yield from csv_text.read(source, replace(csv, declared_delimiter="\t") if is_tabs else csv, declared)


def _chunks(part: TextRecords | ColumnRecords) -> Iterator[TextRecords | ColumnRecords]:
    if len(part.places) <= CHUNK_RECORDS:
        yield part
        return
    for first in range(0, len(part.places), CHUNK_RECORDS):
        end = first + CHUNK_RECORDS
        if isinstance(part, TextRecords):
            yield TextRecords(part.places[first:end], part.texts[first:end])
            continue
        columns: dict[str, Sequence[RawValue]] = {name: values[first:end] for name, values in part.columns.items()}
        broken = {index - first: fault for index, fault in part.broken.items() if first <= index < end}
        yield ColumnRecords(part.places[first:end], columns, broken)


FACTS: Final = pa.map_(pa.string(), pa.string())
TEXTS: Final = pa.schema(
    [("_position", pa.int64()), ("_source", pa.string()), ("_raw", pa.large_string()), ("_facts", FACTS)]
)
FILES: Final = pa.schema([("path", pa.string()), ("content", pa.binary())])
"""Input of a FileTask: percent-encoded addresses; with the content if the file cannot be opened there."""
BATCH_RECORDS: Final = 10_000


def _open(path: bytes) -> BinaryIO:
    return open(path, "rb")


@dataclass(frozen=True)
class TaskFile:
    """File of a delivery: record n has the position `base` + n and the source `name`:n.

    `file_name` has the format's suffix. `facts` are texts of fields that are facts of the file.
    """

    base: int
    name: str
    file_name: str
    facts: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TextTask:
    reader: RecordReader

    @property
    def schema(self) -> pa.Schema:
        return _schema(self.reader).append(TEXTS.field("_facts"))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_RECORDS):
                yield from self._read(batch.slice(start, BATCH_RECORDS))

    def _read(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        texts = batch.column("_raw").cast(pa.large_binary()).to_pylist()
        keys = self.reader.fact_keys
        facts = [dict(each or ()) for each in batch.column("_facts").to_pylist()] if keys else []
        of_fields = {name: [each.get(key) for each in facts] for name, key in keys.items()}
        table = self.reader.read(TextRecords(range(batch.num_rows), texts), of_fields)
        read = _with_places(table, batch.column("_position"), batch.column("_source"))
        yield from read.append_column(self.schema.field("_facts"), batch.column("_facts")).to_batches()


@dataclass(frozen=True)
class FileTask:
    """Task that reads `files`, by address."""

    reader: RecordReader
    csv: CsvOptions
    files: Mapping[bytes, TaskFile]
    open: Callable[[bytes], BinaryIO] = _open

    @property
    def schema(self) -> pa.Schema:
        return _schema(self.reader)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records of files; an unreadable file is one row with its fault."""
        for batch in batches:
            for path, content in zip(*(batch.column(name).to_pylist() for name in FILES.names), strict=True):
                address = unquote_to_bytes(path)
                file = self.files[address]
                try:
                    with self.open(address) if content is None else io.BytesIO(content) as stream:
                        yield from self._records(file, stream)
                except Exception as error:
                    if not is_caused_by_content(error):
                        raise
                    yield self._fault(file, first_line(error))

    def _records(self, file: TaskFile, stream: BinaryIO) -> Iterator[pa.RecordBatch]:
        reader = self.reader
        parts = read_file(stream, file.file_name, self.csv, record_bytes=reader.record_bytes, declared=reader.names)
        for part in parts:
            reader.check_columns(part)
            facts = {name: [file.facts.get(name)] * len(part.places) for name in reader.fact_keys}
            table = reader.read(part, facts)
            sources = pc.binary_join_element_wise(f"{file.name}:", table["_seq"].cast(pa.string()), "")
            yield from _with_places(table, pc.add(table["_seq"], file.base), sources).to_batches()

    def _fault(self, file: TaskFile, detail: str) -> pa.RecordBatch:
        row = {"_position": file.base, "_source": file.name, "_reason": str(Reason.FILE), "_detail": detail}
        return pa.RecordBatch.from_pylist([row], self.schema)


def _schema(reader: RecordReader) -> pa.Schema:
    places = [pa.field("_position", pa.int64()), pa.field("_source", pa.string())]
    return pa.schema([*places, *(each for each in reader.schema if each.name != "_seq")])


def _with_places(table: pa.Table, positions: pa.ChunkedArray, sources: pa.ChunkedArray) -> pa.Table:
    rows = table.drop_columns(["_seq"])
    return rows.add_column(0, "_source", sources).add_column(0, "_position", positions)
