"""The quarantine: its records, and their replay into the log."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cache, partial
from itertools import chain, groupby, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract, load_contract, streams_of
from lake.contracts.declared_text import declared_text, json_text, parse_json
from lake.contracts.reasons import Reason
from lake.errors import DeclarationError
from lake.ingest import landing
from lake.ingest.files import fact_fields
from lake.lazy import SparkSession
from lake.sources.declared import kinds, source_kind
from lake.store import quarantine
from lake.store.ledger import runs
from lake.store.log import Log
from lake.store.quarantine import Rejected
from lake.text import counted, some_of

if TYPE_CHECKING:
    from lake.ingest.batch_counts import BatchCounts
    from lake.ingest.delivery import ReplayDelivery
    from lake.store.log_head import LogHead

TRANSACTION: Final = re.compile(r"(?P<name>(?P<source>[a-z][a-z0-9_]*):.*)[:#][0-9]+")
REPAIRS: Final = "edit `raw` in what `lake quarantine list --json` prints, and leave the rest unchanged"
REPLAY: Final = "lake quarantine list --json, correct `raw`, lake quarantine replay STREAM FILE"
FIXES: Final[Mapping[str, str]] = {
    Reason.OVERSIZED: "raise record_bytes in [tool.lake] and land the record again: only its beginning is kept here",
    Reason.UNPARSEABLE: f"correct the record: valid JSON or CSV, in UTF-8, each field once; {REPLAY}",
    Reason.MISSING: f"have the producer send it, or give it a default in the contract; {REPLAY}",
    Reason.UNKNOWN: f"declare the field in the contract, or have the producer leave it out; {REPLAY}",
    Reason.WRONG_TYPE: f"correct the value, or have the contract widen the field or say how it is written; {REPLAY}",
    Reason.NOT_IN_ENUM: f"correct the value, or add the symbol to the contract; {REPLAY}",
    Reason.OUT_OF_BOUNDS: f"correct the value, or change the bound in the contract; {REPLAY}",
    Reason.NULL_KEY: f"have the producer send the key; {REPLAY}",
    Reason.NULL_SUBJECT: f"have the producer send the subject; {REPLAY}",
    Reason.EXPRESSION: "correct the value; time and broadcast stay as they are while the stream has a log, a"
    f" punctuation may be changed to allow for it, as try_divide does; {REPLAY}",
    Reason.NULL_TIME: f"have the producer send the event time; {REPLAY}",
    Reason.AHEAD: f"correct the producer's clock, or raise max_ahead in the contract; {REPLAY}",
    Reason.TOO_MANY_PRODUCERS: "have the contract's `horizon` name a field with fewer values, or raise its `limit`, or"
    " give it an `idle`; then lake quarantine replay STREAM",
    Reason.CONFLICT: 'the first record stays; if they differ only in transport, set "transport": true for those fields '
    "in the contract and replay, else have this one sent under its own id",
    Reason.FILE: "correct the file, or say in the contract's `csv` how it is written, and land it again: a file with"
    " another time of change is read again",
    Reason.ENVELOPE: f"send Debezium change messages, with op and row; {REPLAY}",
    Reason.OLDER_VERSION: f"write the values as the newest version means them; {REPLAY}",
    Reason.OTHER_TABLE: "route the table's messages to its own stream, or correct `table` in the contract",
}
REPLAY_ROWS: Final = 10_000  # records in one batch of a replay: the commit lists their marks


def quarantined_records(settings: Settings, streams: Iterable[str] = (), *, texts: bool = True) -> Iterator[Rejected]:
    """Yield the quarantined records that were not ingested since, in order. Without `texts`, `raw` is empty."""
    chosen = [load_contract(settings, stream).name for stream in streams] or streams_of(settings)
    return (row for stream in chosen for row in _unresolved(settings, stream, texts=texts))


def _unresolved(
    settings: Settings, stream: str, *, after: tuple[int, int] = (0, 0), texts: bool = False
) -> Iterator[Rejected]:
    """Yield a stream's records after (batch, number) `after`, as of the first call."""
    log = Log(settings, stream)
    rows = quarantine.rejected(settings, stream, upto=log.head().batch, after=after, texts=texts)
    if (first := next(rows, None)) is None:
        return
    ingested = {name for name, *_ in landing.ingested_marks(log)}
    yield from (row for row in chain([first], rows) if row.mark not in ingested)


def incomplete_transactions(settings: Settings, refused: Iterable[Rejected]) -> list[str]:
    """Return a line that names sources' transactions with rejected records, if any.

    A record's `source` is a transaction and an ordinal, unless its kind of source has no transactions.
    """
    declared = {name: source_kind(kind, str(settings.sources)).transactional for name, kind in kinds(settings).items()}

    @cache
    def ingested_sources(stream: str) -> Collection[str]:
        return Log(settings, stream).head().sources

    def is_transaction(stream: str, source: str) -> bool:
        return declared[source] if source in declared else source in ingested_sources(stream)

    matches = ((row.stream, TRANSACTION.fullmatch(row.source)) for row in refused)
    names = sorted({match["name"] for stream, match in matches if match and is_transaction(stream, match["source"])})
    count = counted(len(names), "transaction")
    return [f"in the logs without these records: {count}: {some_of(names)}"] if names else []


def by_reason(rows: Iterable[Rejected]) -> list[dict[str, Any]]:
    """Count by stream and reason: stream, reason, records, example, fix."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        group = {"stream": row.stream, "reason": row.reason, "records": 0, "example": row.detail}
        group["fix"] = FIXES.get(row.reason, "")
        groups.setdefault((row.stream, row.reason), group)["records"] += 1
    return [groups[key] for key in sorted(groups)]


def read_repairs(file: Path) -> list[Mapping[str, Any]]:
    """Read records as `lake quarantine list --json` prints them, or JSON Lines, with `raw` corrected.

    Raises DeclarationError with the malformed line.
    """
    where = str(file)
    text = declared_text(file, "the repairs", where=where, fix=REPAIRS)
    try:
        whole = parse_json(text, where=where)
        records = whole if isinstance(whole, list) else [whole]
    except DeclarationError:
        lines = ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())
        records = [parse_json(line, where=where, fix=REPAIRS, line=number) for number, line in lines]
    if not text.strip():
        raise DeclarationError("the file of repairs is empty", where=where, fix=REPAIRS)
    wanted = {"stream": str, "batch": int, "number": int, "raw": str}
    for record in records:
        lacking = [
            k for k, kind in wanted.items() if not isinstance(record, dict) or not isinstance(record.get(k), kind)
        ]
        if lacking:
            what = f"a record lacks {', '.join(lacking)}: {json_text(record)[:200]}"
            raise DeclarationError(what, where=where, fix=REPAIRS)
    return records


def replay(  # noqa: PLR0913  which records, and a callback
    settings: Settings,
    spark: Callable[[], SparkSession],
    *,
    stream: str | None = None,
    repairs: Iterable[Mapping[str, Any]] | None = None,
    now: datetime | None = None,
    on_failure: Callable[[Rejected], None] = lambda _: None,
) -> dict[str, BatchCounts]:
    """Replay quarantined records, or only `repairs`. Return counts by stream.

    Accepted records are appended exactly once; others stay, and `on_failure` gets their current fault. Raises
    DeclarationError if a repaired record is not in quarantine.
    """
    rows = quarantined_records(settings, [] if stream is None else [stream], texts=False)
    chosen = (row for row in rows if row.reason != Reason.FILE) if repairs is None else _repaired(rows, repairs)
    done = {}
    for name, own_rows in groupby(chosen, lambda row: row.stream):
        replaying = _Replaying(settings, load_contract(settings, name), own_rows, repairs is not None)
        with runs.recording(settings, "replay", name) as counts:
            done[name] = replaying.run(spark, now)
            counts.update(asdict(done[name]))
        for row in replaying.failed.values():
            on_failure(row)
    return done


def accept(settings: Settings, spark: Callable[[], SparkSession], stream: str, *, reason: str) -> BatchCounts:
    """Record that readers need not wait for rejected records. Raises DeclarationError if there is no new one."""
    from lake.ingest.append import append
    from lake.ingest.delivery import Acceptance

    contract = load_contract(settings, stream)
    if not reason.strip():
        raise DeclarationError("an acceptance needs a reason", fix='--reason "why these records may be left out"')

    def deliver(head: LogHead) -> Acceptance | None:
        if all(row.batch <= head.accepted_upto for row in _unresolved(settings, stream)):
            raise DeclarationError(f"{stream} has refused no records since the last acceptance", fix="nothing to do")
        return Acceptance(reason)

    with runs.recording(settings, "accept", stream, but=DeclarationError) as counts:
        done = append(settings, spark, contract, deliver)
        counts["batch"] = done.batch
    return done


@dataclass
class _Replaying:
    """Replay of one stream's `rows`: repaired records, or records whose texts are read from quarantine in parts."""

    settings: Settings
    contract: Contract
    rows: Iterator[Rejected]
    is_repaired: bool
    failed: dict[str, Rejected] = field(default_factory=dict)

    def run(self, spark: Callable[[], SparkSession], now: datetime | None) -> BatchCounts:
        from lake.ingest.append import append
        from lake.ingest.batch_counts import BatchCounts

        total = BatchCounts(Log(self.settings, self.contract.name).head().batch)
        rows = self._without_upcast() if self.contract.upcast and not self.is_repaired else self.rows
        while part := tuple(islice(rows, REPLAY_ROWS)):
            counts = append(self.settings, spark, self.contract, partial(self._deliver, part), now=now)
            total = counts.after(total)
        return total

    def _without_upcast(self) -> Iterator[Rejected]:
        """Yield rows under versions without an upcast. A text is parsed under the newest version, so others fail."""
        log = Log(self.settings, self.contract.name)
        contracts = evolution.with_current(log.contracts(log.head()), self.contract)
        upcast = {version for step in evolution.steps_of_log(contracts) for version in step.versions}
        version_of = {head.batch: head.contract for head in log.heads()} if upcast else {}
        for row in self.rows:
            if (version := version_of.get(row.batch)) in upcast:
                why = f"it came under version {version} of the contract, whose events are upcast"
                self.failed[row.mark] = replace(row, reason=Reason.OLDER_VERSION, detail=why)
            else:
                yield row

    def _deliver(self, part: tuple[Rejected, ...], _: LogHead) -> ReplayDelivery | None:
        """Return those of `part` still in quarantine. Texts are read under the lease: an erasure may blank some."""
        from lake.ingest.delivery import ReplayDelivery

        batch, number = part[0].place
        rows = _unresolved(self.settings, self.contract.name, after=(batch, number - 1), texts=not self.is_repaired)
        waiting = {row.mark: row for row in takewhile(lambda row: row.place <= part[-1].place, rows)}
        chosen = tuple(row if self.is_repaired else waiting[row.mark] for row in part if row.mark in waiting)
        batches = {row.batch for row in chosen} if fact_fields(self.contract) else set[int]()
        times = landing.mtimes(self.settings, self.contract.name, batches) if batches else {}
        return ReplayDelivery(self.contract, chosen, self.failed, times) if chosen else None


def _repaired(rows: Iterable[Rejected], repairs: Iterable[Mapping[str, Any]]) -> list[Rejected]:
    raws: dict[tuple[str, int, int], str] = {}
    for repair in repairs:
        stream, batch, number = place = repair["stream"], repair["batch"], repair["number"]
        if raws.setdefault(place, repair["raw"]) != repair["raw"]:
            raise DeclarationError(
                f"record {number} of batch {batch} of {stream} is repaired in two ways", fix="keep one of the repairs"
            )
    found = {(row.stream, *row.place): row for row in rows if (row.stream, *row.place) in raws}
    for stream, batch, number in raws:
        if (stream, batch, number) not in found:
            raise DeclarationError(
                f"record {number} of batch {batch} of {stream} is not in quarantine",
                fix="`lake quarantine list` shows those that are",
            )
    return [replace(row, raw=raws[place]) for place, row in found.items()]
