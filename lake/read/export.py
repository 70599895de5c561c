"""An answer written to standard output or to a file: a table, Markdown, CSV, JSON, JSON Lines or Parquet."""

from __future__ import annotations

import os
import secrets
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final

import duckdb

from lake.errors import DeclarationError, LakeError, full
from lake.read.answer import Answer, ask
from lake.read.sql import Reader
from lake.text import as_markdown, as_table, obeyed

FETCH_ROWS: Final = 10_000
BLOCK: Final = 1 << 16
EXTENSIONS: Final = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".md": "md", ".parquet": "parquet"}
FORMATS: Final = ("table", *EXTENSIONS.values())
LISTED: Final = f"{', '.join([*EXTENSIONS][:-1])} or {[*EXTENSIONS][-1]}"

# Each row is one text that DuckDB's writer of CSV leaves as it is.
_LINES: Final = r"FORMAT csv, HEADER false, QUOTE '', ESCAPE '', DELIMITER E'\n'"
COPIES: Final[dict[str, tuple[Callable[[Answer], str], str]]] = {
    "csv": (lambda answer: answer.texts, "FORMAT csv, HEADER true, NULLSTR ''"),
    "json": (lambda answer: answer.objects, rf"{_LINES}, PREFIX E'[\n', NEW_LINE E',\n', SUFFIX E'\n]\n'"),
    "jsonl": (lambda answer: answer.objects, _LINES),
    "parquet": (lambda answer: answer.values, "FORMAT parquet, COMPRESSION zstd"),
}


def chosen(asked: str | None, output: Path | None) -> str:
    """The format asked for, else the one of the extension of `output`, else a table.

    Raises DeclarationError where the two differ, or neither is given.
    """
    if output is None or is_device(output):
        return asked or "table"
    by_extension = EXTENSIONS.get(output.suffix.lower())
    if asked is None and by_extension is None:
        raise DeclarationError(
            f"the name {output.name!r} does not say the format", fix=f"use {LISTED}, or name the format with --format"
        )
    if asked and by_extension and asked != by_extension:
        raise DeclarationError(
            f"the format {asked} does not fit the file name {output.name!r}", fix="leave out --format and --json"
        )
    return asked or by_extension or "table"


def export(
    reader: Reader, query: str, kind: str, output: Path | None, *, begin: Callable[[], None] = lambda: None
) -> None:
    """Answers `query` in the format `kind`, to the file `output` or to standard output.

    A file appears whole or not at all; what is printed may end early, once `begin` has been called.
    Raises DeclarationError where the query is wrong, or where Parquet would be written on a terminal.
    """
    if output is not None and not output.absolute().parent.is_dir():
        raise DeclarationError("the folder of --output does not exist", where=str(output.parent), fix="create it first")
    if kind == "parquet" and output is None and sys.stdout.isatty():
        raise DeclarationError(
            "Parquet cannot be written to a terminal", fix="name a file with --output FILE, or pipe it"
        )
    with _whole(output) as out:
        if kind in COPIES:
            copied(reader, query, kind, _on_terminal(out, kind), begin=begin)
        else:
            _drawn(reader, query, kind, out)


def _drawn(reader: Reader, query: str, kind: str, out: IO[bytes]) -> None:
    """A table or Markdown, written as its rows come."""
    with reader.connect(query) as con:
        answer = ask(con, query)
        con.execute(answer.texts)
        draw = {"table": as_table, "md": as_markdown}[kind]
        lines = draw(answer.names, _rows(con.fetchmany), numeric=answer.numeric)
        out.writelines(f"{line}\n".encode() for line in lines)


def copied(  # noqa: PLR0913  what is asked, in which form, and where it goes
    reader: Reader,
    query: str,
    kind: str,
    write: Callable[[bytes], Any],
    *,
    begin: Callable[[], None] = lambda: None,
    most: int | None = None,
) -> int:
    """Write the answer in one of the formats of COPIES, at most `most` rows of it, and return its number of rows.

    `begin` is called before the first write. DuckDB's COPY writes into a pipe, the one thing that the locked connection
    may write to. Raises what `write` raises.
    """
    into, of = os.pipe()
    pump, count = _Pump(into, write, begin), 0
    try:
        try:
            with reader.connect(query, pipe=f"/dev/fd/{of}") as con:
                rows, options = COPIES[kind]
                select = rows(ask(con, query))
                select = select if most is None else f"{select} LIMIT {most}"
                pump.start()
                con.execute(f"COPY ({select}) TO '/dev/fd/{of}' ({options}, USE_TMP_FILE false)")
                [[count]] = con.fetchall()
        finally:
            os.close(of)
            pump.end()
    except (LakeError, duckdb.Error):
        if pump.fault is None:
            raise
    if pump.fault is not None:
        raise pump.fault
    return int(count)


class _Pump(Thread):
    """Copies what comes out of a pipe. On failure it keeps the error and closes the pipe, so that the writer stops."""

    def __init__(self, pipe: int, write: Callable[[bytes], Any], begin: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.fault: OSError | None = None
        self._pipe = pipe
        self._write = write
        self._begin = begin

    def run(self) -> None:
        try:
            while block := os.read(self._pipe, BLOCK):
                self._begin()
                self._write(block)
        except OSError as error:
            self.fault = error
        finally:
            os.close(self._pipe)

    def end(self) -> None:
        """Waits until all has been passed on, once nobody writes to the pipe."""
        if self.ident is None:
            os.close(self._pipe)
        else:
            self.join()


def _on_terminal(out: IO[bytes], kind: str) -> Callable[[bytes], Any]:
    """How `out` is written to: control characters are escaped on a terminal."""
    if not out.isatty():
        return out.write
    decode = getincrementaldecoder("utf-8")(errors="replace").decode
    spell = (lambda c: f"\\u{ord(c):04x}") if kind.startswith("json") else None
    return lambda block: out.write(obeyed(decode(block), keep="\n", spell=spell).encode())


def _rows(fetch: Any) -> Iterator[Sequence[Any]]:
    while batch := fetch(FETCH_ROWS):
        yield from batch


@contextmanager
def _whole(output: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that is put in place when it is complete.

    The target of a link is replaced, not the link. Until then the answer is in an unguessable file beside it.
    """
    if output is None:
        with writing("standard output", device=True):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    try:
        target = output.resolve(strict=False)
    except (OSError, RuntimeError):
        raise DeclarationError("--output is a link that leads back to itself", where=str(output)) from None
    if is_device(target):
        with writing(str(output), device=True), target.open("wb") as out:
            yield out
        return
    part = target.with_name(f".lake-{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with writing(str(output)):
        descriptor = os.open(part, flags, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as out:
                yield out
                out.flush()
                os.fsync(descriptor)
            part.replace(target)
        finally:
            with suppress(FileNotFoundError):
                part.unlink()


@contextmanager
def writing(where: str, *, device: bool = False) -> Iterator[None]:
    """An operating-system error about writing to `where`, as a LakeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        what = "the device is full" if device and full(error) else "the answer cannot be written"
        room = "free some space there, or name another file"
        raise LakeError(
            f"{what}: {error.strerror}",
            where=where,
            fix=room if full(error) else "name a file that this user can write",
        ) from error


def is_device(path: Path) -> bool:
    """Whether it is a device, a pipe or a socket, which is written to and not replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()
