"""An answer written to standard output or to a file: a table, CSV, JSON or Parquet."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

from lake.errors import DeclarationError
from lake.run.render import FORMATS
from lake.run.sql import Reader

FETCH_ROWS: Final = 10_000


def export(reader: Reader, query: str, kind: str, output: Path | None) -> None:
    """Answers `query` in the format `kind`, to the file `output` or to standard output.

    A file appears whole or not at all. Raises DeclarationError where the query is wrong, or where Parquet would be
    written on a terminal.
    """
    if output is not None and not output.absolute().parent.is_dir():
        raise DeclarationError("the folder of --output does not exist", where=str(output.parent), fix="make it first")
    if kind == "parquet":
        _parquet(reader, query, output)
    else:
        _lines(reader, query, kind, output)


def _lines(reader: Reader, query: str, kind: str, output: Path | None) -> None:
    with reader.connect(query) as con:
        con.execute(query)
        names = [column[0] for column in con.description or ()]
        lines = FORMATS[kind](names, _rows(con.fetchmany))
        with _whole(output) as out:
            out.writelines(f"{line}\n".encode() for line in lines)


def _parquet(reader: Reader, query: str, output: Path | None) -> None:
    if output is None and sys.stdout.isatty():
        raise DeclarationError("Parquet is not for a terminal", fix="name a file with --output FILE, or pipe it")
    with TemporaryDirectory() as scratch:
        file = Path(scratch, "answer.parquet")
        with reader.connect(query, scratch=Path(scratch)) as con:
            con.sql(query).write_parquet(str(file), compression="zstd")
        with _whole(output) as out, file.open("rb") as written:
            shutil.copyfileobj(written, out)


def _rows(fetch: Any) -> Iterator[Sequence[Any]]:
    while batch := fetch(FETCH_ROWS):
        yield from batch


@contextmanager
def _whole(output: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that is put in place when it is complete.

    What a link names is replaced, not the link.
    """
    if output is None:
        yield sys.stdout.buffer
        return
    output = output.resolve()
    if output.exists() and not output.is_file():  # a device or a pipe
        with output.open("wb") as out:
            yield out
        return
    part = output.with_name(f".{output.name}.part")
    try:
        with part.open("wb") as out:
            yield out
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
