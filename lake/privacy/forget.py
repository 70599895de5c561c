"""Erasure of a person: their key is destroyed, and from the next cut on tables are computed without them.

1. Find the personal values that only the person has, while they can be decrypted.
2. Under the log's lease, blank the quarantined records about them.
3. Record the erasure, which makes it effective, then destroy the key. `destroy_keys` repairs a crash between the two.

If nothing of the person can be read from the log, step 3 runs before step 2: quarantined records may be the only trace,
and must still be found after a crash.

After an edition without the person is published, `purge` removes them from all older versions:

1. Destroy keys left by a crash. In a bucket, where processes of other machines are not known, wait GRACE after the
   first edition without the person, by the clocks of the hosts.
2. Rewrite every table into a first version with the same rows, and publish that: any may have been derived from the
   stream before it was redefined.
3. Wait for pins, for processes of this machine that began before the edition, and for consumers of older editions, up
   to their limit. Then expire all other editions.
4. Delete old versions of tables and quarantine, keys of rows that are no longer undelivered, spooled records, retired
   homes, leftover files, and Spark's logs, which may have values.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract, known_stream
from lake.contracts.expressions import literal, quoted
from lake.engine.engines import by_either
from lake.errors import DeclarationError
from lake.ingest.field_encryption import BLANKED
from lake.ingest.source_ingestion import delete_spooled_records
from lake.lazy import DataFrame, F, SparkSession, pa
from lake.privacy import search
from lake.project.project import Project
from lake.publish.check import tables_at_cut
from lake.publish.retention import retired
from lake.session import SessionFactory
from lake.store import delta, delta_writer, durable, erasures, temporary_files
from lake.store.delta import Position
from lake.store.keys import open_store
from lake.store.ledger import consumers, editions, sent
from lake.store.ledger.cuts import get_cut
from lake.store.ledger.editions import Edition, EditionTable, kept_editions
from lake.store.ledger.runs import Run, failing, record_run, seconds_since
from lake.store.locks import activity
from lake.store.locks.lease import lease, must_hold
from lake.store.log import Log
from lake.store.scan import to_arrow
from lake.store.snapshot import write_manifest
from lake.store.storage import Address
from lake.store.table_logs import invalidate
from lake.store.upkeep import vacuum
from lake.store.view import view
from lake.store.warehouse import Warehouse
from lake.text import moment


@dataclass(frozen=True)
class ErasureResult:
    """`values` are those that only the person had, in clear text."""

    token: str
    number: int
    events: int
    quarantined: int
    values: frozenset[str] = field(repr=False)


def find_person(project: Project, stream: str, subject: str) -> tuple[Contract, str]:
    """Return the contract, and the person's token.

    Raises DeclarationError if the stream has no personal fields, or no events of that person.
    """
    contract = _personal_stream(project, stream)
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
    project: Project, connect: SessionFactory, contract: Contract, subject: str
) -> tuple[int, frozenset[str]]:
    """Return the number of a person's events, and the values that only they have, without `shared` fields."""
    log = Log(project.settings, contract.name)
    head = log.head()
    theirs = f"(cast({quoted(contract.subject or '')} AS string) <=> {literal(subject)})"

    def found(session: SessionFactory) -> tuple[int, frozenset[str]]:
        events = log.read(session(), contract, upto=head.batch)
        values = _value_rows(events, contract, theirs).groupBy("value").agg(F.min("theirs").alias("alone"))
        alone = to_arrow(values.where("alone"))["value"].to_pylist()
        [counted] = to_arrow(events.where(theirs).selectExpr("count(*) AS events")).to_pylist()
        return counted["events"], frozenset({*alone, subject})

    return by_either(project.settings, connect, found)


@dataclass(frozen=True)
class Preview:
    """`person` is a token. `fields` of their `events` would become null."""

    stream: str
    person: str
    fields: tuple[str, ...]
    events: int
    quarantined: int
    tables: tuple[str, ...]
    editions: tuple[int, ...]


def preview(project: Project, spark: Callable[[], SparkSession], stream: str, subject: str) -> Preview:
    contract, token = find_person(project, stream, subject)
    events, values = _personal_values(project, spark, contract, subject)
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
        events, values = (0, frozenset({subject})) if before else _personal_values(project, spark, contract, subject)
        with lease(settings, Log(settings, stream).lease):
            records = search.quarantined_records(settings, contract, subject, values)
            if events:
                _blank(settings, stream, records)
            number = erasures.record(settings, stream, [token], at=began, again=True)
            if not events:
                _blank(settings, stream, records)
            destroy_keys(settings)
        _record(settings, stream, began, events=events)
    return ErasureResult(token, number, events, len(records), values)


@dataclass(frozen=True)
class LostKeysResult:
    """`renamed`: the secret is lost too, so tokens change."""

    people: int
    renamed: bool


def give_up(project: Project, stream: str) -> LostKeysResult:
    """Erase everybody whose key is lost. Blanks all quarantined records: their persons are unknown."""
    _personal_stream(project, stream)
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


def _personal_stream(project: Project, stream: str) -> Contract:
    contract = known_stream(project.contracts, stream)
    if not contract.sealed:
        raise DeclarationError(
            f"{contract.name} has no personal fields",
            where=contract.where,
            fix='declare a "subject", and fields that are "personal": true',
        )
    return contract


def _value_rows(events: DataFrame, contract: Contract, theirs: str) -> DataFrame:
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
            "writer_properties": delta_writer.writer_properties(table),
            "commit_properties": properties,
        }
        if records is None:
            table.update(blank, **options)
        else:
            places = pa.schema([("_batch", pa.int64()), ("_number", pa.int32()), ("source", pa.string())])
            merge = table.merge(pa.Table.from_pylist(records, places), same, "s", "t", **options)
            merge.when_matched_update({**blank, "source": "s.source"}).execute()
    durable.flush(path)


def _record(settings: Settings, stream: str, began: datetime, **counts: int) -> None:
    record_run(settings, Run("forget", stream, None, "done", counts, began, seconds_since(began)))


GRACE: Final = timedelta(hours=1)
"""How long a process of another machine may go on reading data of the person; later it ends with an error."""


def purge(project: Project, on_progress: Callable[[str], None]) -> None:
    """Purge if people were forgotten since the last purge. If their data may still be read, report why it waits."""
    settings = project.settings
    with view():
        _expire_restored(settings)
        since, recorded = erasures.purged(settings), erasures.entries(settings)
    unpurged = [erasure for erasure in recorded if erasure.number > since]
    if not unpurged:
        return
    destroy_keys(settings)
    number, streams = max(erasure.number for erasure in unpurged), {erasure.stream for erasure in unpurged}
    waiting = _not_published(settings, number) or _other_hosts(settings, number) or _rewrite_tables(project, number)
    edition = editions.latest_edition(settings)
    if waiting := waiting or _still_read(settings, edition):
        on_progress(f"purge   is waiting: {waiting}")
        return
    assert edition is not None
    older = [kept.number for kept in editions.kept_editions(settings) if kept.number < edition.number]
    editions.expire_editions(settings, older)
    published = {Warehouse(settings).root / entry.path: entry.version for entry in edition.tables.values()}
    for declaration in project.tables.values():
        table = project.table(declaration)
        with lease(settings, table.lease):
            must_hold(settings, table.lease)
            vacuum.truncate(table.path, upto=published.get(table.path))
        on_progress(f"purge   {declaration.name}: only the published version is left")
    _delete_leftovers(settings)
    for place in (home.location for home in retired(project)):
        with lease(settings, place.lease):
            must_hold(settings, place.lease)
            place.path.storage.delete_table(place.path.url)
            invalidate(place.path)
        on_progress(f"purge   {place.name}: dropped, no longer in use")
    for stream in sorted(streams):
        _truncate_quarantine(settings, stream)
    _truncate_sent(settings)
    delete_spooled_records(settings)
    erasures.mark_purged(settings, number, edition=edition.number, at=edition.published_at)


def _expire_restored(settings: Settings) -> None:
    """Expire editions that the repair of the ledger has restored although their files are deleted."""
    if purged := erasures.purged_with(settings):
        back = [kept.number for kept in editions.kept_editions(settings) if kept.number < purged]
        editions.expire_editions(settings, back)


def _truncate_quarantine(settings: Settings, stream: str) -> None:
    path = Warehouse(settings).quarantine(stream).path
    if delta.exists(path):
        with lease(settings, Log(settings, stream).lease):
            _truncate(settings, path, Log(settings, stream).lease)


def _truncate_sent(settings: Settings) -> None:
    """Delete the keys of rows whose delivery was repeated or given up; the others are still undelivered."""
    place = sent.SENT.location(settings)
    if not delta.exists(place.path):
        return
    same = [f'(t."{name}" IS NOT DISTINCT FROM s."{name}")' for name in sent.IDENTITY]
    with lease(settings, place.lease):
        others = {"since": pa.int64(), "at": pa.timestamp("us", "UTC")}
        columns = pa.schema([(name, others.get(name, pa.string())) for name in sent.IDENTITY])
        kept = pa.Table.from_pylist(sent.open_records(settings), columns)
        with delta_writer.changing(place.path) as (table, properties):
            merge = table.merge(kept, " AND ".join(same), "s", "t", commit_properties=properties)
            merge.when_not_matched_by_source_delete().execute()
        _truncate(settings, place.path, place.lease, delta.head(place.path, place.app))


def _truncate(settings: Settings, path: Address, held: str, position: Position | None = None) -> None:
    """Leave only the newest rows of a table, under the lease `held`."""
    vacuum.begin_anew(path, position)
    must_hold(settings, held)
    vacuum.truncate(path)


def _delete_leftovers(settings: Settings) -> None:
    oldest = min((other.since for other in activity.others(settings)), default=datetime.now(UTC))
    temporary_files.delete_files(temporary_files.leftover_files(settings, oldest))
    for log in settings.path(".lake/spark").glob("*.log"):
        os.truncate(log, 0)  # its writer appends


def _not_published(settings: Settings, number: int) -> str:
    latest = editions.latest_edition(settings)
    if latest is None or any(get_cut(settings, cut).voids < number for cut in latest.cuts):
        return "no edition without the person has been published yet: lake run"
    return ""


def _rewrite_tables(project: Project, number: int) -> str:
    settings, latest = project.settings, editions.latest_edition(project.settings)
    assert latest is not None
    for declaration in project.tables.values():
        table = project.table(declaration)
        with lease(settings, table.lease):
            head = table.head()
            is_unpublished = bool(settings.publish.groups) and declaration.name not in latest.tables
            if head is None or is_unpublished or head.cut != latest.cut_of(declaration.name):
                return f"{declaration.name} has advanced since edition {latest.number}: lake run"
            # A crash may have come between the commit and its checkpoint.
            if head.purge < number or delta.newest_checkpoint(table.path) != head.version:
                vacuum.begin_anew(table.path, head.position, purge=number)
    write_manifest(
        settings, editions.record_edition(settings, latest.cut, _current_entries(project, latest), seen=project.seen)
    )
    return ""


def _current_entries(project: Project, edition: Edition) -> dict[str, EditionTable]:
    tables: dict[str, EditionTable] = {}
    for cut in {edition.cut_of(name) for name in project.tables}:
        names = [name for name in project.tables if edition.cut_of(name) == cut]
        behind = None if cut == edition.cut else cut
        entries = tables_at_cut(project, get_cut(project.settings, cut), names)
        tables |= {name: replace(entry, cut=behind) for name, entry in entries.items()}
    return tables


def _still_read(settings: Settings, edition: Edition | None) -> str:
    pin = editions.pinned(settings)
    assert edition is not None
    if pin is not None and pin != edition.number:
        return f"readers are pinned to edition {pin}: lake publish --resume"
    for late in consumers.late(settings, datetime.now(UTC), upto=edition.number):
        until = consumers.held_until(settings, late)
        return (
            f"{late} has edition {late.edition} only, and is waited for until {moment(until) if until else 'it comes'}"
        )
    early_readers = [process for process in activity.others(settings) if process.seen < edition.number]
    return f"{early_readers[0]} may still be reading data of the person" if early_readers else ""


def _other_hosts(settings: Settings, number: int) -> str:
    if not activity.has_unlisted(settings):
        return ""
    without = [e for e in editions.kept_editions(settings) if all(get_cut(settings, c).voids >= number for c in e.cuts)]
    until = min(edition.published_at for edition in without) + GRACE
    return f"other hosts may still read data of the person until {moment(until)}" if until > datetime.now(UTC) else ""
