"""A batch: the records of a delivery, parsed, deduplicated, and numbered for the log.

Records that become no event are rejected, unless they are BLANK lines or CONTROL messages. A rejected record gets a row
in quarantine, unless it came from there, and a marker row in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract
from lake.contracts.expressions import identity
from lake.contracts.reasons import BLANK, CONTROL, Reason
from lake.ingest import drift, event_columns, gap_detection, horizon
from lake.ingest.deduplication import RedeliverySearch, RepeatedEvents, no_repeats
from lake.ingest.delivery import POSITION_BITS, Closing, Delivery, QuarantineEvent, records_of
from lake.ingest.drift import Drift
from lake.ingest.event_columns import FACTS
from lake.ingest.field_encryption import BLANKED, blanked_sql, extra_columns_sql, with_subject_keys
from lake.ingest.horizon import Horizon
from lake.kinds.columns import with_one_zero
from lake.lazy import DataFrame, F, SparkSession, pa, pc
from lake.store.log_head import LogHead, greatest
from lake.store.log_rows import BROADCAST, REFUSAL

NO_EVENTS: Final = f"'{BLANK}', '{CONTROL}'"


@dataclass(frozen=True)
class Batch:
    """A delivery parsed under the last of its `contracts`, to follow `head`.

    `tally` counts its records (see `delivery_reader`). Spark caches `parsed` and the frames in `cached` until the block
    of `read_batch` ends.
    """

    spark: SparkSession
    settings: Settings
    contracts: Sequence[Contract]
    head: LogHead
    delivery: Delivery
    now: datetime
    parsed: DataFrame
    tally: pa.Table
    cached: list[DataFrame] = field(default_factory=list)

    @property
    def contract(self) -> Contract:
        return self.contracts[-1]

    @property
    def number(self) -> int:
        return self.head.batch + 1

    @cached_property
    def records(self) -> DataFrame:
        records = self.parsed
        if self.contract.identity == "position":
            records = records.withColumn("_id", F.expr(identity(self.contract)))
        if not self.contract.sealed:
            return records
        return with_subject_keys(self.spark, self.settings, self.contract, records, self.read)

    @cached_property
    def repeated(self) -> RepeatedEvents:
        if not self.valid:
            return no_repeats()
        events = self.records.where("_reason IS NULL")
        search = RedeliverySearch(self.spark, self.settings, self.contracts, events, self.valid, before=self.number)
        rows = search.find()
        if rows.in_memory is None:
            self.cached.append(rows.held.persist())
        return RepeatedEvents(rows)

    def _total(self, count: str) -> int:
        return int(pc.sum(self.tally[count]).as_py() or 0)

    @property
    def read(self) -> int:
        return self._total("read")

    @property
    def control(self) -> int:
        return self._total("control")

    @property
    def valid(self) -> int:
        return self.read - self._total("invalid") - self.control

    def warn_of_numbers(self) -> None:
        """Warn of numbers in text fields: 7 and "7", or 1 and 1.0, may be meant as equal."""
        if count := self._total("numbers"):
            logging.getLogger("lake").warning(
                '%s: %s of %s records have numbers in the text field %s; they are stored as written (set "text_only":'
                " true in the contract to refuse them)",
                self.contract.name,
                count,
                self.read,
                pc.max(self.tally["numbers_in"]).as_py(),
            )

    @cached_property
    def drift(self) -> Drift:
        before = Drift.of(self.head, self.contract)
        if not self.valid:
            return before
        return drift.after(before, self.number, self.contract, self.parsed, self.tally)

    def warn_of_drift(self) -> None:
        before = Drift.of(self.head, self.contract)
        if self.contract.unknown == "warn" and self.drift.records > before.records:
            before = replace(before, records=0)
        for line in self.drift.lines(before):
            logging.getLogger("lake").warning("%s: %s: lake schemas", self.contract.name, line)

    @property
    def watermark(self) -> datetime | None:
        if self.horizon is not None:
            return self.horizon.at
        return greatest(self._latest, self.head.latest)

    @cached_property
    def _latest(self) -> datetime | None:
        if self.contract.clock and self.repeated.num_rows:  # a re-delivery may have another time
            times = self._new_events(self.parsed).agg(F.max("_time").alias("latest")).toArrow()
        else:
            times = self.tally
        latest: datetime | None = pc.max(times["latest"]).as_py()
        return latest

    @cached_property
    def horizon(self) -> Horizon | None:
        declared = self.contract.horizon
        if declared is None:
            return None
        before = Horizon.of(self.head, self.contract)
        if isinstance(self.delivery, Closing):
            return before.without(before.idle(self.delivery.at, declared.idle))
        times = horizon.latest_times(self._new_events(self.parsed), declared)
        punctuated = (
            horizon.latest_times(self.parsed.where(horizon.PUNCTUATED), declared) if declared.punctuation else {}
        )
        return before.after(times, punctuated, greatest(self._latest, *punctuated.values()), self.now)

    @cached_property
    def punctuated_runs(self) -> list[list[Any]]:
        if self.horizon is None or not self.horizon.punctuation or self.contract.complete.number is None:
            return []
        records = self._new_events(self.parsed).unionByName(self.parsed.where(horizon.PUNCTUATED))
        return gap_detection.punctuated_runs(records, self.contract.complete, "_reason IS NOT NULL")

    @cached_property
    def accepted(self) -> dict[int, int]:
        counts = {row["_bucket"]: row["read"] for row in self.tally.to_pylist() if row["_bucket"] is not None}
        for bucket, count in self.repeated.buckets:
            counts[bucket] -= count
        return counts

    @property
    def _new_markers(self) -> int:
        return len(self._quarantine_events) + max(self.rejected - len(self.faults), 0)

    @property
    def num_markers(self) -> int:
        """Number of marker rows in the log, with those of this batch."""
        return int(self.head.position.data.get("refusals", 0)) + self._new_markers

    @property
    def offsets(self) -> dict[int, int]:
        before, rows = self.head.offsets, dict(self.accepted)
        if self._new_markers:
            rows[BROADCAST] = rows.get(BROADCAST, 0) + self._new_markers
        return {bucket: before.get(bucket, 0) + rows.get(bucket, 0) for bucket in sorted({*before, *rows})}

    @cached_property
    def failures(self) -> dict[int, tuple[str, str]]:
        invalid = self.parsed.where(f"_reason <> '{CONTROL}'").select("_position", "_reason", "_detail")
        reasons = {row["_position"]: (row["_reason"], row["_detail"]) for row in invalid.toArrow().to_pylist()}
        return reasons | {
            row["_position"]: (str(Reason.CONFLICT), f"same id as {row['original']}, other content")
            for row in self._conflicts.toArrow().to_pylist()
        }

    @cached_property
    def faults(self) -> list[tuple[str, str]]:
        return list(self.delivery.faults)

    @property
    def rejected(self) -> int:
        if not self.delivery.keeps_rejects:
            return 0
        return self._total("invalid") + self.repeated.conflicts + len(self.faults)

    def rejects(self) -> DataFrame:
        records = self._rejected_records
        if self.repeated.conflicts or self._total("textless"):
            records = records.drop("_raw", FACTS).join(self._texts_of(records), "_position")
        raw, detail = blanked_sql(self.contract, "_raw"), blanked_sql(self.contract, "_detail", f"'{BLANKED}'")
        facts = f"to_json({FACTS})" if self._keeps_facts else "cast(NULL AS string)"
        named = (f"{detail} AS _detail", f"{raw} AS _raw", f"{facts} AS _facts")
        return records.selectExpr("_position", "_reason", "_source", *named).selectExpr(
            f"{self.number}L AS _batch",
            f"{self._quarantine_number_sql} AS _number",
            "_reason AS reason",
            "_detail AS detail",
            "_raw AS raw",
            "_source AS source",
            f"{self._now_sql} AS _ingested_at",
            *(["_facts AS facts"] if self._keeps_facts else []),
        )

    def _texts_of(self, records: DataFrame) -> DataFrame:
        """Parse the files of `records` again: a record without a `_reason` when it was parsed has no text."""
        files = records.selectExpr(f"shiftright(_position, {POSITION_BITS}) AS rank").distinct().toArrow()
        delivery = self.delivery.with_files_of({*files["rank"].to_pylist()})
        texts = records_of(self.spark, self.settings, self.contract, delivery, texts=True)
        return texts.select("_position", "_raw", *([FACTS] if self._keeps_facts else []))

    @property
    def _keeps_facts(self) -> bool:
        return FACTS in self.records.columns and not self.contract.sealed

    @property
    def _quarantine_number_sql(self) -> str:
        return f"cast({len(self.faults)} + row_number() OVER (ORDER BY _position) AS int)"

    @property
    def _rejected_records(self) -> DataFrame:
        invalid = self.records.where(f"_reason NOT IN ({NO_EVENTS})")
        if not self.repeated.conflicts:
            return invalid
        conflicts = F.broadcast(self._conflicts) if self.repeated.rows.in_memory is not None else self._conflicts
        detail = F.expr("concat('same id as ', original, ', other content')")
        conflicting = self.records.join(conflicts, "_position").withColumns(
            {"_reason": F.lit(str(Reason.CONFLICT)), "_detail": detail}
        )
        return invalid.unionByName(conflicting.drop("original"))

    @property
    def _conflicts(self) -> DataFrame:
        return self.repeated.rows.frame(self.spark).where("conflict").select("_position", "original")

    @cached_property
    def _quarantine_events(self) -> list[QuarantineEvent]:
        failed = set[int]() if self.delivery.keeps_rejects else set(self.failures)
        return list(self.delivery.quarantine_events(self.number, failed))

    def _marker_rows(self) -> list[DataFrame]:
        frames = []
        if self._quarantine_events:
            frames.append(event_columns.marker_rows(self.spark, self.number, self._quarantine_events))
        if self.rejected > len(self.faults):
            numbered = self._rejected_records.withColumn("_number", F.expr(self._quarantine_number_sql))
            frames.append(event_columns.rejection_markers(numbered, self.contract, self.number))
        return frames

    def events(self) -> DataFrame:
        rows, markers = self._new_events(self.records), self._marker_rows()
        for frame in markers:
            rows = rows.unionByName(frame, allowMissingColumns=True)
        first = ", ".join(f"{bucket}, {offset}L" for bucket, offset in self.head.offsets.items())
        base = f"coalesce(element_at(map({first}), _bucket), 0L)" if first else "0L"
        watermark = (
            f"timestamp '{self.head.watermark.isoformat()}'" if self.head.watermark else "cast(NULL AS timestamp)"
        )
        return with_one_zero(rows).selectExpr(
            f"{self.number}L AS _batch",
            "_position AS _arrival",
            "_bucket",
            f"{base} + row_number() OVER (PARTITION BY _bucket ORDER BY _position) - 1 AS _offset",
            "_id",
            "_time",
            f"{watermark} AS _watermark",
            f"{self._now_sql} AS _ingested_at",
            "_source",
            f"{len(self.contracts)} AS _version",
            *extra_columns_sql(self.contract),
            *([REFUSAL] if markers else []),
            *evolution.physical_columns_sql(self.contracts),
        )

    def _new_events(self, records: DataFrame) -> DataFrame:
        accepted = records.where("_reason IS NULL")
        if not self.repeated.num_rows:
            return accepted
        return accepted.join(self.repeated.rows.frame(self.spark).select("_position"), "_position", "left_anti")

    @property
    def _now_sql(self) -> str:
        return f"timestamp '{self.now.isoformat()}'"
