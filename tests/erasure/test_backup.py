"""`lake backup`: a copy made during writes is a warehouse, and restores nobody forgotten since."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lake.cli import lake
from lake.config import Settings, load_settings
from lake.engine.verify import verify_all
from lake.errors import DeclarationError, StorageError, Unavailable
from lake.ingest.field_encryption import BLANKED
from lake.ingest.fsck import check_log
from lake.ops.backup import NOTE, backup
from lake.ops.maintenance import Policy, maintain
from lake.ops.pipeline import catch_up
from lake.ops.scaffold import init
from lake.privacy.audit import search_files
from lake.privacy.forget import forget
from lake.project.project import Project, load
from lake.read.sql import reader
from lake.store import quarantine
from lake.store.keys import KeyStore, copied_store, open_store, secret_file
from lake.store.ledger import sent
from lake.store.ledger.cuts import latest_cut, record_cut
from lake.store.ledger.editions import RESTORED, kept_editions, lost_editions
from lake.store.log import Log
from lake.testing import Commands, Lakehouse
from tests.processes import until
from tests.serving import LAKE
from tests.shop import all_keys, new_shop, order
from tests.warehouse import fall_behind, publish, published

pytestmark = pytest.mark.slow

ROWS = [(2,)]
JOAN = "margaret hamilton"


def quiet(_: object) -> None:
    pass


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    """Return the published shop, which has no personal fields."""
    settings = published(tmp_path / "shop").settings
    file = settings.project / "schemas/orders.avsc"
    contract = json.loads(file.read_text())
    del contract["lake"]["subject"]
    for field in contract["fields"]:
        field.pop("personal", None)
    file.write_text(json.dumps(contract))
    return load(load_settings(settings.project))


def restored(settings: Settings, folder: Path) -> Settings:
    """The settings of the same project over the copy in `folder`."""
    return replace(settings, warehouse=folder / "warehouse")


def test_backup_reads_like_the_warehouse(shop: Project, tmp_path: Path) -> None:
    done = backup(shop, tmp_path / "copy", keys=None, on_progress=quiet)
    assert done.left_out == []
    assert {name for name in done.tables if not name.startswith("meta/")} == {
        "logs/orders",
        "silver/current_order",
        "gold/customer_daily",
    }
    assert json.loads((tmp_path / "copy" / NOTE).read_text())["tables"] == done.tables
    copy = restored(shop.settings, tmp_path / "copy")
    for settings in (shop.settings, copy):
        assert check_log(settings, "orders").faults == check_log(shop.settings, "orders").faults
        assert reader(settings).relation("select count(*) from customer_daily").fetchall() == ROWS
    assert kept_editions(copy) == kept_editions(shop.settings)


def test_restored_warehouse_gives_editions_and_deliveries_numbers_of_their_own(shop: Project, tmp_path: Path) -> None:
    settings = shop.settings
    (settings.project / "sinks").mkdir()
    (settings.project / "sinks/crm.toml").write_text("")
    position = json.dumps({"edition": 1, "cut": 1, "published_at": "2024", "tables": {}, "rejected": []})
    for sink in ("crm", "alert-late"):
        sent.record(settings, sink, sent.State(position, 3, sent.Underway(2, "a")))
    for copies in (1, 2):
        backup(shop, tmp_path / f"copy{copies}", keys=None, on_progress=quiet)
        copy = restored(settings, tmp_path / f"copy{copies}")
        shop = replace(shop, settings=copy)
        assert lost_editions(copy) == []
        edition = publish(copy, 2 + copies, current_order=("silver", 0), customer_daily=("gold", 0))
        assert edition.number == copies * RESTORED + 1
        state, alert = sent.state(copy, "crm"), sent.state(copy, "alert-late")
        assert (state.number, state.underway) == (3 + copies * RESTORED, None)
        assert json.loads(state.position or "") == json.loads(position) | {"published_at": ""}
        assert (alert.number, alert.position) == (3 + copies * RESTORED, position)
    assert publish(settings, 2, current_order=("silver", 0), customer_daily=("gold", 0)).number == 2


def test_backup_is_consistent_when_writers_continue(shop: Project, tmp_path: Path) -> None:
    """After each copied table, the writer adds a batch, a cut and an edition."""
    batches = iter(range(3, 100))

    def writes(_: str) -> None:
        fall_behind(shop.settings)
        batch = next(batches)
        assert Log(shop.settings, "orders").head().batch == batch
        cut = record_cut(shop.settings, {"orders": batch}, 0)
        publish(shop.settings, cut.number, current_order=("silver", 0), customer_daily=("gold", 0))

    done = backup(shop, tmp_path / "copy", keys=None, on_progress=writes)
    assert len(done.tables) > 5
    copy = restored(shop.settings, tmp_path / "copy")
    cut, log = latest_cut(copy), Log(copy, "orders").head().batch
    assert cut is not None
    assert kept_editions(copy)[0].cut <= cut.number
    assert cut.batches["orders"] <= log < Log(shop.settings, "orders").head().batch
    assert len(kept_editions(shop.settings)) > len(done.tables) - 2, "none of this stopped a writer"


def test_backup_rejects_a_folder_in_use_and_a_missing_key_store(shop: Project, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine").touch()
    for folder, keys, what in (
        (tmp_path / "taken", None, "not empty"),
        (tmp_path / "taken/mine", None, "not a folder"),
        (shop.settings.warehouse_path / "copy", None, "cannot be in the warehouse"),
        (tmp_path / "copy", tmp_path / "keys.sqlite", "there is no key store"),
    ):
        with pytest.raises(DeclarationError, match=what):
            backup(shop, folder, keys=keys, on_progress=quiet)
    assert {file.name for file in tmp_path.iterdir()} == {"shop", "taken"}


def test_backup_rejects_an_empty_warehouse(tmp_path: Path) -> None:
    init(tmp_path / "shop")
    with pytest.raises(DeclarationError, match="nothing to back up yet"):
        backup(load(load_settings(tmp_path / "shop")), tmp_path / "copy", keys=None, on_progress=quiet)
    assert not (tmp_path / "copy").exists()


def test_backup_rejects_a_damaged_log(shop: Project, tmp_path: Path) -> None:
    shutil.rmtree(shop.settings.warehouse_path / "logs/orders/_delta_log")
    with pytest.raises(StorageError, match="the log of orders"):
        backup(shop, tmp_path / "copy", keys=None, on_progress=quiet)
    assert not (tmp_path / "copy").exists()


def test_backup_copies_quarantined_records_of_people_without_their_text(tmp_path: Path) -> None:
    project = published(tmp_path / "shop")
    at = datetime(2024, 3, 31, tzinfo=UTC)
    faults = [("joan.csv", "joan is no number"), ("b.csv", "cut short")]
    assert quarantine.put_files(project.settings, "orders", 2, faults, at=at) == 2
    backup(project, tmp_path / "copy", keys=None, on_progress=quiet)
    copy = restored(project.settings, tmp_path / "copy")
    first, second = quarantine.rejected(copy, "orders", upto=9)
    assert (first.raw, first.detail, first.source, first.ingested_at) == ("", BLANKED, "joan.csv", at)
    assert (second.batch, second.number) == (2, 2)
    assert quarantine.put_files(copy, "orders", 3, faults, at=at) == 2, "it can be written on"


def test_backup_copies_keys_to_a_separate_place(shop: Project, tmp_path: Path) -> None:
    store = open_store(shop.settings, make=True)
    store.make("orders", ["ada", "joan"])
    for keys, what in ((tmp_path / "copy/keys", "can read everything"), (shop.settings.keys_path, "exists already")):
        with pytest.raises(DeclarationError, match=what):
            backup(shop, tmp_path / "copy", keys=keys, on_progress=quiet)
    arguments = ["backup", str(tmp_path / "copy"), "--keys", str(tmp_path / "safe/keys"), "--json"]
    answer = CliRunner().invoke(lake, [*arguments, "--project", str(shop.settings.project)])
    assert json.loads(answer.stdout)["keys"] is True
    copied = open_store(replace(shop.settings, keys=tmp_path / "safe/keys"))
    assert (copied.secret, all_keys(copied)) == (store.secret, all_keys(store))
    assert secret_file(tmp_path / "safe/keys").read_text() == secret_file(shop.settings.keys_path).read_text()
    assert (tmp_path / "safe/keys").stat().st_mode & 0o077 == 0
    assert not list((tmp_path / "copy").rglob("*keys*"))


def test_restore_keys_copies_a_key_store_to_a_project_without_keys(shop: Project, tmp_path: Path) -> None:
    def restored_from(file: Path) -> Result:
        return CliRunner().invoke(lake, ["restore-keys", str(file), "--json", "--project", str(shop.settings.project)])

    store = open_store(shop.settings, make=True)
    store.make("orders", ["ada", "joan"])
    store.destroy("orders", ["joan"])
    people = all_keys(store)
    with copied_store(shop.settings, tmp_path / "copy"):
        pass
    assert "there is a key store already" in str(restored_from(tmp_path / "copy").exception)
    for file in (shop.settings.keys_path, secret_file(shop.settings.keys_path)):
        file.unlink()
    missing = str(restored_from(tmp_path / "nowhere").exception)
    assert "there is no key store" in missing
    assert "name a whole key store" in missing
    done = json.loads(restored_from(tmp_path / "copy").stdout)
    assert done == {"id": store.id, "where": str(shop.settings.keys_path), "people": {"orders": 2}}
    assert open_store(shop.settings) == store
    assert (all_keys(store), store.destroyed("orders")) == (people, {"joan"})


def test_backup_leaves_nothing_when_it_fails(shop: Project, tmp_path: Path) -> None:
    def fails(_: str) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(Unavailable, match="disk full"):
        backup(shop, tmp_path / "copy", keys=None, on_progress=fails)
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.parametrize("point", ["keys", "note"])
def test_backup_leaves_no_keys_when_it_fails_and_can_be_repeated(
    shop: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    open_store(shop.settings, make=True).make("orders", ["ada"])
    copy, keys = tmp_path / "copy", tmp_path / "safe/keys"
    arguments = ["backup", str(copy), "--keys", str(keys), "--project", str(shop.settings.project)]
    with monkeypatch.context() as patch:
        patch.setattr(KeyStore, "copy", fails) if point == "keys" else patch.setattr(Path, "write_text", fails)
        assert isinstance(CliRunner().invoke(lake, arguments).exception, Unavailable)
    assert [*copy.iterdir(), *keys.parent.iterdir()] == []
    assert CliRunner().invoke(lake, arguments).exit_code == 0
    assert keys.exists()


def people(shop: Lakehouse) -> dict[int, Any]:
    return {row["order_id"]: row["customer"] for row in shop.table("current_order")}


@pytest.mark.long
def test_restored_backup_keeps_later_erasures(spark: SparkSession, tmp_path: Path) -> None:
    live = new_shop(tmp_path / "live")
    live.land("orders", order(1, JOAN, note="call me"), order(2, "grace"), order(9, JOAN) | {"amount": "a lot"}).run()
    done = backup(live.project, tmp_path / "copy", keys=None, on_progress=quiet)
    assert set(done.left_out) == {"current_order", "customer_daily"}
    copy = restored(live.settings, tmp_path / "copy")
    assert search_files(copy, {JOAN}).found == (), "what is personal is in no backup in clear"

    forget(live.project, lambda: spark, "orders", JOAN)
    catch_up(live.project, lambda: spark, quiet)
    shutil.copytree(tmp_path / "live/shop", tmp_path / "again/shop")
    (tmp_path / "copy/warehouse").rename(tmp_path / "again/warehouse")
    again = Lakehouse(tmp_path / "again/shop", tmp_path / "again")
    again.settings = replace(again.settings, keys=live.settings.keys_path)
    again.land("orders", order(1, JOAN, note="call me"), order(3, "ada")).run()
    assert people(again) == {1: None, 2: "grace", 3: "ada"}
    assert {verdict.verdict for verdict in verify_all(lambda: spark, again.project, on_progress=quiet)} == {"identical"}
    assert check_log(again.settings, "orders").faults == []
    assert search_files(again.settings, {JOAN}).found == ()
    maintain(again.project, lambda: spark, Policy(1, 0, 0), quiet)
    assert len(kept_editions(again.settings)) == 1


@contextmanager
def landing(folder: Path) -> Iterator[None]:
    """Land an order every second for the block; every other one is Joan's."""
    over = threading.Event()

    def produce() -> None:
        for number in count(100):
            (folder / f"{number}.jsonl").write_text(json.dumps(order(number, JOAN if number % 2 else "grace")))
            if over.wait(1):
                return

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield
    finally:
        over.set()
        producer.join()


@pytest.mark.long
def test_restored_backups_made_during_follow_keep_erasures(tmp_path: Path, commands: Commands) -> None:
    live, orders = tmp_path / "live", "select order_id, customer from current_order order by all"
    init(live)
    environment = os.environ | commands.environment | {"LAKE_KEYS": str(tmp_path / "keys.sqlite")}

    def lake_in(folder: Path, *words: str | Path) -> str:
        line: list[str | Path] = [LAKE, *words, "--project", folder]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def edition() -> int:
        shown = json.loads(lake_in(live, "status", "--json"))["edition"]
        return int(shown["number"]) if shown else 0

    with (tmp_path / "follow.log").open("wb") as log:
        line: list[str | Path] = [LAKE, "run", "--follow", "--every", "0.1s", "--project", live]
        following = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
        try:
            until(lambda: edition() > 0)
            with landing(live / "landing/orders"):
                for copy in "ab":
                    before = edition()
                    lake_in(live, "backup", tmp_path / copy)
                    until(lambda: edition() > before)  # noqa: B023  asked at once
                lake_in(live, "forget", "orders", f"subject={JOAN}", "--yes")
            assert following.poll() is None, (tmp_path / "follow.log").read_text()
        finally:
            following.terminate()
            following.wait()
    assert following.returncode == 0, (tmp_path / "follow.log").read_text()
    lake_in(live, "run")
    now = lake_in(live, "sql", orders)

    for copy in "ab":
        again = tmp_path / "again" / copy
        init(again)
        shutil.rmtree(again / "landing")
        shutil.copytree(live / "landing", again / "landing")
        (again / ".lake").mkdir()
        (tmp_path / copy / "warehouse").rename(again / ".lake/warehouse")
        lake_in(again, "run")
        assert "the log is consistent" in lake_in(again, "log", "orders", "--check")
        verdicts = json.loads(lake_in(again, "verify", "--json"))["tables"]
        assert {verdict["verdict"] for verdict in verdicts} == {"identical"}
        assert lake_in(again, "sql", orders) == now
        assert JOAN not in now
