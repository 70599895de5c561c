"""Files by their names: formats, packings, encodings, and errors of libraries."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import os
import zipfile
from collections.abc import Callable
from itertools import product

import pyarrow as pa
import pytest

from lake.contracts.csv_options import DEFAULT_CSV, CsvOptions
from lake.errors import Unavailable
from lake.records import read_tasks
from lake.records.raw_values import ColumnRecords, FileFault
from lake.records.read_tasks import format_of, read_file, unknown_format
from tests.records.reading import RECORD_BYTES, file_records, outcome


def _zipped(*texts: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("folder")
        for number, text in enumerate(texts):
            archive.writestr(f"folder/{number}", text)
    return packed.getvalue()


def _zstd(text: bytes) -> bytes:
    return bytes(pa.compress(text, codec="zstd", asbytes=True))


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": _zstd,
    ".zip": _zipped,
}
TEXTS = {
    ".jsonl": (b'{"x":1}\n', [(1, b'{"x":1}')]),
    ".JSON": (b'[{"x":1}]', [(1, b'{"x":1}')]),
    ".csv": (b"x,y\n1,a\n", [(2, {"x": "1", "y": "a"})]),
    ".Tsv": (b"x\ty\n1,2\ta\n", [(2, {"x": "1,2", "y": "a"})]),
}


@pytest.mark.parametrize(("suffix", "packing"), [*product(TEXTS, PACKINGS)])
def test_file_of_text_is_read_packed_or_not(suffix: str, packing: str) -> None:
    text, expected = TEXTS[suffix]
    assert file_records(PACKINGS[packing](text), f"a.b{suffix}{packing.upper()}") == expected
    assert file_records(PACKINGS[packing](b""), f"a{suffix}{packing}") == []


def test_tsv_is_read_with_the_delimiter_of_the_contract() -> None:
    assert file_records(b"x,y\n1,\t\n", "a.tsv", CsvOptions.of({"delimiter": ","})) == [(2, {"x": "1", "y": "\t"})]


def test_format_is_determined_by_the_name_alone() -> None:
    names = {"a.ndjson": "json", "a.CSV.zst": "csv", "a.parquet": "parquet", "a.avro": "avro"}
    names |= dict.fromkeys(
        ("a.parquet.gz", "a.avro.zip", "a.zip", "a.gz", "a", "", "csv", "a.csv.lz4", "a.gz.csv.txt"), ""
    )
    assert {name: format_of(name) for name in names} == names
    assert file_records(b"x\n1\n", "a.txt.gz") == [unknown_format()]
    assert unknown_format() == (
        "unknown format: none of .jsonl, .json, .ndjson, .csv, .tsv, .parquet, .avro, "
        ".gz, .zst, .bz2, .zip after the text formats; name it by what is in it, as a.csv or a.jsonl.gz"
    )


@pytest.mark.parametrize(("packing", "suffix"), [*product([".gz", ".bz2", ".zst", ".zip"], [".jsonl", ".csv"])])
def test_truncated_or_damaged_packed_file_is_rejected_as_a_whole(packing: str, suffix: str) -> None:
    text = b"".join(b'{"x":%d}\n' % (number**5 % 10**9) for number in range(50))
    packed = PACKINGS[packing](text)
    whole = file_records(packed, "a" + suffix + packing)
    for at in range(1, len(packed)):
        assert len(file_records(packed[:at], "a" + suffix + packing)) == 1
    for at, change in product(range(len(packed)), (1, 128)):
        found = file_records(packed[:at] + bytes([packed[at] ^ change]) + packed[at + 1 :], "a" + suffix + packing)
        assert found == whole or len(found) == 1 or packing == ".zst"  # zst has no checksum here


@pytest.mark.slow
def test_packed_file_that_expands_too_much_is_rejected() -> None:
    bomb = gzip.compress(b"x\n" + b"1\n" * (1 << 19))
    size = f"{len(bomb):,}"
    fault = f"oversized: unpacked, its {size} bytes are more than 100 times as many"
    assert file_records(bomb, "a.csv.gz")[-1] == fault
    line = gzip.compress(b"x" * (17 * RECORD_BYTES), 0)
    assert file_records(line, "a.jsonl.gz") == ["oversized: a line of more than 1,048,576 bytes"]
    text = b"x\n" + b"1\n" * (1 << 18) + b"x" * (17 * RECORD_BYTES)
    fault = "oversized: a line of more than 1,048,576 bytes, or a quote that is not closed"
    assert file_records(text, "a.csv")[-1] == fault


def test_zip_of_several_files_or_none_is_rejected() -> None:
    assert file_records(_zipped(b"x\n1", b"x\n2"), "a.csv.zip") == ["a zip archive of 2 files: one is read"]
    assert file_records(_zipped(), "a.csv.zip") == ["a zip archive of 0 files: one is read"]


WAY = ': write "csv": {{"encoding": "{}"}}'.format
ENCODED = [
    ("utf-16", "utf-16", ""),
    ("utf-16-le", "utf-16-le", ""),
    ("utf-16-be", "utf-16-be", ""),
    ("utf-32", "utf-32", ""),
    ("utf-16", "utf-16-le", ""),
    ("utf-8-sig", "", ""),
    ("windows-1252", "windows-1252", ""),
    ("cp037", "cp037", ""),
    ("utf-16", "", "utf-16 text, and utf-8 is read" + WAY("utf-16")),
    ("utf-32", "", "utf-32 text, and utf-8 is read" + WAY("utf-32")),
    ("utf-16-le", "", "utf-16-le text, and utf-8 is read" + WAY("utf-16-le")),
    ("utf-32-be", "", "utf-32-be text, and utf-8 is read" + WAY("utf-32-be")),
    ("utf-16-le", "utf-16", "no byte order mark of utf-16" + WAY("utf-16-le")),
    ("utf-16-be", "utf-16", "no byte order mark of utf-16" + WAY("utf-16-be")),
    ("utf-32-le", "utf-32", "no byte order mark of utf-32" + WAY("utf-32-le")),
    ("utf-8", "utf-16", "no byte order mark of utf-16" + WAY("utf-8")),
    ("utf-8-sig", "windows-1252", "utf-8 text, and cp1252 is read" + WAY("utf-8")),
    ("utf-16-be", "utf-16-le", "utf-16-be text, and utf-16-le is read" + WAY("utf-16-be")),
]


@pytest.mark.parametrize(("written", "declared", "fault"), ENCODED)
def test_csv_in_another_encoding_than_declared_is_rejected_with_a_fix(written: str, declared: str, fault: str) -> None:
    data = "x,y\n1,ä\n2,b\n".encode(written)
    options = CsvOptions.of({"encoding": declared or "utf-8"})
    assert file_records(data, "a.csv", options) == (
        [fault] if fault else [(2, {"x": "1", "y": "ä"}), (3, {"x": "2", "y": "b"})]
    )


def test_binary_file_is_rejected_as_no_text() -> None:
    for data in (b"\0\0\0\0\x07\x0eada", b'{"id":7\0}', bytes(range(256)) * 4 + b"\0" * 200):
        assert file_records(data, "a.jsonl") == ["binary: has zero bytes"]
    assert file_records('{"x":1}\n'.encode("utf-16"), "a.jsonl") == [
        "utf-16 text, and utf-8 is read: write it as UTF-8"
    ]
    assert file_records(gzip.compress(b"x"), "a.csv") == ["no text, but packed by gzip: end its name in .gz"]
    assert file_records(_zipped(b"x"), "a.jsonl") == ["no text, but a zip archive: end its name in .zip"]
    assert file_records(b'{"x":"' + b"a" * 99 + b'\0"}\n{}', "a.jsonl")[1] == (2, b"{}")


class _Raising(io.BytesIO):
    def __init__(self, error: BaseException) -> None:
        super().__init__(b"x,y\n1,a\n" * 20_000)
        self._error = error

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= 1 << 16:
            raise self._error
        return super().read(size)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_error_of_a_library_is_reported_as_the_fault_of_the_file(name: str) -> None:
    raised = [kind("one\ntwo") for kind in (ValueError, OSError, EOFError, KeyError, RuntimeError, pa.ArrowInvalid)]
    for error in (*raised, OSError(errno.EINVAL, "Invalid argument")):
        found = outcome(read_file(_Raising(error), name, DEFAULT_CSV, record_bytes=RECORD_BYTES))
        assert found[-1] == str(error).splitlines()[0]
    for error in (
        Unavailable("the storage does not answer"),
        FileNotFoundError("gone"),
        OSError("No space left on device"),
        *(OSError(number, os.strerror(number)) for number in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ESTALE)),
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 1024 failed"),
        RuntimeError("zlib: Cannot allocate memory"),
    ):
        with pytest.raises(type(error)):
            outcome(read_file(_Raising(error), name, DEFAULT_CSV, record_bytes=RECORD_BYTES))


def test_parts_have_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_tasks, "CHUNK_RECORDS", 3)
    data = b"x,y\n" + b"1,2\n" * 4 + b"broken\n" + b"1,2\n" * 3
    parts = [*read_file(io.BytesIO(data), "a.csv", DEFAULT_CSV, record_bytes=RECORD_BYTES)]
    assert [[*part.places] for part in parts] == [[2, 3, 4], [5, 6, 7], [8, 9]]
    assert [isinstance(part, ColumnRecords) and [*part.broken] for part in parts] == [[], [1], []]
    lines = read_file(io.BytesIO(b"{}\n" * 7), "a.json", DEFAULT_CSV, record_bytes=9)
    assert [len(part.places) for part in lines] == [3, 3, 1]


def test_fault_of_a_file_is_raised_as_such() -> None:
    with pytest.raises(FileFault, match="unknown format"):
        next(read_file(io.BytesIO(b"x"), "a", DEFAULT_CSV, record_bytes=1))
