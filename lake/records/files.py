"""Reader of files of records, in the format that their names have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import BinaryIO, Final

from lake.contracts.csv_options import CsvOptions
from lake.records import avro, csv_text, json_text, parquet
from lake.records.given import FileFault, Given, Lines, Rows, is_of_content, words
from lake.records.packed import PACKINGS, Unpacked, check_encoding

TEXTS: Final = {".jsonl": "json", ".json": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv"}
FORMATS: Final = {**TEXTS, ".parquet": "parquet", ".avro": "avro"}
RECORDS: Final = 10_000
"""The most records of a part."""
ENCODING: Final = '"csv": {{"encoding": "{}"}}'


def format_of(name: str) -> str:
    """Return json, csv, parquet or avro; "" if the name has none of their suffixes."""
    suffix, packing = _suffixes(name)
    return (TEXTS if packing else FORMATS).get(suffix, "")


def unknown_format() -> str:
    """Return the fault of a file whose name tells no format."""
    formats = f"none of {', '.join(FORMATS)}, {', '.join(PACKINGS)} after the text formats"
    return f"unknown format: {formats}; name it by what is in it, as a.csv or a.jsonl.gz"


def _suffixes(name: str) -> tuple[str, str]:
    """Return a name's suffix and that of its packing ("" for none), in lower case."""
    stem, dot, last = name.lower().rpartition(".")
    packing = dot + last if dot + last in PACKINGS else ""
    if packing:
        _, dot, last = stem.rpartition(".")
    return dot + last, packing


def read_file(
    stream: BinaryIO, name: str, csv: CsvOptions, *, record_bytes: int, declared: Collection[str] = ()
) -> Iterator[Lines | Rows]:
    """Yield the records of a file in parts; FileFault if it cannot be read, or not on: then none of them counts.

    `stream` can be moved in. `declared` are the names and former names of the contract's fields: a CSV header has one
    of them, and none twice.
    """
    try:
        for part in _parts(stream, name, csv, record_bytes, declared):
            yield from _divided(part)
    except FileFault:
        raise
    except Exception as error:  # whatever a library makes of bytes that are none of its format's
        if not is_of_content(error):
            raise
        raise FileFault(words(error)) from error


def _parts(
    stream: BinaryIO, name: str, csv: CsvOptions, record_bytes: int, declared: Collection[str]
) -> Iterator[Lines | Rows]:
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
) -> Iterator[Lines | Rows]:
    suffix, packing = _suffixes(name)
    source = Unpacked(stream, PACKINGS.get(packing, ""), record_bytes=record_bytes)
    if TEXTS[suffix] == "json":
        check_encoding(source.head, "", option="")
        yield from json_text.read(source)
        return
    check_encoding(source.head, csv.encoding, option=ENCODING)
    is_tabs = suffix == ".tsv" and not csv.declared_delimiter
    yield from csv_text.read(source, replace(csv, declared_delimiter="\t") if is_tabs else csv, declared)


def _divided(part: Lines | Rows) -> Iterator[Lines | Rows]:
    if len(part.places) <= RECORDS:
        yield part
        return
    for first in range(0, len(part.places), RECORDS):
        behind = first + RECORDS
        if isinstance(part, Lines):
            yield Lines(part.places[first:behind], part.texts[first:behind])
            continue
        columns: dict[str, Sequence[Given]] = {name: values[first:behind] for name, values in part.columns.items()}
        broken = {index - first: fault for index, fault in part.broken.items() if first <= index < behind}
        yield Rows(part.places[first:behind], columns, broken)
