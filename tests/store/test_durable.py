"""Flushing of a table's commits to disk, and its order. tests/crash/test_power.py cuts the power."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from lake.errors import StorageError
from lake.session import file_modes
from lake.store import delta, delta_writer, durable
from lake.store.storage import Address


@pytest.fixture
def table(tmp_path: Path) -> Address:
    return Address(str(tmp_path / "meta/table"))


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the flushed files and folders, in order."""
    names = list[str]()
    flush = file_modes._flush

    def noted(path: Path) -> None:
        flush(path)
        names.append(path.name)

    monkeypatch.setattr(file_modes, "_flush", noted)
    monkeypatch.setattr(file_modes, "FLUSH_THREADS", 1)
    return names


def append(table: Address, *numbers: int) -> None:
    for number in numbers:
        delta_writer.add(table, pa.table({"n": [number]}), configuration=delta_writer.KEEP_LOGS)


def data(table: Address) -> list[str]:
    return sorted(file.name for file in table.local.glob("*.parquet"))


def commit(version: int) -> str:
    return f"{version:020}.json"


def test_flush_writes_files_then_their_commit_then_the_folders_of_both(table: Address, flushed: list[str]) -> None:
    append(table, 1)
    durable.flush(table)
    assert flushed[:5] == [*data(table), "table", commit(0), "_delta_log", "table"]
    assert flushed[5:7] == ["meta", table.local.parents[1].name]


def test_flush_writes_only_commits_since_the_last_flush(table: Address, flushed: list[str]) -> None:
    append(table, 1)
    durable.flush(table)
    before = data(table)
    flushed.clear()
    durable.flush(table)
    assert flushed == []
    append(table, 2, 3)
    durable.flush(table)
    new = sorted({*data(table)} - {*before})
    assert sorted(flushed[:2]) == new
    assert flushed[2:] == ["table", commit(1), commit(2), "_delta_log", "table"]


def test_first_flush_of_a_process_begins_at_the_newest_checkpoint(table: Address, flushed: list[str]) -> None:
    append(table, *range(23))
    version = delta.newest_checkpoint(table)
    assert 0 < version < 22
    durable.flush(table)
    commits = [name for name in flushed if name.endswith(".json")]
    assert commits == [commit(number) for number in range(version, 23)]
    assert f"{version:020}.checkpoint.parquet" in flushed
    assert "_last_checkpoint" in flushed


@pytest.mark.parametrize("versions", [2, 3, 4])
def test_flush_writes_every_commit_of_a_table_created_again(table: Address, flushed: list[str], versions: int) -> None:
    append(table, 1, 2, 3)
    durable.flush(table)
    shutil.rmtree(table.local)
    append(table, *range(versions))
    flushed.clear()
    durable.flush(table)
    assert [name for name in flushed if name.endswith(".json")] == [commit(version) for version in range(versions)]
    assert set(data(table)) <= set(flushed)


def test_flush_begins_at_the_given_version_for_an_unknown_table(table: Address, flushed: list[str]) -> None:
    append(table, 1, 2, 3)
    durable.flush(table, lambda: 1)
    assert [name for name in flushed if name.endswith(".json")] == [commit(2)]


@pytest.mark.parametrize("is_gone", [True, False])
def test_flush_reports_a_missing_or_truncated_file_of_a_commit(table: Address, is_gone: bool) -> None:
    append(table, 1)
    [file] = table.local.glob("*.parquet")
    if is_gone:
        file.unlink()
    else:
        file.write_bytes(b"")
    with pytest.raises(StorageError, match="gone" if is_gone else "cut short") as told:
        durable.flush(table)
    assert str(file) in str(told.value)


def test_flush_skips_files_that_a_later_commit_removed(table: Address) -> None:
    append(table, 1, 2)
    before = data(table)
    with delta_writer.changing(table) as (changed, properties):
        changed.optimize.compact(commit_properties=properties)
    for name in before:
        (table.local / name).unlink()
    durable.flush(table)


def test_flush_all_writes_files_of_older_commits_too(table: Address, flushed: list[str]) -> None:
    append(table, 1, 2, 3)
    durable.flush(table)
    flushed.clear()
    durable.flush_all(table, 2)
    assert {*data(table), commit(2), "table", "_delta_log"} <= {*flushed}


@pytest.mark.parametrize("content", [b"\xff\x00garbage", b"garbage"])
def test_flush_reports_a_commit_that_cannot_be_read(table: Address, content: bytes) -> None:
    append(table, 1)
    append(table, 2)
    older = table.local / "_delta_log" / f"{0:020}.json"
    older.write_bytes(content)
    with pytest.raises(StorageError, match="a commit of table cannot be read") as error:
        durable.flush(table)
    assert error.value.where == str(older)
