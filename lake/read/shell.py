"""Interactive SQL shell with history, completion and catalogue commands."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.output import Output
from pygments.lexers.sql import PostgresLexer

from lake.config import Settings
from lake.errors import DeclarationError, LakeError
from lake.read import export
from lake.read.locked_database import as_of_macro
from lake.read.query import run_query
from lake.read.relation import SystemRelation
from lake.read.sql import EditionReader, reader
from lake.session import file_modes
from lake.session.duck import connect
from lake.store.snapshot import Published
from lake.text import as_table, counted, moment, printable, shown

ROWS: Final = 200
PAGED: Final = 10_000
WIDTH: Final = 60
ALIASES: Final = {"exit": "\\q", "quit": "\\q", "help": "\\?"}

HELP: Final = r"""A query ends with ; or an empty line. Tab completes, arrow keys recall queries,
Ctrl-C cancels.

  \d, \dt       the tables of the edition, and the logs and ledgers beside them
  \d TABLE      its columns, with types, units and comments
  \x            one line a column, for rows that are wide; again, one line a row
  \o FILE       the next answer goes to FILE, all of it: .csv, .json, .jsonl,
                .md or .parquet
  \edition      the current edition        \edition N   another one
  \?, help      this help                  \q, exit, quit   leave

The dialect is DuckDB's, read only: https://duckdb.org/docs/sql/introduction
Decimals are exact, but avg(decimal) and a division of decimals are DOUBLE:
cast them, avg(fare)::DECIMAL(10, 2).
Times are in UTC; for local ones: at AT TIME ZONE 'America/New_York'."""

_SYSTEM_SCHEMA: Final = re.compile(r"\b(log|lake)\.(?=\w*\Z)", re.I)
KEYWORDS: Final = re.findall(
    r"\w+",
    """select from where group by order having limit offset distinct as join left right full inner cross asof on using
    and or not in is null between like ilike case when then else end with union all intersect except values cast over
    partition rows range filter qualify window pivot unpivot describe summarize explain show tables asc desc nulls
    first last date timestamp interval decimal count sum avg min max median coalesce date_trunc extract round""",
)


@dataclass
class Conversation:
    reader: EditionReader
    rows: int = ROWS
    expanded: bool = False
    output: Path | None = None

    def answer(self, line: str) -> Iterator[str]:
        r"""Yield the answer to a query or command. Raises LakeError, or EOFError for \q."""
        line = line.strip().rstrip(";").strip()
        line = ALIASES.get(line.lower(), line)
        if line.startswith("\\"):
            command, _, argument = line.partition(" ")
            yield from self._command(command, argument.strip())
        elif line:
            yield from self._query(line)

    def greeting(self) -> str:
        edition = self.reader.edition
        published = moment(edition.published_at)
        return f"Edition {edition.number} at cut {edition.cut}, published {published}: {len(edition.tables)} tables."

    def _command(self, command: str, argument: str) -> Iterator[str]:
        match command:
            case "\\q":
                raise EOFError
            case "\\?":
                yield from HELP.splitlines()
            case "\\d" | "\\dt" if argument:
                yield from self._columns(argument)
            case "\\d" | "\\dt":
                yield from self._tables()
            case "\\x":
                self.expanded = not self.expanded
                yield f"One line a {'column' if self.expanded else 'row'}."
            case "\\o" if argument:
                file = Path(argument).expanduser()
                export.choose_format(None, file)
                export.check_folder(self.reader.settings, file)
                self.output = file
                yield f"The next answer goes to {self.output}."
            case "\\o":
                self.output = None
                yield "Answers are shown."
            case "\\edition" if argument and not re.fullmatch("[0-9]{1,18}", argument):
                raise DeclarationError(f"an edition is a number, found {argument!r}")
            case "\\edition":
                self.reader = reader(self.reader.settings, int(argument) if argument else None)
                yield self.greeting()
            case _:
                raise DeclarationError(f"no command {command}", fix="\\? lists them")

    def _query(self, query: str) -> Iterator[str]:
        started = time.monotonic()
        if self.output is not None:
            file = self.output
            export.export(self.reader, query, export.choose_format(None, file), file)
            self.output = None
            yield f"({file}, {time.monotonic() - started:.2f} s)"
            return
        with self.reader.connect(query) as con:
            answer = run_query(con, query)
            rows = con.execute(answer.texts).fetchmany(self.rows + 1)
        seconds = time.monotonic() - started
        if self.expanded:
            yield from _expanded(answer.names, rows[: self.rows])
        else:
            yield from as_table(answer.names, rows[: self.rows], numeric=answer.numeric, width=WIDTH)
        more = len(rows) > self.rows
        count = f"the first {self.rows:,} rows; \\o FILE takes all" if more else counted(len(rows), "row")
        yield f"({count}, {seconds:.2f} s)"

    def _tables(self) -> Iterator[str]:
        tables = sorted(map(self.reader.table, self.reader.edition.tables), key=lambda table: (table.layer, table.name))
        yield from as_table(
            ["table", "columns", "what one row is"],
            [[f"{table.layer}.{table.name}", len(table.columns), table.doc] for table in tables],
        )
        yield ""
        yield from as_table(
            ["beside them", "what one row is"], map(self._system_table, self.reader.system_tables.titles)
        )

    def _system_table(self, title: str) -> list[str]:
        try:
            return [title, self.reader.system_tables.relation(title).doc]
        except LakeError as error:
            return [title, f"cannot be read: {error.what}"]

    def _columns(self, name: str) -> Iterator[str]:
        source = self.reader.source(name)
        yield f"{source.title}: {source.doc}"
        yield from as_table(
            ["column", "type", "unit", "comment"],
            [[column.name, column.type.replace('"', ""), column.unit, column.comment] for column in source.columns],
        )


def _expanded(names: Sequence[str], rows: Sequence[Sequence[str | None]]) -> Iterator[str]:
    width = max(map(len, names), default=0)
    for number, row in enumerate(rows, 1):
        yield f"-- row {number:,} --"
        yield from (f"{printable(name):<{width}}  {shown(value)}" for name, value in zip(names, row, strict=True))


class SqlCompleter(Completer):
    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Keywords keep the typed case."""
        word = document.get_word_before_cursor(pattern=re.compile(r"\w+"))
        text = document.text
        if not word and not complete_event.completion_requested:
            return
        offered: set[str] = set()
        for candidate, meaning in self._candidates(text):
            if candidate in offered:
                continue
            offered.add(candidate)
            if candidate.startswith(word.lower()) and candidate != word:
                shown = candidate.upper() if meaning == "keyword" and word.isupper() else candidate
                yield Completion(shown, start_position=-len(word), display_meta=meaning)

    def _candidates(self, text: str) -> Iterator[tuple[str, str]]:
        reader = self.conversation.reader
        if schema := _SYSTEM_SCHEMA.search(text):
            of_schema = (title for title in reader.system_tables.titles if title.startswith(f"{schema[1].lower()}."))
            yield from ((title.partition(".")[2], schema[1].lower()) for title in of_schema)
            return
        tables = [reader.table(name) for name in reader.edition.tables]
        yield from ((table.name, table.layer) for table in tables)
        yield from ((title, title.partition(".")[0]) for title in reader.system_tables.titles)
        if text.startswith("\\"):
            return
        yield from ((as_of_macro(table.name), "(moment)") for table in tables if table.has_versions)
        mentioned: list[Published | SystemRelation] = [
            table for table in tables if re.search(rf"\b{table.name}\b", text)
        ]
        with suppress(LakeError):
            mentioned += reader.system_tables_in(text)
        columns = {column.name: column.type for table in mentioned or tables for column in table.columns}
        yield from columns.items()
        yield from ((keyword, "keyword") for keyword in KEYWORDS)
        yield from ((name, "function") for name in _functions())


@cache
def _functions() -> list[str]:
    with connect() as con:
        names = con.execute("SELECT DISTINCT function_name FROM duckdb_functions() ORDER BY 1").fetchall()
    return [name for (name,) in names if re.fullmatch(r"[a-z]\w+", name)]


def run_shell(reader: EditionReader, *, stdin: Input | None = None, stdout: Output | None = None) -> None:
    pages = stdout is None and sys.stdout.isatty()
    conversation = Conversation(reader, PAGED if pages else ROWS)
    session: PromptSession[str] = PromptSession(
        history=_history(reader.settings),
        completer=SqlCompleter(conversation),
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        lexer=PygmentsLexer(PostgresLexer),
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=lambda width, _line, _soft: "> ".rjust(width),
        input=stdin,
        output=stdout,
    )
    print(f"{conversation.greeting()} \\? for help, \\q to leave.")
    while True:
        try:
            line = session.prompt(f"edition {conversation.reader.edition.number}> ")
            _show([printable(answered, keep="\n") for answered in conversation.answer(line)], pages=pages)
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        except LakeError as error:
            print(printable(str(error), keep="\n"))


def _show(lines: Sequence[str], *, pages: bool) -> None:
    screen = shutil.get_terminal_size()
    if pages and (len(lines) >= screen.lines or any(len(line) > screen.columns for line in lines)):
        os.environ.setdefault("LESS", "-SRFX")  # wide lines go on to the right
        click.echo_via_pager("\n".join(lines))
    else:
        for line in lines:
            print(line)


def _history(settings: Settings) -> History:
    """Use a file private to this user; memory if the project is not writable."""
    file = settings.path(".lake/sql_history")
    try:
        file.parent.mkdir(exist_ok=True, mode=file_modes.ALONE)
        file.touch(mode=0o600)
        file.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


def _keys() -> KeyBindings:
    """Enter submits a command, a query that ends with ;, or input after an empty line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.text.strip()
        complete = text.startswith("\\") or text.endswith(";") or text.lower() in ALIASES
        if not text or complete or not buffer.document.current_line.strip():
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys
