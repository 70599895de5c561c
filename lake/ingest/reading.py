"""Reading a delivery: parsed under its contract and tallied, once; what cannot be read is put aside or named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake import cost
from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import ContractError, DeclarationError, LakeError, Unavailable
from lake.ingest import attempts, producers
from lake.ingest.batch import NO_EVENTS, Batch
from lake.ingest.delivery import RECORDS, Delivery
from lake.ingest.drift import LACKS
from lake.ingest.horizon import Horizon
from lake.ingest.records import file_facts, quick_parse
from lake.ingest.records.debezium import CONTROL
from lake.ingest.records.parse import BLANK, parse
from lake.session import Gone, gone, job_failure, raise_if_gone
from lake.store.log import BROADCAST, LogHead
from lake.store.scan import to_frame


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
                f"Spark cannot parse the time, broadcast or punctuation expression of {self.contract.name}:"
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
