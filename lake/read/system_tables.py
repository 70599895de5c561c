"""Logs `log.<stream>` and ledgers `lake.runs` … that a query may read besides tables.

Only those that a query names are opened, so a damaged log stops no other query. Listings skip unreadable ones. Ledgers
are copied before the connection is locked, so a query cannot see texts of rejected records or examples of failed rows.
They are current, except the quarantine, which is at the cut.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract, sound_contracts, streams_of
from lake.errors import DeclarationError, LakeError, did_you_mean
from lake.ingest import landing
from lake.read import logs
from lake.read.relation import SystemRelation, rows_sql, stored_files
from lake.store import quarantine
from lake.store.damage import skip_unreadable
from lake.store.ledger import checks, cuts, editions, reads, runs, sent
from lake.store.ledger.cuts import Cut, get_cut
from lake.store.ledger.editions import Edition
from lake.store.ledger_table import LedgerTable
from lake.store.log import Log
from lake.store.snapshot import Column
from lake.store.warehouse import Warehouse
from lake.text import literal, quoted

LEDGER_SCHEMA: Final = "lake"
DECLARED: Final[Mapping[str, Any]] = tomllib.loads(
    resources.files("lake.read").joinpath("ledgers.toml").read_text("utf-8")
)
COUNTS: Final = ("inserted", "updated", "deleted", "batch", "read", "accepted", "duplicates", "quarantined", "rows")
UNNEST: Final = "unnest(CASE WHEN len(members) = 0 THEN [NULL] ELSE members END)"


@dataclass(frozen=True)
class SystemTables:
    """Logs and ledgers at an edition's cut, restricted to titles that `may_read` accepts."""

    settings: Settings
    edition: Edition
    may_read: Callable[[str], bool]

    @cached_property
    def titles(self) -> tuple[str, ...]:
        streams = (f"{logs.SCHEMA}.{stream}" for stream in streams_of(self.settings))
        return tuple(filter(self.may_read, (*streams, *(f"{LEDGER_SCHEMA}.{name}" for name in LEDGERS))))

    def named(self, schemas: Collection[str], words: Collection[str]) -> list[str]:
        parts = ((title, *title.lower().split(".")) for title in self.titles)
        return [title for title, schema, name in parts if schema in schemas and name in words]

    def relation(self, title: str) -> SystemRelation:
        by_title = {other.lower(): other for other in self.titles}
        if title.lower() not in by_title:
            raise self.unknown(title)
        schema, _, name = by_title[title.lower()].partition(".")
        if schema == LEDGER_SCHEMA:
            return ledger_relation(self.settings, name, self._cut)
        contracts, faults = self._contracts
        if name in faults:
            raise faults[name]
        return logs.relation(self.settings, contracts[name], self._cut)

    def readable(self, *, excluded: Collection[str]) -> Iterator[SystemRelation]:
        for title in self.titles:
            if title not in excluded:
                with suppress(LakeError), skip_unreadable():
                    yield replace(self.relation(title), optional=True)

    def unknown(self, title: str) -> DeclarationError:
        schema, _, name = title.lower().partition(".")
        what = "no stream" if schema == logs.SCHEMA else "no ledger"
        of_schema = [other for other in self.titles if other.startswith(f"{schema}.")]
        return DeclarationError(f"{what} {name!r}", fix=did_you_mean(title.lower(), of_schema))

    @staticmethod
    def schema(name: str, query: str) -> str:
        """Return the schema, log or lake, with which `query` names a table; "" if it has none."""
        schemas = f"{logs.SCHEMA}|{LEDGER_SCHEMA}"
        written = re.search(rf'\b({schemas})"?\s*\.\s*"?{re.escape(name)}\b', query, re.IGNORECASE)
        return written[1].lower() if written else ""

    @cached_property
    def _cut(self) -> Cut:
        cut = self.edition.cut
        return get_cut(self.settings, cut) if cut else Cut(0, {}, 0, self.edition.published_at)

    @cached_property
    def _contracts(self) -> tuple[dict[str, Contract], dict[str, DeclarationError]]:
        return sound_contracts(self.settings)


def ledger_relation(settings: Settings, name: str, cut: Cut) -> SystemRelation:
    columns = DECLARED[name]["columns"]
    files, query = LEDGERS[name](settings, cut)
    typed = ", ".join(f"CAST({quoted(column)} AS {kind}) AS {quoted(column)}" for column, kind, _ in columns)
    described = tuple(Column(column, kind, meaning, "") for column, kind, meaning in columns)
    order = ", ".join(quoted(column) for column in ORDER if column in {name for name, *_ in columns})
    ordered, root = f"SELECT {typed} FROM ({query}) ORDER BY {order}", Warehouse(settings).root
    return SystemRelation(
        LEDGER_SCHEMA, name, DECLARED[name]["doc"], described, ordered, root, tuple(files), copied=True
    )


ENGINE: Final = ("engine", "not_by_duckdb")


def _runs(settings: Settings, _: Cut) -> tuple[list[str], str]:
    files, rows = _ledger(settings, runs.RUNS)
    counts = ", ".join(f"counts ->> '{name}' AS {name}" for name in ("error", *COUNTS, "edition", *ENGINE))
    return files, f"SELECT *, {counts} FROM {rows}"


def _checks(settings: Settings, _: Cut) -> tuple[list[str], str]:
    files, rows = _ledger(settings, checks.CHECKS)
    parts = {
        "expectation": "type",
        "arguments": "kwargs",
        "severity": "severity",
        "success": "success",
        "rows": "rows",
        "failed": "failed",
        "declared_in": "where",
    }
    named = ", ".join(f"result ->> '{part}' AS {name}" for name, part in parts.items())
    each = f"SELECT *, {UNNEST} AS result FROM (SELECT *, CAST(results AS JSON[]) AS members FROM {rows})"
    return (
        files,
        f"""SELECT *, "table" AS table_name, result -> 'kwargs' ->> 'column' AS column_name, {named}
        FROM ({each})""",
    )


def _cuts(settings: Settings, _: Cut) -> tuple[list[str], str]:
    files, rows = _ledger(settings, cuts.CUTS)
    return files, f"SELECT *, member.key AS stream, member.value AS batch FROM ({_members(rows, 'batches', 'BIGINT')})"


def _editions(settings: Settings, _: Cut) -> tuple[list[str], str]:
    files, rows = _ledger(settings, editions.EDITIONS)
    current = editions.current_edition(settings)
    expired = [f"number BETWEEN {first} AND {last}" for first, last in editions.expired_ranges(settings)]
    parts = {"layer": "layer", "version": "version", "rows": "rows", "definition": "fingerprint"}
    named = ", ".join(f"member.value ->> '{part}' AS {name}" for name, part in parts.items())
    return (
        files,
        f"""SELECT *, member.key AS table_name, {named}, number = {current.number if current else 0} AS is_current,
            NOT ({" OR ".join(expired) or "false"}) AS is_kept
        FROM ({_members(f"(FROM {rows} WHERE action = 'publish')", "tables", "JSON")})""",
    )


def _quarantine(settings: Settings, cut: Cut) -> tuple[list[str], str]:
    contracts, _ = sound_contracts(settings)
    files: list[str] = []
    parts: list[str] = []
    for stream in streams_of(settings):
        own = stored_files(Warehouse(settings).quarantine(stream).path)
        contract, upto = contracts.get(stream), cut.batches.get(stream, 0)
        if own and upto:
            is_plain = contract is not None and not contract.personal
            taken = landing.ingested_marks(Log(settings, stream), upto=upto)
            listed = ", ".join(literal(name) for name, *_ in taken if quarantine.is_mark(name))
            marks = f"(SELECT unnest([{listed}]::VARCHAR[]))"
            files += own
            parts.append(
                f"""SELECT {literal(stream)} AS stream, _batch AS batch, _number AS number, reason,
                    {"detail" if is_plain else "NULL"} AS detail, source, _ingested_at AS refused_at,
                    concat('quarantine:', _batch, '/', _number) NOT IN {marks} AS is_waiting
                FROM {rows_sql(own, quarantine.COLUMNS)} WHERE _batch <= {upto}"""
            )
    nothing = ", ".join(
        f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind, _ in DECLARED["quarantine"]["columns"]
    )
    return files, " UNION ALL BY NAME ".join(parts) or f"SELECT {nothing} WHERE false"


def _reads(settings: Settings, _: Cut) -> tuple[list[str], str]:
    # A read has a row for its start and one for its end, in the ledger or still in journals.
    unrecorded = f"[{','.join(reads.unrecorded(settings))}]"  # before the ledger is read, so that no read is missed
    files, recorded = _ledger(settings, reads.READS)
    shape = ", ".join(f'"{name}": "{kind}"' for name, kind in {**reads.READS.columns, "tables": "JSON"}.items())
    pending = f"SELECT unnest(from_json({literal(unrecorded)}, {literal(f'[{{{shape}}}]')}), recursive := true)"
    at_end = ("outcome", "rows", "size", "seconds")
    at_start = [name for name in reads.READS.columns if name not in (*at_end, "id")]
    last = ", ".join(f"max({quoted(name)}) AS {quoted(name)}" for name in at_end)
    first = ", ".join(f"any_value({quoted(name)}) AS {quoted(name)}" for name in at_start)
    both = f"FROM {recorded} UNION ALL BY NAME SELECT * REPLACE (CAST(tables AS VARCHAR) AS tables) FROM ({pending})"
    each = f"SELECT id, {first}, {last} FROM ({both}) GROUP BY id"
    return (
        files,
        f"""SELECT * REPLACE (CAST(CAST(tables AS JSON) AS VARCHAR[]) AS tables), "at" AS started_at, size AS bytes
        FROM ({each})""",
    )


def _undelivered(settings: Settings, _: Cut) -> tuple[list[str], str]:
    files, rows = _ledger(settings, sent.SENT)
    waiting = ", ".join(map(literal, sent.OPEN))
    return (
        files,
        f"""SELECT *, "table" AS table_name, "at" AS tried_at FROM (FROM {rows} AS t {sent.NEWEST})
        WHERE action IN ({waiting})""",
    )


def _ledger(settings: Settings, ledger: LedgerTable) -> tuple[list[str], str]:
    files = stored_files(ledger.location(settings).path)
    return files, rows_sql(files, ledger.columns)


def _members(rows: str, column: str, kind: str) -> str:
    entries = f"map_entries(CAST(CAST({column} AS JSON) AS MAP(VARCHAR, {kind})))"
    return f"SELECT *, {UNNEST} AS member FROM (SELECT *, {entries} AS members FROM {rows})"


ORDER: Final = ("number", "stream", "batch", "table_name", "expectation", "started_at", "id")
LEDGERS: Final[Mapping[str, Callable[[Settings, Cut], tuple[list[str], str]]]] = {
    "runs": _runs,
    "checks": _checks,
    "cuts": _cuts,
    "editions": _editions,
    "quarantine": _quarantine,
    "reads": _reads,
    "undelivered": _undelivered,
}
