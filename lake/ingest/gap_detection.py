"""Detection of missing events: skipped numbers of producers, and spans of time without an event.

A gap is known only between two events, or up to the producers' horizon. Voided events are not missing, nor are
punctuations: the commit of their batch records their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from lake.config import Settings
from lake.contracts import evolution, origins
from lake.contracts.contract import Completeness, Contract
from lake.lazy import DataFrame, F
from lake.session import file_modes
from lake.store import delta, duckdb_tables
from lake.store.duckdb_tables import TableFiles
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.text import EPOCH, MICROSECOND, SPARK, counted, literal, moment, quoted

FOLDER: Final = "times"
Run = tuple[int, int]
"""Numbers of the first and last of consecutive spans; span 0 begins with 1970."""
RUNS: Final = "numbers"
"""Key in a log's commits of runs of numbers that include a punctuation: [producer, first, last]."""
GAPS: Final = """
    SELECT producer, before + 1 AS first, first - 1 AS last
    FROM (SELECT *, max(last) OVER (PARTITION BY producer ORDER BY first
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM (SELECT {producer} AS producer, {number} AS first, {number} AS last FROM t
                UNION ALL
                SELECT unnest($1::VARCHAR[]), unnest($2::VARCHAR[])::HUGEINT, unnest($3::VARCHAR[])::HUGEINT)
          WHERE first IS NOT NULL)
    WHERE first > before + 1
    ORDER BY ALL
"""


@dataclass(frozen=True)
class NumberGap:
    producer: str | None
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class TimeGap:
    begin: datetime
    end: datetime


@dataclass(frozen=True)
class Gaps:
    stream: str
    numbers: tuple[NumberGap, ...] = ()
    spans: tuple[TimeGap, ...] = ()

    @property
    def summary(self) -> str:
        """Such as `12 numbers of 2 producers, 1 span of time without an event: BEGIN to END`; "" without gaps."""
        count, producers = sum(gap.count for gap in self.numbers), len({gap.producer for gap in self.numbers})
        of = "" if all(gap.producer is None for gap in self.numbers) else f" of {counted(producers, 'producer')}"
        parts = [f"{counted(count, 'number')}{of}"] if count else []
        if self.spans:
            newest = self.spans[-1]
            which = "" if len(self.spans) == 1 else ", the newest"
            when = f"{moment(newest.begin)} to {moment(newest.end)}"
            parts.append(f"{counted(len(self.spans), 'span')} of time without an event{which}: {when}")
        return ", ".join(parts)


def find_gaps(settings: Settings, contract: Contract) -> Gaps:
    return Gaps(contract.name, tuple(_number_gaps(settings, contract)), tuple(_time_gaps(settings, contract)))


def _number_gaps(settings: Settings, contract: Contract) -> Iterator[NumberGap]:
    number, producer = contract.complete.number, contract.complete.producer
    log = Log(settings, contract.name)
    if number is None or not delta.exists(log.path):
        return
    head = log.head()
    contracts = evolution.with_current(log.contracts(head), contract)
    columns = {*Scan(log.path).schema().names}
    producer_sql = field_text_sql(contracts, producer, columns) if producer else "NULL"
    number_sql = f"TRY_CAST({field_text_sql(contracts, number, columns)} AS HUGEINT)"
    punctuates = contract.horizon is not None and contract.horizon.punctuation
    runs = [run for batch in log.backwards() for run in batch.position.data.get(RUNS, ())] if punctuates else []
    if not any(head.offsets.values()):  # the log has no files to query
        yield from _gaps_of_runs(runs)
        return
    producers, first, last = zip(*runs, strict=True) if runs else ((), (), ())
    query = GAPS.format(producer=producer_sql, number=number_sql)
    for row in duckdb_tables.rows(log.path, query, [*producers], [*map(str, first)], [*map(str, last)]):
        yield NumberGap(row["producer"], int(row["first"]), int(row["last"]))


def _gaps_of_runs(runs: Iterable[tuple[str | None, int, int]]) -> Iterator[NumberGap]:
    by_producer: dict[str | None, list[Run]] = {}
    for producer, first, last in runs:
        by_producer.setdefault(producer, []).append((first, last))
    for producer, own_runs in by_producer.items():
        for first, last in gaps_between(join_runs(own_runs)):
            yield NumberGap(producer, first, last)


def punctuated_runs(records: DataFrame, complete: Completeness, punctuation: str) -> list[list[Any]]:
    """Return the runs of numbers with a punctuation: [producer, first, last], in order.

    `records` are events and punctuations, which `punctuation` (SQL) selects. Other runs are in the log.
    """
    from pyspark.sql import Window

    producer = quoted(complete.producer, SPARK) if complete.producer else "NULL"
    numbers = records.selectExpr(
        f"cast({producer} AS string) AS producer",
        f"cast({quoted(complete.number or '', SPARK)} AS decimal(38, 0)) AS number",
        f"{punctuation} AS punctuates",
    ).where("number IS NOT NULL")
    numbers = numbers.groupBy("producer", "number").agg(F.bool_or("punctuates").alias("punctuates"))
    order = Window.partitionBy("producer").orderBy("number")
    follows = F.expr("coalesce(try_subtract(number, cast(1 AS decimal(38, 0))) = before, false)")
    marked = numbers.withColumn("before", F.lag("number").over(order)).withColumn("begins", (~follows).cast("int"))
    runs = marked.withColumn("run", F.sum("begins").over(order)).groupBy("producer", "run")
    ends = runs.agg(F.min("number").alias("first"), F.max("number").alias("last"), F.bool_or("punctuates").alias("has"))
    rows = ends.where("has").orderBy("producer", "first").select("producer", "first", "last").toArrow().to_pylist()
    return [[row["producer"], int(row["first"]), int(row["last"])] for row in rows]


def field_text_sql(contracts: tuple[Contract, ...], name: str, physical: set[str]) -> str:
    """Return SQL of a field's text under any version of the contract; `physical` are the log's columns."""
    texts = []
    for of_version in origins.origins(contracts)[name]:
        stored = [_text(origin) for origin in of_version if not origin.column or origin.column in physical]
        texts.append(f"coalesce({', '.join([*stored, 'NULL'])})")
    cases = " ".join(f"WHEN {version} THEN {text}" for version, text in enumerate(texts, 1))
    return f"CASE _version {cases} END" if len({*texts}) > 1 else texts[0]


def _text(origin: origins.ValueOrigin) -> str:
    if origin.column:
        return f"CAST({quoted(origin.column)} AS VARCHAR)"
    path = literal(f"/{origin.name.replace('~', '~0').replace('/', '~1')}")
    return f"CASE WHEN json_valid(_extra) THEN json_extract_string(_extra, {path}) END"


def _time_gaps(settings: Settings, contract: Contract) -> Iterator[TimeGap]:
    every = contract.complete.every
    if every is None:
        return
    log = Log(settings, contract.name)
    head = log.head()
    runs = event_runs(log, head, every)
    if runs and contract.horizon and head.watermark:  # earlier events are not expected
        closed = max(runs[-1][1], (head.watermark - EPOCH) // every)
        runs = join_runs([*runs, (closed, closed)])
    for first, last in gaps_between(runs):
        yield TimeGap(EPOCH + first * every, EPOCH + (last + 1) * every)


def event_runs(log: Log, head: LogHead, every: timedelta) -> list[Run]:
    """Return the spans of length `every` with events up to `head`, as runs in order.

    Caches them in `.lake/times`, with the digest of the batch's commit, and reads newer batches only. Voids and
    compaction change no spans.
    """
    file = _cache_file(log, every)
    before, since = _cached(log, head, file)
    if since == head.batch:
        return before
    after = join_runs([*before, *((number, number) for number in _spans_with_events(log, since, head.batch, every))])
    if file is not None and head.batch:
        _cache(file, {"batch": head.batch, "digest": head.content["digest"], "runs": after})
    return after


def join_runs(parts: Iterable[Run]) -> list[Run]:
    result: list[Run] = []
    for first, last in sorted(parts):
        if result and first <= result[-1][1] + 1:
            result[-1] = result[-1][0], max(last, result[-1][1])
        else:
            result.append((first, last))
    return result


def gaps_between(runs: Iterable[Run]) -> list[Run]:
    return [(before + 1, after - 1) for (_, before), (after, _) in pairwise(runs)]


def _spans_with_events(log: Log, after: int, upto: int, every: timedelta) -> list[int]:
    length = every // MICROSECOND
    begin = f"epoch_us(_time) - (epoch_us(_time) % {length} + {length}) % {length}"  # % has the sign of the time
    newer = f"_time IS NOT NULL AND _batch BETWEEN {after + 1} AND {upto}"
    with delta.opened(log.path) as table:
        files = Scan(log.path, table.version(), {"_batch": (after + 1, upto)}).files()
        if not files:
            return []
        with duckdb_tables.open_files(TableFiles(log.path, table, files)) as (con, _):
            numbers = con.execute(f"SELECT DISTINCT ({begin}) // {length} FROM t WHERE {newer}").fetchall()
    return [number for (number,) in numbers]


def _cache_file(log: Log, every: timedelta) -> Address | None:
    try:
        folder = file_modes.scratch(log.settings, FOLDER)
    except OSError:
        return None
    return Address(str(folder)) / f"{every // MICROSECOND}-{log.stream}.json"


def _cached(log: Log, head: LogHead, file: Address | None) -> tuple[list[Run], int]:
    try:
        content = json.loads(file.read()) if file else {}
        known = [(int(first), int(last)) for first, last in content["runs"]]
        batch, digest = int(content["batch"]), content["digest"]
    except (OSError, ValueError, TypeError, KeyError):
        return [], 0
    if batch > head.batch:
        return [], 0
    at = head if batch == head.batch else log.head_at(batch)
    return (known, batch) if (at.batch, at.content.get("digest")) == (batch, digest) else ([], 0)


def _cache(file: Address, content: dict[str, object]) -> None:
    with suppress(OSError):  # owned by another user, or a full disk
        file.delete()
        file.put_if_absent(json.dumps(content).encode())
