"""Export of an edition as a DuckDB file.

Tables are in schemas of their layers, with views in `main`, comments, and macros `<table>_at(moment)`. `lake.edition`
and `lake.cuts` describe the edition.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import duckdb

from lake import file_modes
from lake.errors import DeclarationError, LakeError
from lake.read.export import is_device, report_write_errors
from lake.read.sql import AS_OF, EditionReader, as_of, select, spill
from lake.session.duck import connect
from lake.store.ledger.editions import Edition
from lake.store.snapshot import Published
from lake.text import literal, quoted

ABOUT: Final = "lake"


def write_database(
    reader: EditionReader, file: Path, names: Iterable[str] = (), *, on_progress: Callable[[str], None]
) -> dict[str, int]:
    """Write the named tables (default: all) to `file`, whole or not at all; return the rows of each.

    Raises DeclarationError for an unknown table or an impossible file, LakeError if a table cannot be read or written.
    """
    named = [reader.table(name) for name in names] or [*map(reader.table, reader.edition.tables)]
    tables = [*{table.name: table for table in named}.values()]
    with report_write_errors(str(file)), _replacing(file) as part:
        try:
            with closing(connect(str(part))) as con:
                con.execute(f"SET temp_directory = {literal(str(spill(reader.settings)))}")
                con.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
                if note := reader.across_cuts([table.name for table in tables]):
                    on_progress(f"warning {note}")
                return {
                    table.name: _copy_table(con, reader, table, on_progress)
                    for table in _create_schemas(con, reader.edition, tables)
                }
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


def _create_schemas(con: duckdb.DuckDBPyConnection, edition: Edition, tables: list[Published]) -> Iterator[Published]:
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
    yield from tables


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
    if reader.has_as_of(table):
        con.execute(f"CREATE MACRO {quoted(as_of(table.name))}(moment) AS TABLE {AS_OF.format(table=name)}")
    counted = con.execute(f"SELECT count(*) FROM {home}").fetchone()
    rows: int = counted[0] if counted else 0
    on_progress(f"{table.layer}.{table.name}: {rows} rows")
    return rows


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """Yield a file that replaces `file` or a link's target, in its own folder: DuckDB writes files beside it."""
    try:
        target = file.resolve(strict=False)
    except (OSError, RuntimeError):
        raise DeclarationError("the file is a link that leads back to itself", where=str(file)) from None
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
    folder = target.with_name(f".lake-{secrets.token_hex(8)}.part")
    folder.mkdir(mode=0o700)
    try:
        part = folder / target.name
        yield part
        file_modes.flush([part])
        part.replace(target)
    finally:
        shutil.rmtree(folder)
