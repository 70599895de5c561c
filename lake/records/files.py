"""Reader of record files in the format that their name declares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from lake.contracts.csv_options import CsvOptions
from lake.records import avro, csv_text, json_text, parquet
from lake.records.decompression import PACKINGS, DecompressedFile, check_encoding
from lake.records.raw_values import ColumnRecords, FileFault, RawValue, TextRecords, first_line, is_caused_by_content

TEXTS: Final = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv"}
FORMATS: Final = {**TEXTS, ".parquet": "parquet", ".avro": "avro"}
CHUNK_RECORDS: Final = 10_000
ENCODING: Final = '"csv": {{"encoding": "{}"}}'


def format_of(name: str) -> str:
    suffix, packing = _suffixes(name)
    return (TEXTS if packing else FORMATS).get(suffix, "")


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
    if TEXTS[suffix] == "json":
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
