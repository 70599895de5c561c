"""Retention: editions, child tables behind, and running processes, without a JVM."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lake.cli import Shell, upkeep
from lake.config import load_settings
from lake.errors import DeclarationError, StartOver, StorageError, Unavailable
from lake.ops import maintenance
from lake.ops.maintenance import Policy, Upkeep, maintain
from lake.ops.scaffold import init
from lake.project.project import Project, load
from lake.publish import retention
from lake.publish.retention import RetentionNeeds, retired
from lake.read.sql import reader
from lake.read.subscription import subscribe
from lake.store import delta
from lake.store.commit import commit
from lake.store.delta import start
from lake.store.ledger import cuts, editions
from lake.store.ledger.editions import EditionTable
from lake.store.locks import activity
from lake.store.process import fault_of
from lake.store.rows import Rows
from lake.store.storage import Address
from lake.store.table_head import CHANGE, Counts
from lake.store.table_log import delta_table
from lake.store.tables import Table
from lake.store.upkeep import compaction, vacuum
from lake.store.warehouse import Warehouse
from tests.checks import present, spark_forbidden
from tests.processes import other_process

pytestmark = pytest.mark.slow

SCHEMA = pa.schema([("order_id", pa.int64())])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return the project of `lake init` with tables made by hand; nothing has been landed."""
    init(tmp_path / "shop")
    return load(load_settings(tmp_path / "shop"))


def put(table: Table, number: int, **data: object) -> int:
    """Commit the row `number` in place of all others, and return the version."""
    if not table.exists():
        table.create(SCHEMA, description="")
    before = table.position() or start(table.app)
    rows = [{"order_id": number, CHANGE: "insert"}]
    if before.txn:
        rows.append({"order_id": before.data["row"], CHANGE: "delete"})
    diff = Rows(pa.Table.from_pylist(rows, SCHEMA.append(pa.field(CHANGE, pa.string()))))
    said = {"verb": "advance", "cut": before.txn + 1, "inputs": {}, "counts": {}, "row": number}
    return commit(table, diff, Counts.of(diff), ["order_id"], before.next(**{**said, **data})).version


def publish(project: Project, cut: int, *tables: Table) -> editions.Edition:
    root = Warehouse(project.settings).root
    entries = {t.name: EditionTable(t.layer, t.path.relative_to(root), t.version(), "f") for t in tables}
    return editions.record_edition(project.settings, cut, entries)


def live(project: Project, name: str) -> Table:
    return project.table(project.tables[name])


def keep(
    project: Project,
    *,
    editions: int = 1,
    dry_run: bool = False,
    drop_retired: bool = False,
    on_progress: Callable[[str], object] = len,
) -> Upkeep:
    policy = Policy(editions=editions, days=0, size=1 << 30, drop_retired=drop_retired, dry_run=dry_run)

    def say(text: str) -> None:
        on_progress(text)

    return maintain(load(project.settings), spark_forbidden, policy, say)


def rows(project: Project, edition: int) -> list[tuple[Any, ...]]:
    return reader(project.settings, edition).relation("from current_order").fetchall()


def readable(table: Table) -> list[int]:
    """Return the versions whose files are all present."""
    versions = []
    for version in range(1, table.version() + 1):
        opened = delta.open_table(table.path, version)
        assert opened is not None
        if all(Path(file).exists() for file in delta.files(opened)):
            versions.append(version)
    return versions


def publish_versions(project: Project, *, times: int) -> Table:
    """Return `current_order` with `times` versions, each an edition."""
    table = live(project, "current_order")
    for number in range(1, times + 1):
        put(table, number)
        publish(project, number, table)
    return table


def test_maintain_keeps_the_edition_of_a_consumer_until_it_is_too_old(project: Project) -> None:
    table = publish_versions(project, times=2)
    next(subscribe(project.settings, "current_order", consumer="crm")).ack()
    for number in (3, 4):
        put(table, number)
        publish(project, number, table)
    assert keep(project, dry_run=True).expired == [1, 3]
    assert keep(project).expired == [1, 3]
    changes = next(subscribe(project.settings, "current_order", consumer="crm"))
    assert (changes.since, [(row.change, row.key["order_id"]) for row in changes]) == (
        2,
        [("delete", 2), ("insert", 4)],
    )
    hasty = replace(project, settings=replace(project.settings, keep_consumer_days=0.0))
    assert maintain(hasty, spark_forbidden, Policy(editions=1, days=0, size=1 << 30), print).expired == [2]
    with pytest.raises(StartOver, match="edition 2 has expired"):
        next(subscribe(project.settings, "current_order", consumer="crm"))


def test_maintain_expires_old_editions_except_the_pinned_one(project: Project) -> None:
    table = publish_versions(project, times=5)
    editions.pin_edition(project.settings, 2)
    dry = keep(project, editions=2, dry_run=True)
    assert (dry.expired, readable(table)) == ([1, 3], [1, 2, 3, 4, 5])
    done = keep(project, editions=2)
    assert (done.expired, done.kept, readable(table)) == ([1, 3], [5, 4, 2], [2, 4, 5])
    assert sum(place.files for place in dry.places) == sum(place.files for place in done.places) > 2
    assert [rows(project, number) for number in (2, 4, 5)] == [[(2,)], [(4,)], [(5,)]]
    for read in (reader, editions.pin_edition):
        with pytest.raises(DeclarationError, match="edition 3 has expired; kept: 2, 4 to 5"):
            read(project.settings, 3)
    with pytest.raises(DeclarationError, match="edition 3 has expired"):
        editions.edition_at(project.settings, 3)
    editions.resume_editions(project.settings)
    assert keep(project).expired == [2, 4]
    assert (readable(table), rows(project, 5)) == ([4, 5], [(5,)]), "the last but one counts if the last was cut short"
    put(table, 6)
    assert publish(project, 6, table).number == 6
    with pytest.raises(DeclarationError, match="no edition 7: editions 1 to 6 exist"):
        reader(project.settings, 7)


def test_maintain_keeps_young_editions(project: Project) -> None:
    publish_versions(project, times=3)
    policy = Policy(editions=1, days=1, size=1)
    done = maintain(project, spark_forbidden, policy, lambda _: None)
    assert (done.expired, done.kept) == ([], [3, 2, 1])


@pytest.mark.long
def test_maintain_keeps_files_older_than_a_running_process(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "GRACE", timedelta(0))
    table = publish_versions(project, times=3)
    keep(project, editions=2)
    with other_process(project.settings, "reading") as process:
        put(table, 4)
        publish(project, 4, table)
        done = keep(project)
        assert [running.pid for running in done.running] == [process.pid]
        assert (done.expired, done.kept) == ([2, 3], [4])
        assert readable(table) == [2, 3, 4], "when it began, it could have asked for edition 2"
    assert keep(project).running == ()
    assert readable(table) == [3, 4]


def test_reader_beyond_the_limit_fails_and_names_it(project: Project) -> None:
    table = publish_versions(project, times=3)
    late = reader(project.settings, 1)
    assert late.relation("SELECT * FROM current_order").fetchall()
    stored = delta_table(table.path, 1)
    keep(project)
    with pytest.raises(StorageError, match="edition 1 expired while it was read"):
        late.relation("SELECT * FROM current_order")
    with pytest.raises(FileNotFoundError) as missing:
        stored.to_pyarrow_table()
    fault = fault_of(missing.value, project.settings)
    assert "a file that was being read was deleted: Object at location" in str(fault)
    assert "keep_days" in str(fault)


def test_bucket_keeps_recent_files_for_other_hosts(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "GRACE", timedelta(0))
    table = publish_versions(project, times=3)
    monkeypatch.setattr(Warehouse, "root", Address(str(project.settings.warehouse_path)))
    monkeypatch.setattr(activity, "has_unlisted", lambda _: True)
    for days, oldest in ((1, 0), (0, 3)):
        assert RetentionNeeds.now(project, days=days).since(table.location) == oldest


def test_maintain_keeps_the_changes_that_a_child_table_still_needs(project: Project) -> None:
    table, child = publish_versions(project, times=3), live(project, "customer_daily")
    put(child, 1, inputs={"current_order": 2}, homes={"current_order": "current_order"})
    keep(project)
    assert readable(table) == [2, 3]
    feed = pa.table(delta_table(table.path).load_cdf(starting_version=3))
    assert sorted(feed.column("_change_type").to_pylist()) == ["delete", "insert"]
    put(table, 4)
    put(child, 2, inputs={"current_order": 4}, homes={"current_order": "current_order"})
    publish(project, 4, table)
    keep(project)
    assert readable(table) == [3, 4]


@pytest.mark.long
def test_maintain_skips_a_locked_table_and_maintains_the_others(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, other = publish_versions(project, times=2), live(project, "customer_daily")
    put(other, 1), put(other, 2)
    settings = replace(project.settings, lease_seconds=0, keep_editions=1, keep_days=0)
    monkeypatch.setattr(Shell, "settings", settings)
    with other_process(settings, "table.current_order"):
        with pytest.raises(Unavailable, match=r"table current_order was skipped: .* is being written by"):
            upkeep.maintain.main(["--json"], standalone_mode=False, obj=Shell())
        told = json.loads(capsys.readouterr().out)
        assert list(told["skipped"]) == ["table current_order"]
        assert "customer_daily" in {place["name"] for place in told["places"]}
        assert readable(table) == [1, 2]
    assert upkeep.maintain.main([], standalone_mode=False, obj=Shell()) is None
    assert "editions: 2 kept, none expired" in capsys.readouterr().out
    assert readable(table) == [1, 2]  # The version before the newest stays in case that is truncated


def test_maintain_compacts_at_most_its_bytes_and_at_least_one_place(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXCESS_FILES", 0)
    monkeypatch.setattr(maintenance, "recording", lambda *_, **__: nullcontext({}))  # Otherwise each call adds an entry
    publish_versions(project, times=2)  # Leaves two tables of two entries
    cuts.record_cut(project.settings, {"orders": 1}, 0), cuts.record_cut(project.settings, {"orders": 2}, 0)
    policy = Policy(editions=1, days=9, size=1)
    left = [maintain(project, spark_forbidden, policy, lambda _: None) for _ in range(4)]
    assert [(sum(bool(place.compacted) for place in done.places), done.left) for done in left] == [
        (1, 2),
        (1, 1),
        (1, 0),
        (0, 0),
    ]


def test_maintain_drops_a_superseded_home_with_its_last_edition(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNPUBLISHED", timedelta(0))
    old = publish_versions(project, times=1)
    new = Table(project.settings, "silver", "current_order", "current_order@1a2b3c4d")
    put(new, 7, cut=2)
    publish(project, 2, new)
    again = load(project.settings)
    assert keep(again, editions=2).dropped == []
    assert keep(again, editions=1).dropped == ["current_order"]
    assert (old.exists(), new.exists(), rows(again, 2)) == (False, True, [(7,)])


def test_maintain_drops_an_unpublished_home_when_no_process_can_build_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNPUBLISHED", timedelta(0))
    publish_versions(project, times=1)
    beside = Table(project.settings, "silver", "current_order", "current_order@5e6f7a8b")
    with other_process(project.settings, "reading"):
        put(beside, 1)
        assert keep(project).dropped == []
    with monkeypatch.context() as patch:
        patch.setattr(retention, "UNPUBLISHED", timedelta(days=1))
        assert keep(project).dropped == [], "the next deploy takes it up"
    assert keep(project, dry_run=True).dropped == ["current_order@5e6f7a8b"]
    assert beside.exists()
    assert keep(project).dropped == ["current_order@5e6f7a8b"]
    assert not beside.exists()


def test_maintain_keeps_a_home_published_meanwhile(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "UNPUBLISHED", timedelta(0))
    publish_versions(project, times=2)
    beside = Table(project.settings, "silver", "current_order", "current_order@5e6f7a8b")
    put(beside, 7, cut=3)
    done = keep(project, on_progress=lambda _: publish(project, 3, beside))
    assert (done.dropped, rows(project, 3)) == ([], [(7,)])


@pytest.mark.long
def test_reader_finds_its_files_when_it_starts_during_compaction(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "GRACE", timedelta(0))
    monkeypatch.setattr(compaction, "EXCESS_FILES", -1)
    table = publish_versions(project, times=2)
    book = Warehouse(project.settings).book("editions").path
    old = delta.files(DeltaTable(str(book)))
    with ExitStack() as at_work:
        keep(project, on_progress=lambda said: at_work.enter_context(other_process(project.settings, "reading")))
        assert [Path(file).exists() for file in old] == [True, True]
    put(table, 3)
    publish(project, 3, table)
    keep(project)
    assert [Path(file).exists() for file in old] == [False, False]


@pytest.mark.long
def test_drop_retired_expires_older_editions_and_drops_the_table(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, gone = live(project, "current_order"), Table(project.settings, "gold", "gone", "gone")
    put(table, 1), put(gone, 1)
    publish(project, 1, table, gone)

    def listed() -> list[dict[str, Any]]:
        monkeypatch.setattr(Shell, "settings", project.settings)
        upkeep.maintain.main(["--drop-retired", "--json"], standalone_mode=False, obj=Shell())
        out, err = capsys.readouterr()
        assert "nothing was dropped" in err
        return list(json.loads(out)["retired"])

    assert [(row["table"], row["editions"], row["drops"]) for row in listed()] == [("gone", [1], False)]
    keep(project, drop_retired=True)
    assert gone.exists(), "readers see an edition that has it"
    put(table, 2)
    publish(project, 2, table)
    assert [(row["editions"], row["drops"]) for row in listed()] == [([1], True)]
    assert keep(project, editions=9).dropped == []
    done = keep(project, editions=9, drop_retired=True)
    assert (done.expired, done.kept, done.dropped, gone.exists()) == ([1], [2], ["gone"], False)
    assert retired(project) == []


def test_retired_table_is_dropped_days_after_its_last_edition(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "UNPUBLISHED", timedelta(0))
    table, gone = live(project, "current_order"), Table(project.settings, "gold", "gone", "gone")
    put(table, 1), put(gone, 1)
    publish(project, 1, table, gone)
    put(table, 2)
    publish(project, 2, table)
    assert keep(project, editions=2).dropped == []
    policy = Policy(editions=1, days=1, size=1)
    editions.expire_editions(project.settings, [1])
    assert maintain(project, spark_forbidden, policy, lambda _: None).dropped == [], "it was written today"
    assert keep(project).dropped == ["gone"]
    assert not gone.exists()


def test_maintain_completes_an_interrupted_call(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "EXCESS_FILES", 0)
    table, words = publish_versions(project, times=3), 0

    def interrupt(_: str) -> None:
        nonlocal words
        words += 1
        raise KeyboardInterrupt

    for _ in range(3):
        with suppress(KeyboardInterrupt):
            keep(project, on_progress=interrupt)
    done = keep(project)
    assert words > 1
    assert (done.expired, done.kept, done.left, readable(table)[0], rows(project, 3)) == ([], [3], 0, 2, [(3,)])


def test_maintain_does_not_compact_a_table_written_by_another_tool(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "EXCESS_FILES", -1)
    table, said = publish_versions(project, times=1), list[str]()
    keep(project, on_progress=said.append)
    write_deltalake(str(table.path), pa.table({"order_id": [9]}), mode="append")
    keep(project, on_progress=said.append)
    assert any(words.startswith("skip    table current_order: another tool") for words in said)
    assert present(table.position()).version < table.version()


def test_maintain_deletes_files_left_by_a_crash(project: Project) -> None:
    settings = project.settings
    publish_versions(project, times=1)
    holder = settings.warehouse_path / "locks/table.gone.holder"
    holder.write_text("{}")
    half = settings.warehouse_path / "silver/.thing.gone"
    half.mkdir()
    staged = [settings.path(".lake/staging") / name for name in ("old.jsonl", "new.jsonl")]
    staged[0].parent.mkdir(parents=True)
    for file, age in zip(staged, (2, 0), strict=True):
        file.write_text("{}")
        os.utime(file, (time.time() - age * 86_400,) * 2)
    assert len(keep(project, dry_run=True).cleared) == 3
    assert set(keep(project).cleared) == {str(holder), str(half), str(staged[0])}
    assert [path.exists() for path in (holder, half, *staged)] == [False, False, False, True]
