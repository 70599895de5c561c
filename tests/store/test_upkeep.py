"""Upkeep of a warehouse: activity of processes, compaction, vacuum."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from dataclasses import replace as with_fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from lake.config import Settings
from lake.errors import LakeError, LawError, Unavailable
from lake.store import delta, duckdb_tables
from lake.store.commit import commit, replace
from lake.store.delta import start
from lake.store.delta_writer import CHECKPOINT_EVERY, set_truncated_aside
from lake.store.duckdb_tables import TableFiles
from lake.store.locks import activity, lease
from lake.store.rows import Rows
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.table_head import CHANGE, Counts
from lake.store.table_log import commit_file
from lake.store.table_logs import forget_all, table_log
from lake.store.tables import FeedGap, Table
from lake.store.upkeep import compaction, vacuum
from lake.store.warehouse import Warehouse
from tests.checks import present
from tests.processes import other_process
from tests.shop import empty

pytestmark = pytest.mark.slow

NO_SPARK = cast("SparkSession", None)
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("_order", pa.struct([("_batch", pa.int64())]))])


def change(table: Table, what: str, *numbers: int, text: str = "a", told: bool = False) -> int:
    """Commit the change as the next cut, and record its row counts if `told`. Return the new version."""
    rows = [{"n": n, "text": text, "_order": {"_batch": n}, CHANGE: what} for n in numbers]
    diff = Rows(pa.Table.from_pylist(rows, SCHEMA.append(pa.field(CHANGE, pa.string()))))
    before = table.position() or start(table.app)
    counts = asdict(Counts.of(diff)) if told else {}
    position = before.next(verb="advance", cut=before.txn + 1, inputs={}, counts=counts)
    return commit(table, diff, Counts.of(diff), ["n"], position).version


@pytest.fixture(scope="module")
def shared_table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Table of three inserts, an update and a delete: versions 1 to 5."""
    table = Table(empty(tmp_path_factory.mktemp("made")), "silver", "thing", "thing")
    table.create(SCHEMA, description="")
    for numbers in ((1, 2), (3, 4), (5, 6)):
        change(table, "insert", *numbers)
    change(table, "update", 2, text="b")
    change(table, "delete", 5)
    return table


@pytest.fixture
def table(shared_table: Table, project: Settings) -> Table:
    """Copy of `shared_table`."""
    shutil.copytree(shared_table.settings.warehouse_path, project.warehouse_path)
    return Table(project, "silver", "thing", "thing")


def numbers(table: Table, version: int | None = None) -> list[int]:
    rows = duckdb_tables.rows(table.path, "SELECT n FROM t ORDER BY n", version=version)
    return [row["n"] for row in rows]


def files(table: Table) -> int:
    return len(DeltaTable(str(table.path)).file_uris())


def feed(table: Table, after: int, upto: int) -> list[tuple[int, str]]:
    changes = pa.table(DeltaTable(str(table.path)).load_cdf(starting_version=after + 1, ending_version=upto))
    return sorted((row["n"], row["_change_type"]) for row in changes.to_pylist())


def delete(table: Table, *, keep: tuple[int, ...] = (), since: int) -> int:
    gone = vacuum.unneeded(table.path, keep=keep, since=since)
    for file in gone:
        file.delete()
    return len(gone)


def test_activity_lists_a_process_until_it_is_dead(project: Settings) -> None:
    project.warehouse_path.mkdir(parents=True)
    assert activity.others(project) == []
    with other_process(project, "reading") as process:
        [running] = activity.others(project)
        assert (running.pid, running.command, running.edition) == (process.pid, "lake sql", 3)
        assert abs(datetime.now(UTC) - running.since) < timedelta(minutes=1)
        assert "lake sql of edition 3 (pid" in str(running)
    assert activity.others(project) == []


def test_activity_skips_a_file_that_vanishes_while_it_is_read(project: Settings) -> None:
    listed = project.warehouse_path / "locks/reads"
    listed.mkdir(parents=True)
    (listed / "1.gone").symlink_to("nothing")
    assert activity.others(project) == []


def test_activity_omits_this_process_and_its_file_ends_with_it(project: Settings) -> None:
    activity.begin(project, "lake run")
    assert not project.warehouse_path.exists(), "reading alone makes no warehouse"
    project.warehouse_path.mkdir(parents=True)
    activity.begin(project, "lake run")
    activity.renew(project)
    assert activity.others(project) == []
    activity.end()
    assert list((project.warehouse_path / "locks/reads").iterdir()) == []


def test_activity_lists_a_process_that_makes_the_warehouse(project: Settings) -> None:
    activity.begin(project, "lake run --follow")
    with lease.lease(project, "table.thing"):
        [own] = (project.warehouse_path / "locks/reads").iterdir()
    assert json.loads(own.read_text())["command"] == "lake run --follow"
    activity.end()
    with lease.lease(project, "table.thing"):
        assert not own.exists()


def test_activity_lists_no_partial_entry_when_the_disk_is_full(project: Settings) -> None:
    project.warehouse_path.mkdir(parents=True)
    program = """
import os, resource, signal, sys
from pathlib import Path
from lake.config import load_settings
from lake.store.locks import activity
settings = load_settings(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
activity.begin(settings, 'lake run')
print(os.listdir(settings.warehouse_path / 'locks/reads'))"""
    done = subprocess.run([sys.executable, "-c", program, project.project], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_lease_error_names_the_holder_and_dead_holders_are_cleared(project: Settings) -> None:
    with (
        other_process(project, "table.thing") as process,
        pytest.raises(Unavailable, match=rf"the table thing is being written by `-c` \(pid {process.pid}, since"),
        lease.lease(project, "table.thing", seconds=0.05),
    ):
        pass
    left = project.warehouse_path / "locks/table.thing.holder"
    assert lease.clear_dead_holders(project, dry_run=True) == [left]
    assert lease.clear_dead_holders(project, dry_run=False) == [left]
    with lease.lease(project, "table.thing"), lease.lease(project, "table.thing"):
        assert left.exists()
    assert not left.exists()


def test_compaction_keeps_rows_and_position_and_adds_no_change_to_the_feed(table: Table) -> None:
    head, before = present(table.position()), numbers(table)
    done = compaction.compact_table(table.path, head, ["n", "_order"])
    assert (done.files[1], done.rows, numbers(table)) == (1, 5, before)
    again = present(table.position())
    assert (again.txn, again.version, again.origin) == (head.txn, head.version + 1, head.version)
    assert again.data == {**head.data, "repeated": True, "origin": head.version}
    assert again.again() == again.again().again()
    assert feed(table, head.version, again.version) == []
    assert change(table, "insert", 7) == again.version + 1
    assert present(table.position()).txn == head.txn + 1
    assert feed(table, head.version, table.version()) == [(7, "insert")]
    assert [table.last_repeat(version) for version in (4, head.version, table.version())] == [4, 6, 7]


def test_compaction_is_undone_when_it_changes_rows(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    head, before = present(table.position()), numbers(table)
    told = iter([(5, "1"), (4, "2")])
    monkeypatch.setattr(compaction, "count_and_hash", lambda *_: next(told))
    with pytest.raises(LawError, match=r"undone: 5 rows \(1\) became 4"):
        compaction.compact_table(table.path, head, ["n"])
    assert numbers(table) == before
    assert (present(table.position()).txn, present(table.position()).origin) == (head.txn, head.version)


def test_hash_of_rows_depends_on_the_rows_alone(table: Table) -> None:
    opened = DeltaTable(str(table.path))
    rows, print_ = compaction.count_and_hash(TableFiles(table.path, opened, delta.files(opened)))
    compaction.compact_table(table.path, table.position(), [])
    opened = DeltaTable(str(table.path))
    assert compaction.count_and_hash(TableFiles(table.path, opened, delta.files(opened))) == (rows, print_)
    change(table, "update", 1, text="other")
    opened = DeltaTable(str(table.path))
    assert compaction.count_and_hash(TableFiles(table.path, opened, delta.files(opened))) != (rows, print_)
    assert compaction.count_and_hash(TableFiles(table.path, opened, [])) == (0, "0")


def test_file_group_is_due_when_it_has_many_more_files_than_needed() -> None:
    ideal = compaction.TARGET_BYTES
    assert compaction.FileGroup(None, 10, 1000, 10).is_due
    assert not compaction.FileGroup(None, 9, 1000, 9).is_due
    assert not compaction.FileGroup(3, 27, 10 * ideal, 0).is_due
    assert compaction.FileGroup(3, 28, 10 * ideal, 0).is_due


def test_vacuum_keeps_the_given_versions_and_every_later_one(table: Table) -> None:
    compaction.compact_table(table.path, table.position(), ["n"])
    kept = {version: numbers(table, version) for version in (2, 5, 6)}
    orphan, mark = table.path.local / "part-orphan.parquet", table.path.local / "_delta_log/_commit_1.json.tmp"
    orphan.write_text("left by a crash")
    os.utime(orphan, (0, 0))
    mark.write_text("left by a crash")
    assert delete(table, keep=(2,), since=5) > 2
    assert not orphan.exists()
    assert not mark.exists()
    assert {version: numbers(table, version) for version in kept} == kept
    with pytest.raises(LakeError, match="thing: version 4 can no longer be read: a file is missing"):
        Scan(table.path, 4).arrow()
    assert delete(table, keep=(2,), since=5) == 0


def test_vacuum_deletes_an_upload_that_delta_rs_never_finished(table: Table) -> None:
    [whole, *_] = sorted(table.path.local.glob("*.parquet"))
    halves = [folder / f"{whole.name}#{n}" for n, folder in enumerate((table.path, table.path / "_delta_log"))]
    for half in halves:
        half.local.write_bytes(whole.read_bytes()[:99])
    assert {*halves} <= {*vacuum.unneeded(table.path, keep=(), since=0)}


@pytest.mark.parametrize("deleted", [0, 1, None])
def test_vacuum_of_a_truncated_table_begins_at_its_oldest_version(
    table: Table, monkeypatch: pytest.MonkeyPatch, deleted: int | None
) -> None:
    """Even if the process was killed while it truncated."""
    rows, version = Scan(table.path).arrow().num_rows, vacuum.begin_anew(table.path, table.position())
    if deleted is None:
        vacuum.truncate(table.path)
    else:
        with monkeypatch.context() as patched:
            patched.setattr(Address, "delete", killed_after(deleted, Address.delete))
            with pytest.raises(KeyboardInterrupt):
                vacuum.truncate(table.path)
    for file in vacuum.unneeded(table.path, keep=(0, 2, version), since=0):
        file.delete()
    forget_all()
    assert Scan(table.path).arrow().num_rows == rows
    assert vacuum.unneeded(table.path, keep=(0, 2, version), since=0) == {}


def killed_after(count: int, delete: Callable[[Address], None]) -> Callable[[Address], None]:
    left = iter(range(count))

    def counted(file: Address) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        delete(file)

    return counted


def test_vacuum_keeps_a_file_that_spark_may_commit_for_a_day(table: Table) -> None:
    late = table.path / "part-late.snappy.parquet"
    [file] = delta.files(DeltaTable(str(table.path), version=1))
    late.local.write_bytes(Path(file).read_bytes())
    assert vacuum.unneeded(table.path, keep=(), since=0) == {}
    size = present(late.head()).size
    assert vacuum.unneeded(table.path, keep=(), since=0, unnamed=timedelta()) == {late: size}
    os.utime(late.local, (time.time() - 90_000,) * 2)
    assert vacuum.unneeded(table.path, keep=(), since=0) == {late: size}


def test_vacuum_finds_the_same_unneeded_files_as_deltalake(table: Table) -> None:
    compaction.compact_table(table.path, table.position(), ["n"])
    change(table, "update", 1, 2, text="c")
    last = table.version()
    for since in range(last + 1):
        for keep in ((), (1,), (2, 5), (0, 3, 6)):
            versions = sorted({*keep, *range(since, last + 1)})
            said = DeltaTable(str(table.path)).vacuum(
                0, enforce_retention_duration=False, full=True, keep_versions=versions
            )
            unneeded = vacuum.unneeded(table.path, keep=keep, since=since)
            data = {file for name in said if (file := table.path / name).parent == table.path}
            assert {file for file in unneeded if file.parent == table.path} == data, (since, keep)


def test_vacuum_keeps_the_change_feed_since_the_given_version(
    table: Table,
) -> None:
    whole = feed(table, 3, 5)
    assert [kind for _, kind in whole] == ["update_postimage", "update_preimage", "delete"]
    compaction.compact_table(table.path, table.position(), ["n"])
    delete(table, since=3)
    assert feed(table, 3, 6) == whole
    change(table, "update", 1, text="c")
    delete(table, since=6)
    assert [kind for _, kind in feed(table, 6, 7)] == ["update_postimage", "update_preimage"]
    with pytest.raises(FeedGap):
        table.changes(NO_SPARK, after=3, upto=7)


def test_changed_rows_between_versions_are_counted_from_commits(table: Table) -> None:
    before = table.version()
    first = change(table, "insert", 7, 8, 9, told=True)
    change(table, "update", 7, text="c", told=True)
    compaction.compact_table(table.path, table.position(), ["n"])
    last = change(table, "delete", 8, told=True)
    assert [table.changed_rows(after=after, upto=last) for after in (before, first, last)] == [5, 2, 0]
    assert table.changed_rows(after=before, upto=first) == 3
    whole = present(table.position()).next(verb="rebuild", cut=9, inputs={}, counts={})
    rows = Scan(table.path).arrow()
    replaced = replace(table, Rows(rows), ["n"], whole, meanings={}).version
    assert table.changed_rows(after=last, upto=replaced) == 2 * rows.num_rows, "Spark does not say how many it wrote"
    vacuum.begin_anew(table.path, table.position())
    vacuum.truncate(table.path)
    with pytest.raises(FeedGap):
        replace_settings(table, 0).changes(NO_SPARK, after=before, upto=table.version())


def replace_settings(table: Table, limit: int) -> Table:
    """Return the table with a project that gathers at most `limit` rows."""
    return with_fields(table, settings=with_fields(table.settings, in_process_rows=limit))


def test_keys_and_rows_are_gathered_up_to_a_limit(table: Table) -> None:
    rows, version = Scan(table.path).arrow(["n"]), table.version()
    for limit in (rows.num_rows - 1, rows.num_rows):
        keys = table.keys_where(["n"], rows, "k.n = t.n", version, limit=limit)
        assert (None if keys is None else keys.num_rows) == (rows.num_rows if limit == rows.num_rows else None)
        assert table.rows_where("true", version, without=None, limit=limit).num_rows == limit


def test_instant_maps_to_the_newest_version_that_was_surely_seen(table: Table) -> None:
    now = datetime.now(UTC)
    assert vacuum.seen_at(table.path, now) == 0, "commits of the last minute may not have been seen"
    assert vacuum.seen_at(table.path, now + 2 * vacuum.GRACE) == table.version()


def test_table_of_many_commits_gets_a_checkpoint(project: Settings) -> None:
    path = Warehouse(project).book("book").path
    for number in range(CHECKPOINT_EVERY + 1):
        write_deltalake(str(path), pa.table({"n": [number]}), mode="append")
    vacuum.checkpoint(path)
    assert (path / "_delta_log" / f"{CHECKPOINT_EVERY:020}.checkpoint.parquet").exists()


def test_checkpoint_is_written_when_the_last_checkpoint_file_is_truncated(project: Settings) -> None:
    path = Warehouse(project).book("book").path
    for number in range(CHECKPOINT_EVERY + 1):
        write_deltalake(str(path), pa.table({"n": [number]}), mode="append")
    (path / "_delta_log" / "_last_checkpoint").local.write_text('{"vers')
    vacuum.checkpoint(path)
    assert (path / "_delta_log" / f"{CHECKPOINT_EVERY:020}.checkpoint.parquet").exists()


def test_writers_pack_small_files_when_there_are_many(table: Table) -> None:
    for number in range(100, 100 + compaction.CROWDED - files(table) - 1):
        change(table, "insert", number)
    before, crowd = numbers(table), files(table)
    compaction.pack_table(table.path, table.position())
    assert files(table) == crowd == compaction.CROWDED - 1
    head = change(table, "insert", 99)
    position = present(table.position())
    compaction.pack_table(table.path, position)
    assert (files(table), present(table.position()).origin, numbers(table)) == (1, head, sorted([*before, 99]))
    compaction.pack_table(table.path, table.position())
    assert table.version() == head + 1


def test_writers_do_not_pack_when_another_tool_wrote_last(table: Table) -> None:
    for number in range(100, 100 + compaction.CROWDED):
        change(table, "insert", number)
    with table_log(table.path).opened() as opened:
        write_deltalake(opened, Scan(table.path).arrow(limit=1), mode="append")
    crowd = files(table)
    compaction.pack_table(table.path, table.position())
    assert files(table) == crowd


def test_table_without_past_keeps_only_its_newest_version(table: Table) -> None:
    change(table, "update", 1, text="a secret of version 6")
    change(table, "update", 1, text="no secret")
    before, head = Scan(table.path).arrow().sort_by("n").to_pylist(), present(table.position())
    assert vacuum.begin_anew(table.path, head, purge=3) == head.version + 1
    assert vacuum.truncate(table.path) > 6
    assert Scan(table.path).arrow().sort_by("n").to_pylist() == before
    position = present(table.position())
    assert (position.txn, position.origin, table.version()) == (
        head.txn,
        head.version,
        head.version + 1,
    )
    assert not [file for file in table.path.local.rglob("*") if file.is_file() and b"secret of" in file.read_bytes()]
    assert {file.suffix for file in (table.path / "_delta_log").local.iterdir()} == {".json", ".parquet", ""}
    assert change(table, "insert", 7) == position.version + 1
    with pytest.raises(FeedGap):
        table.changes(NO_SPARK, after=3, upto=table.version())
    vacuum.begin_anew(table.path, table.position())
    assert vacuum.truncate(table.path) > 0
    assert change(table, "delete", 7) == position.version + 3
    assert numbers(table) == [row["n"] for row in before]


def test_definition_of_a_table_outlives_its_past(table: Table) -> None:
    position = present(table.position()).next(
        verb="rebuild", cut=9, inputs={}, counts={}, definition={"kind": "Latest"}
    )
    commit(
        table,
        Rows(Scan(table.path).arrow(limit=0).append_column(CHANGE, pa.array([], pa.string()))),
        Counts(),
        ["n"],
        position,
    )
    change(table, "insert", 8)
    vacuum.begin_anew(table.path, table.position())
    vacuum.truncate(table.path)
    assert present(table.position()).data["definition"] == {"kind": "Latest"}


def test_interrupted_end_of_the_past_is_completed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[Path] = []

    def unlink(file: Path, *, missing_ok: bool) -> None:
        if len(gone) == 4:
            raise InterruptedError
        gone.append(file)
        os.unlink(file)

    vacuum.begin_anew(table.path, table.position())
    before = numbers(table)
    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(InterruptedError):
        vacuum.truncate(table.path)
    monkeypatch.undo()
    assert numbers(table) == before
    assert vacuum.truncate(table.path) > 0
    assert numbers(table) == before
    assert len(list((table.path / "_delta_log").local.glob("*.json"))) == 1


def test_truncated_compaction_has_lost_no_row(table: Table) -> None:
    before, rows = files(table), numbers(table)
    DeltaTable(str(table.path)).optimize.compact()
    newest = delta.version(table.path)
    assert files(table) < before
    delete(table, keep=tuple(vacuum.before_newest(table.path)), since=newest)
    commit_file(table.path, newest).local.write_text("{")
    forget_all()
    set_truncated_aside(table.path)
    assert (files(table), numbers(table)) == (before, rows)


def test_table_that_begins_at_its_newest_version_has_none_before(table: Table) -> None:
    vacuum.begin_anew(table.path)
    assert vacuum.before_newest(table.path) == [delta.version(table.path) - 1]
    vacuum.truncate(table.path)
    assert vacuum.before_newest(table.path) == []


def test_table_is_removed_when_an_earlier_removal_was_cut_short(table: Table) -> None:
    folder = table.path.local
    left = folder.with_name(f".{folder.name}.gone")
    (left / "some").mkdir(parents=True)
    table.path.storage.delete_table(table.path.url)
    assert [folder.exists(), left.exists()] == [False, False]
