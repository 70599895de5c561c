"""Export: the result of a query as table, Markdown, CSV, JSON, JSON Lines or Parquet; an edition as a DuckDB file.

The file has tables in schemas of their layers, views in `main`, comments, and macros `<table>_at(moment)`.
`lake.edition` and `lake.cuts` describe the edition.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final

import duckdb

from lake.config import Settings
from lake.errors import DeclarationError, LakeError, unwritten
from lake.read.locked_database import answer_file, connect_spilling, create_as_of, select
from lake.read.query import QueryResult, run_query
from lake.read.sql import EditionReader
from lake.session.file_modes import check_outside_of_warehouse, flush
from lake.store.ledger.editions import Edition
from lake.store.snapshot import Published
from lake.text import as_markdown, as_table, literal, printable, quoted

ABOUT: Final = "lake"  # the schema of a database about its edition
FETCH_ROWS: Final = 10_000
OBJECTS_AT_ONCE: Final = 256
"""Rows fetched at once as JSON objects, each of any size."""
BLOCK: Final = 1 << 16
EXTENSIONS: Final = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".md": "md", ".parquet": "parquet"}
FORMATS: Final = ("table", *EXTENSIONS.values())
EXTENSION_LIST: Final = f"{', '.join([*EXTENSIONS][:-1])} or {[*EXTENSIONS][-1]}"

COPIES: Final[dict[str, tuple[Callable[[QueryResult], str], str]]] = {
    "csv": (lambda answer: answer.texts, "FORMAT csv, HEADER true, NULLSTR ''"),
    "parquet": (lambda answer: answer.values, "FORMAT parquet, COMPRESSION zstd"),
}
OBJECTS: Final = {"json": ("[\n", ",\n", "\n]\n"), "jsonl": ("", "\n", "\n")}
"""Text before, between and after the rows, each a JSON object."""


def choose_format(requested: str | None, output: Path | None) -> str:
    """Return the format `requested`, else that of the file extension, else a table. Raises DeclarationError."""
    if output is None or is_device(output):
        return requested or "table"
    by_extension = EXTENSIONS.get(output.suffix.lower())
    if requested is None and by_extension is None:
        raise DeclarationError(
            f"the name {output.name!r} does not say the format",
            fix=f"use {EXTENSION_LIST}, or name the format with --format",
        )
    if requested and by_extension and requested != by_extension:
        raise DeclarationError(
            f"the format {requested} does not fit the file name {output.name!r}", fix="leave out --format and --json"
        )
    return requested or by_extension or "table"


def check_folder(settings: Settings, output: Path) -> None:
    if not output.absolute().parent.is_dir():
        raise DeclarationError("the folder of --output does not exist", where=str(output.parent), fix="create it first")
    check_outside_of_warehouse(settings, _link_target(output))


def export(
    reader: EditionReader, query: str, kind: str, output: Path | None, *, begin: Callable[[], None] = lambda: None
) -> None:
    """Write the result of `query` to `output`, which appears whole or not at all, or to standard output.

    Calls `begin` before output. Raises DeclarationError for a wrong query, or Parquet on a terminal.
    """
    if output is not None:
        check_folder(reader.settings, output)
    if kind == "parquet" and output is None and sys.stdout.isatty():
        raise DeclarationError(
            "Parquet cannot be written to a terminal", fix="name a file with --output FILE, or pipe it"
        )
    with _output_file(output) as out:
        if kind in {*COPIES, *OBJECTS}:
            write_to_output = _on_terminal(out, kind)

            def write(block: bytes) -> None:
                begin()
                write_to_output(block)

            write_result(reader, query, kind, write)
        else:
            _write_lines(reader, query, kind, out, begin)


def _write_lines(reader: EditionReader, query: str, kind: str, out: IO[bytes], begin: Callable[[], None]) -> None:
    with reader.connect(query) as con:
        answer = run_query(con, query)
        con.execute(answer.texts)
        draw = {"table": as_table, "md": as_markdown}[kind]
        rows = chain.from_iterable(iter(lambda: con.fetchmany(FETCH_ROWS), []))
        lines = (f"{line}\n".encode() for line in draw(answer.names, rows, numeric=answer.numeric))
        first = next(lines, b"")
        begin()
        out.writelines(chain([first], lines))


def write_result(
    reader: EditionReader, query: str, kind: str, write: Callable[[bytes], Any], *, limit: int | None = None
) -> int:
    """Write at most `limit` rows as CSV, JSON, JSON Lines or Parquet, and return their number."""
    limit_sql = "" if limit is None else f" LIMIT {limit}"
    with reader.connect(query) as con:
        result = reader.result(con, query)
        if kind in OBJECTS:
            return _write_objects(con, f"{result.objects}{limit_sql}", OBJECTS[kind], write)
        rows, options = COPIES[kind]
        return _copy(con, f"{rows(result)}{limit_sql}", options, write)


def _write_objects(
    con: duckdb.DuckDBPyConnection, select: str, marks: tuple[str, str, str], write: Callable[[bytes], Any]
) -> int:
    first, between, last = marks
    text, count = first, 0
    con.execute(select)
    while rows := con.fetchmany(OBJECTS_AT_ONCE):
        text += (between if count else "") + between.join(row for (row,) in rows)
        count += len(rows)
        if len(text) >= BLOCK:
            write(text.encode())
            text = ""
    if text := text + (last if count or first else ""):
        write(text.encode())
    return count


def _copy(con: duckdb.DuckDBPyConnection, select: str, options: str, write: Callable[[bytes], Any]) -> int:
    """Copy rows to a pipe, the only thing that DuckDB may write to. Raises an error of `write`."""
    reader = _PipeReader(write)
    try:
        with reader.open_pipe() as path:
            con.execute(f"COPY ({select}) TO {literal(path)} ({options}, USE_TMP_FILE false)")
    except duckdb.Error:
        if reader.fault is None:
            raise
    if reader.fault is not None:
        raise reader.fault
    [[count]] = con.fetchall()
    return int(count)


class _PipeReader(Thread):
    """Thread that passes blocks of a pipe to `write`; on failure it keeps the error and closes the pipe."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        super().__init__(daemon=True)
        self.fault: OSError | None = None
        self._pipe = -1
        self._write = write

    @contextmanager
    def open_pipe(self) -> Iterator[str]:
        """Yield the path of a pipe, and read it to its end before returning."""
        file = answer_file()
        try:
            with file.pipe() as self._pipe:
                self.start()
                yield file.path
        finally:
            if self.ident is not None:
                self.join()
            elif self._pipe >= 0:  # no thread could be started
                os.close(self._pipe)

    def run(self) -> None:
        try:
            while block := os.read(self._pipe, BLOCK):
                self._write(block)
        except OSError as error:
            self.fault = error
        finally:
            os.close(self._pipe)


def _on_terminal(out: IO[bytes], kind: str) -> Callable[[bytes], Any]:
    if not out.isatty():
        return out.write
    decode = getincrementaldecoder("utf-8")(errors="replace").decode
    spell = (lambda c: f"\\u{ord(c):04x}") if kind.startswith("json") else None
    return lambda block: out.write(printable(decode(block), keep="\n", spell=spell).encode())


@contextmanager
def _output_file(output: Path | None) -> Iterator[IO[bytes]]:
    """Yield standard output, or a temporary file that replaces `output`, or a link's target, when complete."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = _link_target(output)
    if is_device(target):
        with report_write_errors(str(output), device=True), target.open("wb") as out:
            yield out
        return
    with report_write_errors(str(output)), _replacement(target) as part, part.open("xb") as out:
        yield out


@contextmanager
def report_write_errors(where: str, *, device: bool = False) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error, where=where, device=device) from error


def is_device(path: Path) -> bool:
    """Return whether `path` is written to and not replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_database(
    reader: EditionReader, file: Path, names: Iterable[str] = (), *, on_progress: Callable[[str], None]
) -> dict[str, int]:
    """Write the named tables (default: all) to `file`, whole or not at all; return the rows of each.

    Raises DeclarationError for an unknown table, an impossible file or one in the warehouse, LakeError if a table
    cannot be read or written.
    """
    named = [reader.table(name) for name in names] or [*map(reader.table, reader.edition.tables)]
    tables = [*{table.name: table for table in named}.values()]
    check_outside_of_warehouse(reader.settings, target := _database_file(file))
    with report_write_errors(str(file)), _replacement(target) as part:
        try:
            with closing(connect_spilling(reader.settings, str(part))) as con:
                con.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
                if note := reader.across_cuts([table.name for table in tables]):
                    on_progress(f"warning {note}")
                _create_schemas(con, reader.edition, tables)
                return {table.name: _copy_table(con, reader, table, on_progress) for table in tables}
        except duckdb.Error as error:
            if "space left" in str(error) or str(part) in str(error):
                what = str(error).partition("\n")[0].replace(str(part), str(file))
                raise LakeError(
                    f"the database cannot be written: {what}",
                    where=str(file),
                    fix="free some space there, or name another file",
                ) from None
            raise reader.unreadable(error, tables) from None
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # how DuckDB passes Ctrl-C on
                raise KeyboardInterrupt from None
            raise


def _create_schemas(con: duckdb.DuckDBPyConnection, edition: Edition, tables: list[Published]) -> None:
    con.execute(f"CREATE SCHEMA {quoted(ABOUT)}")
    con.execute(
        f"CREATE TABLE {quoted(ABOUT)}.edition AS"
        " SELECT $1::BIGINT AS number, $2::BIGINT AS cut, $3::TIMESTAMPTZ AS published_at",
        [edition.number, edition.cut, edition.published_at],
    )
    if len({edition.cut_of(table.name) for table in tables}) > 1:
        con.execute(f'CREATE TABLE {quoted(ABOUT)}.cuts ("table" VARCHAR, cut BIGINT)')
        for table in tables:
            con.execute(f"INSERT INTO {quoted(ABOUT)}.cuts VALUES ($1, $2)", [table.name, edition.cut_of(table.name)])
    for layer in sorted({table.layer for table in tables}):
        con.execute(f"CREATE SCHEMA {quoted(layer)}")


def _copy_table(
    con: duckdb.DuckDBPyConnection, reader: EditionReader, table: Published, on_progress: Callable[[str], None]
) -> int:
    name, home = quoted(table.name), f"{quoted(table.layer)}.{quoted(table.name)}"
    con.execute(f"CREATE TABLE {home} AS {select(con, table)}")
    con.execute(f"CREATE VIEW {name} AS FROM {home}")
    for kind, place in (("TABLE", home), ("VIEW", name)):
        con.execute(f"COMMENT ON {kind} {place} IS {literal(table.doc)}")
        for column in table.columns:
            if column.description:
                con.execute(f"COMMENT ON COLUMN {place}.{quoted(column.name)} IS {literal(column.description)}")
    create_as_of(con, reader.edition, table)
    counted = con.execute(f"SELECT count(*) FROM {home}").fetchone()
    rows: int = counted[0] if counted else 0
    on_progress(f"{table.layer}.{table.name}: {rows} rows")
    return rows


def _database_file(file: Path) -> Path:
    target = _link_target(file)
    if target.is_dir() or is_device(target):
        raise DeclarationError("a database is a file of its own", where=str(file), fix="name a file")
    if not target.parent.is_dir():
        raise DeclarationError("the folder of the file does not exist", where=str(target.parent), fix="create it first")
    if target.with_name(f"{target.name}.wal").exists():
        raise DeclarationError(
            "another process has the database open, or left changes to it behind",
            where=f"{target}.wal",
            fix="close it there, or name another file",
        )
    return target


def _link_target(file: Path) -> Path:
    try:
        return file.resolve(strict=False)
    except (OSError, RuntimeError):
        raise DeclarationError("the file is a link that leads back to itself", where=str(file)) from None


@contextmanager
def _replacement(target: Path) -> Iterator[Path]:
    """Yield a file that replaces `target` if the block succeeds, in its own folder: DuckDB writes files beside it."""
    folder = target.with_name(f".lake-{secrets.token_hex(8)}.part")
    folder.mkdir(mode=0o700)
    try:
        part = folder / target.name
        yield part
        flush([part])
        part.replace(target)
    finally:
        shutil.rmtree(folder)
