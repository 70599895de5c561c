"""Logs of tables in a bucket as a process knows them, compared with delta-rs. No JVM."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import DeltaError

from lake.config import Settings
from lake.errors import LakeError, Unavailable
from lake.store import bucket_log, delta, delta_writer, duckdb_tables, ledger_table
from lake.store.bucket_log import BucketLog
from lake.store.damage import damage_behind
from lake.store.ledger import runs
from lake.store.locks.lease import lease
from lake.store.storage import Address, Entry, ranged
from lake.store.storage.positioned import SizedCache
from lake.store.table_log import TableState
from lake.store.table_logs import invalidate, table_log
from lake.store.view import view
from lake.store.warehouse import Warehouse
from tests.s3.wire import Fault, nth, wired
from tests.servers.s3 import S3

pytestmark = pytest.mark.slow

APP: Final = "table:t"
SCHEMA: Final = "n BIGINT, part INTEGER"


@pytest.fixture
def settings(s3: S3, tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, warehouse=f"{s3.bucket()}/w", storage=s3.storage)


@pytest.fixture
def table(settings: Settings) -> Address:
    return Warehouse(settings).root / "silver/t"


@pytest.fixture(params=["folder", "bucket"])
def any_table(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """Return a table in either storage."""
    if request.param == "folder":
        return Address(str(tmp_path / "w/silver/t"))
    found: Address = request.getfixturevalue("table")
    return found


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "part": pa.array([n % 2 for n in numbers], pa.int32())})


def create(table: Address, interval: int, **how: Any) -> None:
    """Create an empty table with a checkpoint after every `interval` commits."""
    properties = {"delta.checkpointInterval": str(interval), "delta.enableChangeDataFeed": "true"}
    delta_writer.create(table, Schema.from_arrow(rows(1).schema), properties, **how)


def numbers(table: Address) -> list[int]:
    return [row["n"] for row in duckdb_tables.rows(table, "SELECT n FROM t ORDER BY n")]


def another(table: Address) -> DeltaTable:
    """Return the table as opened by another process."""
    return DeltaTable(table.url, storage_options=table.storage.options)


def appended(table: Address, number: int) -> None:
    duckdb_tables.append(table, SCHEMA, [(number, number % 2)], delta.head_or_start(table, APP).next(n=number))


def overwritten(table: Address, number: int) -> None:
    delta_writer.write(table, rows(number, number + 1), delta.head_or_start(table, APP).next(), mode="overwrite")


def nothing(table: Address, number: int) -> None:
    position = delta.head_or_start(table, APP).next(n=number)
    with table_log(table).committing(reads=False) as current:
        current.create_write_transaction([], "append", current.schema(), commit_properties=position.commit_properties)
    invalidate(table)


def appended_by_another(table: Address, number: int) -> None:
    write_deltalake(table.url, rows(number), mode="append", storage_options=table.storage.options)


def deleted_by_another(table: Address, number: int) -> None:
    another(table).delete(f"n % 5 = {number % 5}")


def checkpointed_by_another(table: Address, _: int) -> None:
    another(table).create_checkpoint()


def compacted(table: Address, _: int) -> None:
    with delta_writer.changing(table) as (current, properties):
        current.optimize.compact(commit_properties=properties)


def deleted(table: Address, number: int) -> None:
    with delta_writer.changing(table) as (current, properties):
        current.delete(f"n % 5 = {number % 5}", commit_properties=properties)


def merged(table: Address, number: int) -> None:
    """Delete, change and insert rows."""
    source = rows(number, number - 1, number - 2)
    position = delta.head_or_start(table, APP).next(n=number)
    with table_log(table).committing(reads=True) as current:
        delta_writer.must_precede(current, position)
        (
            current.merge(source, "s.n = t.n", "s", "t", commit_properties=position.commit_properties)
            .when_matched_delete("s.n % 2 = 0")
            .when_matched_update({"n": "t.n + 100"})
            .when_not_matched_insert({"n": "s.n", "part": "s.part"})
            .execute()
        )
    invalidate(table)


def past_ended(table: Address, _: int) -> None:
    current = another(table)
    current.create_checkpoint()
    for version in range(current.version()):
        (table / "_delta_log" / f"{version:020}.json").delete()


STEPS: Final[tuple[Callable[[Address, int], None], ...]] = (
    appended,
    appended,
    appended,
    overwritten,
    nothing,
    appended_by_another,
    appended_by_another,
    deleted_by_another,
    checkpointed_by_another,
    compacted,
    deleted,
    merged,
    merged,
)


def table_properties(state: TableState | DeltaTable) -> dict[str, Any]:
    """Return all properties of a table."""
    actions = pa.table(state.get_add_actions(flatten=True))
    columns = [name for name in actions.column_names if name in {"path", "size_bytes", "num_records", "min.n", "max.n"}]
    return {
        "version": state.version(),
        "schema": state.schema().to_json(),
        "id": state.metadata().id,
        "properties": state.metadata().configuration,
        "partitions": state.metadata().partition_columns,
        "features": (state.protocol().min_reader_version, state.protocol().writer_features),
        "files": sorted(state.file_uris()),
        "rows": state.count(),
        "actions": sorted(map(str, actions.select(columns).to_pylist())),
        "transaction": state.transaction_version(APP),
    }


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
@pytest.mark.parametrize("most", [5, pytest.param(bucket_log.LISTED, marks=pytest.mark.long)])
def test_table_log_equals_that_of_delta_rs(
    any_table: Address, seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any commits of any writers, at each remaining version; also for a log too long to be listed, and for a table
    with too many files to be changed in a copy.
    """
    monkeypatch.setattr(bucket_log, "LISTED", most)
    monkeypatch.setattr(bucket_log, "FILES", most)
    table = any_table
    chance = random.Random(seed)
    create(table, 4, partition_by=["part"])
    for number in range(16):
        chance.choice(STEPS)(table, number)
        with delta.opened(table) as state:
            assert table_properties(state) == table_properties(another(table))
    ended = seed % 2 == 1
    if ended:
        past_ended(table, 0)
    for log in (table_log(table), type(table_log(table))(table)):
        for version in range(another(table).version() if ended else 0, another(table).version() + 1):
            by_itself = DeltaTable(table.url, version=version, storage_options=table.storage.options)
            assert table_properties(log.state(version)) == table_properties(by_itself)
    assert numbers(table) == sorted(another(table).to_pyarrow_table().column("n").to_pylist())
    if not ended:
        assert numbers_of_feed(table) == numbers(table)


def numbers_of_feed(table: Address) -> list[int]:
    """Return the numbers that result from the change feed."""
    changes = pa.table(another(table).load_cdf().read_all())
    sums: Counter[int] = Counter()
    for n, change in zip(changes["n"].to_pylist(), changes["_change_type"].to_pylist(), strict=True):
        sums[n] += 1 if change in {"insert", "update_postimage"} else -1
    return sorted(sums.elements())


def test_change_of_a_table_with_a_lost_file_is_rejected_as_damage(
    table: Address, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(table, 100)
    appended(table, 1)
    gone = delta.files(another(table))[0]
    table.at(gone).delete()
    monkeypatch.setattr(ranged, "_ENDS", SizedCache())
    with pytest.raises(DeltaError) as raised, delta_writer.changing(table) as (current, properties):
        current.delete("n = 1", commit_properties=properties)
    fault = damage_behind(settings, raised.value)
    assert fault is not None
    assert (fault.where, fault.what) == (gone, "t is damaged: a file is missing")
    assert delta.version(table) == 1


def test_view_sees_its_own_commits_alone(any_table: Address) -> None:
    assert not delta.exists(any_table)
    with view():
        assert not delta.exists(any_table)
        appended_by_another(any_table, 1)
        assert not delta.exists(any_table)
    assert delta.version(any_table) == 0
    with view():
        assert delta.version(any_table) == 0
        delta_writer.add(any_table, rows(2))
        assert delta.version(any_table) == 1
        appended_by_another(any_table, 3)
        assert delta.version(any_table) == 1
        with pytest.raises(Unavailable, match="t took no commit"):
            delta_writer.add(any_table, rows(4))
        assert delta.version(any_table) == 2
    assert numbers(any_table) == [1, 2, 3]


def added(table: Address, number: int) -> None:
    delta_writer.add(table, rows(number))


def compacted_or_refused(table: Address, _: int) -> None:
    with delta_writer.changing(table) as (current, properties):
        current.optimize.compact(commit_properties=properties)


@pytest.mark.parametrize("commit", [added, appended, nothing, merged, overwritten, deleted, compacted_or_refused])
def test_commit_in_a_view_loses_nothing_if_another_writer_was_first(
    any_table: Address, commit: Callable[[Address, int], None]
) -> None:
    create(any_table, 100)
    appended(any_table, 1)
    appended(any_table, 11)
    with view():
        before = delta.head_or_start(any_table, APP).txn
        appended_by_another(any_table, 21)
        with suppress(LakeError, DeltaError):
            commit(any_table, 31)
    transactions = [
        delta.commit_metadata(any_table, version).get("txn") for version in range(delta.version(any_table) + 1)
    ]
    assert 21 in numbers(any_table) or commit is deleted
    assert len({*numbers(any_table)}) == len(numbers(any_table))
    assert [txn for txn in transactions if txn] == [*range(1, before + 1)]


def test_lookup_that_began_before_a_commit_is_repeated_after_it(
    table: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    appended(table, 1)
    known = table_log(table)
    listed, invalidation = BucketLog._list_after, list[threading.Thread]()

    def late(self: BucketLog, after: str = "") -> list[Entry]:
        before = [*listed(self, after)]
        if not invalidation:
            appended_by_another(table, 2)
            invalidation.append(threading.Thread(target=copy_context().run, args=(invalidate, table)))
            invalidation[0].start()
        return before

    monkeypatch.setattr(BucketLog, "_list_after", late)
    with view():
        assert known.newest() == 0
        invalidation[0].join()
        assert known.newest() == 1


@pytest.mark.parametrize("held", [False, True])
def test_threads_share_a_lookup_and_a_lease_repeats_it(table: Address, s3: S3, settings: Settings, held: bool) -> None:
    appended(table, 1)
    with wired(s3.port) as wire:
        through = replace(settings, storage=wire.storage)
        seen = Warehouse(through).root / "silver/t"

        def look(_: int) -> int:
            with lease(through, "table.t") if held else nullcontext():
                return delta.version(seen)

        with view(), ThreadPoolExecutor(2) as pool:
            first = delta.version(seen)
            appended_by_another(table, 2)
            versions = [pool.submit(copy_context().run, look, n).result() for n in range(3)]
    assert (first, versions) == (0, [1, 1, 1] if held else [0, 0, 0])


def test_nested_view_adds_no_lookup(table: Address, s3: S3, settings: Settings) -> None:
    appended(table, 1)
    with wired(s3.port) as wire, view(), view():
        seen = Warehouse(replace(settings, storage=wire.storage)).root / "silver/t"
        for _ in range(3):
            assert delta.version(seen) == 0
            assert delta.head(seen, APP) is not None
    assert wire.kinds() == {"GET": 1, "LIST": 1}


def test_append_to_the_same_version_fails_for_the_second_writer(table: Address) -> None:
    appended(table, 1)
    position = delta.head_or_start(table, APP).next()

    def late() -> None:
        with table_log(table).committing(reads=False) as current:
            delta_writer.must_precede(current, position)
            appended_by_another(table, 2)
            delta_writer.write(current, rows(3), position)

    with pytest.raises(delta_writer.Beaten):
        late()
    assert numbers(table) == [1, 2]


def test_recreated_table_has_no_commits_of_the_old_table(table: Address) -> None:
    for turn in (1, 2):
        for number in range(3):
            appended(table, 10 * turn + number)
        head = delta.head(table, APP)
        assert head is not None
        assert (head.data["n"], delta.version(table)) == (10 * turn + 2, 2)
        table.storage.delete_table(table.url)
        assert not delta.exists(table)


@pytest.mark.parametrize("fault", ["lose", "cut"])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_append_writes_its_rows_once_when_a_put_is_lost(s3: S3, settings: Settings, fault: Fault, number: int) -> None:
    """The data file, the commit, the checkpoint, and the pointer to it."""
    with wired(s3.port) as wire:
        table = Warehouse(replace(settings, storage=wire.storage)).root / "meta/t"
        create(table, 3)
        appended(table, 1)
        wire.fails = nth(number, "PUT", "", fault)
        appended(table, 2)
        assert wire.happened == 1
        appended(table, 3)
    there = Warehouse(settings).root / "meta/t"
    appended_by_another(there, 4)
    assert numbers(there) == [1, 2, 3, 4]


def test_copies_of_a_log_are_deleted(table: Address, settings: Settings) -> None:
    for number in range(5):
        appended(table, number)
        with delta.opened(table, number) as state:
            assert state.count() == number + 1
    assert [*_below(settings.path(".lake"))] == []


def _below(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def test_lease_looks_up_its_table_once(s3: S3, settings: Settings) -> None:
    with wired(s3.port) as wire:
        those = replace(settings, storage=wire.storage)
        at = Warehouse(those).table("silver", "t")
        appended(at.path, 1)
        with lease(those, at.lease):
            for number in (2, 3):
                wire.requests.clear()
                for _ in range(3):
                    assert delta.version(at.path) == number - 2
                appended(at.path, number)
                assert delta.version(at.path) == number - 1
                listed = [path for _, path in wire.requests if "list-type" in path and "_delta_log" in path]
                assert len(listed) == 3 - number
        appended_by_another(at.path, 4)
        with lease(those, at.lease):
            assert delta.version(at.path) == 3
            at.path.storage.delete_table(at.path.url)
            invalidate(at.path)
            assert not delta.exists(at.path)


@pytest.mark.parametrize("stands_still", [False, True])
def test_concurrent_runs_of_two_hosts_are_recorded_and_numbered(
    s3: S3, settings: Settings, tmp_path: Path, stands_still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_table, "COMPACT_EVERY", 4)
    hosts = [replace(settings, project=tmp_path / name) for name in ("one", "other")]
    at = datetime(2026, 1, 2, tzinfo=UTC)

    def work(host: Settings) -> None:
        with view() if stands_still else nullcontext():
            for number in range(8):
                runs.record_run(host, runs.Run("advance", f"{host.project.name}-{number}", number, "done", {}, at, 0.0))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, hosts))
    booked = runs.last_runs(settings)
    assert set(booked) == {f"{host.project.name}-{number}" for host in hosts for number in range(8)}
    assert sorted(run.number for run in booked.values()) == list(range(1, 17))
