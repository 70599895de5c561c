"""Memory limit of DuckDB, and its folder for the rest."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import pytest

from lake.quality import row_conditions
from lake.session import duck

ORDERED = """
    SELECT count(*), count(*) FILTER (back) FROM (
        SELECT id < lag(id) OVER (ORDER BY id) AS back FROM (SELECT md5(n::VARCHAR) AS id FROM range(1_000_000) t(n))
    )"""


@pytest.mark.slow
def test_duckdb_spills_to_a_folder_beyond_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duck, "_LIMITS", {})
    duck.bound(64 << 20, tmp_path)
    with duck.connect() as con:
        assert con.sql(ORDERED).fetchall() == [(1_000_000, 0)]
        [folder] = tmp_path.iterdir()
        [(held,)] = con.sql("SELECT current_setting('memory_limit')").fetchall()
    assert (folder.name.startswith("duckdb-"), held) == (True, "64.0 MiB")


def test_duckdb_spills_to_the_temporary_folder_if_the_project_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duck, "_LIMITS", {})
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    duck.bound(64 << 20, tmp_path / "missing")
    with duck.connect() as con:
        [(folder,)] = con.sql("SELECT current_setting('temp_directory')").fetchall()
    assert Path(folder).parent == tmp_path


@pytest.mark.parametrize(
    ("kind", "pattern", "is_valid"),
    [
        ("regex", "^closed$", True),
        ("regex", "(closed", False),
        ("strftime_format", "%Y closed", True),
        ("strftime_format", "%!", False),
    ],
)
def test_connection_that_tests_a_pattern_is_closed(
    monkeypatch: pytest.MonkeyPatch, kind: str, pattern: str, *, is_valid: bool
) -> None:
    opened = list[duckdb.DuckDBPyConnection]()

    def connect() -> duckdb.DuckDBPyConnection:
        opened.append(duck.connect())
        return opened[-1]

    monkeypatch.setattr(row_conditions, "connect", connect)
    assert (row_conditions.pattern_fault({kind: pattern}) is None) == is_valid
    [con] = opened
    with pytest.raises(duckdb.ConnectionException):
        con.execute("SELECT 1")
