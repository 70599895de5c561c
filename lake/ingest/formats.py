"""Every format becomes lines of JSON: one row a record, with the raw text and its place.

The frames of this module have the columns

    _file string             the file's address as Spark spells it
    _block bigint            where in the file the reader's split began (0 but for large files)
    _seq bigint              unique in the frame and increasing within (_file, _block) in the order of the file
    _raw string              the record: a line of JSON Lines as it is, a record of CSV or Parquet as JSON

A `.json` file that begins with a `{` on a line of its own is one record over many lines.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import os
import re
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyarrow import ArrowException

from lake import file_modes
from lake.config import Settings
from lake.ingest import bounds
from lake.ingest.sources import File
from lake.quoting import SPARK, quoted
from lake.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS: Final = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet"}
EXACT_TIMES: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
PLAIN_NAME: Final = re.compile(r"[\w.=+@-]+", re.ASCII)
BINARY: Final = re.compile(rb"\x00")
CHUNK: Final = 1 << 20


def format_of(path: Path) -> str:
    """json, csv or parquet, by the name; "" where it tells none."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
        kind = FORMATS.get(suffixes[-1], "") if suffixes else ""
        return "" if kind == "parquet" else kind
    return FORMATS.get(suffixes[-1], "") if suffixes else ""


def fault_of(
    file: File,
    *,
    folder: Path | None = None,
    names: Collection[str] = (),
    record_bytes: int = Settings.record_bytes,
) -> str:
    """Why `file` cannot be read at all, "" where nothing is seen to be wrong with it.

    With `folder`, a link that leads out of it is a fault; with `names`, those of fields, a CSV header that has none.
    What is too large to be read is told by `lake.ingest.bounds`, for records of at most `record_bytes`.
    """
    path = file.path
    try:
        inside = folder is None or Path(os.path.realpath(path)).is_relative_to(folder.resolve())  # of a loop, itself
        if path.is_symlink() and not inside:
            return "a symbolic link out of the landing folder"
        if not path.is_file():
            return "not a regular file"
        if not format_of(path):
            return f"unknown format: none of {', '.join(FORMATS)}, .gz after the text formats"
        if path.stat().st_size == 0:
            return ""
        return _fault_inside(path, record_bytes) or _fault_of_header(path, names)
    except (OSError, EOFError, zlib.error, ArrowException, csv.Error, UnicodeDecodeError) as error:
        return first_line(error).replace(str(path), path.name)


def _fault_inside(path: Path, record_bytes: int) -> str:
    if format_of(path) == "parquet":
        columns = [name.lower() for name in pq.read_schema(path).names]
        repeated = "two columns of one name" if len(set(columns)) < len(columns) else ""
        return repeated or bounds.fault_of_parquet(path, record_bytes=record_bytes)
    fault = _fault_of_text(path, record_bytes)
    if fault or format_of(path) != "csv":
        return fault
    names = header(path)
    if not all(names) or len({name.lower() for name in names}) < len(names):
        return f"a header with empty or repeated names: {','.join(names)}"[:300]
    return bounds.fault_of_columns(len(names))


def _fault_of_text(path: Path, record_bytes: int) -> str:
    size, packed = path.stat().st_size, path.suffix.lower() == ".gz"
    with _opened(path) as stream:
        head = stream.read(CHUNK if packed else 1 << 16)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "UTF-16 text: UTF-8 is read"
        if BINARY.search(head):
            return "binary: has zero bytes"
        if not packed and size <= bounds.line_bytes(record_bytes):
            return ""
        stream.seek(0)
        return bounds.fault_of_text(stream, size=size, record_bytes=record_bytes, whole=is_document(path))


def _fault_of_header(path: Path, names: Collection[str]) -> str:
    """What would be taken for the names of columns, and is a record or a line of another format."""
    columns = header(path) if names and format_of(path) == "csv" else ()
    if not columns or {name.lower() for name in columns} & {name.lower() for name in names}:
        return ""
    return f"a header without a field of the contract: {','.join(columns)}"[:300]


def header(path: Path) -> tuple[str, ...]:
    """The column names of a CSV file."""
    with _opened(path) as stream:
        head = stream.read(bounds.HEADER)
    if len(head) == bounds.HEADER and not {10, 13} & set(head):
        raise csv.Error(f"a header of more than {bounds.HEADER:,} bytes")
    text = io.TextIOWrapper(io.BytesIO(head), encoding="utf-8-sig", newline="")
    return tuple(name.strip() for name in next(csv.reader(text), []))


def _opened(path: Path) -> BinaryIO:
    """The bytes of a file of text, unpacked."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def is_document(path: Path) -> bool:
    """Whether a JSON file is one record, printed over many lines: no line of JSON Lines is a brace alone."""
    if ".json" not in [suffix.lower() for suffix in path.suffixes[-2:]]:
        return False
    with _opened(path) as stream:
        head = stream.read(1 << 10).removeprefix(b"\xef\xbb\xbf").lstrip()
    return head.partition(b"\n")[0].rstrip() == b"{"


def records(spark: SparkSession, settings: Settings, files: Iterable[File]) -> DataFrame:
    """The records of `files`, each a file without a fault, as the columns that this module describes."""
    paths = [stage(settings, file) for file in files if file.size]
    whole: DataFrame | None = None
    for (kind, columns), group in _groups(paths):
        frame = _READERS[kind](spark, [str(path) for path in group], columns, settings.record_bytes)
        whole = frame if whole is None else whole.unionByName(frame)
    if whole is None:
        whole = spark.createDataFrame([], "_file string, _block bigint, _raw string")
    return whole.selectExpr("_file", "_block", "monotonically_increasing_id() AS _seq", "_raw")


def stage(settings: Settings, file: File) -> Path:
    """A path to `file` that Spark's path patterns cannot misread: its own, or a link under a plain name."""
    path = file.path
    if PLAIN_NAME.fullmatch(path.name) and not path.is_symlink():
        return path
    plain = "".join(suffix.lower() for suffix in path.suffixes[-2:] if suffix.lower() in {*FORMATS, ".gz"})
    named = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    link = file_modes.scratch(settings, "staging") / f"{named}-{file.mtime}{plain}"
    link.unlink(missing_ok=True)
    link.symlink_to(path.resolve())
    return link


def local_path(address: str) -> Path:
    """The path behind a `_file`."""
    return Path(unquote(re.sub(r"^file:/*", "/", address)))


def _groups(paths: Iterable[Path]) -> Iterable[tuple[tuple[str, tuple[str, ...]], list[Path]]]:
    """Files that one reader can read together: of one format, and of one header or schema."""

    def kind(path: Path) -> tuple[str, tuple[str, ...]]:
        match format_of(path):
            case "csv":
                return "csv", header(path)
            case "json" if is_document(path):
                return "document", ()
            case "parquet":
                return "parquet", tuple(str(field) for field in pq.read_schema(path))
            case other:
                return other, ()

    ordered = sorted(((kind(path), path) for path in paths), key=lambda pair: pair[0])
    for group, members in itertools.groupby(ordered, key=lambda pair: pair[0]):
        if group != ("csv", ()):
            yield group, [path for _, path in members]


PLACE: Final = ("_metadata.file_path AS _file", "_metadata.file_block_start AS _block")


def _read_json(spark: SparkSession, paths: list[str], _: tuple[str, ...], __: int) -> DataFrame:
    return spark.read.text(paths).selectExpr(*PLACE, "ltrim('\ufeff', value) AS _raw")


def _read_document(spark: SparkSession, paths: list[str], _: tuple[str, ...], __: int) -> DataFrame:
    whole = r"rtrim(' \t\r\n', ltrim('\ufeff', value))"
    return spark.read.text(paths, wholetext=True).selectExpr(*PLACE, f"{whole} AS _raw")


def _read_csv(spark: SparkSession, paths: list[str], names: tuple[str, ...], record_bytes: int) -> DataFrame:
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField(name, StringType()) for name in (*names, "_broken")])
    reader = spark.read.schema(schema).options(
        header=True,
        multiLine=True,
        escape='"',
        mode="PERMISSIVE",
        columnNameOfCorruptRecord="_broken",
        maxCharsPerColumn=bounds.line_bytes(record_bytes),
    )
    columns = ", ".join(quoted(name, SPARK) for name in names)
    return reader.csv(paths).selectExpr(*PLACE, f"coalesce(_broken, to_json(struct({columns}))) AS _raw")


def _read_parquet(spark: SparkSession, paths: list[str], _: tuple[str, ...], __: int) -> DataFrame:
    options = ", ".join(f"'{name}', \"{form}\"" for name, form in EXACT_TIMES.items())
    return spark.read.parquet(*paths).selectExpr(*PLACE, f"to_json(struct(*), map({options})) AS _raw")


_READERS: Final = {"json": _read_json, "document": _read_document, "csv": _read_csv, "parquet": _read_parquet}
