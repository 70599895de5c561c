"""What a log holds, and the proof that it is consistent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.errors import LakeError
from lake.ingest.recovery import lacking
from lake.store import chain, delta, log, voids
from lake.store.log import Log, LogHead
from lake.store.recovery import lost_batches
from lake.store.voids import Void

HOLES: Final = """
    SELECT _bucket AS bucket, count(*) AS events, count(DISTINCT _offset) AS offsets,
        min(_offset) AS first, max(_offset) AS last
    FROM t GROUP BY _bucket ORDER BY _bucket"""
BATCHES: Final = """
    SELECT _batch AS batch, count(*) FILTER ({events}) AS events,
        max(_time)::TIMESTAMPTZ AS latest, min(_watermark)::TIMESTAMPTZ AS watermark,
        count(DISTINCT coalesce(_watermark::VARCHAR, '')) AS watermarks
    FROM t GROUP BY _batch ORDER BY _batch"""
TWICE: Final = """
    SELECT _bucket AS bucket, _id AS id, count(*) AS times FROM t
    GROUP BY _bucket, _id HAVING count(*) > 1 ORDER BY _bucket, _id LIMIT 20"""
DISORDER: Final = """
    SELECT _bucket AS bucket, _offset AS "offset" FROM (
        SELECT _bucket, _offset, (_batch, {arrival}) < lag((_batch, {arrival})) OVER (
            PARTITION BY _bucket ORDER BY _offset
        ) AS back FROM t
    ) WHERE back ORDER BY ALL LIMIT 20"""
TOGETHER: Final = """
    SELECT _batch AS batch, count(*) AS events, count(DISTINCT _arrival) AS arrivals FROM t
    GROUP BY _batch HAVING arrivals NOT IN (0, events) ORDER BY _batch LIMIT 20"""


@dataclass(frozen=True)
class LogReport:
    """A log at a glance: its batches (newest first), where it stands, and what was voided."""

    stream: str
    batches: list[LogHead]
    voids: list[Void]

    @property
    def head(self) -> LogHead | None:
        return self.batches[0] if self.batches else None


def report(settings: Settings, stream: str) -> LogReport:
    """What the log of `stream` holds. Raises DeclarationError for an unknown stream."""
    load_contract(settings, stream)
    return LogReport(stream, Log(settings, stream).heads(), voids.all_voids(settings, stream))


@dataclass(frozen=True)
class Checked:
    """What a check of a log found: `faults`, and of which batches the content was `proved`; of the others none can be.

    `since` is the batch that a digest was of.
    """

    faults: list[str]
    proved: int
    batches: int
    since: int | None = None


def check(settings: Settings, stream: str) -> list[str]:
    """The faults in the log of `stream`; [] where there are none. See `checked`."""
    return checked(settings, stream).faults


def checked(settings: Settings, stream: str, *, since: str = "") -> Checked:
    """Whether the log of `stream` is consistent.

    Batches are numbered without gaps; offsets in each bucket run from 0 without gaps, in the order of the batches and
    of arrival; of a batch all events have an arrival of their own, or none has; ids are unique; nothing remembers more
    batches than there are; each batch's `_watermark` is the greatest event time before it; for each batch
    read = accepted + duplicates + quarantined + control, with as many rows in the log, in quarantine and among the
    re-deliveries as it says; its rows are those that were written, by their fingerprints; and, with the digest that
    `head_of` gave once, the log goes on from what it was `since` then.
    """
    log_report = report(settings, stream)
    path, heads = Log(settings, stream).path, log_report.batches[::-1]
    faults = [damage.fault.what for damage in lost_batches(settings, stream)]
    then, broken = _since(heads, since) if since else (None, [])
    faults += [*broken, *chain.breaks(heads)]
    try:
        faults += [*chain.changes(path, heads), *_numbers(settings, log_report)]
    except LakeError as error:
        faults.append(f"{error.what}: {error.where}")
    return Checked(faults, sum(bool(head.content) for head in heads), len(heads), then)


def head_of(settings: Settings, stream: str) -> str:
    """`stream@batch:digest`, to be kept elsewhere. Raises LakeError where the newest batch has none yet."""
    load_contract(settings, stream)
    head = Log(settings, stream).head()
    if not head.content:
        raise LakeError(
            f"the content of {stream} has no recorded fingerprint up to batch {head.batch}",
            where=str(Log(settings, stream).path),
            fix="the next batch records one",
        )
    return f"{stream}@{head.batch}:{head.content['digest']}"


def _since(heads: Sequence[LogHead], since: str) -> tuple[int | None, list[str]]:
    """The batch of `heads` that a digest is of, as `head_of` gives it or alone; else what is wrong with them."""
    wanted = since.rpartition(":")[2].strip()
    for head in heads:
        if head.content.get("digest") == wanted:
            return head.batch, []
        was = head.content.get("was") or {}
        if was.get("digest") == wanted:
            same = chain.same_in_clear(was, head.content)
            what = f"batch {head.batch} was read again, and its rows differ from those of the digest"
            return head.batch, [] if same else [what]
    return None, [f"no batch has the digest {wanted}: the log is not the one that the digest was taken of"]


def _numbers(settings: Settings, log_report: LogReport) -> list[str]:
    """What is wrong with the numbers of batches and offsets, ids, watermarks, counts."""
    path = Log(settings, log_report.stream).path
    upto = log_report.head.batch if log_report.head else 0
    buckets = delta.rows(path, HOLES)
    events = (
        f"WHERE {log.REFUSAL} IS NULL" if Log(settings, log_report.stream).has_refusals(upto=upto) else "WHERE true"
    )
    batches = {row["batch"]: row for row in delta.rows(path, BATCHES.format(events=events))}
    faults = [*_offsets(log_report.head, buckets), *_batches(log_report.batches, batches)]
    faults += [
        f"id {row['id']} occurs {row['times']} times in bucket {row['bucket']}" for row in delta.rows(path, TWICE)
    ]
    ordered = any(column["column_name"] == "_arrival" for column in delta.rows(path, "DESCRIBE t"))
    back = delta.rows(path, DISORDER.format(arrival="_arrival" if ordered else "NULL"))
    faults += [f"bucket {row['bucket']}: offset {row['offset']} came before its predecessor" for row in back]
    faults += [
        f"batch {row['batch']}: {row['events']} events, {row['arrivals']} arrivals"
        for row in (delta.rows(path, TOGETHER) if ordered else ())
    ]
    return faults + [fault for _, fault in lacking(settings, log_report.stream, log_report.batches)]


def _offsets(head: LogHead | None, buckets: list[dict[str, Any]]) -> Iterator[str]:
    said = {bucket: offset for bucket, offset in (head.offsets if head else {}).items() if offset}
    stored = {row["bucket"]: row["last"] + 1 for row in buckets}
    if said != stored:
        yield f"the head says next offsets {said}, the rows say {stored}"
    for row in buckets:
        if row["first"] != 0 or row["events"] != row["last"] + 1 or row["offsets"] != row["events"]:
            yield (
                f"bucket {row['bucket']}: {row['events']} events, {row['offsets']} offsets"
                f" from {row['first']} to {row['last']}"
            )


def _batches(heads: list[LogHead], rows: Mapping[int, dict[str, Any]]) -> Iterator[str]:
    watermark = None
    for number, head in enumerate(reversed(heads), 1):
        row = rows.get(head.batch, {"events": 0})
        counts = head.counts
        if head.batch != number:
            yield f"batch {head.batch} is in the place of batch {number}"
        if counts["read"] != sum(count for name, count in counts.items() if name != "read"):
            yield f"batch {head.batch}: read is not accepted + duplicates + quarantined + control: {dict(counts)}"
        if row["events"] != counts["accepted"]:
            yield f"batch {head.batch}: {counts['accepted']} accepted, {row['events']} in the log"
        if row["events"] and (row["watermarks"] != 1 or row["watermark"] != watermark):
            yield f"batch {head.batch}: watermark {row['watermark']}, expected {watermark}"
        if row["events"] and row["latest"] is not None:
            watermark = max(row["latest"], watermark) if watermark else row["latest"]
        if head.watermark != watermark:
            yield f"batch {head.batch}: the head says watermark {head.watermark}, the rows say {watermark}"
    for number in sorted(set(rows) - {head.batch for head in heads}):
        yield f"batch {number} has {rows[number]['events']} rows but no head"
