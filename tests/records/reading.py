"""Reading of text files in tests: places and outcomes of records."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence

from lake.contracts.csv_options import DEFAULT_CSV, CsvOptions
from lake.records import csv_text, json_text
from lake.records.decompression import CHUNK_BYTES, DecompressedFile
from lake.records.raw_values import ABSENT, ColumnRecords, FileFault, RawValue, TextRecords
from lake.records.read_tasks import read_file

RECORD_BYTES = 1 << 16
Record = tuple[int, bytes | dict[str, RawValue] | tuple[str, str]]


def records(
    parts: Iterator[TextRecords] | Iterator[ColumnRecords] | Iterator[TextRecords | ColumnRecords],
) -> Iterator[Record]:
    """Yield each record with its place: a text, its members, or its fault and text."""
    for part in parts:
        if isinstance(part, TextRecords):
            yield from zip(part.places, part.texts, strict=True)
            continue
        for index, place in enumerate(part.places):
            members = {name: values[index] for name, values in part.columns.items() if values[index] is not ABSENT}
            yield place, part.broken.get(index, members)
            assert not (index in part.broken and members)


def outcome(
    parts: Iterator[TextRecords] | Iterator[ColumnRecords] | Iterator[TextRecords | ColumnRecords],
) -> list[Record | str]:
    """Return the records of a file, followed by its fault."""
    found: list[Record | str] = []
    try:
        found.extend(records(parts))
    except FileFault as fault:
        found.append(str(fault))
    return found


def json_records(
    data: bytes, *, chunk_bytes: int = CHUNK_BYTES, record_bytes: int = RECORD_BYTES
) -> list[Record | str]:
    source = DecompressedFile(io.BytesIO(data), "", record_bytes=record_bytes, chunk_bytes=chunk_bytes)
    return outcome(json_text.read(source))


def csv_records(
    data: bytes, options: CsvOptions = DEFAULT_CSV, *, chunk_bytes: int = CHUNK_BYTES, record_bytes: int = RECORD_BYTES
) -> list[Record | str]:
    source = DecompressedFile(io.BytesIO(data), "", record_bytes=record_bytes, chunk_bytes=chunk_bytes)
    return outcome(csv_text.read(source, options))


def file_records(
    data: bytes, name: str, options: CsvOptions = DEFAULT_CSV, *, declared: Collection[str] = ()
) -> list[Record | str]:
    return outcome(read_file(io.BytesIO(data), name, options, record_bytes=RECORD_BYTES, declared=declared))


def outcomes(read: Callable[[bytes], object], data: bytes, step: int, *, masks: Sequence[int]) -> dict[str, int]:
    """Return how often `data` is read and rejected when every `step`th byte is changed by each of `masks`."""
    counts = {"read": 0, "refused": 0}
    for at in range(0, len(data), step):
        for mask in masks:
            damaged = bytearray(data)
            damaged[at] ^= mask
            try:
                read(bytes(damaged))
                counts["read"] += 1
            except FileFault:
                counts["refused"] += 1
    return counts
