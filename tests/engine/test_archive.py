"""Tables over a log with archived batches, compared with those over a full log."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from lake import cost
from lake.cli import lake
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.errors import StorageError
from lake.ingest.fsck import check_log
from lake.ops.archive import archive
from lake.ops.maintenance import Policy, maintain
from lake.privacy.audit import search_files
from lake.publish.cut import pick_cut
from lake.read.sql import reader
from lake.store import archive_tier, delta, delta_writer
from lake.store.log import Log
from lake.store.upkeep import compaction
from lake.testing import Lakehouse
from tests.kinds.public import KINDS
from tests.options import events
from tests.options import project as matrix
from tests.shop import new_shop, order
from tests.writers import IN_PROCESS_ROWS, WRITERS, Writer

NOW = datetime(2024, 6, 1, tzinfo=UTC)


def quiet(_: object) -> None:
    pass


def archive_batches(lakehouse: Lakehouse, stream: str, through: int) -> None:
    archive(lakehouse.settings, lambda: lakehouse.spark, stream, through, dry_run=False, on_progress=quiet)
    assert archive_tier.parts_of(Log(lakehouse.settings, stream).path)[-1].through >= through


def with_cold(lakehouse: Lakehouse, **more: Any) -> Lakehouse:
    lakehouse.settings = replace(lakehouse.settings, cold=lakehouse.home / "cold", **more)
    return lakehouse


def contents(lakehouse: Lakehouse) -> dict[str, list[dict[str, Any]]]:
    return {name: lakehouse.table(name) for name in lakehouse.project.tables}


def verify_shop(lakehouse: Lakehouse) -> None:
    for stream in lakehouse.project.contracts:
        assert check_log(lakehouse.settings, stream).faults == []
    verdicts = verify_all(lambda: lakehouse.spark, lakehouse.project, on_progress=quiet)
    assert [each for each in verdicts if each.verdict != "identical"] == []


def inputs(lakehouse: Lakehouse) -> Inputs:
    return Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None))


@pytest.mark.long
@pytest.mark.parametrize("writer", WRITERS)
def test_kind_over_an_archived_log_equals_kind_over_a_full_log(
    spark: SparkSession, tmp_path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are archived between micro-batches, compacted ones too."""
    monkeypatch.setattr(compaction, "EXCESS_FILES", 1)
    if writer == "spark":
        for name in ("APPENDED_BYTES", "LOADED_BYTES"):
            monkeypatch.setattr(cost, name, -1)
        for limit in ("SCAN_ROWS", "HANDED_ROWS", "DEDUPLICATED_LOG_ROWS", "PRUNED_LOG_ROWS"):
            monkeypatch.setattr(cost, limit, 10)
    chance = random.Random(writer)
    project = matrix.write(tmp_path / "project", list(matrix.tables(bold=True)))
    ours = with_cold(Lakehouse(project, tmp_path / "ours"), in_process_rows=IN_PROCESS_ROWS[writer])
    theirs = Lakehouse(project, tmp_path / "theirs")
    for part in events.batches():
        for stream, records in part.items():
            for lakehouse in (ours, theirs):
                lakehouse.land(stream, *records)
        for lakehouse in (ours, theirs):
            lakehouse.run(now=NOW)
        assert contents(ours) == contents(theirs)
        for stream in part:
            archive_batches(ours, stream, chance.randint(1, Log(ours.settings, stream).head().batch))
        if chance.random() < 0.5:
            maintain(ours.project, lambda: ours.spark, Policy(editions=1, days=0, size=1 << 30), quiet)
    assert {each.kind for each in matrix.tables(bold=True)} == set(KINDS)
    verify_shop(ours)
    rebuilt = rebuild_all(inputs(ours), (), on_progress=quiet)
    assert [each for each in rebuilt if each.inserted or each.updated or each.deleted] == []


def delete_rows(lakehouse: Lakehouse, name: str) -> None:
    """Delete the rows of a table without its writers."""
    path = lakehouse.project.table(lakehouse.project.tables[name]).path
    with delta_writer.changing(path, delta.head_or_start(path, f"table:{path.name}").again()) as (table, properties):
        table.delete(commit_properties=properties)


@pytest.mark.long
def test_backfill_and_rebuild_over_an_archived_log_equal_those_over_a_full_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Deleted rows come back from the events of a time range, archived or not."""
    chance = random.Random(5)
    project = matrix.write(tmp_path / "project", list(matrix.tables(bold=True)))
    ours, theirs = both = with_cold(Lakehouse(project, tmp_path / "ours")), Lakehouse(project, tmp_path / "theirs")
    for part in events.batches():
        for stream, records in part.items():
            wrong = [record | {"time": "soon"} for record in chance.sample(records, 4)]
            for lakehouse in both:
                lakehouse.land(stream, *records, *wrong)
        for lakehouse in both:
            lakehouse.run(now=NOW)
        for stream in part:
            archive_batches(ours, stream, chance.randint(1, Log(ours.settings, stream).head().batch))
    for stream in ours.project.contracts:
        refused = [row for row in command(ours, "quarantine", "list") if row["stream"] == stream]
        assert len(refused) == 4 * events.BATCHES
        again = [row | {"raw": row["raw"].replace("soon", events.EPOCH.isoformat())} for row in refused]
        (file := tmp_path / f"{stream}.json").write_text(json.dumps(chance.sample(again, 7)))
        for lakehouse in both:
            command(lakehouse, "quarantine", "replay", stream, str(file))
        assert Log(ours.settings, stream).head().counts == Log(theirs.settings, stream).head().counts
    for lakehouse in both:
        lakehouse.run(now=NOW)
    assert contents(ours) == contents(theirs)
    for stream in ours.project.contracts:
        archive_batches(ours, stream, chance.randint(2, Log(ours.settings, stream).head().batch))
    wanted = contents(ours)
    for name in ours.project.tables:
        edges = [events.EPOCH + timedelta(hours=chance.randrange(100)) for _ in range(2)]
        for lakehouse in both:
            delete_rows(lakehouse, name)
            command(lakehouse, "backfill", name, "--from", min(edges).isoformat(), "--to", max(edges).isoformat())
        assert contents(ours) == contents(theirs), name
        command(ours, "backfill", name, "--from", "2011-01-01", "--to", "2013-01-01")
        command(theirs, "backfill", name, "--from", "2011-01-01", "--to", "2013-01-01")
        assert contents(ours) == contents(theirs) == wanted, name
    rebuild_all(inputs(ours), (), on_progress=quiet)  # Repairs rows deleted outside; their deletion was never recorded
    assert contents(ours) == wanted
    verify_shop(ours)


def command(shop: Lakehouse, *words: str) -> Any:
    """Run a command and return its JSON."""
    settings = {"LAKE_WAREHOUSE": str(shop.settings.warehouse), "LAKE_LANDING": str(shop.settings.landing)}
    settings |= {"LAKE_COLD": str(shop.settings.cold)} if shop.settings.cold else {}
    line = [*words, "--json", "--project", str(shop.settings.project)]
    done = CliRunner().invoke(lake, line, env=settings, standalone_mode=False, catch_exceptions=False)
    return json.loads(done.stdout) if done.stdout else None


def place_of(shop: Lakehouse, number: int) -> str:
    query = f"select _place from log.orders where order_id = {number} order by all limit 1"
    return str(reader(shop.settings).relation(query).fetchall()[0][0])


@pytest.mark.long
def test_commands_treat_archived_events_like_others(spark: SparkSession, tmp_path: Path) -> None:
    """Commands void, resend, correct, explain, backfill, query at a cut, copy and forget."""
    ours, theirs = both = with_cold(new_shop(tmp_path / "ours")), new_shop(tmp_path / "theirs")
    for number in range(3):
        for shop in both:
            records = (order(n, ("grace", "margaret hamilton")[n % 2]) for n in range(6 * number, 6 * number + 6))
            shop.land("orders", *records).run(now=NOW)
    [part] = command(ours, "archive", "orders", "--through", "2")["parts"]
    assert (part["first"], part["through"], part["rows"]) == (1, 2, 12)
    late = order(2, "grace", status="paid", changed_at="2024-04-06T10:00:00Z")
    for shop in both:
        command(shop, "void", "orders", place_of(shop, 3), "--reason", "wrong")
        other = order(5, "margaret hamilton", amount="8.00")
        shop.land("orders", order(1, "margaret hamilton"), order(4, "grace"), other, late).run(now=NOW)
    assert contents(ours) == contents(theirs)
    heads = [Log(shop.settings, "orders").head().counts for shop in both]
    assert heads[0] == heads[1]
    assert (heads[0]["duplicates"], heads[0]["quarantined"]) == (2, 1)
    verify_shop(ours)
    for asked in (
        ("explain", "current_order", "order_id=1"),
        ("sql", "select * exclude (_ingested_at, _source) from log.orders order by all"),
        ("sql", "--cut", "2", "select * from customer_daily order by all"),
        ("log", "orders", "--check"),
    ):
        said = [json.dumps(command(shop, *asked)).replace(str(shop.home), "") for shop in both]
        assert said[0] == said[1], asked
    command(ours, "backfill", "customer_daily", "--from", "2024-04-01", "--to", "2024-05-01")
    assert contents(ours) == contents(theirs)
    command(ours, "backup", str(tmp_path / "copy"))
    for shop in both:
        command(shop, "forget", "orders", "subject=margaret hamilton", "--yes")
        shop.run(now=NOW)
    assert contents(ours) == contents(theirs)
    verify_shop(ours)
    assert not search_files(ours.settings, ["margaret hamilton"]).found
    copied = Lakehouse(tmp_path / "ours/shop", tmp_path / "other")
    copied.settings = replace(ours.settings, warehouse=tmp_path / "copy/warehouse", cold=None)
    shutil.rmtree(tmp_path / "ours/cold")
    assert check_log(copied.settings, "orders").faults == []
    with pytest.raises(StorageError, match="batches 1 to 2 of orders were archived, and are gone from there"):
        reader(ours.settings).relation("select count(*) from log.orders").fetchall()
