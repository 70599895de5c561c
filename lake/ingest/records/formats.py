"""Every format becomes lines of JSON: one row a record, with the raw text and its place.

The frames of this module have the columns

    _file string             the file's address as Spark spells it
    _block bigint            where in the file the reader's split began (0 but for large files)
    _seq bigint              unique in the frame and increasing within (_file, _block) in the order of the file; the
                             same whenever the same files are read in a session, which divides them into the same parts
    _raw string              the record: a line of JSON Lines as it is, a record of CSV, Parquet or Avro as JSON

A `.json` file that begins with a `{` on a line of its own is one record over many lines. CSV is written as the
contract's `csv` says; what is not in UTF-8 is read from a copy that is, in which U+FFFF stands for bytes that are no
text.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import os
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyarrow import ArrowException

from lake import file_modes
from lake.config import Settings
from lake.contracts.contract import Contract
from lake.contracts.csv_options import UNSAID, CsvOptions
from lake.contracts.digits import MARK
from lake.ingest.files import File
from lake.ingest.records import avro_files, bounds, text_files
from lake.ingest.records.bounds import Content
from lake.ingest.records.text_files import opened
from lake.quoting import SPARK, literal, quoted
from lake.session import first_line
from lake.store.storage import Address
from lake.store.storage.objects import Object

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
    ".avro": "avro",
}
BINARIES: Final = ("parquet", "avro")
EXACT_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
PLAIN_NAME: Final = re.compile(r"[\w.=+@-]+", re.ASCII)
BINARY: Final = re.compile(rb"\x00")
NEVER: Final = "\0"  # no text has it


def format_of(path: Content) -> str:
    """json, csv, parquet or avro, by the name; "" where it tells none."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
        kind = FORMATS.get(suffixes[-1], "") if suffixes else ""
        return "" if kind in BINARIES else kind
    return FORMATS.get(suffixes[-1], "") if suffixes else ""


def fault_of(
    file: File,
    *,
    folder: Path | Address | None = None,
    names: Collection[str] = (),
    record_bytes: int = Settings.record_bytes,
    options: CsvOptions = UNSAID,
) -> str:
    """Why `file` cannot be read at all, "" where nothing is seen to be wrong with it. CSV is read with `options`.

    With `folder`, a link that leads out of it is a fault; with `names`, those of fields, a CSV header that has none.
    What is too large to be read is told by `lake.ingest.records.bounds`, for records of at most `record_bytes`.
    """
    path = file.path
    try:
        if isinstance(path, Path) and (fault := _fault_of_place(path, folder)):
            return fault
        if not format_of(path):
            return f"unknown format: none of {', '.join(FORMATS)}, .gz after the text formats"
        if path.stat().st_size == 0:
            return ""
        return _fault_inside(path, record_bytes, options) or _fault_of_header(path, names, options)
    except (OSError, EOFError, zlib.error, ArrowException, csv.Error, UnicodeDecodeError) as error:
        return first_line(error).replace(str(path), path.name)


def fault_of_columns(path: Content, contract: Contract) -> str:
    """Return which columns a CSV or Parquet file lacks, if its contract refuses such files."""
    kind = format_of(path)
    if contract.missing != "refuse" or kind not in {"csv", "parquet"}:
        return ""
    is_csv, options = kind == "csv", contract.csv
    columns = {*(options.columns or text_files.header(path, options))} if is_csv else {*_parquet_columns(path)}
    fields = [field for field in contract.fields if not field.is_fact and not columns & {*field.names}]
    return f"it has no column {', '.join(field.name for field in fields)}" if fields else ""


def _fault_of_place(path: Path, folder: Path | Address | None) -> str:
    outside = isinstance(folder, Path) and not Path(os.path.realpath(path)).is_relative_to(folder.resolve())
    if path.is_symlink() and outside:  # of a loop, itself
        return "a symbolic link out of the landing folder"
    return "" if path.is_file() else "not a regular file"


def _fault_inside(path: Content, record_bytes: int, options: CsvOptions) -> str:
    if format_of(path) == "parquet":
        columns = [name.lower() for name in _parquet_columns(path)]
        repeated = "two columns of one name" if len(set(columns)) < len(columns) else ""
        return repeated or bounds.fault_of_parquet(path, record_bytes=record_bytes)
    if format_of(path) == "avro":
        return avro_files.fault_of(path, record_bytes=record_bytes)
    is_csv = format_of(path) == "csv"
    fault = _fault_of_text(path, record_bytes, options.encoding if is_csv else "")
    if fault or not is_csv or options.columns:
        return fault
    names = text_files.header(path, options)
    if MARK in "".join(names):
        return f"a header that is not valid {options.encoding or 'UTF-8'}"
    if not all(names) or len({name.lower() for name in names}) < len(names):
        return f"a header with empty or repeated names: {options.delimiter.join(names)}"[:300]
    return bounds.fault_of_columns(len(names))


def _parquet_columns(path: Content) -> list[str]:
    return [*pq.read_schema(bounds.parquet(path)).names]


def _fault_of_text(path: Content, record_bytes: int, encoding: str) -> str:
    size, packed = path.stat().st_size, path.suffix.lower() == ".gz"
    with opened(path, encoding) as stream:
        head = stream.read(text_files.CHUNK if packed else 1 << 16)
        if not encoding and head.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "UTF-16 text: UTF-8 is read"
        if BINARY.search(head):
            return "binary: has zero bytes"
        if not packed and size <= bounds.line_bytes(record_bytes):
            return ""
        stream.seek(0)
        return bounds.fault_of_text(stream, size=size, record_bytes=record_bytes, whole=is_document(path))


def _fault_of_header(path: Content, names: Collection[str], options: CsvOptions) -> str:
    """What would be taken for the names of columns, and is a record or a line of another format; or the reverse."""
    columns = text_files.header(path, options) if names and format_of(path) == "csv" else ()
    lower = [name.lower() for name in columns]
    if options.columns:
        is_header = lower == [name.lower() for name in options.columns]
        return "a header, and the contract says that there is none" if is_header else ""
    if not columns or set(lower) & {name.lower() for name in names}:
        return ""
    return f"a header without a field of the contract: {options.delimiter.join(columns)}"[:300]


def is_document(path: Content) -> bool:
    """Whether a JSON file is one record, printed over many lines: no line of JSON Lines is a brace alone."""
    if ".json" not in [suffix.lower() for suffix in path.suffixes[-2:]]:
        return False
    with opened(path) as stream:
        head = stream.read(1 << 10).removeprefix(b"\xef\xbb\xbf").lstrip()
    return head.partition(b"\n")[0].rstrip() == b"{"


def records(spark: SparkSession, paths: Mapping[Content, str], options: CsvOptions, *, record_bytes: int) -> DataFrame:
    """The records of files at `paths` that `stage` gave, as the columns that this module describes.

    A path is looked into here, and read by Spark at the address beside it.
    """
    whole: DataFrame | None = None
    for (kind, columns), group in _groups(paths, options):
        names = [paths[path] for path in group]
        if kind == "csv":
            frame = _read_csv(spark, names, columns, record_bytes, options)
        else:
            frame = _READERS[kind](spark, names)
        whole = frame if whole is None else whole.unionByName(frame)
    if whole is None:
        whole = spark.createDataFrame([], "_file string, _block bigint, _raw string")
    return whole.selectExpr("_file", "_block", "monotonically_increasing_id() AS _seq", "_raw")


def spooled(spark: SparkSession, address: str) -> DataFrame:
    """The records of a source's spool (see lake.sources.spool), with their places `_at` and `_facts` too."""
    columns = ("_metadata.file_path AS _file", "0L AS _block", "_seq", "_raw", "_at", "_facts")
    return spark.read.parquet(address).selectExpr(*columns)


def stage(
    settings: Settings, file: File, options: CsvOptions = UNSAID, *, stream: str = "", apart: bool = False
) -> Content:
    """A path to `file` that Spark's path patterns cannot misread: its own, or a link or copy under a plain name.

    With `apart`, that name is no other file's; an object has one of its own, and `spelled` is how Spark is told of it.
    Copies are made of CSV that is not UTF-8 and of Avro, for one `stream`;
    they stay until `unstage`.
    """
    path = file.path
    if format_of(path) == "avro":
        identity = f"{stream} {file.size} {file.seen}{file.tag}".encode()
        lines = file_modes.scratch(settings, "staging") / f"{_digest(path, identity)}-{file.mtime}.jsonl"
        return lines if lines.exists() else avro_files.as_lines(path, lines, record_bytes=settings.record_bytes)
    encoding = text_files.foreign(path, options) if format_of(path) == "csv" else ""
    if encoding:
        identity = f"{stream} {encoding} {file.size} {file.seen}{file.tag}".encode()
        copy = file_modes.scratch(settings, "staging") / f"{_digest(path, identity)}-{file.mtime}.csv"
        return copy if copy.exists() else text_files.recoded(path, encoding, copy)
    if isinstance(path, Object) or (not apart and PLAIN_NAME.fullmatch(path.name) and not path.is_symlink()):
        return path
    plain = "".join(suffix for suffix in map(str.lower, path.suffixes[-2:]) if suffix in {*FORMATS, ".gz"})
    link = file_modes.scratch(settings, "staging") / f"{_digest(path, b'')}-{file.mtime}{plain}"
    link.unlink(missing_ok=True)
    link.symlink_to(path.resolve())
    return link


def _digest(path: Content, identity: bytes) -> str:
    return hashlib.sha256(os.fsencode(str(path)) + identity).hexdigest()[:32]


def unstage(settings: Settings, paths: Iterable[Content]) -> None:
    """Removes the copies among `paths` that `stage` gave."""
    for path in paths:
        if isinstance(path, Path) and path.parent == file_modes.scratch(settings, "staging") and not path.is_symlink():
            path.unlink(missing_ok=True)


def spelled(one: Object) -> str:
    """The address of an object, as Spark is told to read it and no other: what is a pattern to Hadoop is escaped."""
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", one.address.spark)


def place_of(address: str) -> str:
    """What Spark was told to read that calls a `_file` this: a path, or the address of an object."""
    return unquote(re.sub(r"^file:/*", "/", address))


def _groups(
    paths: Iterable[Content], options: CsvOptions
) -> Iterable[tuple[tuple[str, tuple[str, ...]], list[Content]]]:
    """Files that one reader can read together: of one format, and of one header or schema."""

    def kind(path: Content) -> tuple[str, tuple[str, ...]]:
        match format_of(path):
            case "csv":
                return "csv", options.columns or text_files.header(path, replace(options, encoding=""))
            case "json" if is_document(path):
                return "document", ()
            case "parquet":
                return "parquet", tuple(str(field) for field in pq.read_schema(bounds.parquet(path)))
            case other:
                return other, ()

    ordered = sorted(((kind(path), path) for path in paths), key=lambda pair: pair[0])
    for group, members in itertools.groupby(ordered, key=lambda pair: pair[0]):
        if group != ("csv", ()):
            yield group, [path for _, path in members]


PLACE: Final = ("_metadata.file_path AS _file", "_metadata.file_block_start AS _block")


def _read_json(spark: SparkSession, paths: list[str]) -> DataFrame:
    return spark.read.text(paths).selectExpr(*PLACE, "ltrim('\ufeff', value) AS _raw")


def _read_document(spark: SparkSession, paths: list[str]) -> DataFrame:
    whole = r"rtrim(' \t\r\n', ltrim('\ufeff', value))"
    return spark.read.text(paths, wholetext=True).selectExpr(*PLACE, f"{whole} AS _raw")


def _read_csv(
    spark: SparkSession, paths: list[str], names: tuple[str, ...], record_bytes: int, options: CsvOptions
) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField(name, StringType()) for name in (*names, "_broken")])
    reader = spark.read.schema(schema).options(
        header=not options.columns,
        multiLine=True,
        sep=options.delimiter,
        quote=options.quote or NEVER,
        escape=options.quote or NEVER,
        mode="PERMISSIVE",
        columnNameOfCorruptRecord="_broken",
        maxCharsPerColumn=bounds.line_bytes(record_bytes),
    )
    columns = ", ".join(_column(name, options) for name in names)
    return reader.csv(paths).selectExpr(*PLACE, f"coalesce(_broken, to_json(struct({columns}))) AS _raw")


def _column(name: str, options: CsvOptions) -> str:
    column = quoted(name, SPARK)
    if not options.null:
        return column
    return f"if({column} IN ({', '.join(literal(text, SPARK) for text in options.null)}), NULL, {column}) AS {column}"


def _read_parquet(spark: SparkSession, paths: list[str]) -> DataFrame:
    options = ", ".join(f"'{name}', \"{form}\"" for name, form in EXACT_TIMES.items())
    return spark.read.parquet(*paths).selectExpr(*PLACE, f"to_json(struct(*), map({options})) AS _raw")


_READERS: Final = {"json": _read_json, "document": _read_document, "parquet": _read_parquet}
