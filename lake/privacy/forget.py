"""Erasure of a person: their key is destroyed, and from the next cut on tables are computed without them.

1. Find the personal values that only they have, while these can be decrypted.
2. Under the log's lease, blank the quarantined records about them.
3. Record the erasure, which makes it effective, then destroy the key. `destroy_keys` repairs a crash between the two.

If nothing of the person can be read from the log, step 3 runs before step 2: quarantined records may be the only trace,
and must still be found after a crash. `purge` removes the person from earlier versions of tables later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream
from lake.contracts.expressions import literal, quoted
from lake.errors import DeclarationError
from lake.ingest.field_encryption import BLANKED
from lake.privacy import search
from lake.project.project import Project
from lake.store import delta, delta_writer, durable, erasures
from lake.store.keys import open_store
from lake.store.ledger.editions import kept_editions
from lake.store.ledger.runs import Run, failing, record_run
from lake.store.locks.lease import lease
from lake.store.log import Log
from lake.store.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACES: Final = pa.schema([("_batch", pa.int64()), ("_number", pa.int32()), ("source", pa.string())])


@dataclass(frozen=True)
class ErasureResult:
    """`values` are those that only the person had, in clear text."""

    stream: str
    token: str
    number: int
    events: int = 0
    quarantined: int = 0
    values: frozenset[str] = field(default=frozenset(), repr=False)


def find_person(project: Project, stream: str, subject: str) -> tuple[Contract, str]:
    """Return the contract, and the person's token.

    Raises DeclarationError if the stream has no personal fields, or no events of that person.
    """
    contract = known_stream(project.contracts, stream)
    _check_personal_fields(contract)
    store = open_store(project.settings, make=not Log(project.settings, stream).head().keys)
    token = store.token(stream, subject)
    has_key = token in erasures.subjects(project.settings, stream) or store.has_token(stream, token)
    if not has_key and not search.quarantined_records(project.settings, contract, subject, {subject}):
        raise DeclarationError(
            f"{stream} has no events of a person whose {contract.subject} is {subject!r}",
            where=contract.where,
            fix=f"write the value as the events have it: `subject` is the value of {contract.subject}",
        )
    return contract, token


def _personal_values(
    project: Project, spark: SparkSession, contract: Contract, subject: str
) -> tuple[int, frozenset[str]]:
    """Return the number of a person's events, and the values that no one else has, without `shared` fields."""
    settings = project.settings
    head = Log(settings, contract.name).head()
    events = Log(settings, contract.name).read(spark, contract, upto=head.batch)
    theirs = f"(cast({quoted(contract.subject or '')} AS string) <=> {literal(subject)})"
    values = _stacked(events, contract, theirs).groupBy("value").agg({"theirs": "min"})
    alone = {row["value"] for row in values.where("`min(theirs)`").collect()}
    return events.where(theirs).count(), frozenset(alone | {subject})


@dataclass(frozen=True)
class Preview:
    """Effects of forgetting `person` (a token): `fields` of their `events` become null, and so on."""

    stream: str
    person: str
    fields: tuple[str, ...]
    events: int
    quarantined: int
    tables: tuple[str, ...]
    editions: tuple[int, ...]


def preview(project: Project, spark: Callable[[], SparkSession], stream: str, subject: str) -> Preview:
    contract, token = find_person(project, stream, subject)
    events, values = _personal_values(project, spark(), contract, subject)
    quarantined = len(search.quarantined_records(project.settings, contract, subject, values))
    tables = tuple(table.name for table in project.tables.values() if stream in project.logs(table))
    expiring = tuple(edition.number for edition in kept_editions(project.settings))
    return Preview(stream, token, tuple(contract.sealed), events, quarantined, tables, expiring)


def forget(project: Project, spark: Callable[[], SparkSession], stream: str, subject: str) -> ErasureResult:
    """Erase a person; if erased before, blank remaining quarantined records. Raises as `find_person` does."""
    contract, token = find_person(project, stream, subject)
    settings, began = project.settings, datetime.now(UTC)
    with failing(settings, "forget", stream):
        before = token in erasures.subjects(settings, stream)
        events, values = (0, frozenset({subject})) if before else _personal_values(project, spark(), contract, subject)
        with lease(settings, Log(settings, stream).lease):
            records = search.quarantined_records(settings, contract, subject, values)
            if events:
                _blank(settings, stream, records)
            number = erasures.record(settings, stream, [token], at=began, again=True)
            if not events:
                _blank(settings, stream, records)
            destroy_keys(settings)
        _record(settings, stream, began, events=events)
    return ErasureResult(stream, token, number, events, len(records), values)


@dataclass(frozen=True)
class LostKeysResult:
    """`renamed`: the secret is lost too, so tokens change."""

    people: int
    renamed: bool


def give_up(project: Project, stream: str) -> LostKeysResult:
    """Erase everybody whose key is lost. Blank all quarantined records, as their persons are unknown."""
    contract = known_stream(project.contracts, stream)
    _check_personal_fields(contract)
    settings, began = project.settings, datetime.now(UTC)
    store = open_store(settings, make=True)
    with failing(settings, "forget", stream), lease(settings, Log(settings, stream).lease):
        lost = Log(settings, stream).keyless(store)
        if lost:
            _blank(settings, stream)
            erasures.record(settings, stream, lost, at=began)
            destroy_keys(settings)
            _record(settings, stream, began, people=len(lost))
    recorded = Log(settings, stream).head().keys
    return LostKeysResult(len(lost), bool(recorded) and recorded["secret"] != store.fingerprint)


def destroy_keys(settings: Settings) -> None:
    """Destroy remaining keys of erased people, after a crash or the restore of an old key store.

    Raises DeclarationError if a log was encrypted with a key store that is gone.
    """
    gone: dict[str, set[str]] = {}
    for erasure in erasures.entries(settings):
        gone.setdefault(erasure.stream, set()).add(erasure.subject)
    if not gone:
        return
    store = open_store(settings, make=not any(Log(settings, stream).head().keys for stream in gone))
    for stream, tokens in gone.items():
        if left := tokens - store.destroyed(stream):
            store.destroy(stream, left)


def _check_personal_fields(contract: Contract) -> None:
    if not contract.sealed:
        raise DeclarationError(
            f"{contract.name} has no personal fields",
            where=contract.where,
            fix='declare a "subject", and fields that are "personal": true',
        )


def _stacked(events: DataFrame, contract: Contract, theirs: str) -> DataFrame:
    own = [name for name in contract.sealed if not contract.field(name).shared]
    texts = ", ".join(["cast(null AS string)", *(f"cast({quoted(name)} AS string)" for name in own)])
    return events.selectExpr(f"{theirs} AS theirs", f"explode(array({texts})) AS value").where("value IS NOT NULL")


def _blank(settings: Settings, stream: str, records: list[dict[str, Any]] | None = None) -> None:
    path, blank = Warehouse(settings).quarantine(stream).path, {"raw": "''", "detail": f"'{BLANKED}'"}
    if records == [] or not delta.exists(path):
        return
    same = "t._batch = s._batch AND t._number = s._number"
    with delta_writer.changing(path) as (table, properties):
        options: dict[str, Any] = {
            "writer_properties": delta_writer.row_group_properties(table),
            "commit_properties": properties,
        }
        if records is None:
            table.update(blank, **options)
        else:
            merge = table.merge(pa.Table.from_pylist(records, PLACES), same, "s", "t", **options)
            merge.when_matched_update({**blank, "source": "s.source"}).execute()
    durable.flush(path)


def _record(settings: Settings, stream: str, began: datetime, **counts: int) -> None:
    seconds = round((datetime.now(UTC) - began).total_seconds(), 3)
    record_run(settings, Run("forget", stream, None, "done", counts, began, seconds))
