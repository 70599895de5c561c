"""Published tables: how they differ from the streams, their copies, and changes missed since the source's position."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, LiteralString, NamedTuple

from lake.connect.postgres.connection import Connection, fetch
from lake.connect.postgres.source.messages import read_lsn
from lake.connect.postgres.source.options import PostgresOptions
from lake.connect.postgres.source.pgoutput import RelationColumn
from lake.connect.postgres.source.server import PostgresServer, ReplicationSlot, ServerPosition
from lake.contracts.contract import Contract
from lake.contracts.fields import UNCHANGED
from lake.errors import DeclarationError, Unavailable, did_you_mean
from lake.sources.source import Progress
from lake.text import quoted

Ask = Callable[..., list[tuple[Any, ...]]]
COLUMN_LISTS: Final = 150_000
OPERATIONS: Final = ("insert", "update", "delete", "truncate")
LISTED: Final = "array<string>"
"""The only nested type that can express an unknown value: as an element."""

PUBLICATION: Final[LiteralString] = """
    SELECT oid, xmin::text, pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s
"""
PUBLISHED: Final[LiteralString] = """
    SELECT p.schemaname, p.tablename, {listed}, c.oid, c.relkind, c.relreplident,
           coalesce(r.oid, {by_schema}, 0)::bigint
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    LEFT JOIN pg_publication_rel r ON r.prrelid = c.oid AND r.prpubid = %s
    WHERE p.pubname = %s
"""
BY_SCHEMA: Final[LiteralString] = (
    "(SELECT s.oid FROM pg_publication_namespace s JOIN pg_publication o ON o.oid = s.pnpubid"
    " WHERE s.pnnspid = n.oid AND o.pubname = p.pubname)"
)
COLUMNS: Final[LiteralString] = """
    SELECT a.attrelid, a.attname, a.atttypid, a.attstorage,
           coalesce(a.attnum = ANY(i.indkey), false),
           coalesce(a.attnum = ANY(k.indkey), false)
    FROM pg_attribute a
    LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisreplident
    LEFT JOIN pg_index k ON k.indrelid = a.attrelid AND k.indisprimary
    WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
    ORDER BY a.attnum
"""
REWRITTEN: Final[LiteralString] = """
    SELECT c.oid FROM unnest(%s::oid[]) AS t(oid)
    CROSS JOIN LATERAL (SELECT t.oid UNION SELECT p.relid FROM pg_partition_tree(t.oid) p) AS part(oid)
    JOIN pg_class c ON c.oid = part.oid
    WHERE c.relfilenode <> 0 AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)
"""
"""Tables rewritten since the transaction's snapshot: pg_relation_filenode returns the current file."""
ATTEMPTS: Final = 20


@dataclass(frozen=True)
class PublishedTable:
    """`published` is "publication's OID.its xmin/entry's OID", which changes if one is altered or added again."""

    id: int
    schema: str
    name: str
    identity: str
    partitioned: bool
    columns: tuple[RelationColumn, ...]
    rows: str | None
    published: str

    @property
    def query(self) -> str:
        columns = ", ".join(quoted(column.name) for column in self.columns)
        where = f" WHERE {self.rows}" if self.rows else ""
        return f"SELECT {columns} FROM {self.relation}{where}"

    @property
    def relation(self) -> str:
        """Partitioned tables include their partitions, others no descendants."""
        only = "" if self.partitioned else "ONLY "
        return f"{only}{quoted(self.schema)}.{quoted(self.name)}"


def lock_sql(tables: Sequence[PublishedTable]) -> str:
    """Lock against TRUNCATE and ALTER until the transaction ends; writes are allowed."""
    return f"LOCK TABLE {', '.join(table.relation for table in tables)} IN ACCESS SHARE MODE"


def published_tables(
    ask: Ask, publication: str, *, version: int, where: str
) -> tuple[Mapping[str, PublishedTable], Sequence[str]]:
    """Return the tables by "schema.table", and the operations that the publication omits.

    `version` is the server's, such as 150004.
    """
    answer = ask(PUBLICATION, publication)
    if not answer:
        raise DeclarationError(
            f"the database has no publication {publication!r}",
            where=where,
            fix=f"CREATE PUBLICATION {quoted(publication)} FOR TABLE …",
        )
    [(number, changed, *operations)] = answer
    lists = version >= COLUMN_LISTS
    listed: LiteralString = "p.attnames, p.rowfilter" if lists else "NULL, NULL"
    tables = ask(
        PUBLISHED.replace("{listed}", listed).replace("{by_schema}", BY_SCHEMA if lists else "NULL"),
        number,
        publication,
    )
    columns: dict[int, list[Sequence[Any]]] = {}
    for of, *about in ask(COLUMNS, [row[4] for row in tables]):
        columns.setdefault(of, []).append(about)
    by_name = {
        f"{schema}.{name}": PublishedTable(
            id=of,
            schema=schema,
            name=name,
            identity=identity,
            partitioned=kind == "p",
            columns=tuple(_columns(columns.get(of, []), names, identity)),
            rows=rows,
            published=f"{number}.{changed}/{entry}",
        )
        for schema, name, names, rows, of, kind, identity, entry in tables
    }
    return by_name, [name for name, is_in in zip(OPERATIONS, operations, strict=True) if not is_in]


def _columns(rows: Sequence[Sequence[Any]], names: Sequence[str] | None, identity: str) -> Iterator[RelationColumn]:
    for name, kind, storage, in_index, in_key in rows:
        if names is None or name in names:
            of_identity = {"f": True, "i": in_index, "d": in_key}.get(identity, False)
            yield RelationColumn(name, kind, of_identity, storage != "p")


def faults(
    tables: Mapping[str, PublishedTable], omitted: Sequence[str], options: PostgresOptions
) -> Iterator[DeclarationError | tuple[str, str]]:
    """Yield faults of contracts, and (fault, fix) of the source's declaration."""
    publication = quoted(options.publication)
    if omitted:
        yield (
            f"the publication {publication} leaves out every {', '.join(omitted)}",
            f"ALTER PUBLICATION {publication} SET (publish = '{', '.join(OPERATIONS)}')",
        )
    for stream, name in options.tables.items():
        contract, table = options.contracts[stream], tables.get(name)
        if table is None:
            yield (
                f"the publication {publication} has no table {name!r}, so its changes would never come",
                f"ALTER PUBLICATION {publication} ADD TABLE {name} ({did_you_mean(name, tables)})",
            )
        else:
            for what, fix in _table_faults(table, contract):
                yield DeclarationError(f"{name}: {what}", where=contract.where, fix=fix)


def _table_faults(table: PublishedTable, contract: Contract) -> Iterator[tuple[str, str]]:
    columns = {column.name: column for column in table.columns}
    reports_unchanged = any(field.path == UNCHANGED for field in contract.fields)
    names_text = f"published columns: {', '.join(columns)}"
    for field in contract.fields:
        names = () if field.path else field.names
        present = next((columns[name] for name in names if name in columns), None)
        if names and present is None and not field.nullable and not field.has_default:
            yield (
                f"no published column {field.name!r}, which the contract requires",
                f"publish it, name it in the field's aliases, or let the field be null ({names_text})",
            )
        is_omitted = present is not None and present.large and table.identity != "f" and not reports_unchanged
        if present is not None and is_omitted and field.nested and field.type != LISTED:
            yield (
                f"an update may omit the column {present.name!r}, and a field of type {field.type} cannot express that",
                f"ALTER TABLE {table.schema}.{table.name} REPLICA IDENTITY FULL",
            )
        if field.name in contract.key and present is not None and not present.of_identity:
            yield (
                f"a delete omits the column {present.name!r}, which is the contract's key",
                f"ALTER TABLE {table.schema}.{table.name} REPLICA IDENTITY FULL, or USING INDEX one of that column",
            )


@dataclass(frozen=True)
class ExportedTables:
    """`at` is in microseconds since 1970."""

    lsn: int
    at: int
    tables: Mapping[str, PublishedTable]
    connection: Connection

    def rows(self, table: PublishedTable) -> Iterator[tuple[str | None, ...]]:
        with self.connection.cursor() as cursor, cursor.copy(f"COPY ({table.query}) TO STDOUT".encode()) as copy:
            yield from copy.rows()


def matching_tables(ask: Ask, options: PostgresOptions, version: int) -> Mapping[str, PublishedTable]:
    tables, omitted = published_tables(ask, options.publication, version=version, where=options.where)
    DeclarationError.raise_any(faults(tables, omitted, options), options.where)
    return tables


@contextmanager
def export_tables(
    server: PostgresServer, options: PostgresOptions, streams: Sequence[str], version: int
) -> Iterator[ExportedTables]:
    """Yield the tables of `streams` as of one position. Waits for running transactions to end.

    TRUNCATE and table rewrites are visible to older snapshots too (PostgreSQL's documentation, "Caveats" of concurrency
    control). So the tables are locked, and if one came before the lock, another position is taken.
    """
    for _ in range(ATTEMPTS):
        with server.export_snapshot(options.slot) as (lsn, connection), server.translated_errors():
            at = server.current().at
            ask = partial(fetch, connection)
            to_lock = matching_tables(ask, options, version)
            connection.execute(lock_sql([to_lock[options.tables[stream]] for stream in streams]).encode())
            tables = matching_tables(ask, options, version)
            if not ask(REWRITTEN, [tables[options.tables[stream]].id for stream in streams]):
                yield ExportedTables(lsn, at, tables, connection)
                return
    raise Unavailable(
        "the tables are emptied or rewritten faster than they can be copied", where=options.where, fix="try again"
    )


@dataclass(frozen=True)
class PostgresPosition:
    """`begin` is `from` of the progress; `at` is the server's clock at `to`, in microseconds since 1970."""

    system: str
    timeline: int
    era: int
    slot: str
    begin: str
    to: str
    at: int
    tables: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, progress: Progress) -> PostgresPosition:
        at = int(datetime.fromisoformat(progress["at"]).timestamp() * 1_000_000)
        facts = {name: progress[name] for name in ("system", "timeline", "era", "slot", "to", "tables")}
        return cls(**facts, begin=progress["from"], at=at)

    @property
    def progress(self) -> dict[str, Any]:
        return {
            "system": self.system,
            "timeline": self.timeline,
            "era": self.era,
            "slot": self.slot,
            "from": self.begin,
            "to": self.to,
            "at": datetime.fromtimestamp(self.at / 1_000_000, UTC).isoformat(timespec="microseconds"),
            "tables": {stream: dict(entry) for stream, entry in self.tables.items()},
        }

    def advanced(self, to: str, at: int) -> PostgresPosition:
        return replace(self, begin=self.to, to=to, at=at)

    def with_copies(self, entries: Mapping[str, Mapping[str, Any]]) -> PostgresPosition:
        return replace(self, tables={**self.tables, **entries})


@dataclass(frozen=True)
class MissedChange:
    what: str
    stream: str | None = None

    def streams(self, known: PostgresPosition) -> list[str]:
        return list(known.tables) if self.stream is None else [self.stream]


def gaps(
    known: PostgresPosition,
    current: ServerPosition,
    slot: ReplicationSlot | None,
    tables: Mapping[str, PublishedTable],
    options: PostgresOptions,
) -> list[MissedChange]:
    return [*_of_server(known, current), *of_slot(known, slot, options.slot), *_of_tables(known, tables, options)]


def _of_server(known: PostgresPosition, current: ServerPosition) -> Iterator[MissedChange]:
    if current.system != known.system:
        yield MissedChange(
            f"this is a different server: its system identifier is {current.system}, it was {known.system}"
        )
    elif current.timeline != known.timeline:
        yield MissedChange(
            f"the server's timeline is {current.timeline}, it was {known.timeline}: a standby was promoted, or a "
            "backup restored, and the latest commits may be missing there"
        )
    elif current.flushed < read_lsn(known.to):
        yield MissedChange(f"the server's log ends before {known.to}, which has been read: an older state was restored")


def of_slot(known: PostgresPosition, slot: ReplicationSlot | None, name: str) -> Iterator[MissedChange]:
    if slot is None:
        yield MissedChange(f"the server has no slot {name!r}, so it has not kept what follows {known.to}")
    elif slot.lost:
        yield MissedChange(
            f"the slot {name!r} is lost: it needed more than max_slot_wal_keep_size, what it kept is gone"
        )
    elif slot.confirmed is not None and slot.confirmed > read_lsn(known.to):
        yield MissedChange(f"somebody else has read the slot {name!r} beyond {known.to}")


def _of_tables(
    known: PostgresPosition, tables: Mapping[str, PublishedTable], options: PostgresOptions
) -> Iterator[MissedChange]:
    copied = {
        stream: (entry, tables[name])
        for stream, name in options.tables.items()
        if (entry := known.tables.get(stream)) and entry["since"]
    }
    published = {
        stream: (_Published.of(entry["published"]), _Published.of(table.published))
        for stream, (entry, table) in copied.items()
    }
    if any(was.publication != now.publication for was, now in published.values()):
        yield MissedChange(f"the publication {options.publication!r} was dropped and recreated")
        return
    if any(was.change != now.change for was, now in published.values()):
        yield MissedChange(
            f"the publication {options.publication!r} was altered: what it left out meanwhile is missing"
        )
        return
    for stream, (entry, table) in copied.items():
        name, (was, now) = options.tables[stream], published[stream]
        if table.id != entry["id"]:
            yield MissedChange(f"{name} is a different table: the one that was read was dropped", stream)
        elif was.entry != now.entry:
            yield MissedChange(f"{name} was out of the publication for a while", stream)


class _Published(NamedTuple):
    publication: str
    change: str
    entry: str

    @classmethod
    def of(cls, published: str) -> _Published:
        return cls(*re.split("[./]", published))
