"""Options of a PostgreSQL source: docs/how-to/postgres.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lake.contracts.contract import Contract
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError, did_you_mean
from lake.sinks.kind import OptionTable, read_options
from lake.text import has_password

OPTIONS: Final[OptionTable] = {
    "dsn": (str, None),
    "publication": (str, None),
    "snapshot": (bool, True),
    "changes": (int, 100_000),
    "streams": (dict, None),
}
SLOT: Final = r"[a-z0-9_]{1,63}"


@dataclass(frozen=True)
class PostgresOptions:
    """`tables` has the "schema.table" of each stream."""

    name: str
    where: str
    dsn: str
    publication: str
    slot: str
    tables: Mapping[str, str]
    contracts: Mapping[str, Contract]
    snapshot: bool
    changes: int


def postgres_options(
    name: str, options: Mapping[str, Any], contracts: Mapping[str, Contract], where: str
) -> PostgresOptions:
    """Raises one DeclarationError with all faults."""
    slot = f"lake_{re.sub('[^a-z0-9_]', '_', name.lower())}"[:63]
    values = read_options({**OPTIONS, "slot": (str, slot)}, options, where, "see docs/how-to/postgres.md")
    DeclarationError.raise_any(_faults(values, contracts), where)
    tables = values.pop("streams")
    own_contracts = {stream: contracts[stream] for stream in tables}
    return PostgresOptions(name, where, tables=tables, contracts=own_contracts, **values)


def _faults(options: Mapping[str, Any], contracts: Mapping[str, Contract]) -> Iterator[tuple[str, str]]:
    if _has_password(options["dsn"]):  # which is never shown
        yield "dsn has a password in it", 'put the whole string into the environment: dsn = "env:SHOP_DSN"'
    if not re.fullmatch(SLOT, options["slot"]):
        yield f"invalid slot {options['slot']!r}", "use up to 63 of a to z, 0 to 9 and _"
    yield from _stream_faults(options["streams"], contracts)


def _has_password(dsn: str) -> bool:
    if isinstance(dsn, FromEnvironment):
        return False
    return has_password(dsn) or re.search(r"\b(?:ssl)?password\s*=", dsn) is not None


def _stream_faults(streams: Mapping[str, Any], contracts: Mapping[str, Contract]) -> Iterator[tuple[str, str]]:
    if not streams:
        yield "no streams", '[streams] with a line for each, such as orders = "public.orders"'
        return
    seen: dict[str, str] = {}
    for stream, table in streams.items():
        if stream not in contracts:
            yield f"no stream {stream!r}", did_you_mean(stream, contracts, otherwise=f"add schemas/{stream}.avsc")
        if not isinstance(table, str) or table.count(".") != 1 or not all(table.split(".")):
            yield f"stream {stream!r}: invalid table {table!r}", 'write it as "schema.table"'
            continue
        if table in seen:
            yield f"streams {seen[table]!r} and {stream!r} both read the table {table!r}", "a table has one stream"
        seen[table] = stream
        if stream in contracts:
            yield from _contract_faults(contracts[stream], table)


def _contract_faults(contract: Contract, table: str) -> Iterator[tuple[str, str]]:
    if contract.envelope != "debezium":
        yield f"stream {contract.name!r}: its contract reads no changes", 'add "envelope": "debezium" to it'
    elif contract.table and not _names(contract.table, table) and not _names(table, contract.table):
        yield (
            f"stream {contract.name!r}: its contract is of the table {contract.table!r}, not of {table!r}",
            "name the same table in both",
        )


def _names(name: str, shorter: str) -> bool:
    return f".{name}".endswith(f".{shorter}")
