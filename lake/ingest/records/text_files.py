"""Files of text as bytes in UTF-8: unpacked, and from whatever encoding. U+FFFF stands for bytes that are no text."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, Final

from lake.contracts.csv_options import CsvOptions
from lake.contracts.digits import MARK
from lake.ingest.records import bounds
from lake.ingest.records.bounds import Content

CHUNK: Final = 1 << 20
UTF_8: Final = "utf-8-sig"
MARKED: Final = "headwater.marked"


def header(path: Content, options: CsvOptions) -> tuple[str, ...]:
    """The columns of the first line of a CSV file."""
    with opened(path, options.encoding) as stream:
        head = stream.read(bounds.HEADER)
    if len(head) == bounds.HEADER and not {10, 13} & set(head):
        raise csv.Error(f"a header of more than {bounds.HEADER:,} bytes")
    text = io.TextIOWrapper(io.BytesIO(head), encoding=UTF_8, errors=MARKED, newline="")
    if options.quote:
        lines = csv.reader(text, delimiter=options.delimiter, quotechar=options.quote)
    else:
        lines = csv.reader(text, delimiter=options.delimiter, quoting=csv.QUOTE_NONE)
    return tuple(name.strip() for name in next(lines, []))


def opened(path: Content, encoding: str = "") -> BinaryIO:
    """The bytes of a file of text, unpacked; those of UTF-8 for what is in an `encoding`."""
    packed = path.suffix.lower() == ".gz"
    stream: Any = gzip.open(path if isinstance(path, Path) else path.open()) if packed else path.open("rb")  # noqa: SIM115  whoever asks closes it
    return _Recoded(stream, encoding) if encoding else stream  # type: ignore[return-value]


def foreign(path: Content, options: CsvOptions) -> str:
    """The encoding of a CSV file that Spark must not be given as it is: it is not UTF-8, or not all of it. Else ""."""
    if options.encoding:
        return options.encoding
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with opened(path) as stream:
            while chunk := stream.read(CHUNK):
                decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return UTF_8
    return ""


def recoded(path: Content, encoding: str, copy: Path) -> Path:
    """Copies the text of a file in an `encoding` to `copy`, in UTF-8."""
    with opened(path, encoding) as stream, NamedTemporaryFile(dir=copy.parent, delete=False) as new:
        while chunk := stream.read(CHUNK):
            new.write(chunk)
    return Path(new.name).rename(copy)


def _marked(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError | UnicodeEncodeError)
    return MARK, error.end


codecs.register_error(MARKED, _marked)


class _Recoded(io.RawIOBase):
    """The text of a stream of bytes in an `encoding`, as UTF-8. It can be read, and read from the start again."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._encoding = encoding
        self._text = io.TextIOWrapper(stream, encoding, MARKED, newline="")

    def read(self, size: int = -1, /) -> bytes:
        return self._text.read(size).encode("utf-8", MARKED)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        stream = self._text.detach()
        at = stream.seek(offset, whence)
        self._text = io.TextIOWrapper(stream, self._encoding, MARKED, newline="")
        return at

    def close(self) -> None:
        self._text.close()
        super().close()
