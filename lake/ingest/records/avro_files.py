"""Avro container files as lines of JSON, one a record, with every value as a contract reads it.

See lake.contracts.avro_json for the values. Where the file is broken, so is what comes after that place.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import avro.codecs
import avro.datafile
import avro.errors
import avro.io
import avro.schema

from lake.config import Settings
from lake.contracts import avro_json
from lake.ingest.records import bounds
from lake.ingest.records.bounds import Content


def fault_of(path: Content, *, record_bytes: int = Settings.record_bytes) -> str:
    """Why a file cannot be read at all, "" where its header can, and its blocks do not unpack to too much."""
    try:
        with path.open("rb") as stream:
            reader = _reader(stream)
            codec = avro.codecs.get_codec(reader.codec)
            schema = _schema(reader)
            if schema.type != "record":
                return f"an Avro file of {schema.type} values: records are read"
            if fault := bounds.fault_of_columns(_values_of(schema, {})):
                return fault
            if avro_json.is_endless(schema):
                return "an Avro file with arrays of values without a size"
            return _fault_of_blocks(reader, codec, path.stat().st_size, record_bytes)
    except Exception as error:  # whatever the library makes of bytes that are no header
        return f"not an Avro container file that can be read: {str(error) or type(error).__name__}"[:300]


def _fault_of_blocks(reader: avro.datafile.DataFileReader, codec: Any, size: int, record_bytes: int) -> str:
    """Why the blocks of a file of `size` bytes are not to be unpacked for its records, "" where they may be.

    The library unpacks no block beyond a size of its own. A broken block is told where its records are read.
    """
    if codec is avro.codecs.NullCodec:
        return ""
    most, taken = max(bounds.line_bytes(record_bytes), bounds.EXPANSION * size), 0
    try:
        while not reader.is_EOF():
            reader.raw_decoder.read_long()
            taken += len(codec.decompress(reader.raw_decoder).reader.getbuffer())
            if taken > most:
                return bounds.expands(size)
            reader.reader.read(avro.datafile.SYNC_SIZE)
    except avro.errors.AvroDecompressionSizeException as error:
        return f"{bounds.OVERSIZED}a block is larger than it may be: {error}"
    except Exception:  # whatever the library makes of bytes that are no block
        return ""
    return ""


def as_lines(path: Content, copy: Path, *, record_bytes: int) -> Path:
    """Writes the records of a file without a fault to `copy`.

    Where it cannot be read on, the last line says so; it is no JSON.
    """
    most = max(bounds.line_bytes(record_bytes), bounds.EXPANSION * path.stat().st_size)
    longest, taken = bounds.line_bytes(record_bytes), 0
    with NamedTemporaryFile(dir=copy.parent, delete=False) as new:
        for line in _lines(path):
            new.write(line[:longest] + b"\n")
            taken += len(line)
            if taken > most:
                new.write(f"the records of {path.name} are more than {most:,} bytes\n".encode())
                break
    return Path(new.name).rename(copy)


def _lines(path: Content) -> Iterator[bytes]:
    with path.open("rb") as stream:
        number = 0
        try:
            reader = _reader(stream)
            make = avro_json.maker(_schema(reader))
            for datum in reader:
                number += 1
                yield json.dumps(make(datum), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        except Exception as error:  # whatever the library makes of bytes that are no record
            reason = " ".join((str(error) or type(error).__name__).split())[:200]
            yield f"cannot be read after record {number}: {reason}".encode("utf-8", "replace")


def _reader(stream: Any) -> avro.datafile.DataFileReader:
    """A reader of plain values: what a logical type means is no matter of whole records."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
        reader = avro.datafile.DataFileReader(stream, avro.io.DatumReader())
        plain = avro.schema.parse(json.dumps(avro_json.without_logical_types(json.loads(reader.schema))))
    reader.datum_reader.writers_schema = plain
    return reader


def _schema(reader: avro.datafile.DataFileReader) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
        return avro.schema.parse(reader.schema)


def _values_of(schema: Any, counted: dict[int, int]) -> int:
    """How many values one of it has, an array's items and what is within itself counted once."""
    if id(schema) not in counted:
        counted[id(schema)] = 1
        counted[id(schema)] = 1 + sum(_values_of(part, counted) for part in avro_json.parts(schema))
    return counted[id(schema)]
