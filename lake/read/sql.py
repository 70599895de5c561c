"""SQL over an edition: DuckDB on the exact files of its versions, locked so that a query can read nothing else."""

from __future__ import annotations

import itertools
import logging
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from lake import file_modes
from lake.config import Settings
from lake.duck import connect
from lake.errors import EXPIRED, DeclarationError, LakeError, StorageError, did_you_mean
from lake.quoting import literal, quoted
from lake.session import first_line
from lake.store import delta, recovery
from lake.store.damage import blamed
from lake.store.ledger import cuts, editions
from lake.store.snapshot import Published, published
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from lake.read.beside import Beside
    from lake.read.relation import Relation

SCHEMAS: Final = frozenset({"log", "lake"})
"""What logs and ledgers are called after."""
_SCHEMA: Final = re.compile(r"\b(log|lake)\b(?!\s*\()", re.I)
"""Either, but for the function log(x)."""
READS: Final = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""DuckDB's statement types that only read. DESCRIBE, SHOW, SUMMARIZE and VALUES are SELECT, PIVOT is MULTI."""

# No comments are looked for: only DuckDB's own parser knows where one ends. One that hides ANALYZE is an error.
_EXPLAIN: Final = re.compile(r"EXPLAIN\b\s*(?:ANALYZE\b)?\s*(?:\(\s*(?:ANALYZE|FORMAT)\b[\w\s,]*\))?", re.I | re.A)
_WRITE_NODE: Final = re.compile(r'"type":"(COPY|INSERT|UPDATE|DELETE|MERGE)_QUERY_NODE"')
_WRITE_WORD: Final = re.compile(rb"(?:COPY|INSERT|UPDATE|DELETE|MERGE)\b(?!\s*\))", re.I)
_LISTING: Final = re.compile(
    r"\A\s*desc\b|\b(show|describe|query|query_table|information_schema|pg_\w+|pragma_\w+|duckdb_\w+)\b", re.I
)
_OF_ONE: Final = re.compile(r"\A\s*(?:describe|desc|summarize)\s+[\w.\"]+\s*;?\s*\Z", re.I)
"""A listing of one table's columns."""
AS_OF: Final = "FROM {table} WHERE valid_from <= moment AND (valid_to IS NULL OR moment < valid_to)"
_MISSING_TABLE: Final = re.compile(r"Table with name \"?([^\s\"]+)\"? does not exist")
_MISSING_COLUMN: Final = re.compile(r"(?:Referenced column|column named|column) \"([^\"]+)\"")


@dataclass(frozen=True)
class Bounds:
    """What a query may take: bytes of `memory`, and of `disk` to spill to."""

    memory: int
    disk: int


@dataclass(frozen=True)
class Reader:
    """The tables of one edition, for SQL, and beside them the logs and ledgers whose titles `besides` lets pass.

    A query is held within the `bounds`, where there are any.
    """

    settings: Settings
    edition: editions.Edition
    besides: Callable[[str], bool] = lambda _: True
    bounds: Bounds | None = None
    _opened: dict[str, Published] = field(default_factory=dict, compare=False, repr=False)

    @property
    def label(self) -> str:
        """What is read, for a person: a cut where its tables were evaluated to be read, and are no edition."""
        return f"edition {self.edition.number}" if self.edition.number else f"cut {self.edition.cut}"

    def table(self, name: str) -> Published:
        """Table `name` (`carrier_daily` or `gold.carrier_daily`) at the edition's version.

        Raises DeclarationError for an unknown one.
        """
        layer, _, plain = name.lower().rpartition(".")
        plain = self._names.get(plain, plain)
        entry = self.edition.tables.get(plain)
        if entry is None or layer not in {"", entry.layer}:
            raise DeclarationError(f"no table {name!r} in {self.label}", fix=did_you_mean(name, self.edition.tables))
        if plain not in self._opened:
            self._opened[plain] = published(self.settings, plain, self.edition)
        return self._opened[plain]

    def mentioned(self, query: str) -> list[Published]:
        """The tables that `query` may read, found without parsing it: all of them where it asks for a listing, or names
        nothing.
        """
        return [self.table(name) for name in self.names_in(query)]

    def names_in(self, query: str) -> list[str]:
        """The names of the tables that `query` may read, see `mentioned`."""
        named = self._named(query)
        every = not (named or self.titles(query)) or _LISTING.search(query)
        return [name for name in self._names.values() if every or name in named]

    def across_cuts(self, names: Collection[str]) -> str:
        """That the tables of these `names` are at different cuts, and at which; empty where they are at one."""
        at: dict[int, list[str]] = {}
        for name in names:
            at.setdefault(self.edition.cut_of(name), []).append(name)
        cuts = "; ".join(f"{', '.join(tables)} at cut {cut}" for cut, tables in sorted(at.items()))
        return f"tables of different cuts are read: {cuts}" if len(at) > 1 else ""

    def _named(self, query: str) -> list[str]:
        words = set(re.findall(r"\w+", query.lower()))
        return [name for lower, name in self._names.items() if {lower, as_of(lower)} & words]

    def beside_named(self, query: str) -> list[Relation]:
        """The logs and ledgers that `query` may name; all that can be read where it asks for a listing.

        Raises LakeError for one that it may name and that cannot be read.
        """
        titles = self.titles(query)
        named = [self.beside.relation(title) for title in titles]
        is_listing = _LISTING.search(query) and not _OF_ONE.match(query)
        return [*named, *self.beside.readable(but=titles)] if is_listing else named

    def titles(self, query: str) -> list[str]:
        """The logs and ledgers that `query` may name, as it would call them."""
        schemas = {schema.lower() for schema in _SCHEMA.findall(query)}
        return self.beside.named(schemas, set(re.findall(r"\w+", query.lower()))) if schemas else []

    def source(self, name: str) -> Published | Relation:
        """The table, the log or the ledger called `name`. Raises as `table` does, and where it cannot be read."""
        is_beside = name.lower().partition(".")[0] in SCHEMAS and "." in name
        return self.beside.relation(name) if is_beside else self.table(name)

    @cached_property
    def beside(self) -> Beside:
        """The logs and ledgers as of the edition."""
        from lake.read.beside import Beside

        return Beside(self.settings, self.edition, self.besides)

    def has_as_of(self, table: Published) -> bool:
        """Whether there is the macro that answers which versions of `table` were valid at a moment."""
        return table.has_versions and as_of(table.name.lower()) not in self._names

    @cached_property
    def _names(self) -> dict[str, str]:
        """Table names by how SQL, which ignores case, may write them."""
        return {name.lower(): name for name in self.edition.tables}

    @contextmanager
    def connect(self, query: str, *, pipe: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
        """A locked connection that shows the tables `query` mentions; the only thing it may write to is `pipe`.

        Faults of the query become DeclarationErrors with a place and a fix.
        """
        tables, relations = self.mentioned(query), self.beside_named(query)
        try:
            con = self._locked(tables, relations, pipe)
        except duckdb.Error as error:
            raise self.unreadable(error, tables, relations) from None
        try:
            _refuse_writes(con, query)
            if note := self.across_cuts(self._named(query)):
                logging.getLogger("lake").warning("%s", note)
            yield con
        except duckdb.Error as error:
            raise self._as_lake_error(error, query, tables, relations) from None
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # how DuckDB passes Ctrl-C on
                raise KeyboardInterrupt from None
            raise

    def relation(self, query: str) -> duckdb.DuckDBPyRelation:
        """The answer to `query` as a lazy DuckDB relation, which keeps its connection."""
        with self.connect(query) as con:
            return con.sql(query)

    def _locked(
        self, tables: Sequence[Published], relations: Sequence[Relation], pipe: str
    ) -> duckdb.DuckDBPyConnection:
        copies = [relation for relation in relations if relation.copied]
        views = [relation for relation in relations if not relation.copied]
        sources: list[Published | Relation] = [*tables, *views]
        con = connect()
        con.execute(f"SET temp_directory = {literal(str(spill(self.settings)))}")
        if self.bounds:
            con.execute(f"SET memory_limit = '{self.bounds.memory}B'")
            con.execute(f"SET max_temp_directory_size = '{self.bounds.disk}B'")
        for copy in copies:
            copy.make(con)
        files = [file for source in sources for file in source.files]
        con.execute(f"SET allowed_paths = [{', '.join(map(literal, [*files, pipe] if pipe else files))}]")
        con.execute("SET allowed_directories = []")
        con.execute(
            """SET enable_external_access = false;
               SET autoinstall_known_extensions = false;
               SET autoload_known_extensions = false;
               SET python_enable_replacements = false"""
        )
        for layer in {table.layer for table in tables}:
            con.execute(f"CREATE SCHEMA {quoted(layer)}")
        for table in tables:
            name = quoted(table.name)
            con.execute(f"CREATE VIEW {quoted(table.layer)}.{name} AS {select(con, table)}")
            con.execute(f"CREATE VIEW {name} AS FROM {quoted(table.layer)}.{name}")
            if self.has_as_of(table):
                con.execute(f"CREATE MACRO {quoted(as_of(table.name))}(moment) AS TABLE {AS_OF.format(table=name)}")
        for view in views:
            view.make(con)
        con.execute("SET lock_configuration = true")
        return con

    def unreadable(
        self, error: duckdb.Error, tables: Iterable[Published], relations: Sequence[Relation] = ()
    ) -> StorageError:
        """What is wrong with the files of `tables` and `relations`, upon an `error` of DuckDB's."""
        for relation in relations:
            if damaged := relation.fault(error):
                return damaged
        root = Warehouse(self.settings).root
        without = {table.name: delta.missing(root, table.files) for table in tables}
        gone = [file for files in without.values() for file in files]
        if gone and self.edition.number and not editions.is_kept(self.settings, self.edition.number):
            return StorageError(f"{self.label} expired while it was read", where=gone[0], fix=EXPIRED)
        again = " ".join(name for name, files in without.items() if files or not gone)
        fault = blamed(self.settings, error)
        what = "a file is gone" if gone else fault.what if fault else first_line(error)
        return StorageError(
            f"{self.label} cannot be read: {what}",
            where=gone[0] if gone else fault.where if fault else root.url,
            fix=f"lake rebuild {again} makes it again, and lake publish shows it; or restore it from a backup of the"
            " warehouse, or read another edition with --edition N",
        )

    def _as_lake_error(
        self, error: duckdb.Error, query: str, tables: Sequence[Published], relations: Sequence[Relation]
    ) -> LakeError:
        text = str(error)
        what = re.sub(r"^(\w+ )+Error: ", "", text.partition("\n")[0]).strip()
        where = _place(text, query)
        # DuckDB takes a missing file for a folder, in which it may not look.
        is_gone = any(f"{file}/**/*.parquet" in text for table in tables for file in table.files)
        if is_gone or isinstance(error, duckdb.IOException):
            return self.unreadable(error, tables, relations)
        if isinstance(error, duckdb.PermissionException):
            return DeclarationError(
                "a query can read the tables of the edition only",
                where=where,
                fix="name a table: `lake tables`",
            )
        if missing := _MISSING_TABLE.search(text):
            return self._no_table(missing[1], query, where)
        if isinstance(error, duckdb.BinderException) and (missing := _MISSING_COLUMN.search(text)):
            sources: list[Published | Relation] = [*tables, *relations]
            columns = {column.name for source in sources for column in source.columns}
            if missing[1] not in columns:
                return DeclarationError(
                    f"no column {missing[1]!r}", where=where, fix=did_you_mean(missing[1].lower(), columns)
                )
        return DeclarationError(what, where=where, fix=_fix_for(what))

    def _no_table(self, name: str, query: str, where: str) -> DeclarationError:
        """That `query` names a table, a log or a ledger that is not there: `name`, without its schema maybe."""
        schema, _, plain = name.lower().rpartition(".")
        schema = schema or self.beside.schema(plain, query)
        if schema in SCHEMAS:
            fault = self.beside.unknown(f"{schema}.{plain}")
            return DeclarationError(fault.what, where=where, fix=fault.fix)
        hint = did_you_mean(name.lower(), self.edition.tables, self.beside.titles)
        return DeclarationError(f"no table {name!r} in {self.label}", where=where, fix=hint)


def reader(settings: Settings, number: int | None = None, *, cut: int | None = None, query: str = "") -> Reader:
    """The edition `number`, or the newest one of `cut` or before it, else the one that readers see.

    Before the first edition, a `query` that names ledgers and no log reads them as of the newest cut.

    Raises DeclarationError where nothing has been published yet, or for an unknown number; StorageError where the
    ledger of editions has lost what was published.
    """
    if number is not None and cut is not None:
        raise DeclarationError("edition and cut cannot be combined", fix="use only one of them")
    if cut is not None:
        return Reader(settings, editions.edition_at(settings, cut))
    edition = editions.get_edition(settings, number) if number is not None else editions.current_edition(settings)
    if edition is None:
        for damage in recovery.lost_editions(settings):
            raise damage.fault
        newest = cuts.latest_cut(settings)
        edition = editions.Edition(0, newest.number if newest else 0, {}, datetime.now(UTC))
        titles = Reader(settings, edition).titles(query)
        if not titles or any(title.startswith("log.") for title in titles):
            raise _nothing_published(settings)
    return Reader(settings, edition)


def opened(  # noqa: PLR0913  which edition, and what has to hold first
    settings: Settings,
    query: str | None,
    *,
    edition: int | None = None,
    cut: int | None = None,
    after: Sequence[str] = (),
    timeout: float = 60.0,
    verified: bool = False,
) -> Reader:
    """The reader for `query`, or for whatever is asked later: as `reader` has it, once readers see the batches `after`.

    With `verified`, the tables that it may read are what was published. Raises as `wait` and `must_hold` do.
    """
    if after:
        from lake.read.wait import wait

        wait(settings, after, timeout=timeout, of=lambda shown: Reader(settings, shown).names_in(query or ""))
    chosen = reader(settings, edition, cut=cut, query=query or "")
    if verified:
        from lake.read.verified import must_hold

        if beside := chosen.titles(query or ""):
            raise DeclarationError(
                f"{beside[0]} is no table of the edition, so no fingerprint of it was published",
                fix="leave out --verified; lake log STREAM --check verifies a log",
            )
        must_hold(settings, chosen.edition, [table.name for table in chosen.mentioned(query or "show tables")])
    return chosen


def _nothing_published(settings: Settings) -> DeclarationError:
    """The error before the first edition: what has stopped it, if anything did."""
    what, where = "no edition has been published yet, so there is nothing to read", Warehouse(settings).root.url
    obstacles = list(dict.fromkeys(_obstacles(settings)))
    if not obstacles:
        return DeclarationError(what, where=where, fix="run `lake run` (ingest, cut, advance, check, publish)")
    fixes = dict.fromkeys(fix for _, fix in obstacles if fix)
    reasons = "\n".join(stopped for stopped, _ in obstacles)
    return DeclarationError(f"{what}: {reasons}", where=where, fix="; ".join(fixes))


def _obstacles(settings: Settings) -> Iterator[tuple[str, str]]:
    """What keeps `lake run` from the first edition, each with its fix: gates, refused records, faults, what failed."""
    from lake.gate import failures, rejection_limits
    from lake.project import sound
    from lake.store.ledger import checks, runs

    if stops := [check for check in checks.last_checks(settings).values() if check.outcome == "stopped"]:
        stopped = f"a gate stopped cut {max(check.cut for check in stops)}"
        yield "\n".join([stopped, *failures.stop_messages(stops)]), failures.fix_text(stops)
    project, faults = sound(settings)
    if cut := cuts.latest_cut(settings):
        readers = rejection_limits.tables_by_stream(project, project.tables.values())
        for over in rejection_limits.find_excesses(project, readers, cut):
            yield f"{over} ({over.where})", over.fix
    for fault in faults:
        yield f"{fault.what} ({fault.where})" if fault.where else fault.what, fault.fix
    for run in runs.newest_runs(settings):
        towards_an_edition = run.work in {runs.TAKE_IN, runs.MAKE, runs.PUBLISH}
        if towards_an_edition and run.outcome == "failed" and run.counts["error"] != runs.STOPPED:
            yield f"{run.verb} {run.subject} failed: {run.counts['error']}", "correct that, then lake run"


def as_of(table: str) -> str:
    """The name of the table macro that answers which versions of `table` were valid at a moment."""
    return f"{table}_at"


def select(con: duckdb.DuckDBPyConnection, table: Published) -> str:
    """SQL of the table's rows: each column by name from the files that have it, null where a file is older than it."""
    if not table.files:
        columns = (f"CAST(NULL AS {column.type}) AS {quoted(column.name)}" for column in table.columns)
        return f"SELECT {', '.join(columns)} WHERE false"
    files = ", ".join(map(literal, table.files))
    source = f"read_parquet([{files}], union_by_name = true, hive_partitioning = false)"
    stored = {row[0] for row in con.execute(f"DESCRIBE FROM {source}").fetchall()}
    columns = (
        f"CAST({quoted(column.name) if column.name in stored else 'NULL'} AS {column.type}) AS {quoted(column.name)}"
        for column in table.columns
    )
    return f"SELECT {', '.join(columns)} FROM {source}"


def spill(settings: Settings) -> Path:
    """Where a large query spills to disk: its own folder, because DuckDB lets a query read it.

    DuckDB creates it when needed, and removes it. Readers who cannot write to the project have another.
    """
    return _spill_folder(settings) / f"headwater-{os.getpid()}-{secrets.token_hex(8)}"


def spilled(settings: Settings, pid: int) -> list[Path]:
    """Return the folders that the queries of process `pid` have left behind."""
    return [*_spill_folder(settings).glob(f"headwater-{pid}-*")]


def _spill_folder(settings: Settings) -> Path:
    try:
        folder = file_modes.scratch(settings, "sql")
    except OSError:
        folder = settings.path(".lake/sql")
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _refuse_writes(con: duckdb.DuckDBPyConnection, query: str) -> None:
    statements = con.extract_statements(query)
    if len(statements) != 1:
        count = f"{len(statements)} statements" if statements else "no statement"
        raise DeclarationError(f"found {count}, one statement is allowed at a time", fix="write one SELECT")
    kind, text = statements[0].type.name, statements[0].query
    if kind == "EXPLAIN" and (outer := _EXPLAIN.match(text)):
        return _refuse_writes(con, text[outer.end() :])
    if kind in READS and (inner := _write_within(con, text)):
        kind = f"{inner} in a WITH"
    if kind not in READS - {"EXPLAIN"}:
        raise DeclarationError(
            f"{kind.replace('_', ' ')} is not allowed: an edition is read-only",
            fix="SELECT, WITH, FROM, VALUES, PIVOT, DESCRIBE, SHOW, SUMMARIZE and EXPLAIN are allowed",
        )
    return None


def _write_within(con: duckdb.DuckDBPyConnection, text: str) -> str:
    """Return the kind of a statement that writes and is the body of a WITH, for example COPY; "" if there is none.

    DuckDB counts such a query as a SELECT. Its parser serializes no PIVOT without values: there, tokens are compared.
    """
    [[tree]] = con.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [text]).fetchall()
    if tree.startswith('{"error":false'):
        found = _WRITE_NODE.search(tree)
        return found[1] if found else ""
    content = text.encode()
    tokens = [at for at, kind in duckdb.tokenize(text) if kind != duckdb.token_type.comment]
    for before, at in itertools.pairwise(tokens):
        if content[before : before + 1] in b"()" and (word := _WRITE_WORD.match(content, at)):
            return word[0].decode().upper()
    return ""


def _fix_for(what: str) -> str:
    if re.search(r"[Ff]unction", what):
        return 'DuckDB\'s functions: duckdb.org/docs; `lake sql "describe TABLE"` shows the types of columns'
    if re.search(r"convert|cast|out of range|[Cc]onversion", what):
        return "correct the value, or write try_cast(… as …), which is null where a value does not fit"
    return 'correct the query there: DuckDB\'s SQL, duckdb.org/docs; `lake sql "describe TABLE"` shows the columns'


def _place(error: str, query: str) -> str:
    """`line 1, column 15` from the caret under DuckDB's excerpt of the query."""
    caret = re.search(r"^LINE (\d+): (.*)\n( *)\^", error, re.M)
    if not caret:
        return ""
    number, excerpt, indent = int(caret[1]), caret[2], len(caret[3]) - len(f"LINE {caret[1]}: ")
    around = excerpt.removeprefix("...").removesuffix("...")
    lines = [i for i, line in enumerate(query.split("\n"), 1) if around in line]
    if number not in lines:  # the query stands further down in what was run
        number = lines[0] if len(lines) == 1 else 0
    if not number:
        return ""
    shift = query.split("\n")[number - 1].find(around) - (3 if excerpt.startswith("...") else 0)
    return f"line {number}, column {indent + shift + 1}"
