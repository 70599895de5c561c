"""Bytes of text files: decompressed, bounded, and checked for the declared encoding."""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Iterator
from typing import BinaryIO, Final

from lake.lazy import pa
from lake.records.raw_values import FileFault

PACKINGS: Final = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".zip": "zip"}
OVERSIZED: Final = "oversized: "
RECORDS_PER_LINE: Final = 16
"""Most bytes of a line, as a multiple of the record limit; a longer line rejects the file."""
EXPANSION: Final = 100
"""Most bytes of a decompressed file, as a multiple of its size."""
MOST_COLUMNS: Final = 5000
MAC_FOLDER: Final = "__MACOSX/"
HEAD_BYTES: Final = 1 << 16
CHUNK_BYTES: Final = 1 << 20

MARKS: Final = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (codecs.BOM_UTF8, "utf-8"),
)
MAGIC: Final = {
    b"PK\x03\x04": "a zip archive: end its name in .zip",
    b"\x1f\x8b": "packed by gzip: end its name in .gz",
    b"\x28\xb5\x2f\xfd": "packed by zstd: end its name in .zst",
    b"BZh91AY&SY": "packed by bzip2: end its name in .bz2",
    b"PAR1\x15": "Parquet: end its name in .parquet",
    b"Obj\x01": "Avro: end its name in .avro",
}


def line_bytes(record_bytes: int) -> int:
    return RECORDS_PER_LINE * record_bytes


def expansion_fault(size: int) -> str:
    return f"{OVERSIZED}unpacked, its {size:,} bytes are more than {EXPANSION} times as many"


def check_columns(count: int) -> None:
    if count > MOST_COLUMNS:
        raise FileFault(f"{OVERSIZED}{count:,} columns, limit {MOST_COLUMNS:,}")


class DecompressedFile:
    """Decompressed bytes of a seekable file; `packing` is "" for none. Raises FileFault if it expands too much."""

    def __init__(self, stream: BinaryIO, packing: str, *, record_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.line_limit = line_bytes(record_bytes)
        self._size = stream.seek(0, 2)
        stream.seek(0)
        self._stream, self._chunk_bytes = _decompressed(stream, packing), chunk_bytes
        self._left = max(self.line_limit, EXPANSION * self._size)
        self.head = self._read(HEAD_BYTES)

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, len(self.head), self._chunk_bytes):
            yield self.head[start : start + self._chunk_bytes]
        while data := self._read(self._chunk_bytes):
            yield data

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise FileFault(expansion_fault(self._size))
        return data


def _decompressed(stream: BinaryIO, packing: str) -> BinaryIO:
    if not packing:
        return stream
    if packing != "zip":
        return pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), packing)  # type: ignore[no-any-return]
    archive = zipfile.ZipFile(stream)
    members = [file for file in archive.infolist() if not (file.is_dir() or file.filename.startswith(MAC_FOLDER))]
    if len(members) != 1:
        raise FileFault(f"a zip archive of {len(members)} files: one is read")
    return archive.open(members[0])  # type: ignore[return-value]


def check_encoding(head: bytes, encoding: str, *, option: str) -> None:
    """Raise FileFault if a file that begins with `head` is not text in `encoding` ("": UTF-8).

    `option` is the contract option for another encoding, with {} for its name; "" if there is none.
    """
    for magic, words in MAGIC.items():
        if head.startswith(magic):
            raise FileFault(f"no text, but {words}")
    declared = codecs.lookup(encoding or "utf-8").name
    likely = _encoding_by_mark(head) or _encoding_by_zeros(head)
    is_wide = declared.startswith(("utf-16", "utf-32"))
    if likely == "binary":
        if not is_wide:
            raise FileFault("binary: has zero bytes")
        likely = ""  # either byte of a UTF-16 letter may be zero
    needs_mark = declared in {"utf-16", "utf-32"}
    if needs_mark and _encoding_by_mark(head) != declared:
        likely = likely or ("utf-8" if _is_utf_8(head) else f"{declared}-le")
        raise FileFault(f"no byte order mark of {declared}{_suggestion(likely, option)}")
    agrees = declared == likely or (likely in {"utf-16", "utf-32"} and declared.startswith(likely))
    if likely and not agrees:
        raise FileFault(f"{likely} text, and {declared} is read{_suggestion(likely, option)}")


def _suggestion(likely: str, option: str) -> str:
    return f": write {option.format(likely)}" if option else ": write it as UTF-8"


def _encoding_by_mark(head: bytes) -> str:
    return next((name for mark, name in MARKS if head.startswith(mark)), "")


def _encoding_by_zeros(head: bytes) -> str:
    zeros = head.count(0)
    if zeros * 10 <= len(head):
        return ""
    quarters = [part.count(0) * 2 > len(part) for part in (head[start::4] for start in range(4))]
    shapes = {
        (False, True, True, True): "utf-32-le",
        (True, True, True, False): "utf-32-be",
        (False, True, False, True): "utf-16-le",
        (True, False, True, False): "utf-16-be",
    }
    return shapes.get((quarters[0], quarters[1], quarters[2], quarters[3]), "binary")


def _is_utf_8(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
