"""Proof of the content of logs and tables: damage is reported with its file and is not propagated."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake import cost
from lake.cli import lake
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild_all
from lake.engine.verify import verify_all
from lake.errors import LakeError
from lake.ingest import fsck as log_run
from lake.ingest.ingest import ingest
from lake.ops.maintenance import Policy, maintain
from lake.privacy.forget import forget
from lake.publish.cut import pick_cut
from lake.store import delta
from lake.store.ledger import editions
from lake.store.log import Log
from lake.store.log_head import LogHead
from lake.store.proof import chain, fingerprints
from lake.store.table_log import commit_file
from lake.store.table_logs import forget_all
from lake.store.upkeep import compaction
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.checks import fault, no_spark, present
from tests.shop import new_shop, order

TABLES = ["current_order", "customer_daily"]


@pytest.fixture(scope="module")
def shared_shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Read-only project of `lake init` with two batches of orders of two people."""
    home = tmp_path_factory.mktemp("calm")
    shop = new_shop(home)
    shop.land("orders", *(order(n, ("margaret hamilton", "grace")[n % 2], note=str(n)) for n in range(1, 9)))
    ingest(shop.settings, lambda: shop.spark, shop.project.contracts)
    return shop.land("orders", order(1, "grace", changed_at="2024-04-04T10:00:00Z"), order(9, "grace")).run()


@pytest.fixture
def shop(shared_shop: Lakehouse, tmp_path: Path) -> Lakehouse:
    """Writable copy of `shared_shop`."""
    shutil.copytree(shared_shop.home, tmp_path, dirs_exist_ok=True)
    forget_all()
    return Lakehouse(tmp_path / "shop", tmp_path)


def command(shop: Lakehouse, *words: str) -> Result:
    settings = {"LAKE_WAREHOUSE": str(shop.settings.warehouse), "LAKE_LANDING": str(shop.settings.landing)}
    line = [*words, "--project", str(shop.settings.project)]
    return CliRunner().invoke(lake, line, env=settings, standalone_mode=False)


def largest(shop: Lakehouse) -> Path:
    """Return the file of the log with the most rows, which are of batch 1."""
    with delta.opened(Warehouse(shop.settings).log("orders").path) as table:
        return max(map(Path, delta.files(table)), key=lambda file: pq.read_metadata(file).num_rows)


def rewrite(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with file.open("rb") as opened:
            rows = pq.read_table(opened)
        pq.write_table(change(rows), file)

    return write


def put(rows: pa.Table, column: str, values: list[object]) -> pa.Table:
    at = rows.schema.get_field_index(column)
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))


def another_value(rows: pa.Table) -> pa.Table:
    return put(rows, "status", ["shipped", *rows["status"].to_pylist()[1:]])


def another_null(rows: pa.Table) -> pa.Table:
    return put(rows, "amount", [None, *rows["amount"].to_pylist()[1:]])


def swapped_rows(rows: pa.Table) -> pa.Table:
    offsets = rows["_offset"].to_pylist()
    return put(rows, "_offset", [offsets[1], offsets[0], *offsets[2:]])


def sealed_otherwise(rows: pa.Table) -> pa.Table:
    return put(rows, "customer", [None, *rows["customer"].to_pylist()[1:]])


def sealed_swapped(rows: pa.Table) -> pa.Table:
    return put(rows, "_extra", rows["_extra"].to_pylist()[::-1])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "value": (rewrite(another_value), "its rows are not what was written"),
    "null": (rewrite(another_null), "its rows are not what was written"),
    "swapped": (rewrite(swapped_rows), "its rows are not what was written"),
    "sealed": (rewrite(sealed_otherwise), "the encrypted part of its rows is not what was written"),
    "sealed swapped": (rewrite(sealed_swapped), "the encrypted part of its rows is not what was written"),
    "row": (rewrite(lambda rows: rows.slice(1)), "rows were written"),
    "twice": (rewrite(lambda rows: pa.concat_tables([rows, rows.slice(0, 1)])), "rows were written"),
    "deleted": (Path.unlink, "is gone"),
    "truncated": (lambda file: file.write_bytes(file.read_bytes()[:-20]), "is damaged"),
    "no parquet": (lambda file: file.write_bytes(b"x" * 100), "is damaged"),
}


@pytest.mark.turns
@pytest.mark.parametrize("what", DAMAGES)
def test_changed_log_file_is_reported_and_stops_verify_and_rebuild(shop: Lakehouse, what: str) -> None:
    damaged, told = DAMAGES[what]
    file = largest(shop)
    bucket = file.parent.name.removeprefix("_bucket=")
    damaged(file)
    result = command(shop, "log", "orders", "--check")
    assert fault(result).exit_code == 1
    assert told in result.stdout
    assert str(file) in result.stdout
    if "is " not in told[:4]:
        assert f"batch 1, bucket {bucket}: " in result.stdout
    verdicts = verify_all(no_spark, shop.project, [TABLES[0]], on_progress=lambda _: None)
    assert [(each.verdict, str(file) in each.why, "rebuild" in each.fix) for each in verdicts] == [
        ("unknown", True, False)
    ]
    inputs = Inputs(no_spark, shop.project, pick_cut(shop.project, None))
    with pytest.raises(LakeError, match=told) as refused:
        rebuild_all(inputs, TABLES, on_progress=lambda _: None)
    assert str(file) in str(refused.value)


@pytest.mark.parametrize("why", ["table lost", pytest.param("person forgotten", marks=pytest.mark.long)])
def test_table_is_not_built_or_evaluated_whole_from_a_changed_log(shop: Lakehouse, why: str) -> None:
    file, [table, _] = largest(shop), shop.project.pick(TABLES)
    rewrite(another_value)(file)
    if why == "table lost":
        shutil.rmtree(shop.project.table(table).path.local)
    words = ("run",) if why == "table lost" else ("forget", "orders", "subject=grace", "--yes")
    before, edition = shop.project.table(table).position(), editions.latest_edition(shop.settings)
    error = fault(command(shop, *words))
    assert (error.exit_code, error.where) == (1, str(file))
    assert "its rows are not what was written" in error.what
    assert shop.project.table(table).position() == before
    assert editions.latest_edition(shop.settings) == edition


@pytest.mark.long
def test_damaged_log_is_not_compacted(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction.FileGroup, "is_due", property(lambda _: True))
    rewrite(another_value)(largest(shop))
    told: list[str] = []
    done = maintain(shop.project, _no_spark, Policy(editions=1, days=9, size=1 << 30), told.append)
    [kept] = [each for each in done.places if each.place.kind == "log"]
    assert kept.compacted is None
    assert any("skip    log orders: the log of orders is damaged: batch 1" in each for each in told)


def _no_spark() -> SparkSession:
    raise AssertionError("nothing is to be compacted")


def test_check_since_a_digest_detects_a_forged_log(shop: Lakehouse) -> None:
    settings = shop.settings
    digest = command(shop, "log", "orders", "--head").stdout.strip()
    assert digest.startswith("orders@2:")
    for words, said in ((("--check",), "the log is consistent"), (("--check", "--since", digest), "at batch 2")):
        result = command(shop, "log", "orders", *words)
        assert (result.exit_code, said in result.stdout) == (0, True)
    first = Log(settings, "orders").head_at(1).content["digest"]
    assert "at batch 1" in command(shop, "log", "orders", "--check", "--since", first).stdout
    rewrite(another_value)(largest(shop))
    forge_fingerprints(shop)
    assert log_run.check_log(settings, "orders").faults == [], (
        "who may write to the warehouse may write fingerprints too"
    )
    result = command(shop, "log", "orders", "--check", "--since", digest)
    assert (fault(result).exit_code, "no batch has the digest" in result.stdout) == (1, True)
    wrong: list[tuple[str, ...]] = [("--head", "--check"), ("--since", digest)]
    for options in wrong:
        assert fault(command(shop, "log", "orders", *options)).exit_code == 2


def forge_fingerprints(shop: Lakehouse) -> None:
    """Rewrite the fingerprints in every commit of the log to match its current files."""
    path, before = Warehouse(shop.settings).log("orders").path, dict[str, Any]()
    for head in Log(shop.settings, "orders").heads()[::-1]:
        sealed = head.content["sealed"]
        prints: chain.Fingerprints = {}
        for _, _, bucket, *counted in chain._sums_by_file(path, sealed, [head.batch]):
            prints[bucket] = chain._prints_of(counted)
        before = chain.entry(before, head.batch, prints, sealed)
        file = commit_file(path, head.version).local
        old = json.dumps(json.dumps(head.content, separators=(",", ":"), sort_keys=True))[1:-1]
        new = json.dumps(json.dumps(before, separators=(",", ":"), sort_keys=True))[1:-1]
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    forget_all()


def test_commit_with_another_digest_breaks_the_chain(shop: Lakehouse) -> None:
    settings = shop.settings
    head = Log(settings, "orders").head_at(1)
    file = commit_file(Warehouse(settings).log("orders").path, head.version).local
    file.write_text(file.read_text().replace(head.content["digest"], "0" * 64))
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    forget_all()
    said = log_run.check_log(settings, "orders").faults
    assert [each.partition(":")[0] for each in said] == ["batch 1", "batch 2"]


@pytest.mark.long
def test_digest_chain_survives_a_forget_and_a_compaction(shop: Lakehouse) -> None:
    settings, path = shop.settings, Warehouse(shop.settings).log("orders").path
    digest = log_run.head_of(settings, "orders")
    forget(shop.project, lambda: shop.spark, "orders", "grace")
    assert log_run.check_log(settings, "orders", since=digest).faults == []
    position = Log(settings, "orders").head().position
    buckets = [present(part.bucket) for part in compaction.file_groups(path)]
    compaction.compact_by_spark(shop.spark, path, position, buckets, ["_offset"])
    assert log_run.check_log(settings, "orders", since=digest).faults == []


def test_digest_of_a_batch_counts_after_the_batch_is_read_again() -> None:
    was, other = {"digest": "a", "buckets": {"0": ["1"]}}, {"digest": "c", "buckets": {"0": ["2"]}}
    head = LogHead("orders", delta.start("log").next(content={"digest": "b", "buckets": {"0": ["1"]}, "was": was}), 2)
    assert log_run._find_digest([head], log_run._Digest("a")) == (2, [])
    head.content["was"] = other
    assert log_run._find_digest([head], log_run._Digest("c", 2)) == (
        2,
        ["batch 2 was read again, and its rows differ from those of the digest"],
    )


QUERY = "select count(*) as n from current_order"


@pytest.mark.turns(4)
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("what", ["value", "row", "deleted", "truncated"])
def test_verified_query_rejects_a_table_that_is_not_as_published(shop: Lakehouse, what: str, keyed: bool) -> None:
    edition = editions.latest_edition(shop.settings)
    for words in (("sql", QUERY, "--verified"), ("verify", "--edition", str(present(edition).number))):
        assert command(shop, *words).exit_code == 0
    entry = present(edition).tables["current_order"]
    assert (entry.rows, entry.content) == (9, None), "what is personal is told by its own commits alone"
    if not keyed:
        found = fingerprints.of_version(Warehouse(shop.settings).root / entry.path, entry.version)
        plain = replace(entry, rows=found.rows, content=str(found), fingerprint="another")
        edition = editions.record_edition(
            shop.settings, present(edition).cut, dict(present(edition).tables) | {"current_order": plain}
        )
    with delta.opened(Warehouse(shop.settings).root / entry.path, entry.version) as table:
        file = max(map(Path, delta.files(table)), key=lambda each: each.stat().st_size)
    DAMAGES[what][0](file)
    result = command(shop, "verify", "--edition", str(present(edition).number))
    assert fault(result).exit_code == 1
    assert re.search(r"current_order +differs", result.stdout)
    assert re.search(r"customer_daily +identical", result.stdout)
    result = command(shop, "sql", QUERY, "--verified")
    assert fault(result).exit_code == 1
    assert "current_order is not what was published" in str(result.exception)
    assert command(shop, "sql", "select count(*) as n from customer_daily", "--verified").exit_code == 0


def test_edition_without_recorded_content_is_read_but_not_verified(shop: Lakehouse) -> None:
    edition = editions.latest_edition(shop.settings)
    for entry in present(edition).tables.values():
        commit = commit_file(Warehouse(shop.settings).root / entry.path, entry.version).local
        commit.write_text(commit.read_text().replace('\\"content\\":', '\\"nothing\\":'))
    forget_all()
    assert command(shop, "sql", QUERY).exit_code == 0
    for words in (("sql", QUERY, "--verified"), ("verify", "--edition", "1")):
        result = command(shop, *words)
        assert (fault(result).exit_code, "rebuild" in str(result.exception)) == (1, False)
        assert "was not recorded" in f"{result.stdout}{result.exception}"


@pytest.mark.long
def test_content_fingerprint_is_kept_by_every_kind_of_commit(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit by Spark's writer, by a comparison in Spark, and by one in this process."""

    def told() -> dict[str, bool]:
        edition, found = editions.latest_edition(shop.settings), {}
        for name, declaration in shop.project.tables.items():
            table = shop.project.table(declaration)
            position = table.position()
            said = present(position).data.get("content") or present(edition).tables[name].content
            found[name] = said == str(table.content(present(position).version))
            assert present(edition).tables[name].rows == table.rows(present(position).version)
        return found

    small = shop.settings
    for number, rows in enumerate((0, 500_000, 500_000)):
        shop.settings = replace(small, in_process_rows=rows)
        with monkeypatch.context() as by_spark:
            if number == 1:
                by_spark.setattr(cost, "COMPARE_ROWS", 1)
            shop.land(
                "orders", order(1, "grace", changed_at=f"2024-05-0{number + 1}T10:00:00Z"), order(30 + number, "ada")
            )
            shop.run()
        assert number == 0 or all(told().values()), number
    assert {each.verdict for each in verify_all(lambda: shop.spark, shop.project, on_progress=lambda _: None)} == {
        "identical"
    }
