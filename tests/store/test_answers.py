"""Commits whose response is lost, by delta-rs and by hand. No JVM.

The tests in tests/crash lose the responses of whole commands and of Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableMerger, TableOptimizer

from lake.config import Settings, load_settings
from lake.errors import Unavailable
from lake.privacy.forget import _blank
from lake.project.project import load
from lake.store import delta, delta_writer, duckdb_tables, quarantine, recovery
from lake.store.commit import commit, describe, replace
from lake.store.ledger import cuts, editions, runs
from lake.store.process import fault_of
from lake.store.rows import Rows
from lake.store.storage import Address, LocalFolder
from lake.store.table_head import CHANGE, Counts
from lake.store.table_log import delta_table
from lake.store.tables import Table
from lake.store.upkeep import compaction, vacuum
from lake.store.voids import record as record_void
from lake.store.warehouse import Warehouse
from tests.warehouse import kept_folder, published

pytestmark = pytest.mark.slow

AT: Final = datetime(2024, 4, 1, tzinfo=UTC)
ROWS: Final = pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})
AGAIN: Final = pa.table({"_id": ["x"], "source": ["f:1"]})


@contextmanager
def lose_responses(monkeypatch: pytest.MonkeyPatch, fails: Exception, *, made: bool) -> Iterator[list[str]]:
    """Fail every commit of the block with `fails`, after it was `made` or instead of it. Yield the failed commits."""
    lost: list[str] = []

    def failing(call: Callable[..., Any], what: str) -> Callable[..., Any]:
        @wraps(call)
        def instead(*args: Any, **kwargs: Any) -> Any:
            lost.append(what)
            if made:
                call(*args, **kwargs)
            raise fails

        return instead

    def by_hand(folder: LocalFolder, url: str, content: bytes) -> bool:
        lost.append("by hand")
        if made:
            put(folder, url, content)
        if isinstance(fails, CommitFailedError):
            return False  # the response of a store to a repeated request
        raise fails

    put = LocalFolder.put_if_absent
    with monkeypatch.context() as patched:
        patched.setattr("lake.store.delta_writer.write_deltalake", failing(write_deltalake, "write"))
        patched.setattr(LocalFolder, "put_if_absent", by_hand)
        for owner, names in {
            DeltaTable: ("create_write_transaction", "delete", "restore", "create"),
            TableMerger: ("execute",),
            TableOptimizer: ("compact", "z_order"),
        }.items():
            for name in names:
                patched.setattr(owner, name, failing(getattr(owner, name), name))
        yield lost


@cache
def _make_shop() -> Path:
    settings = published(kept_folder() / "shop").settings
    table = Table(settings, "gold", "sums", "sums")
    table.create(ROWS.schema, description="Sums.")
    replace(table, Rows(ROWS), ["k"], delta.start(table.app).next(cut=1), meanings={})
    for number in range(1, 4):
        quarantine.put_files(settings, "orders", number, [("f", "no file")], at=AT)
        quarantine.put_redeliveries(settings, "orders", number, AGAIN)
    return settings.project


class Warehoused:
    """Copy of the published shop, with a table, a quarantine and redeliveries of a few commits."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(_make_shop(), folder, dirs_exist_ok=True)
        self.project = load(load_settings(folder))
        self.settings: Settings = self.project.settings
        self.orders = Warehouse(self.settings).log("orders").path
        self.quarantine, self.redeliveries = (at.path for at in Warehouse(self.settings).beside("orders"))
        self.table = Table(self.settings, "gold", "sums", "sums")
        self.position = delta.head_or_start(self.table.path, self.table.app)

    def change(self, *changes: tuple[int, str, str]) -> None:
        names = [*ROWS.column_names, CHANGE]
        diff = Rows(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in changes], _diff_schema()))
        commit(self.table, diff, Counts.of(diff), ["k"], self.position.next(cut=2))

    def replace(self) -> None:
        replace(self.table, Rows(ROWS.slice(1)), ["k"], self.position.next(cut=2), meanings={})

    def describe(self) -> None:
        describe(self.table, "Other sums.", {"v": {"comment": "what"}})

    def create(self) -> None:
        delta_writer.create(self.table.path.parent / "new", delta_table(self.table.path).schema(), {})

    def compact(self) -> None:
        compaction.compact_table(self.quarantine, None)

    def order(self) -> None:
        compaction.compact_table(self.table.path, self.position, ["k"])

    def begin_anew(self) -> None:
        vacuum.begin_anew(self.table.path, self.position)

    def void(self) -> None:
        record_void(self.settings, [("orders", (1, None, None, None))], reason="no", at=AT, heads={"orders": 2})


def _diff_schema() -> pa.Schema:
    return ROWS.schema.append(pa.field(CHANGE, pa.string()))


def _book(name: str) -> Callable[[Warehoused], Address]:
    return lambda w: Warehouse(w.settings).book(name).path


Act = Callable[[Warehoused], object]
OF_TABLE: Final[Callable[[Warehoused], Address]] = lambda w: w.table.path  # noqa: E731  one of several alike
COMMITS: Final[Mapping[str, tuple[Act, Callable[[Warehoused], Address]]]] = {
    "insert": (lambda w: w.change((3, "c", "insert")), OF_TABLE),
    "merge": (lambda w: w.change((1, "z", "update"), (2, "b", "delete")), OF_TABLE),
    "nothing changed": (lambda w: w.change(), OF_TABLE),
    "replace": (Warehoused.replace, OF_TABLE),
    "describe": (Warehoused.describe, OF_TABLE),
    "create": (Warehoused.create, lambda w: w.table.path.parent / "new"),
    "order": (Warehoused.order, OF_TABLE),
    "begin anew": (Warehoused.begin_anew, OF_TABLE),
    "compact": (Warehoused.compact, lambda w: w.quarantine),
    "quarantine": (
        lambda w: quarantine.put_files(w.settings, "orders", 4, [("g", "")], at=AT),
        lambda w: w.quarantine,
    ),
    "blank": (
        lambda w: _blank(w.settings, "orders", [{"_batch": 1, "_number": 1, "source": "f"}]),
        lambda w: w.quarantine,
    ),
    "redeliveries": (
        lambda w: quarantine.put_redeliveries(w.settings, "orders", 4, AGAIN),
        lambda w: w.redeliveries,
    ),
    "clear above": (lambda w: recovery.clear_above(w.settings, "orders", 2), lambda w: w.redeliveries),
    "cut": (lambda w: cuts.record_cut(w.settings, {"orders": 3}, 0), _book("cuts")),
    "run": (lambda w: runs.record_run(w.settings, runs.Run("cut", "all", 1, "done", {}, AT, 0.1)), _book("runs")),
    "edition": (lambda w: editions.record_edition(w.settings, 2, {}), _book("editions")),
    "void": (Warehoused.void, _book("voids")),
}


def state(path: Address) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of commits of a table, and its rows."""
    rows = duckdb_tables.rows(path, "SELECT * FROM t ORDER BY ALL")
    return len(list(delta.commits(path))), [
        {k: v for k, v in row.items() if not isinstance(v, datetime)} for row in rows
    ]


@pytest.mark.turns(12)
@pytest.mark.parametrize(
    "fails",
    [CommitFailedError("Failed to commit transaction: 412"), OSError("Generic S3 error: connection closed")],
    ids=["number taken", "no answer"],
)
@pytest.mark.parametrize("what", COMMITS)
def test_commit_counts_once_when_its_response_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, fails: Exception
) -> None:
    act, of = COMMITS[what]
    here, there = Warehoused(tmp_path / "here"), Warehoused(tmp_path / "there")
    with lose_responses(monkeypatch, fails, made=True) as lost:
        act(here)
    act(there)
    assert lost
    assert state(of(here)) == state(of(there))


@pytest.mark.turns(6)
@pytest.mark.parametrize("what", COMMITS)
def test_failed_commit_is_reported_as_unavailable_and_succeeds_on_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    act, of = COMMITS[what]
    here, there = Warehoused(tmp_path / "here"), Warehoused(tmp_path / "there")
    before = state(of(here))
    fails = OSError("Generic S3 error: error sending request: connection closed")
    with lose_responses(monkeypatch, fails, made=False) as lost, pytest.raises(Exception, match="Generic S3") as raised:
        act(here)
    fault = fault_of(raised.value, here.settings)
    assert isinstance(fault, Unavailable), fault
    assert len(lost) == 1
    assert state(of(here)) == before
    act(here)
    act(there)
    assert state(of(here)) == state(of(there))


def test_commit_is_reported_as_unknown_when_the_log_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Warehoused(tmp_path)

    def nothing_answers(*_: object) -> None:
        raise OSError("Generic S3 error: timed out")

    with (
        lose_responses(monkeypatch, OSError("Generic S3 error: timed out"), made=True),
        monkeypatch.context() as patched,
    ):
        patched.setattr("lake.store.delta_writer.commits", nothing_answers)
        with pytest.raises(Unavailable, match="whether a commit is there cannot be read"):
            recovery.clear_above(here.settings, "orders", 1)


def test_commits_record_their_writer_and_repeated_ones_a_new_writer(tmp_path: Path) -> None:
    here = Warehoused(tmp_path)
    vacuum.begin_anew(here.table.path, here.position)
    newest, first = list(delta.positions(here.table.path, here.table.app))[:2]
    assert (newest.data["repeated"], newest.txn) == (True, first.txn)
    assert newest.writer
    assert first.writer == here.position.writer != newest.writer
    assert "writer" not in newest.data
