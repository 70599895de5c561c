"""Truncated commits, which do not count, and late Spark commits of dead writers. No JVM."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableMerger

from lake.config import Settings
from lake.errors import Unavailable, full
from lake.project.project import load
from lake.publish.cut import cut
from lake.store import delta, duckdb_tables, erasures
from lake.store.keys import open_store
from lake.store.ledger.cuts import latest_cut, record_cut
from lake.store.locks.lease import lease
from lake.store.storage import Address
from lake.store.table_log import commit_file
from lake.store.table_logs import forget_all
from lake.store.truncated_commit import truncated_version
from lake.store.upkeep import vacuum
from lake.store.warehouse import Warehouse
from tests.checks import present
from tests.crash.model import Shop

pytestmark = pytest.mark.slow

NOW = datetime(2024, 4, 1, tzinfo=UTC)


def cuts(project: Settings) -> Address:
    """Record three cuts. Return the path of their ledger."""
    for number in (1, 2, 3):
        record_cut(project, {"orders": number}, 0)
    return Warehouse(project).book("cuts").path


def newest(path: Address) -> Path:
    return commit_file(path, DeltaTable(str(path)).version()).local


def truncate_newest(path: Address, bytes_: int) -> bytes:
    """Truncate the newest commit to `bytes_` (negative: remove that many). Return its full content."""
    content = newest(path).read_bytes()
    newest(path).write_bytes(content[:bytes_])
    return content


@pytest.mark.parametrize("left", [0, 1, 300, -1])
def test_truncated_commit_is_ignored_and_its_number_reused(project: Settings, left: int) -> None:
    path = cuts(project)
    file = newest(path)
    truncate_newest(path, left)
    forget_all()
    assert truncated_version(path) == int(file.stem)
    assert present(latest_cut(project)).number == 2
    assert delta.version(path) == int(file.stem) - 1
    assert record_cut(project, {"orders": 4}, 0).number == 3
    assert (truncated_version(path), newest(path)) == (None, file)
    assert len(duckdb_tables.rows(path, "SELECT * FROM t")) == 3
    assert file.with_name(f".{file.name}.torn").exists()


def test_signpost_of_an_older_version_is_ignored_and_deleted_by_the_next_writer(project: Settings) -> None:
    path = cuts(project)
    sign = commit_file(path, delta.version(path) + 1)
    features = ["headwater: it is retired"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    sign.local.write_text(
        json.dumps({"commitInfo": {"operation": "SIGNPOST"}}) + "\n" + json.dumps({"protocol": protocol})
    )
    forget_all()
    assert present(latest_cut(project)).number == 3
    with lease(project, "meta.cuts"):
        assert not sign.local.exists()
    assert record_cut(project, {"orders": 4}, 0).number == 4


def test_truncated_entry_about_erasures_does_not_stop_the_next(project: Settings) -> None:
    number = erasures.record(project, "orders", ["token"], at=NOW)
    path = Warehouse(project).book("erasures").path
    for _ in range(2):
        erasures.mark_purged(project, number, edition=1, at=NOW)
        truncate_newest(path, 100)
        forget_all()
        assert erasures.purged(project) == 0
    assert erasures.record(project, "orders", ["another"], at=NOW) == number + 1
    erasures.mark_purged(project, number + 1, edition=2, at=NOW)
    assert (erasures.purged(project), erasures.subjects(project, "orders")) == (number + 1, {"token", "another"})


def test_checkpoint_of_a_truncated_commit_is_deleted_with_it(project: Settings) -> None:
    path = cuts(project)
    DeltaTable(str(path)).create_checkpoint()
    truncate_newest(path, 50)
    forget_all()
    assert present(latest_cut(project)).number == 2
    assert record_cut(project, {"orders": 4}, 0).number == 3
    assert [entry for entry in (path / "_delta_log").list() if "checkpoint" in entry.name] == []
    assert len(duckdb_tables.rows(path, "SELECT * FROM t")) == 3


@pytest.mark.parametrize("left", [0, 1, 200, -3])
def test_table_without_past_keeps_its_rows_when_its_commit_is_truncated(project: Settings, left: int) -> None:
    path, app = table(project)
    for number in (2, 3):
        duckdb_tables.append(path, "a BIGINT", [[number]], present(delta.head(path, app)).next(cut=number))
    vacuum.begin_anew(path, delta.head(path, app), purge=1)
    vacuum.truncate(path)
    truncate_newest(path, left)
    forget_all()
    for _ in range(2):
        with lease(project, "table.current_order"):
            assert (delta.head(path, app), delta.head_or_start(path, app).txn) == (None, 3)
            assert [row["a"] for row in duckdb_tables.rows(path, "SELECT a FROM t ORDER BY a")] == [1, 2, 3]
    with lease(project, "table.current_order"):
        duckdb_tables.append(path, "a BIGINT", [[4]], delta.head_or_start(path, app).next(cut=4))
    assert (present(delta.head(path, app)).txn, len(duckdb_tables.rows(path, "SELECT a FROM t"))) == (4, 4)


def test_commit_is_recognized_as_truncated_at_every_byte(project: Settings) -> None:
    path = cuts(project)
    content = truncate_newest(path, 10**6)
    file = newest(path)
    for left in range(len(content)):
        file.write_bytes(content[:left])
        assert truncated_version(path) is not None, left


def test_first_commit_of_a_table_may_be_truncated(project: Settings) -> None:
    record_cut(project, {"orders": 1}, 0)
    path = Warehouse(project).book("cuts").path
    for version in range(DeltaTable(str(path)).version(), 0, -1):
        commit_file(path, version).delete()
    truncate_newest(path, 100)
    forget_all()
    assert latest_cut(project) is None
    assert record_cut(project, {"orders": 2}, 0).number == 1


def table(project: Settings) -> tuple[Address, str]:
    at = Warehouse(project).table("silver", "current_order")
    duckdb_tables.append(at.path, "a BIGINT", [[1]], delta.start(at.app).next(cut=1))
    return at.path, at.app


def test_lost_erasure_is_recorded_again_when_its_key_is_destroyed(tmp_path: Path) -> None:
    project = load(Shop(tmp_path, Random(1)).lakehouse.settings)
    store = open_store(project.settings, make=True)
    store.make("orders", ["ada", "joan"])
    assert cut(project).voids == 0
    store.destroy("orders", ["ada"])
    assert [cut(project).voids, cut(project).voids] == [1, 1]
    assert erasures.subjects(project.settings, "orders") == {"ada"}
    commit_file(Warehouse(project.settings).book("erasures").path, 0).local.write_text("{")
    assert cut(project).voids == 2, "the number of what was lost is not given again"
    assert erasures.subjects(project.settings, "orders") == {"ada"}


def test_full_disk_is_reported_with_its_path() -> None:
    told = full(OSError(28, os.strerror(28), "/data/shop/meta"))
    assert isinstance(told, Unavailable)
    assert (told.where, told.exit_code) == ("/data/shop/meta", 75)
    assert full(OSError("no such thing")) is None


def test_complete_commits_of_other_tools_are_not_recognized_as_truncated(tmp_path: Path) -> None:
    path, rows = Address(str(tmp_path / "t")), pa.table({"k": [1, 2, 3, 4], "a": [1, 2, 3, 4]})

    def merge() -> TableMerger:
        return DeltaTable(str(path)).merge(rows, "s.k = t.k", source_alias="s", target_alias="t")

    feed = {"delta.enableChangeDataFeed": "true"}
    for change in (
        lambda: write_deltalake(str(path), rows, configuration=feed),
        lambda: DeltaTable(str(path)).delete("a = 1"),
        lambda: DeltaTable(str(path)).update(updates={"a": "a + 1"}, predicate="a >= 3"),
        lambda: merge().when_matched_update_all().when_not_matched_insert_all().execute(),
        lambda: merge().when_matched_delete("s.k = 2").execute(),
        lambda: write_deltalake(str(path), rows.slice(0, 0), mode="append"),
        lambda: write_deltalake(str(path), rows, mode="append"),
        lambda: DeltaTable(str(path)).optimize.compact(target_size=1 << 20),
        lambda: DeltaTable(str(path)).delete(),
        lambda: DeltaTable(str(path)).restore(1),
        lambda: commit_file(path, 10).local.write_text('{"txn": {"appId": "a", "version": 1}}'),
    ):
        change()
        assert truncated_version(path) is None, newest(path).read_text()


@pytest.mark.parametrize("feed", ["true", "false"])
def test_delta_rs_commit_is_recognized_as_truncated_at_every_line(tmp_path: Path, feed: str) -> None:
    path, rows, taken = Address(str(tmp_path / "t")), pa.table({"k": [1, 2, 3, 4], "a": [1, 2, 3, 4]}), []

    def merge() -> TableMerger:
        return DeltaTable(str(path)).merge(rows.slice(0, 2), "s.k = t.k", source_alias="s", target_alias="t")

    def append() -> None:
        write_deltalake(str(path), rows, mode="append")

    for change in (
        lambda: DeltaTable.create(str(path), rows.schema, configuration={"delta.enableChangeDataFeed": feed}),
        append,
        append,
        lambda: DeltaTable(str(path)).update(updates={"a": "a + 1"}, predicate="a >= 3"),
        append,
        lambda: DeltaTable(str(path)).delete("a = 1"),
        lambda: merge().when_matched_update_all().when_not_matched_insert_all().execute(),
        append,
        lambda: DeltaTable(str(path)).optimize.compact(target_size=1 << 20),
        append,
        lambda: DeltaTable(str(path)).optimize.z_order(["k"]),
        lambda: write_deltalake(str(path), rows, mode="overwrite", schema_mode="overwrite"),
        lambda: DeltaTable(str(path)).restore(4),
        lambda: DeltaTable(str(path)).delete(),
    ):
        change()
        content, file = newest(path).read_bytes(), newest(path)
        *lines, _ = content.splitlines(keepends=True)
        for count in range(len(lines) + 1):
            file.write_bytes(b"".join(lines[:count]))
            if truncated_version(path) is None:
                taken.append((json.loads(lines[0])["commitInfo"]["operation"], count, len(lines) + 1))
        file.write_bytes(content)
    # An UPDATE lists the files of its change feed last, and they are not counted. No table here is updated so.
    assert [operation for operation, *_ in taken] == (["UPDATE"] if feed == "true" else [])
