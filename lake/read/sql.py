"""SQL over an edition: DuckDB on the exact files of its tables, locked against reading anything else."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

import duckdb

from lake.config import Settings
from lake.errors import EXPIRED, DeclarationError, LakeError, StorageError, did_you_mean
from lake.read.locked_database import SharedDatabase, as_of_macro, open_database
from lake.read.query import QueryResult, check_statement, fix_for, place_in_query, run_query
from lake.session.spark_session import first_line
from lake.store.damage import damage_behind
from lake.store.ledger import cuts, editions
from lake.store.snapshot import Published, published
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from lake.read.relation import SystemRelation
    from lake.read.system_tables import SystemTables

SCHEMAS: Final = frozenset({"log", "lake"})
_SCHEMA: Final = re.compile(r"\b(log|lake)\b(?!\s*\()", re.I)
"""A schema name, except the function log(x)."""
_LISTING: Final = re.compile(
    r"\A\s*desc\b|\b(show|describe|query|query_table|information_schema|pg_\w+|pragma_\w+|duckdb_\w+)\b", re.I
)
_DESCRIBES_TABLE: Final = re.compile(r"\A\s*(?:describe|desc|summarize)\s+[\w.\"]+\s*;?\s*\Z", re.I)
_MISSING_TABLE: Final = re.compile(r"Table with name \"?([^\s\"]+)\"? does not exist")
_SETTINGS_ADVICE: Final = re.compile(r"""(, or "?SET \w+[^.]*)|( Use "?SET \w+[^.]*\.)""")
"""DuckDB's advice to change a setting, which a query cannot."""
_MISSING_COLUMN: Final = re.compile(r"(?:Referenced column|column named|column) \"([^\"]+)\"")


@dataclass(frozen=True)
class EditionChoice:
    """Edition to read, by number or by cut, else the current one.

    First wait for batches `after`, and verify its tables if `verified`.
    """

    edition: int | None = None
    cut: int | None = None
    after: Sequence[str] = ()
    timeout: float = 60.0
    verified: bool = False


CURRENT: Final = EditionChoice()


@dataclass(frozen=True)
class EditionReader:
    """SQL access to one edition, and to logs and ledgers whose titles `may_read` accepts.

    Queries of tables alone use the shared `database`; any other opens one of its own.
    """

    settings: Settings = field(compare=False)  # of one project in each process
    edition: editions.Edition
    may_read: Callable[[str], bool] = field(default=lambda _: True, compare=False)
    is_limited: bool = False
    database: SharedDatabase | None = field(default=None, compare=False, repr=False)
    opened: dict[str, Published] = field(default_factory=dict, compare=False, repr=False)

    @property
    def label(self) -> str:
        return f"edition {self.edition.number}" if self.edition.number else f"cut {self.edition.cut}"

    def table(self, name: str) -> Published:
        """Return table `name` (`carrier_daily` or `gold.carrier_daily`). Raises DeclarationError."""
        layer, _, plain = name.lower().rpartition(".")
        plain = self._names.get(plain, plain)
        entry = self.edition.tables.get(plain)
        if entry is None or layer not in {"", entry.layer}:
            raise DeclarationError(f"no table {name!r} in {self.label}", fix=did_you_mean(name, self.edition.tables))
        if plain not in self.opened:
            self.opened[plain] = published(self.settings, plain, self.edition)
        return self.opened[plain]

    def tables_in(self, query: str) -> list[Published]:
        """Return the tables that `query` may read, without parsing it: all for a listing, or if it names none."""
        return [self.table(name) for name in self.names_in(query)]

    def names_in(self, query: str) -> list[str]:
        named = self._table_names(query)
        every = not (named or self.titles_in(query)) or _LISTING.search(query)
        return [name for name in self._names.values() if every or name in named]

    def across_cuts(self, names: Collection[str]) -> str:
        """Return a warning if these tables are at different cuts, or ""."""
        at: dict[int, list[str]] = {}
        for name in names:
            at.setdefault(self.edition.cut_of(name), []).append(name)
        cuts = "; ".join(f"{', '.join(tables)} at cut {cut}" for cut, tables in sorted(at.items()))
        return f"tables of different cuts are read: {cuts}" if len(at) > 1 else ""

    def _table_names(self, query: str) -> list[str]:
        words = set(re.findall(r"\w+", query.lower()))
        return [name for lower, name in self._names.items() if {lower, as_of_macro(lower)} & words]

    def system_tables_in(self, query: str) -> list[SystemRelation]:
        """Return logs and ledgers that `query` may name; all readable ones for a listing."""
        titles = self.titles_in(query)
        named = [self.system_tables.relation(title) for title in titles]
        is_listing = _LISTING.search(query) and not _DESCRIBES_TABLE.match(query)
        return [*named, *self.system_tables.readable(excluded=titles)] if is_listing else named

    def titles_in(self, query: str) -> list[str]:
        """Return the titles of logs and ledgers that `query` may name."""
        schemas = {schema.lower() for schema in _SCHEMA.findall(query)}
        return self.system_tables.named(schemas, set(re.findall(r"\w+", query.lower()))) if schemas else []

    def source(self, name: str) -> Published | SystemRelation:
        is_system = name.lower().partition(".")[0] in SCHEMAS and "." in name
        return self.system_tables.relation(name) if is_system else self.table(name)

    @cached_property
    def system_tables(self) -> SystemTables:
        from lake.read.system_tables import SystemTables

        return SystemTables(self.settings, self.edition, self.may_read)

    @cached_property
    def _names(self) -> dict[str, str]:
        return {name.lower(): name for name in self.edition.tables}

    @contextmanager
    def connect(self, query: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a locked connection with the tables in `query`; it is closed afterwards only if it is shared.

        Errors of the query become DeclarationErrors.
        """
        tables, relations = self.tables_in(query), self.system_tables_in(query)
        try:
            opened = self._open(tables, relations)
        except duckdb.Error as error:
            raise self.unreadable(error, tables, relations) from None
        try:
            with opened as con:
                check_statement(query)
                if note := self.across_cuts(self._table_names(query)):
                    logging.getLogger("lake").warning("%s", note)
                yield con
        except duckdb.Error as error:
            raise self._as_lake_error(error, query, tables, relations) from None
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # how DuckDB passes Ctrl-C on
                raise KeyboardInterrupt from None
            raise

    def relation(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return the result as a lazy relation, which keeps its connection."""
        with self.connect(query) as con:
            return con.sql(query)

    def result(self, con: duckdb.DuckDBPyConnection, query: str) -> QueryResult:
        if self.database is None or self.titles_in(query):
            return run_query(con, query)
        return self.database.result(con, query)

    def _open(
        self, tables: Sequence[Published], relations: Sequence[SystemRelation]
    ) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        if self.database is None or relations:  # ledgers grow, and contracts change, within an edition
            return nullcontext(
                open_database(self.settings, self.edition, tables, relations, is_limited=self.is_limited)
            )
        return self.database.cursor(tables)

    def unreadable(
        self, error: duckdb.Error, tables: Iterable[Published], relations: Sequence[SystemRelation] = ()
    ) -> StorageError:
        for relation in relations:
            if damaged := relation.fault(error):
                return damaged
        root = Warehouse(self.settings).root
        without = {table.name: root.missing(table.files) for table in tables}
        gone = [file for files in without.values() for file in files]
        if gone and self.edition.number and not editions.is_kept(self.settings, self.edition.number):
            return StorageError(f"{self.label} expired while it was read", where=gone[0], fix=EXPIRED)
        again = " ".join(name for name, files in without.items() if files or not gone)
        fault = damage_behind(self.settings, error)
        what = "a file is gone" if gone else fault.what if fault else first_line(error)
        return StorageError(
            f"{self.label} cannot be read: {what}",
            where=gone[0] if gone else fault.where if fault else root.url,
            fix=f"lake rebuild {again} makes it again, and lake publish shows it; or restore it from a backup of the"
            " warehouse, or read another edition with --edition N",
        )

    def _as_lake_error(
        self, error: duckdb.Error, query: str, tables: Sequence[Published], relations: Sequence[SystemRelation]
    ) -> LakeError:
        text = str(error)
        what = _SETTINGS_ADVICE.sub("", re.sub(r"^(\w+ )+Error: ", "", text.partition("\n")[0])).strip()
        where = place_in_query(text, query)
        # DuckDB mistakes a missing file for a folder, which it may not list.
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
            sources: list[Published | SystemRelation] = [*tables, *relations]
            columns = {column.name for source in sources for column in source.columns}
            if missing[1] not in columns:
                return DeclarationError(
                    f"no column {missing[1]!r}", where=where, fix=did_you_mean(missing[1].lower(), columns)
                )
        return DeclarationError(what, where=where, fix=fix_for(what))

    def _no_table(self, name: str, query: str, where: str) -> DeclarationError:
        schema, _, plain = name.lower().rpartition(".")
        schema = schema or self.system_tables.schema(plain, query)
        if schema in SCHEMAS:
            fault = self.system_tables.unknown(f"{schema}.{plain}")
            return DeclarationError(fault.what, where=where, fix=fault.fix)
        hint = did_you_mean(name.lower(), self.edition.tables, self.system_tables.titles)
        return DeclarationError(f"no table {name!r} in {self.label}", where=where, fix=hint)


def reader(settings: Settings, number: int | None = None, *, cut: int | None = None, query: str = "") -> EditionReader:
    """Return a reader of edition `number`, of the newest at or before `cut`, or of the current one.

    Before the first edition, a `query` of ledgers reads them at the newest cut. Raises DeclarationError if nothing is
    published, StorageError if editions are lost.
    """
    if number is not None and cut is not None:
        raise DeclarationError("edition and cut cannot be combined", fix="use only one of them")
    if cut is not None:
        return EditionReader(settings, editions.edition_at(settings, cut))
    edition = editions.get_edition(settings, number) if number is not None else editions.current_edition(settings)
    if edition is None:
        for damage in editions.lost_editions(settings):
            raise damage.fault
        newest = cuts.latest_cut(settings)
        edition = editions.Edition(0, newest.number if newest else 0, {}, datetime.now(UTC))
        titles = EditionReader(settings, edition).titles_in(query)
        if not titles or any(title.startswith("log.") for title in titles):
            raise _nothing_published(settings)
    return EditionReader(settings, edition)


def open_reader(settings: Settings, query: str | None, choice: EditionChoice) -> EditionReader:
    if choice.after:
        from lake.read.wait import wait

        def tables_of(edition: editions.Edition) -> Collection[str]:
            return EditionReader(settings, edition).names_in(query or "")

        wait(settings, choice.after, timeout=choice.timeout, tables_of=tables_of)
    chosen = reader(settings, choice.edition, cut=choice.cut, query=query or "")
    if choice.verified:
        from lake.read.edition_check import check_unchanged

        if titles := chosen.titles_in(query or ""):
            raise DeclarationError(
                f"{titles[0]} is no table of the edition, so no fingerprint of it was published",
                fix="leave out --verified; lake log STREAM --check verifies a log",
            )
        tables_read = chosen.tables_in(query or "show tables")
        check_unchanged(settings, chosen.edition, [table.name for table in tables_read])
    return chosen


def _nothing_published(settings: Settings) -> DeclarationError:
    what, where = "no edition has been published yet, so there is nothing to read", Warehouse(settings).root.url
    obstacles = list(dict.fromkeys(_obstacles(settings)))
    if not obstacles:
        return DeclarationError(what, where=where, fix="run `lake run` (ingest, cut, advance, check, publish)")
    fixes = dict.fromkeys(fix for _, fix in obstacles if fix)
    reasons = "\n".join(stopped for stopped, _ in obstacles)
    return DeclarationError(f"{what}: {reasons}", where=where, fix="; ".join(fixes))


def _obstacles(settings: Settings) -> Iterator[tuple[str, str]]:
    from lake.project import rejection_limits
    from lake.project.project import sound_project
    from lake.quality import failures
    from lake.store.ledger import checks, runs

    if stops := [check for check in checks.last_checks(settings).values() if check.outcome == "stopped"]:
        stopped = f"a gate stopped cut {max(check.cut for check in stops)}"
        yield "\n".join([stopped, *failures.stop_messages(stops)]), failures.fix_text(stops)
    project, faults = sound_project(settings)
    if cut := cuts.latest_cut(settings):
        readers = rejection_limits.tables_by_stream(project, project.tables.values())
        for excess in rejection_limits.find_excesses(project, readers, cut):
            yield f"{excess} ({excess.where})", excess.fix
    for fault in faults:
        yield f"{fault.what} ({fault.where})" if fault.where else fault.what, fault.fix
    for run in runs.newest_runs(settings):
        towards_an_edition = run.work in {runs.INGEST, runs.ADVANCE, runs.PUBLISH}
        if towards_an_edition and run.outcome == "failed" and run.counts["error"] != runs.STOPPED:
            yield f"{run.verb} {run.subject} failed: {run.counts['error']}", "correct that, then lake run"
