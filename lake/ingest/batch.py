"""One batch in the making: parsed and kept, placed in its sources, freed of re-deliveries, numbered."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import cost
from lake.config import Settings
from lake.contracts import evolution
from lake.contracts.contract import Contract
from lake.contracts.event_id import identity
from lake.contracts.reasons import Reason
from lake.errors import ContractError, DeclarationError, LakeError, Unavailable
from lake.ingest import attempts, producers, refusals
from lake.ingest.deduplication import NONE, Search, Verdict
from lake.ingest.delivery import LINE_BITS, RECORDS, Closing, Delivery, QuarantineEvent
from lake.ingest.horizon import Horizon
from lake.ingest.personal import BLANKED, extras, sealable, shown
from lake.ingest.records import file_facts, quick_parse
from lake.ingest.records.debezium import CONTROL
from lake.ingest.records.file_facts import SOURCE
from lake.ingest.records.parse import BLANK, parse
from lake.session import Gone, gone, job_failure, raise_if_gone
from lake.store.log import BROADCAST, REFUSAL, LogHead
from lake.store.scan import to_frame

NO_EVENTS: Final = f"'{BLANK}', '{CONTROL}'"  # nothing is wrong with them
REJECT: Final = ("_position", "_reason", "_detail", "_raw", "_source", "_facts")
AT: Final = "_at"
LINES: Final = pa.schema(
    [
        ("_file", pa.string()),
        ("_block", pa.int64()),
        ("_shift", pa.int64()),
        ("_origin", pa.string()),
        ("_numbered", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class Batch:
    """A delivery parsed under the last of its `contracts`, to follow `head`; `tally` counts its records.

    `parsed`, and what else is `kept`, is kept by Spark while the block of `reading` lasts. Events are `ordered` by
    their arrival, unless the batch is made again that was written without.
    """

    spark: SparkSession
    settings: Settings
    contracts: Sequence[Contract]
    head: LogHead
    delivery: Delivery
    now: datetime
    parsed: DataFrame
    tally: pa.Table
    ordered: bool = True
    kept: list[DataFrame] = field(default_factory=list)

    @property
    def contract(self) -> Contract:
        return self.contracts[-1]

    @property
    def number(self) -> int:
        return self.head.batch + 1

    @cached_property
    def placed(self) -> DataFrame:
        """The records with `_source`, and `_position`: their order in the batch."""
        lines = F.broadcast(to_frame(self.spark, pa.Table.from_pylist(list(self._lines()), LINES)))
        line = f"_position & {(1 << LINE_BITS) - 1}L"
        placed = (
            self.parsed.join(lines, ["_file", "_block"])
            .withColumn("_position", F.expr("_seq + _shift"))
            .withColumn("_source", F.expr(f"CASE WHEN _numbered THEN concat(_origin, ':', {line}) ELSE _origin END"))
        )
        if AT in placed.columns:
            placed = placed.withColumn("_source", F.expr(f"concat(_origin, {AT})"))
        if self.contract.identity == "position":
            placed = placed.withColumn("_id", F.expr(identity(self.contract)))
        if not self.contract.sealed:
            return placed
        return sealable(self.spark, self.settings, self.contract, placed, self.read)

    def _lines(self) -> Iterator[dict[str, object]]:
        """What to add to a `_seq` of each block of each file to get a position."""
        blocks = self.tally.group_by(["_file", "_block"]).aggregate([("first", "min"), ("lines", "sum")])
        before: dict[str, int] = {}
        for row in sorted(blocks.to_pylist(), key=lambda row: (row["_file"], row["_block"])):
            origin = self.delivery.origin(row["_file"])
            line = before.get(row["_file"], origin.first_line)
            before[row["_file"]] = line + row["lines_sum"]
            yield {
                "_file": row["_file"],
                "_block": row["_block"],
                "_shift": origin.base + line - row["first_min"],
                "_origin": origin.source,
                "_numbered": origin.first_line > 0,
            }

    @cached_property
    def verdict(self) -> Verdict:
        """The events not to be appended: re-deliveries and conflicts."""
        accepted = self.read - self.refused - self.control
        if not accepted:
            return NONE
        events = self.placed.where("_reason IS NULL")
        rows = Search(self.spark, self.settings, self.contracts, events, accepted, before=self.number).verdict()
        if not isinstance(rows, pa.Table):
            rows = rows.persist()
            self.kept.append(rows)
        return Verdict.of(rows)

    @property
    def read(self) -> int:
        return int(pc.sum(self.tally["read"]).as_py() or 0)

    @property
    def refused(self) -> int:
        return int(pc.sum(self.tally["refused"]).as_py() or 0)

    @property
    def control(self) -> int:
        """How many messages are about something else than an event of this stream."""
        return int(pc.sum(self.tally["control"]).as_py() or 0)

    def tell_numbers(self) -> None:
        """Warns where events have numbers for text: 7 and "7", 1 and 1.0 may mean the same, or not."""
        count = int(pc.sum(self.tally["numbers"]).as_py() or 0)
        if count:
            logging.getLogger("lake").warning(
                '%s: %s of %s records have numbers in the text field %s; they are stored as written (set "text_only":'
                " true in the contract to refuse them)",
                self.contract.name,
                count,
                self.read,
                pc.max(self.tally["numbers_in"]).as_py(),
            )

    @property
    def conflicts(self) -> int:
        return self.verdict.conflicts

    @property
    def watermark(self) -> datetime | None:
        """The greatest event time of the log with this batch, or its horizon."""
        if self.horizon is not None:
            return self.horizon.at
        return max((time for time in (self._latest, self.head.latest) if time is not None), default=None)

    @cached_property
    def _latest(self) -> datetime | None:
        if self.contract.clock and self.verdict.num_rows:  # by which a re-delivery may have another time
            times = self._kept(self.parsed).agg(F.max("_time").alias("latest")).toArrow()
        else:
            times = self.tally
        latest: datetime | None = pc.max(times["latest"]).as_py()
        return latest

    @cached_property
    def horizon(self) -> Horizon | None:
        """Where the producers stand after this batch; None where the contract names none."""
        declared = self.contract.horizon
        if declared is None:
            return None
        before = Horizon.of(self.head, self.contract)
        if isinstance(self.delivery, Closing):
            return before.without(before.idle(self.delivery.at, declared.idle) if declared.idle else ())
        times = producers.times(self._kept(self.parsed), self.contract)
        punctuated = (
            producers.times(self.parsed.where(producers.PUNCTUATED), self.contract) if declared.punctuation else {}
        )
        latest = max((time for time in (self._latest, *punctuated.values()) if time is not None), default=None)
        return before.after(times, punctuated, latest, self.now)

    @cached_property
    def accepted(self) -> dict[int, int]:
        """How many events each bucket gets."""
        taken: dict[int, int] = {}
        for row in self.tally.to_pylist():
            if row["_bucket"] is not None:
                taken[row["_bucket"]] = taken.get(row["_bucket"], 0) + row["read"]
        for bucket, count in self.verdict.buckets:
            taken[bucket] -= count
        return taken

    @property
    def _num_markers(self) -> int:
        """How many rows the log gets that are no events."""
        return len(self._quarantine_events) + max(self.rejected - len(self.faults), 0) if self.ordered else 0

    @property
    def refusals(self) -> int:
        """How many rows of the log are no events after this batch."""
        return int(self.head.position.data.get("refusals", 0)) + self._num_markers

    @property
    def offsets(self) -> dict[int, int]:
        """The next offset of each bucket after this batch."""
        before, taken = self.head.offsets, dict(self.accepted)
        if self._num_markers:
            taken[BROADCAST] = taken.get(BROADCAST, 0) + self._num_markers
        return {b: before.get(b, 0) + taken.get(b, 0) for b in sorted({*before, *taken})}

    @cached_property
    def failures(self) -> dict[int, tuple[str, str]]:
        """The `_seq` of every record that is neither accepted nor a duplicate, with reason and detail."""
        refused = (
            self.parsed.where(f"_reason <> '{CONTROL}'").select("_seq", "_reason", "_detail").toArrow().to_pylist()
        )
        conflicts = self._conflicts.toArrow().to_pylist()
        reasons = {row["_seq"]: (row["_reason"], row["_detail"]) for row in refused}
        conflicting = {row["_seq"]: f"same id as {row['original']}, other content" for row in conflicts}
        return reasons | {seq: (str(Reason.CONFLICT), detail) for seq, detail in conflicting.items()}

    @cached_property
    def faults(self) -> list[tuple[str, str]]:
        return list(self.delivery.faults)

    @property
    def rejected(self) -> int:
        """How many records go to quarantine; those that fail once more stay where they are."""
        return self.refused + self.conflicts + len(self.faults) if self.delivery.keeps_rejects else 0

    def rejects(self) -> DataFrame:
        """The rows for the quarantine, numbered after the faults. A conflict's text and facts are read again.

        Text about people who were forgotten is blanked.
        """
        same = "'same id as ', original, ', other content'"
        raw, detail = shown(self.contract, "_raw"), shown(self.contract, "_detail", f"'{BLANKED}'")
        refused = self.placed.where(f"_reason NOT IN ({NO_EVENTS})")
        facts = f"to_json({SOURCE})" if self._keeps_facts else "cast(NULL AS string)"
        rejects = refused.selectExpr("_position", "_reason", detail, raw, "_source", facts).toDF(*REJECT)
        if self.conflicts:
            texts = self.delivery.records(self.spark).select("_seq", "_raw", *([SOURCE] if self._keeps_facts else []))
            conflicting = self._conflicting.drop("_raw", SOURCE).join(texts, "_seq")
            rejects = rejects.union(
                conflicting.selectExpr("_position", f"'{Reason.CONFLICT}'", f"concat({same})", raw, "_source", facts)
            )
        return rejects.selectExpr(
            f"{self.number}L AS _batch",
            f"{self._numbered} AS _number",
            "_reason AS reason",
            "_detail AS detail",
            f"make_valid_utf8(substring(_raw, 1, {self.settings.record_bytes})) AS raw",
            "_source AS source",
            f"{self._now} AS _ingested_at",
            *(["_facts AS facts"] if self._keeps_facts else []),
        )

    @property
    def _keeps_facts(self) -> bool:
        """Whether what the source says of records goes to quarantine with them: not where it may be about a person."""
        return SOURCE in self.placed.columns and not self.contract.sealed

    @property
    def _numbered(self) -> str:
        return f"cast({len(self.faults)} + row_number() OVER (ORDER BY _position) AS int)"

    @property
    def _conflicting(self) -> DataFrame:
        """The records that are conflicts, with their `original`."""
        conflicts = F.broadcast(self._conflicts) if isinstance(self.verdict.rows, pa.Table) else self._conflicts
        return self.placed.join(conflicts, "_seq")

    @property
    def _conflicts(self) -> DataFrame:
        return self.verdict.frame(self.spark).where("conflict").select("_seq", "original")

    @cached_property
    def _quarantine_events(self) -> list[QuarantineEvent]:
        if not self.ordered:
            return []
        keeps = self.delivery.keeps_rejects
        return list(self.delivery.quarantine_events(self.number, set() if keeps else set(self.failures)))

    def _markers(self) -> list[DataFrame]:
        """The rows beside the events: what was refused, and what the delivery says of records that were."""
        frames = [refusals.frame(self.spark, self.number, self._quarantine_events)] if self._quarantine_events else []
        if self.ordered and self.rejected > len(self.faults):
            refused = self.placed.where(f"_reason NOT IN ({NO_EVENTS})")
            if self.conflicts:
                refused = refused.unionByName(self._conflicting.drop("original"))
            numbered = refused.withColumn("_number", F.expr(self._numbered))
            frames.append(refusals.of_refused(numbered, self.contract, self.number))
        return frames

    def events(self) -> DataFrame:
        """The rows for the log, in its physical columns, numbered within their buckets."""
        kept = self._kept(self.placed)
        markers = self._markers()
        for rows in markers:
            kept = kept.unionByName(rows, allowMissingColumns=True)
        first = ", ".join(f"{bucket}, {offset}L" for bucket, offset in self.head.offsets.items())
        base = f"coalesce(element_at(map({first}), _bucket), 0L)" if first else "0L"
        watermark = (
            f"timestamp '{self.head.watermark.isoformat()}'" if self.head.watermark else "cast(NULL AS timestamp)"
        )
        return kept.selectExpr(
            f"{self.number}L AS _batch",
            "_position AS _arrival" if self.ordered else "cast(NULL AS bigint) AS _arrival",
            "_bucket",
            f"{base} + row_number() OVER (PARTITION BY _bucket ORDER BY _position) - 1 AS _offset",
            "_id",
            "_time",
            f"{watermark} AS _watermark",
            f"{self._now} AS _ingested_at",
            "_source",
            f"{len(self.contracts)} AS _version",
            *extras(self.contract),
            *([REFUSAL] if markers else []),
            *evolution.written(self.contracts),
        )

    def _kept(self, records: DataFrame) -> DataFrame:
        """The events of `records` that the log gets."""
        kept = records.where("_reason IS NULL")
        if not self.verdict.num_rows:
            return kept
        return kept.join(self.verdict.frame(self.spark).select("_seq"), "_seq", "left_anti")

    @property
    def _now(self) -> str:
        return f"timestamp '{self.now.isoformat()}'"


@contextmanager
def reading(  # noqa: PLR0913  what a batch is made of
    spark: SparkSession,
    settings: Settings,
    contracts: Sequence[Contract],
    head: LogHead,
    delivery: Delivery,
    *,
    now: datetime,
    ordered: bool = True,
) -> Iterator[Batch]:
    """`delivery` read and parsed once: what cannot be read is put among its faults, what changed meanwhile left out."""
    reader = Reader(spark, settings, contracts[-1], head, now)
    failed = ""
    try:
        with attempts.at_work(settings, contracts[-1].name, delivery.marks(set())):
            while True:
                try:
                    parsed, tally = reader.read(delivery)
                except LakeError:
                    raise
                except Exception as error:  # PySparkException, or what the gateway to the JVM makes of a failed job
                    raise_if_gone(error)
                    left: Delivery = delivery.without_broken(spark)
                    if left == delivery:
                        if failed:  # twice
                            raise reader.fault(delivery, failed, job_failure(error)) from error
                        failed = job_failure(error)
                else:
                    left = delivery.settled()
                    if left == delivery:
                        break
                reader.drop()
                delivery.close()
                delivery = left
        yield Batch(spark, settings, contracts, head, delivery, now, parsed, tally, ordered, reader.kept)
    finally:
        delivery.close()
        with suppress(Gone):
            reader.drop()


@dataclass(frozen=True)
class Reader:
    """Reads deliveries that are to follow `head`; Spark keeps what was read until it is dropped."""

    spark: SparkSession
    settings: Settings
    contract: Contract
    head: LogHead
    now: datetime
    kept: list[DataFrame] = field(default_factory=list)

    def read(self, delivery: Delivery) -> tuple[DataFrame, pa.Table]:
        """The records of a delivery as `parse` gives them, and their tally."""
        records, files = delivery.records(self.spark), delivery.files_of_records()
        records = file_facts.with_facts(self.spark, records, self.contract, files)
        few = sum(size for _, size, *_ in delivery.marks(set())) <= cost.CAREFUL_BYTES
        if not few and quick_parse.may_read(self.contract, delivery.files_of_records()):
            parsed, tally = self._quickly(records)
        else:
            parsed, tally = self._carefully(records)
        if self.contract.horizon is None:
            return parsed, tally
        seen = Horizon.of(self.head, self.contract).producers
        fewer = producers.refused(parsed, self.contract, seen, delivery, self.settings.record_bytes)
        if fewer is None:
            return parsed, tally
        fewer = self._keep(fewer)
        tally = _tally(fewer)
        self.drop(but=fewer)
        return fewer, tally

    def fault(self, delivery: Delivery, first: str, second: str) -> LakeError:
        """Return the error for a delivery whose reading failed twice, with these messages.

        If they differ but for numbers, it may succeed later. Else the contract is at fault if the same happens to a
        record that breaks it, and if not, what the delivery reads.
        """
        stream = self.contract.name
        what = f"Spark fails to read a batch of {stream}: {second}"
        if re.sub(r"[0-9]+", "", first) != re.sub(r"[0-9]+", "", second):
            return Unavailable(what, fix="try again, if need be with a smaller `batch_files`")
        none = to_frame(self.spark, pa.table([["none"], [0], [0], [""]], schema=RECORDS))
        try:
            self._checked(parse, file_facts.with_facts(self.spark, none, self.contract, ())).collect()
        except Exception as error:
            raise_if_gone(error)
            what = f"Spark fails to evaluate the contract of {stream}: {job_failure(error)}"
            return DeclarationError(what, where=self.contract.where, fix="correct its time, broadcast or punctuation")
        parts = (part for part in delivery.parts() if self._fails(part))
        at_fault = next(parts, delivery)
        where = ", ".join(name for name, *_ in at_fault.marks(set())[: attempts.SHOWN])
        return ContractError(what, where=where, fix="correct it, or move it away; it fails again as it is")

    def _fails(self, delivery: Delivery) -> bool:
        try:
            self.read(delivery)
        except Exception as error:
            raise_if_gone(error)
            return True
        finally:
            delivery.close()
        return False

    def _quickly(self, records: DataFrame) -> tuple[DataFrame, pa.Table]:
        """Reads those quickly that can be, and carefully what is left."""
        tried = self._keep(self._checked(quick_parse.quick, records))
        tally = _tally(tried)
        is_left = pc.less(pc.fill_null(tally["_bucket"], 0), BROADCAST)
        if not pc.any(is_left).as_py():
            facts = file_facts.columns(self.contract)
            return tried.select(*(column for column in tried.columns if column not in facts)), tally
        parsed, more = self._carefully(tried.where(quick_parse.LEFT).select(*records.columns))
        both = tried.where(f"NOT {quick_parse.LEFT}").select(*parsed.columns).unionByName(parsed)
        return both, pa.concat_tables([tally.filter(pc.invert(is_left)), more])

    def _carefully(self, records: DataFrame) -> tuple[DataFrame, pa.Table]:
        parsed = self._keep(self._checked(parse, records))
        return parsed, _tally(parsed)

    def _checked(self, read: Callable[..., DataFrame], records: DataFrame) -> DataFrame:
        try:
            parsed = read(records, self.contract, now=self.now, record_bytes=self.settings.record_bytes)
            parsed.schema  # noqa: B018  over Connect, a plan is looked at only when it is asked about
        except AnalysisException as error:
            raise DeclarationError(
                f"{self.contract.name}: Spark cannot parse its time, broadcast or punctuation expression:"
                f" {error.getMessage()}",
                where=self.contract.where,
                fix="use Spark SQL over the fields of the contract",
            ) from None
        return parsed

    def _keep(self, frame: DataFrame) -> DataFrame:
        self.kept.append(frame.repartition("_bucket").persist())
        return self.kept[-1]

    def drop(self, *, but: DataFrame | None = None) -> None:
        """Has Spark forget what it keeps."""
        while self.kept and self.kept[0] is not but:
            _drop(self.kept.pop(0))


def _drop(kept: DataFrame) -> None:
    try:
        kept.unpersist()
    except Exception as error:
        raise gone(error) or error from None


def _tally(parsed: DataFrame) -> pa.Table:
    """By block of a file and bucket: `first` _seq, `lines`, of these `read`, `refused`, `control`; `latest` time.

    `numbers` events have numbers for text, one of them in the fields `numbers_in`.
    """
    return (
        parsed.groupBy("_file", "_block", "_bucket")
        .agg(
            F.min("_seq").alias("first"),
            F.count("*").alias("lines"),
            F.expr(f"count_if(_reason IS DISTINCT FROM '{BLANK}')").alias("read"),
            F.expr(f"count_if(_reason NOT IN ({NO_EVENTS}))").alias("refused"),
            F.expr(f"count_if(_reason = '{CONTROL}')").alias("control"),
            F.expr("max(_time) FILTER (WHERE _reason IS NULL)").alias("latest"),
            F.expr("count(_numbers) FILTER (WHERE _reason IS NULL)").alias("numbers"),
            F.expr("max(_numbers) FILTER (WHERE _reason IS NULL)").alias("numbers_in"),
        )
        .toArrow()
    )
