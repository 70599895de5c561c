"""Part of a log that a backfill reads: the events of its range, and of the keys that these affect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lake import cost
from lake.config import Settings
from lake.engine.affected_keys import restrict
from lake.engine.backfill import backfill
from lake.engine.inputs import Inputs
from lake.engine.pruning import times_read
from lake.errors import StorageError
from lake.ingest.events import void
from lake.ingest.ingest import ingest
from lake.kinds.windows.hopping import Cumulative, Hopping
from lake.kinds.windows.window import Calendar, Tumbling, Window
from lake.ops.maintenance import Policy, maintain
from lake.project.declaration import Declaration
from lake.publish.cut import cut
from lake.store.log import Log
from lake.store.proof import chain
from lake.store.rows import Rows
from lake.store.scan import Scan, to_arrow, to_frame
from lake.store.upkeep import compaction
from lake.testing import Lakehouse
from tests.shop import contract, declare, job

TIMES: Final = (
    *(
        datetime(2024, 3, 30, tzinfo=UTC) + timedelta(hours=5 * n) for n in range(20)
    ),  # The clock goes forward in London
    *(datetime(2011, 12, 29, 8, tzinfo=UTC) + timedelta(hours=5 * n) for n in range(12)),  # Samoa skips a day
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(1, 1, 3, tzinfo=UTC),
    datetime(9999, 12, 20, 23, 59, 59, 999_999, UTC),
)
WINDOWS: Final = {
    "day": "Calendar(unit='day', on='at', zone='UTC')",
    "samoan_day": "Calendar(unit='day', on='at', zone='Pacific/Apia')",
    "month": "Calendar(unit='month', on='at', zone='Europe/London')",
    "hour": "Tumbling(length=timedelta(hours=1), on='at')",
    "moved": "Tumbling(length=timedelta(days=7), on='at', zone='Pacific/Apia', offset=timedelta(hours=7))",
    "hop": "Hopping(length=timedelta(days=2), every=timedelta(hours=12), on='at', zone='Europe/London')",
    "grown": "Cumulative(length=timedelta(days=1), step=timedelta(hours=6), on='at', zone='Europe/London')",
}
MEASURES: Final = "{'n': Count(), 'most': Max('value')}"
KINDS: Final = {
    **{name: f"Aggregate('meter', {MEASURES}, window={window})" for name, window in WINDOWS.items()},
    "at_once": "Aggregate(('meter', 'at'), {'n': Count()})",
    "newest": "Latest(key='meter', sequence='at')",
    "runs": "Aggregate('meter', {'n': Count()}, window=Session(gap=timedelta(hours=6), on='at'))",
}
NARROWED: Final = (*WINDOWS, "at_once")
RENAMED: Final = "rows.selectExpr('meter', 'at + interval 1 day as at', 'value')"


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "PRUNED_LOG_ROWS", 0)


def meters(project: Settings, kinds: Mapping[str, str]) -> Lakehouse:
    """Return readings of meters and a table of each kind; `shifted` derives other times from those of the events."""
    jobs = {name: job(name, kind, "log('readings')") for name, kind in kinds.items()}
    jobs["shifted"] = job("shifted", KINDS["day"], "log('readings')", returns=RENAMED)
    of = contract("readings", {"meter": "string", "at": "timestamp", "value": "int?"}, time="at", id=["value"])
    return declare(project, of, jobs=jobs)


def land(shop: Lakehouse, random: Random, times: tuple[datetime, ...]) -> None:
    """Land a file for each time, in any order, and one of all: late events, and some voided afterwards."""
    events = [
        {"meter": random.choice("abc"), "at": at.isoformat().replace("+00:00", "Z"), "value": number}
        for number, at in enumerate(times * 2)
    ]
    random.shuffle(events)
    for first in range(0, len(events), 8):
        ingest_landed(shop.land("readings", *events[first : first + 8]))
    void(shop.settings, "readings", batches=[2], reason="wrong")


def ingest_landed(shop: Lakehouse) -> None:
    """Ingest the landed files as the next batch."""
    ingest(shop.settings, lambda: shop.spark, shop.project.contracts)


def rows_of(inputs: Inputs, declaration: Declaration, keys: pa.Table) -> list[str]:
    alone = inputs.evaluated(declaration, restrict(inputs, declaration, Rows(keys)))
    return sorted(map(str, row_list(to_arrow(alone))))


def row_list(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows with times as numbers if they are beyond the years of Python."""
    kinds = [pa.int64() if pa.types.is_timestamp(kind) else kind for kind in rows.schema.types]
    return list(rows.cast(pa.schema(list(zip(rows.column_names, kinds, strict=True)))).to_pylist())


def slices(random: Random, rows: pa.Table, key: tuple[str, ...]) -> Iterator[pa.Table]:
    """Yield single keys, and adjacent keys."""
    keys = rows.select(key).group_by(list(key)).aggregate([]).sort_by([(name, "ascending") for name in reversed(key)])
    first = random.randrange(keys.num_rows)
    yield keys.slice(first, 1)
    yield keys.slice(max(first - 2, 0), 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_keys_are_equal_when_evaluated_from_the_log_part_with_their_times(
    spark: SparkSession, project: Settings, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    shop = meters(project, KINDS)
    land(shop, random, TIMES)
    inputs = Inputs(lambda: spark, shop.project, cut(shop.project))
    log, less = Log(shop.settings, "readings"), set()
    for name, declaration in shop.project.tables.items():
        whole = to_arrow(inputs.evaluate(declaration))
        key = declaration.kind.key
        for number, keys in enumerate(slices(random, whole, key)):
            wanted = {*map(str, row_list(keys))}
            expected = sorted(str(row) for row in row_list(whole) if str({c: row[c] for c in key}) in wanted)
            for limit in ("SCAN_ROWS", "HANDED_ROWS"):
                monkeypatch.setattr(cost, limit, number * 1000)  # Read by Spark, and in this process
            assert rows_of(inputs, declaration, keys) == expected, name
            times = times_read(inputs, declaration, Rows(keys))["readings"]
            assert (times is not None) == (name in NARROWED), name
            if name == "hour":  # More keys than one process takes
                assert times_read(inputs, declaration, Rows(to_frame(spark, keys)))["readings"] == times
            if times and len(Scan(log.path, times=times).files()) < len(Scan(log.path).files()):
                less.add(name)
    assert less  # Which ones depends on the files: their events are of any time


def test_times_of_a_log_are_those_of_all_inputs_of_it(spark: SparkSession, project: Settings) -> None:
    logs = ("log('readings')", "log('readings')")
    plain, shifted = "rows.select('at', 'meter')", "rows1.selectExpr('at + interval 1 day as at', 'value')"
    joined = {
        "alike": f"{plain}, rows1.select('at', 'value')",
        "first_shifted": f"{shifted.replace('rows1', 'rows')}, {plain.replace('rows', 'rows1')}",
        "second_shifted": f"{plain}, {shifted}",
    }
    shop = meters(project, {})
    declare(project, jobs={name: job(name, "Join('at')", *logs, returns=text) for name, text in joined.items()})
    ingest_landed(shop.land("readings", {"meter": "a", "at": "1970-01-01T00:00:01Z", "value": 1}))
    inputs = Inputs(lambda: spark, shop.project, cut(shop.project))
    keys = Rows(pa.table({"at": pa.array([1_000_000], pa.timestamp("us", "UTC"))}))
    times = {name: times_read(inputs, shop.project.tables[name], keys)["readings"] for name in joined}
    assert times == {"alike": (1_000_000, 1_000_000), "first_shifted": None, "second_shifted": None}


@pytest.mark.long
@pytest.mark.parametrize("zone", ["Pacific/Apia", "Europe/London", "Asia/Manila", "America/Sao_Paulo", "UTC"])
def test_window_rows_are_near_the_time_that_it_declares(spark: SparkSession, zone: str) -> None:
    """Times from local solar time to years without a rule, and each clock change."""
    random, hour, day = Random(zone), timedelta(hours=1), timedelta(days=1)
    at = [datetime(1800, 1, 1, tzinfo=UTC) + random.random() * 300 * 365 * day for _ in range(1000)]
    at += [datetime(2011, 12, 28, tzinfo=UTC) + n * hour for n in range(96)]
    at += [datetime(1844, 12, 29, tzinfo=UTC) + n * hour for n in range(96)]
    rows = spark.createDataFrame([(instant,) for instant in at], "at timestamp")
    of = partial(dict[str, Any], on="at", zone=zone)
    windows: list[Window] = [
        *[Calendar(**of(unit=unit)) for unit in ("day", "week", "month", "quarter", "year")],
        *[Tumbling(**of(length=length, offset=hour)) for length in (hour, day, 7 * day)],
        *[Hopping(**of(length=length, every=every)) for length, every in ((6 * hour, hour), (3 * day, day))],
        *[Cumulative(**of(length=length, step=step)) for length, step in ((day, hour), (7 * day, day))],
    ]
    for window in windows:
        [(column, bounds)] = window.time_bounds.items()
        before, after = (length // timedelta(microseconds=1) for length in (bounds.before, bounds.after))
        key = f"unix_micros(cast(`{column}` as timestamp))"
        away = window.prepare(rows).where(f"not (unix_micros(at) between {key} - {before} and {key} + {after})")
        assert not away.take(1), window


@pytest.mark.long
@pytest.mark.parametrize("maintained", [True, False])
def test_backfill_repairs_its_range_and_reads_little_else(
    spark: SparkSession, project: Settings, *, maintained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = meters(project, {"day": KINDS["day"]})
    year = [datetime(2024, 1, 1, 12, tzinfo=UTC) + timedelta(days=n) for n in range(40)]
    for first in range(0, 40, 2):
        events = [
            {"meter": f"m{n}", "at": at.isoformat(), "value": n} for at in year[first : first + 2] for n in (1, 2)
        ]
        ingest_landed(shop.land("readings", *events))
    shop.run()
    if maintained:
        monkeypatch.setattr(compaction, "PACKED_BYTES", 20_000)
        monkeypatch.setattr(compaction, "EXCESS_FILES", 0)
        done = maintain(shop.project, lambda: spark, Policy.of(shop.settings), lambda _: None)
        assert any(kept.compacted for kept in done.places if kept.place.kind == "log")
    table, log = shop.project.tables["day"], Log(shop.settings, "readings")
    DeltaTable(shop.project.table(table).path.url).update(updates={"n": "n + 1"})
    start, end = year[10].replace(hour=0), year[12].replace(hour=0)
    micros = int(start.timestamp()) * 1_000_000, int(end.timestamp()) * 1_000_000 - 1
    every, few = set(Scan(log.path).files()), set(Scan(log.path, times=micros).files())
    assert 0 < len(few) <= len(every) // 2
    near = {head.batch for head in chain.heads_at(log.path, log.heads(), micros)}
    assert len(near) <= 10
    unread = every - {file for batch in near for file in Scan(log.path, bounds={"_batch": (batch, batch)}).files()}
    assert unread
    for file in unread:  # Unread files may be damaged
        Path(file).write_bytes(Path(file).read_bytes()[:-30] + bytes(30))

    [mended] = backfill(lambda: spark, shop.project, table, (start, end), on_progress=lambda _: None)
    assert (mended.inserted, mended.updated, mended.deleted) == (0, 4, 0)
    sound = {row["day"]: row["n"] for row in shop.table("day")}
    assert {n for day, n in sound.items() if start.date() <= day < end.date()} == {1}
    assert {n for day, n in sound.items() if not start.date() <= day < end.date()} == {2}
    with pytest.raises(StorageError, match="damaged"):
        backfill(lambda: spark, shop.project, table, (year[0], year[-1]), on_progress=lambda _: None)
    for file in few:
        Path(file).write_bytes(Path(file).read_bytes()[:-30] + bytes(30))
    with pytest.raises(StorageError, match="damaged"):
        backfill(lambda: spark, shop.project, table, (start, end), on_progress=lambda _: None)
