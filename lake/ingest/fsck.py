"""Report on a log, and check of its consistency."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract, load_contract
from lake.errors import DeclarationError, LakeError, StorageError, Unavailable
from lake.ingest.delivery import Closing
from lake.ingest.files import mark_of
from lake.ingest.gap_detection import field_text_sql
from lake.ingest.horizon import Horizon
from lake.sources.describe import describe
from lake.store import archive_tier, delta, duckdb_tables, quarantine, voids
from lake.store.archive_tier import ArchivedPart
from lake.store.log import Log
from lake.store.log_head import LogHead, greatest
from lake.store.log_rows import REFUSAL
from lake.store.proof import chain
from lake.store.recovery import lost_batches
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.view import view
from lake.store.voids import Void, not_voided_sql
from lake.store.warehouse import Warehouse

# Offsets are sorted, not counted as distinct: DuckDB keeps distinct values in memory, and spills a sort.
HOLES: Final = """
    SELECT _bucket AS bucket, count(*) AS events, count(*) FILTER (_offset IS DISTINCT FROM before) AS offsets,
        min(_offset) AS first, max(_offset) AS last
    FROM (SELECT _bucket, _offset, lag(_offset) OVER (PARTITION BY _bucket ORDER BY _offset) AS before FROM t)
    GROUP BY _bucket ORDER BY _bucket"""
BATCHES: Final = """
    SELECT _batch AS batch, count(*) FILTER ({events}) AS events,
        max(_time)::TIMESTAMPTZ AS latest, min(_watermark)::TIMESTAMPTZ AS watermark,
        count(DISTINCT coalesce(_watermark::VARCHAR, '')) AS watermarks
    FROM t GROUP BY _batch ORDER BY _batch"""
REPEATED_IDS: Final = """
    SELECT _bucket AS bucket, _id AS id, count(*) AS times FROM t WHERE {kept} AND hash(_id) % {parts} = {part}
    GROUP BY _bucket, _id HAVING times > 1 ORDER BY _bucket, _id LIMIT 20"""
IDS_AT_ONCE = 2_000_000
"""Events whose ids are in memory at once: about 128 MB."""
DISORDER: Final = """
    SELECT _bucket AS bucket, _offset AS "offset" FROM (
        SELECT _bucket, _offset, (_batch, _arrival) < lag((_batch, _arrival)) OVER (
            PARTITION BY _bucket ORDER BY _offset
        ) AS back FROM t
    ) WHERE back ORDER BY ALL LIMIT 20"""
PRODUCERS: Final = """
    SELECT _batch AS batch, {producer} AS producer, max(_time)::TIMESTAMPTZ AS latest
    FROM t {events} AND _batch BETWEEN $1 AND $2 AND {producer} IS NOT NULL GROUP BY ALL"""
BATCHES_AT_ONCE: Final = 20
"""Batches whose producers are in memory at once: a batch may have many."""
ARRIVALS: Final = """
    SELECT _batch AS batch, count(*) AS events, count(*) FILTER (_arrival <> coalesce(before, -1)) AS arrivals
    FROM (SELECT _batch, _arrival, lag(_arrival) OVER (PARTITION BY _batch ORDER BY _arrival) AS before FROM t)
    GROUP BY _batch HAVING arrivals <> events ORDER BY _batch LIMIT 20"""

DIGEST: Final = re.compile(r"(?:(?P<stream>[^@:]+)@(?P<batch>[0-9]{1,18}):)?(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True)
class LogReport:
    """`batches`, newest first; open `producers` (producer, latest, heard), furthest behind first."""

    stream: str
    batches: list[LogHead]
    voids: list[Void]
    producers: list[dict[str, Any]]
    archived: list[ArchivedPart]

    @property
    def head(self) -> LogHead | None:
        return self.batches[0] if self.batches else None


def input_text(batch: LogHead) -> str:
    if delivery := batch.delivery:
        text = f"{delivery.source}, delivery {delivery.number}: {describe(delivery.progress)}"
        return text.removesuffix(": ")
    names = [file["path"] for file in batch.files]
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})" if names else ""


@view()
def report(settings: Settings, stream: str) -> LogReport:
    """Report on the log of `stream`. Raises DeclarationError for an unknown one."""
    contract, stored_log = load_contract(settings, stream), Log(settings, stream)
    heads = stored_log.heads()
    still_open = Horizon.of(heads[0], contract).producers if heads and contract.horizon else {}
    producers = [{"producer": name, "latest": p.latest, "heard": p.heard} for name, p in still_open.items()]
    producers.sort(key=lambda row: (row["latest"], row["producer"]))
    return LogReport(
        stream, heads, voids.all_voids(settings, stream), producers, archive_tier.parts_of(stored_log.path)
    )


@dataclass(frozen=True)
class LogCheck:
    faults: list[str]
    batches: int
    since: int | None = None


@view()
def check_log(settings: Settings, stream: str, *, since: str = "") -> LogCheck:
    """Check that the log of `stream` is consistent.

    Raises DeclarationError if `since` is malformed or of another stream or batch, Unavailable if a store is down.

    - Batches are numbered without gaps; so are offsets by bucket, in the order of batches and arrival.
    - Each event of a batch has an arrival of its own.
    - Ids are unique, except for voided events. No table has read a batch that is lost.
    - Each `_watermark` is the greatest earlier event time, or the horizon of the producers.
    - Rows in the log, in quarantine and of re-deliveries match the counts of each batch:
      read = accepted + duplicates + quarantined + control.
    - Rows match their fingerprints. The log continues that of the digest `since`; see `head_of`.
    """
    load_contract(settings, stream)
    lost = lost_batches(settings, stream)
    log_report = report(settings, stream)
    path, heads = Log(settings, stream).path, log_report.batches[::-1]
    since_batch, broken = _find_digest(heads, _parse_digest(stream, since)) if since else (None, [])
    faults = [*(damage.fault.what for damage in lost), *broken, *chain.breaks(heads)]
    try:
        faults += [*chain.changes(path, heads), *_row_faults(settings, log_report)]
    except Unavailable:
        raise
    except LakeError as error:
        faults.append(f"{error.what}: {error.where}")
    return LogCheck(faults, len(heads), since_batch)


def head_of(settings: Settings, stream: str) -> str:
    """Return `stream@batch:digest`. Raises StorageError before the first batch."""
    load_contract(settings, stream)
    head = Log(settings, stream).head()
    if not head.batch:
        where = str(Log(settings, stream).path)
        raise StorageError(f"the log of {stream} has no batch yet", where=where, fix=f"lake ingest {stream}")
    return f"{stream}@{head.batch}:{head.content['digest']}"


@dataclass(frozen=True)
class _Digest:
    """A digest as `head_of` prints it; without its `batch` if only the hexadecimal digits are given."""

    text: str
    batch: int | None = None


def _parse_digest(stream: str, text: str) -> _Digest:
    fix = f"give what lake log {stream} --head printed: {stream}@BATCH:DIGEST, or the 64 digits of DIGEST alone"
    parts = DIGEST.fullmatch(text.strip())
    if parts is None:
        raise DeclarationError(f"--since {text!r} is not a digest", fix=fix)
    if parts["stream"] not in {None, stream}:
        raise DeclarationError(f"--since is a digest of {parts['stream']}, not of {stream}", fix=fix)
    return _Digest(parts["digest"], int(parts["batch"]) if parts["batch"] else None)


def _find_digest(heads: Sequence[LogHead], wanted: _Digest) -> tuple[int | None, list[str]]:
    for head in heads:
        before_reread = head.content.get("was") or {}
        if wanted.text not in {head.content["digest"], before_reread.get("digest")}:
            continue
        if wanted.batch not in {None, head.batch}:
            what = f"--since names batch {wanted.batch}, but its digest is of batch {head.batch}"
            raise DeclarationError(what, fix="give the whole of what lake log --head printed, unchanged")
        if head.content["digest"] == wanted.text or chain.same_in_clear(before_reread, head.content):
            return head.batch, []
        return head.batch, [f"batch {head.batch} was read again, and its rows differ from those of the digest"]
    return None, [f"no batch has the digest {wanted.text}: the log is not the one that the digest was taken of"]


def _row_faults(settings: Settings, log_report: LogReport) -> list[str]:
    path = Log(settings, log_report.stream).path
    upto = log_report.head.batch if log_report.head else 0
    buckets = duckdb_tables.rows(path, HOLES)
    has_refusals = Log(settings, log_report.stream).has_refusals(upto=upto)
    events = f"WHERE {REFUSAL} IS NULL" if has_refusals else "WHERE true"
    batches = {row["batch"]: row for row in duckdb_tables.rows(path, BATCHES.format(events=events))}
    faults = [*_offset_faults(log_report.head, buckets), *_batch_faults(log_report.batches, batches)]
    faults += _watermark_faults(settings, log_report.batches[::-1], batches, events)
    faults += [
        f"id {row['id']} occurs {row['times']} times in bucket {row['bucket']}"
        for row in _repeated_ids(path, buckets, not_voided_sql(log_report.voids))
    ]
    back = duckdb_tables.rows(path, DISORDER)
    faults += [f"bucket {row['bucket']}: offset {row['offset']} came before its predecessor" for row in back]
    faults += [
        f"batch {row['batch']}: {row['events']} events, {row['arrivals']} arrivals"
        for row in duckdb_tables.rows(path, ARRIVALS)
    ]
    return [*faults, *_count_faults(settings, log_report.stream, log_report.batches[::-1])]


def _count_faults(settings: Settings, stream: str, heads: Sequence[LogHead]) -> Iterator[str]:
    upto = heads[-1].batch if heads else 0
    rejected, redelivered = (quarantine.counts_by_batch(at, upto=upto) for at in Warehouse(settings).beside(stream))
    tables = (("quarantined", rejected, "in quarantine"), ("duplicates", redelivered, "among the re-deliveries"))
    for head in heads:
        for name, rows, where in tables:
            if (counted := head.counts[name]) != (stored := rows.get(head.batch, 0)):
                yield f"batch {head.batch}: {counted} {name}, {stored} {where}"


def _repeated_ids(path: Address, buckets: list[dict[str, Any]], kept: str) -> Iterator[dict[str, Any]]:
    if sum(row["events"] for row in buckets) <= IDS_AT_ONCE:
        yield from duckdb_tables.rows(path, REPEATED_IDS.format(kept=kept, parts=1, part=0))
        return
    for row in buckets:
        parts, scan = 1 + row["events"] // IDS_AT_ONCE, Scan(path, bounds={"_bucket": (row["bucket"],) * 2})
        for part in range(parts):
            yield from scan.select(REPEATED_IDS.format(kept=kept, parts=parts, part=part))


def _offset_faults(head: LogHead | None, buckets: list[dict[str, Any]]) -> Iterator[str]:
    recorded = {bucket: offset for bucket, offset in (head.offsets if head else {}).items() if offset}
    stored = {row["bucket"]: row["last"] + 1 for row in buckets}
    if recorded != stored:
        yield f"the head says next offsets {recorded}, the rows say {stored}"
    for row in buckets:
        if row["first"] != 0 or row["events"] != row["last"] + 1 or row["offsets"] != row["events"]:
            yield (
                f"bucket {row['bucket']}: {row['events']} events, {row['offsets']} offsets"
                f" from {row['first']} to {row['last']}"
            )


def _batch_faults(heads: list[LogHead], rows: Mapping[int, dict[str, Any]]) -> Iterator[str]:
    for number, head in enumerate(reversed(heads), 1):
        row = rows.get(head.batch, {"events": 0})
        counts = head.counts
        if head.batch != number:
            yield f"expected batch {number}, found batch {head.batch}"
        if counts["read"] != sum(count for name, count in counts.items() if name != "read"):
            yield f"batch {head.batch}: read is not accepted + duplicates + quarantined + control: {dict(counts)}"
        if row["events"] != counts["accepted"]:
            yield f"batch {head.batch}: {counts['accepted']} accepted, {row['events']} in the log"
    for number in sorted(set(rows) - {head.batch for head in heads}):
        yield f"batch {number} has {rows[number]['events']} rows but no head"


def _watermark_faults(
    settings: Settings, heads: Sequence[LogHead], rows: Mapping[int, dict[str, Any]], events: str
) -> Iterator[str]:
    has_producers = any(head.horizon for head in heads)
    contracts = Log(settings, heads[-1].stream).contracts(heads[-1]) if has_producers else ()
    reached = watermark = None
    before = LogHead("", delta.start(""))
    for head, times in _with_producers(settings, heads, contracts, events):
        row = rows.get(head.batch, {"events": 0})
        if row["events"] and (row["watermarks"] != 1 or row["watermark"] != watermark):
            yield f"batch {head.batch}: watermark {row['watermark']}, expected {watermark}"
        latest = row["latest"] if row["events"] else None
        if head.horizon and head.files:
            contract = contracts[head.contract - 1]
            previous = replace(Horizon.of(before, contract), at=watermark, latest=reached)
            horizon = _expected_horizon(previous, head, contract, times, latest)
            reached, watermark = horizon.latest, horizon.at
            if horizon.as_json != head.horizon:
                yield f"batch {head.batch}: producer state in the head disagrees with its rows and closings"
        elif not head.horizon:
            reached = watermark = greatest(latest, reached)
        if head.watermark != watermark:
            yield f"batch {head.batch}: the head says watermark {head.watermark}, the rows say {watermark}"
        before = head


def _expected_horizon(
    previous: Horizon, head: LogHead, contract: Contract, times: Mapping[str, datetime], latest: datetime | None
) -> Horizon:
    mark, declared = mark_of(head.files[0]), contract.horizon
    if closing := Closing.of(mark):
        return previous.without(previous.idle(closing.at, declared.idle if declared else None))
    punctuated = Horizon.of(head, contract).punctuation
    return previous.after(times, punctuated, greatest(latest, *punctuated.values()), datetime.fromisoformat(head.at))


def _with_producers(
    settings: Settings, heads: Sequence[LogHead], contracts: tuple[Contract, ...], events: str
) -> Iterator[tuple[LogHead, Mapping[str, datetime]]]:
    """Yield each head with the greatest event time of each producer in its batch."""
    for first in range(0, len(heads), BATCHES_AT_ONCE):
        part = heads[first : first + BATCHES_AT_ONCE]
        path = Log(settings, part[0].stream).path
        times: dict[int, dict[str, datetime]] = {head.batch: {} for head in part}
        for field in {head.horizon["producer"] for head in part if head.horizon}:
            named = [head for head in part if head.horizon.get("producer") == field]
            producer = field_text_sql(contracts[: named[-1].contract], field, {*Scan(path).schema().names})
            query = PRODUCERS.format(producer=producer, events=events)
            for row in duckdb_tables.rows(path, query, named[0].batch, named[-1].batch):
                times[row["batch"]][row["producer"]] = row["latest"]
        yield from ((head, times[head.batch]) for head in part)
