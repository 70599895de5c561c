"""Reading of deliveries: parsing under the contract, counting, handling of unreadable files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.contracts.reasons import BLANK, CONTROL, Reason
from lake.errors import ContractError, DeclarationError, LakeError, Unavailable, out_of_memory
from lake.ingest import crashed_readers, horizon
from lake.ingest.batch import NO_EVENTS, Batch
from lake.ingest.delivery import Delivery, FileDelivery, records_of
from lake.ingest.event_columns import with_event_columns
from lake.ingest.horizon import Horizon
from lake.lazy import DataFrame, F, SparkSession, pa, pc
from lake.records.reader import RecordReader
from lake.records.unknown_members import LACKS
from lake.session.in_process.mode import Unsupported, in_process, reason
from lake.session.spark_session import Gone, gone, job_failure, raise_if_gone
from lake.store.log_head import LogHead
from lake.store.scan import to_frame
from lake.text import some_of

IS_FILE: Final = f"_reason = '{Reason.FILE}'"


@contextmanager
def read_batch(  # noqa: PLR0913  what a batch is made of
    spark: SparkSession,
    settings: Settings,
    contracts: Sequence[Contract],
    head: LogHead,
    delivery: Delivery,
    *,
    now: datetime,
) -> Iterator[Batch]:
    """Parse a delivery. Unreadable files become faults; files that change meanwhile are left out."""
    reader = DeliveryReader(spark, settings, contracts[-1], head, now)
    failed, files = "", [file.mark for file in delivery.files] if isinstance(delivery, FileDelivery) else []
    try:
        with crashed_readers.reading_of(settings, reader.contract.name, files) if files else nullcontext():
            while True:
                try:
                    parsed, tally = reader.read(delivery)
                except (LakeError, Unsupported):
                    raise
                except Exception as error:  # PySparkException, or the gateway's error for a failed job
                    if in_process(spark):
                        raise Unsupported(reason(error)) from error
                    rest, failed = reader.after_failure(error, delivery, failed)
                else:
                    rest = delivery.without_changed()
                    rest = rest.with_faults(reader.file_faults(parsed, tally)) if rest == delivery else rest
                    if rest == delivery:
                        break
                reader.drop()
                delivery.close()
                delivery = rest
        yield Batch(spark, settings, contracts, head, delivery, now, parsed, tally, reader.cached)
    finally:
        delivery.close()
        with suppress(Gone):
            reader.drop()


@dataclass(frozen=True)
class DeliveryReader:
    """Parser of deliveries under a contract. Spark caches the frames in `cached` until `drop`."""

    spark: SparkSession
    settings: Settings
    contract: Contract
    head: LogHead
    now: datetime
    cached: list[DataFrame] = field(default_factory=list)

    def read(self, delivery: Delivery) -> tuple[DataFrame, pa.Table]:
        parsed = self._cache(self._finished(records_of(self.spark, self.settings, self.contract, delivery)))
        tally = _tally(parsed)
        if self.contract.horizon is None:
            return parsed, tally
        known = Horizon.of(self.head, self.contract).producers
        limited = horizon.reject_excess(parsed, self.contract.horizon, known)
        if limited is None:
            return parsed, tally
        limited = self._cache(limited)
        tally = _tally(limited)
        self.drop(but=limited)
        return limited, tally

    def file_faults(self, parsed: DataFrame, tally: pa.Table) -> dict[int, str]:
        if not pc.sum(tally["files"]).as_py():
            return {}
        rows = parsed.where(IS_FILE).select("_position", "_detail").toArrow().to_pylist()
        return {row["_position"]: row["_detail"] for row in rows}

    def after_failure(self, error: Exception, delivery: Delivery, earlier: str) -> tuple[Delivery, str]:
        """Return the delivery to try next, and the message of its last failure. Raise if it failed `earlier`."""
        raise_if_gone(error)
        if fault := delivery.fault_of_store(error) or out_of_memory(error):
            raise fault from error
        rest = delivery.without_changed()
        if rest != delivery:
            return rest, earlier
        if earlier:
            raise self.fault(delivery, earlier, job_failure(error)) from error
        return rest, job_failure(error)

    def fault(self, delivery: Delivery, first: str, second: str) -> LakeError:
        """Return the error for a delivery that failed twice, with these messages.

        If they differ in more than numbers, a retry may succeed. If a batch of one unparseable record fails too, the
        contract is at fault, else the files.
        """
        stream = self.contract.name
        what = f"Spark fails to read a batch of {stream}: {second}"
        if re.sub(r"[0-9]+", "", first) != re.sub(r"[0-9]+", "", second):
            return Unavailable(what, fix="try again, if need be with a smaller `batch_files`")
        try:
            schema = RecordReader(self.contract, self.settings.record_bytes).schema
            none = pa.Table.from_pylist([{"_reason": str(Reason.UNPARSEABLE)}], schema)
            self._finished(to_frame(self.spark, none)).collect()
        except Exception as error:
            raise_if_gone(error)
            what = f"Spark fails to evaluate the contract of {stream}: {job_failure(error)}"
            return DeclarationError(what, where=self.contract.where, fix="correct its time, broadcast or punctuation")
        parts = (part for part in delivery.parts() if self._fails(part))
        where = some_of([name for name, *_ in next(parts, delivery).marks(set())])
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

    def _finished(self, records: DataFrame) -> DataFrame:
        from pyspark.errors import AnalysisException

        try:
            finished = with_event_columns(records, self.contract, now=self.now)
            finished.schema  # noqa: B018  over Connect, a plan is analysed only when its schema is read
        except AnalysisException as error:
            raise DeclarationError(
                f"Spark cannot parse the time, broadcast or punctuation expression of {self.contract.name}:"
                f" {error.getMessage()}",
                where=self.contract.where,
                fix="use Spark SQL over the fields of the contract",
            ) from None
        return finished

    def _cache(self, frame: DataFrame) -> DataFrame:
        self.cached.append(frame.repartition("_bucket").persist())
        return self.cached[-1]

    def drop(self, *, but: DataFrame | None = None) -> None:
        while self.cached and self.cached[0] is not but:
            frame = self.cached.pop(0)
            try:
                frame.unpersist()
            except Exception as error:
                raise gone(error) or error from None


def _tally(parsed: DataFrame) -> pa.Table:
    """Count by bucket: `read`; of these `invalid`, `control`, `textless` (invalid without `_raw`), unreadable `files`.

    Valid records have a `latest` time, `numbers` with numbers in text fields (`numbers_in` names one), `extras` with
    unknown fields, and the masks of missing fields.
    """
    return (
        parsed.groupBy("_bucket")
        .agg(
            F.expr(f"count_if(_reason IS DISTINCT FROM '{BLANK}')").alias("read"),
            F.expr(f"count_if(_reason NOT IN ({NO_EVENTS}))").alias("invalid"),
            F.expr(f"count_if(_reason = '{CONTROL}')").alias("control"),
            F.expr(f"count_if({IS_FILE})").alias("files"),
            F.expr(f"count_if(_raw IS NULL AND _reason NOT IN ({NO_EVENTS}))").alias("textless"),
            F.expr("max(_time) FILTER (WHERE _reason IS NULL)").alias("latest"),
            F.expr("count(_numbers) FILTER (WHERE _reason IS NULL)").alias("numbers"),
            F.expr("max(_numbers) FILTER (WHERE _reason IS NULL)").alias("numbers_in"),
            F.expr("count(_extra) FILTER (WHERE _reason IS NULL)").alias("extras"),
            *(
                F.expr(f"{way}({column}) FILTER (WHERE _reason IS NULL)").alias(f"{way}{column}")
                for column in parsed.columns
                if column.startswith(LACKS)
                for way in ("bit_or", "bit_and")
            ),
        )
        .toArrow()
    )
