"""Delta tables by path: reading, races of writers, lost commits."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, TableFeatures, write_deltalake

from lake.errors import LakeError, StorageError, Unavailable
from lake.store import delta, delta_writer, duckdb_tables
from lake.store.delta import Position
from lake.store.positioned_commit import only_writer
from lake.store.scan import Scan
from lake.store.storage import Address
from lake.store.table_log import commit_file
from lake.store.table_logs import table_log
from lake.store.view import names_in, view
from lake.store.warehouse import Location

APP = "table:t"


def numbers(path: Path) -> list[int]:
    return [row["n"] for row in duckdb_tables.rows(Address(str(path)), "SELECT n FROM t ORDER BY n")]


@pytest.mark.parametrize("folder", ["kind=other", "_bucket=9", "n=7/kind=x", "_file=1"])
def test_table_reads_no_column_value_from_a_folder_above_it(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "t"
    rows = pa.table(
        {
            "_bucket": pa.array([-1, 3], pa.int32()),
            "n": pa.array([1, 2], pa.int64()),
            "kind": ["a", None],
            "filename": ["f", "g"],
        }
    )
    write_deltalake(path, rows, partition_by=["_bucket"])
    assert duckdb_tables.rows(Address(str(path)), "SELECT * FROM t ORDER BY n") == rows.to_pylist()
    assert Scan(Address(str(path))).arrow(["n", "kind", "_bucket", "filename"]).sort_by("n").to_pylist() == [
        {"n": 1, "kind": "a", "_bucket": -1, "filename": "f"},
        {"n": 2, "kind": None, "_bucket": 3, "filename": "g"},
    ]
    assert Scan(Address(str(path)), bounds={"_bucket": (-1, -1)}).arrow(["n"]).to_pylist() == [{"n": 1}]


def test_view_of_a_folder_finds_a_table_that_another_process_creates(tmp_path: Path) -> None:
    logs = Address(str(tmp_path))
    (tmp_path / "orders").mkdir()
    with view():
        assert names_in([logs]) == [{"orders"}]
        write_deltalake(tmp_path / "visits", pa.table({"n": [1]}))
        assert delta.newest_version(logs / "visits") == 0
        assert names_in([logs]) == [{"orders", "visits"}]


@pytest.mark.slow
def test_read_sees_a_lost_commit_made_again_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for n in (1, 2, 3):
        write_deltalake(path, pa.table({"n": [n]}), mode="append")
    assert numbers(path) == [1, 2, 3]
    commit_file(Address(str(path)), 2).delete()
    program = "import sys, pyarrow as pa; from deltalake import write_deltalake\n"
    program += "for n in (4, 5): write_deltalake(sys.argv[1], pa.table({'n': [n]}), mode='append')"
    subprocess.run([sys.executable, "-c", program, path], check=True)
    assert numbers(path) == [1, 2, 4, 5]


def row(n: int) -> pa.Table:
    return pa.table({"n": [n]})


def another_writes_meanwhile(at: Location) -> None:
    with table_log(at.path).opened() as table:
        write_deltalake(at.path.url, row(2), mode="append")
        delta_writer.write(table, row(3), Position(APP, 2))


def another_took_the_number(at: Location) -> None:
    write_deltalake(at.path.url, row(4), mode="append", commit_properties=Position(APP, 2).commit_properties)
    with delta.opened(at.path) as table:
        delta_writer.must_precede(table, Position(APP, 2))


def another_tool_asks_for_more(at: Location) -> None:
    delta_writer.write(at.path, row(5), Position(APP, 3))


def test_writer_reports_a_lost_race_apart_from_a_permanent_fault(tmp_path: Path) -> None:
    at = Location("table", Address(str(tmp_path / "t")))
    write_deltalake(at.path.url, row(1), commit_properties=Position(APP, 1).commit_properties)

    def told(number: int, write: Callable[[Location], None]) -> str:
        with (
            pytest.raises(LakeError) as raised,
            only_writer(at, Position(APP, number), Unavailable("another was first")),
        ):
            write(at)
        return raised.value.what

    assert told(2, another_writes_meanwhile) == "another was first"
    assert told(2, another_took_the_number) == "another was first"
    assert told(2, another_took_the_number) == "another was first"
    DeltaTable(at.path.url).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    assert re.match("t takes no commit: .*RowTracking", told(3, another_tool_asks_for_more))


def test_table_is_created_beside_checksums_of_lost_commits(tmp_path: Path) -> None:
    path = Address(str(tmp_path / "t"))
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    (tmp_path / "t/_delta_log/00000000000000000000.crc").write_text("{}")
    delta_writer.create(path, Schema.from_arrow(pa.schema([("n", pa.int64())])), {})
    assert delta.version(path) == 0


def test_append_of_rows_prepared_before_another_commit_fails(tmp_path: Path) -> None:
    """A writer that was paused between reading and appending finds its number taken."""
    path = Address(str(tmp_path / "t"))
    mine = delta.start("book:t").next(a=1)
    for _ in range(2):
        duckdb_tables.append(path, "a BIGINT", [(2,)], delta.head_or_start(path, "book:t").next(a=2))
        with pytest.raises(Unavailable, match="took no commit"):
            duckdb_tables.append(path, "a BIGINT", [(1,)], mine)
    assert [row["a"] for row in duckdb_tables.rows(path, "FROM t")] == [2, 2]


@pytest.mark.parametrize(("found", "fix"), [(None, "lake run"), (delta.FORMAT + 1, "a newer one")])
def test_table_of_another_format_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int | None, fix: str
) -> None:
    path = Address(str(tmp_path / "t"))
    with monkeypatch.context() as other:
        other.setattr(delta, "FORMAT", found)
        duckdb_tables.append(path, "a BIGINT", [(1,)], delta.start(APP).next(cut=1))
    for look in (delta.head, delta.head_or_start):
        with pytest.raises(StorageError) as refused:
            look(path, APP)
        assert str(path) in refused.value.where
        assert fix in refused.value.fix
