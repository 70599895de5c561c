"""People of a stream: encrypted in the log, in clear to jobs, and erased by `lake forget`."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from click.testing import CliRunner
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lake import cost
from lake.cli import Shell, lake
from lake.config import Settings
from lake.contracts import encryption
from lake.engine.advance import advance_all
from lake.engine.inputs import Inputs
from lake.engine.rebuild import rebuild
from lake.engine.verify import verify_all
from lake.errors import DeclarationError, Unavailable
from lake.ingest.fsck import check_log
from lake.ingest.ingest import ingest
from lake.ops.maintenance import Policy, maintain
from lake.ops.pipeline import catch_up
from lake.privacy import forget as purging
from lake.privacy.audit import search_files
from lake.privacy.forget import LostKeysResult, destroy_keys, forget, give_up, purge
from lake.publish.cut import cut, pick_cut
from lake.publish.publish import publish
from lake.read.sql import reader
from lake.session import file_modes
from lake.store import duckdb_tables, erasures, quarantine
from lake.store.keys import KeyStore, open_store, secret_file
from lake.store.ledger import sent
from lake.store.ledger.editions import kept_editions
from lake.store.ledger.sent import Undelivered
from lake.store.locks import activity
from lake.store.log import EventFilter, Log
from lake.store.scan import to_frame
from lake.store.table_logs import forget_all
from lake.store.upkeep import vacuum
from lake.store.warehouse import Warehouse
from lake.testing import Lakehouse
from tests.checks import spark_forbidden
from tests.processes import other_process
from tests.shop import all_keys, avro, contract, declare, empty, new_shop, order


@pytest.fixture(scope="module")
def read_only_shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return the project of `lake init` with orders of two people, one of them partly rejected. Read only."""
    home = tmp_path_factory.mktemp("calm")
    shop = new_shop(home)
    broken = order(9, "margaret hamilton") | {"amount": "a lot"}
    return shop.land("orders", order(1, "margaret hamilton", note="call +44 20 7946"), order(2, "grace"), broken).run()


@pytest.fixture
def shop(read_only_shop: Lakehouse, tmp_path: Path) -> Lakehouse:
    """Return a writable copy of `calm`."""
    shutil.copytree(read_only_shop.home, tmp_path, dirs_exist_ok=True)
    return Lakehouse(tmp_path / "shop", tmp_path)


def quiet(_: str) -> None:
    pass


def forget_person(shop: Lakehouse, who: str = "margaret hamilton") -> purging.ErasureResult:
    done = forget(shop.project, lambda: shop.spark, "orders", who)
    catch_up(shop.project, lambda: shop.spark, quiet)
    return done


def customers(shop: Lakehouse) -> dict[int, str | None]:
    return {row["order_id"]: row["customer"] for row in shop.table("current_order")}


def verdicts(shop: Lakehouse) -> set[str]:
    return {each.verdict for each in verify_all(lambda: shop.spark, shop.project, on_progress=lambda _: None)}


def log_rows(shop: Lakehouse) -> list[dict[str, Any]]:
    return duckdb_tables.rows(
        Warehouse(shop.settings).log("orders").path, "SELECT * FROM t WHERE _bucket >= 0 ORDER BY order_id"
    )


@pytest.mark.turns(3)
@pytest.mark.parametrize("most", [20_000, 1, 0])
@pytest.mark.parametrize("searched", [None, [1], [1, 2], [3]])
def test_log_reads_the_keys_of_its_people_only_for_few_events(
    read_only_shop: Lakehouse, monkeypatch: pytest.MonkeyPatch, most: int, searched: list[int] | None
) -> None:
    """For more than that many events, the keys of all people are read."""
    monkeypatch.setattr(cost, "SCAN_ROWS", most)
    asked: list[set[str] | None] = []
    living, all_living = KeyStore.keys_of, KeyStore.all_keys

    def some(store: KeyStore, stream: str, among: Iterable[str]) -> pa.Table:
        asked.append({*among})
        return living(store, stream, among)

    def everybody(store: KeyStore, stream: str) -> Iterator[pa.Table]:
        asked.append(None)
        return all_living(store, stream)

    monkeypatch.setattr(KeyStore, "keys_of", some)
    monkeypatch.setattr(KeyStore, "all_keys", everybody)
    log, contract = Log(read_only_shop.settings, "orders"), read_only_shop.project.contracts["orders"]
    keys = None if searched is None else pa.table({"order_id": pa.array(searched, pa.int64())})
    rows = log.read(read_only_shop.spark, contract, upto=log.head().batch, events=EventFilter(keys=keys))
    found = [row.asDict() for row in rows.select("order_id", "customer").orderBy("order_id").collect()]
    every = [{"order_id": 1, "customer": "margaret hamilton"}, {"order_id": 2, "customer": "grace"}]
    few = [row for row in every if searched is None or row["order_id"] in searched]
    many = len(few) > most
    assert found == (every if many else few)
    tokens = {open_store(read_only_shop.settings).token("orders", str(row["customer"])) for row in few}
    assert asked == [None if many else tokens]


def test_log_stores_personal_fields_encrypted_and_jobs_read_them_in_clear(read_only_shop: Lakehouse) -> None:
    assert customers(read_only_shop) == {1: "margaret hamilton", 2: "grace"}
    first, second = log_rows(read_only_shop)
    assert first["_subject"] != second["_subject"]
    kept = all_keys(open_store(read_only_shop.settings))
    sealed = base64.b64decode(first["customer"])
    opened = AESGCM(kept[first["_subject"]]).decrypt(sealed[:12], sealed[12:], b"orders.customer")
    assert opened == b"margaret hamilton"
    with pytest.raises(InvalidTag):
        AESGCM(kept[second["_subject"]]).decrypt(sealed[:12], sealed[12:], b"orders.customer")
    with pytest.raises(InvalidTag):
        AESGCM(kept[first["_subject"]]).decrypt(sealed[:12], sealed[12:], b"orders._extra")
    assert "7946" not in str(first)
    assert open_store(read_only_shop.settings).token("orders", "grace") == second["_subject"]
    assert stat.S_IMODE(read_only_shop.settings.keys_path.stat().st_mode) == 0o600
    text = search_files(read_only_shop.settings, {"margaret hamilton"})
    assert not [file for file in text.found if "/logs/" in file], "only what is derived is in clear"


@pytest.mark.long
def test_redelivery_is_recognized_by_its_token_and_other_content_is_a_conflict(shop: Lakehouse) -> None:
    head = shop.land("orders", order(1, "margaret hamilton", note="call +44 20 7946"), order(2, "ada")).run()
    counts = Log(head.settings, "orders").head().counts
    assert (counts["duplicates"], counts["quarantined"], counts["accepted"]) == (1, 1, 0)
    assert check_log(shop.settings, "orders").faults == []


def reject(shop: Lakehouse, who: str) -> None:
    row = Undelivered("crm", "customer_daily", f'{{"customer":"{who}"}}', None, 1, 1, "insert", "status 400")
    sent.record(shop.settings, "crm", sent.State("{}", 2), [row.now()])


def give_up_rows(shop: Lakehouse, who: str) -> None:
    rows = [row.now(action="dropped") for row in sent.undelivered(shop.settings, "crm") if who in row.key]
    sent.record(shop.settings, "crm", sent.State("{}", 3), rows)


def test_forget_nulls_a_person_in_every_table_and_every_byte_of_the_warehouse(shop: Lakehouse) -> None:
    for who in ("margaret hamilton", "grace"):
        reject(shop, who)
    give_up_rows(shop, "margaret hamilton")
    before = search_files(shop.settings, {"margaret hamilton"})
    assert {Path(file).relative_to(shop.home).parts[1] for file in before.found} == {
        *("silver", "gold", "quarantine", "meta")
    }
    done = forget_person(shop)
    assert (done.events, done.quarantined) == (1, 1)
    assert done.values == {"margaret hamilton"}
    assert customers(shop) == {1: None, 2: "grace"}
    assert {row["customer"] for row in shop.table("customer_daily")} == {None, "grace"}
    after = search_files(shop.settings, done.values)
    assert (after.found, after.files_searched > 20, after.bytes_searched > 10_000) == ((), True, True)
    outside = [Path(file).name for file in after.outside_the_warehouse]
    assert outside == ["000001.jsonl"], "landing files are their owner's"
    assert verdicts(shop) == {"identical"}
    assert [row.key for row in sent.undelivered(shop.settings, "crm")] == ['{"customer":"grace"}']
    assert sent.state(shop.settings, "crm").number == 3
    assert check_log(shop.settings, "orders").faults == []
    with pytest.raises(DeclarationError, match="edition 1 has expired; kept: 3"):
        reader(shop.settings, 1)
    assert {row[0] for row in reader(shop.settings).relation("select customer from current_order").fetchall()} == {
        None,
        "grace",
    }


@pytest.mark.long
def test_key_of_an_undelivered_row_stays_until_it_is_given_up(shop: Lakehouse) -> None:
    reject(shop, "margaret hamilton")
    done = forget_person(shop)
    proof = search_files(shop.settings, done.values)
    assert ({Path(file).relative_to(shop.home).parts[2] for file in proof.found}, "--give-up" in proof.fix) == (
        {"sent"},
        True,
    )
    give_up_rows(shop, "margaret hamilton")
    forget_person(shop)
    assert search_files(shop.settings, done.values).found == ()


@pytest.mark.long
def test_second_forget_deletes_remaining_traces(shop: Lakehouse) -> None:
    first = forget_person(shop)
    left = shop.settings.warehouse_path / "silver/.current_order.gone"
    left.mkdir()
    (left / "left.parquet#1").write_text("margaret hamilton")
    assert search_files(shop.settings, first.values).found
    shop.run()
    assert search_files(shop.settings, first.values).found, "nobody has asked for it"
    again = forget_person(shop)
    assert (again.number, again.token) == (first.number + 1, first.token)
    assert search_files(shop.settings, first.values).found == ()
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_person_stays_forgotten_when_their_records_arrive_again(shop: Lakehouse) -> None:
    forget_person(shop)
    known = order(1, "margaret hamilton", note="call +44 20 7946")
    refused = (known | {"order_id": 2, "amount": "1"}, known | {"status": "lost"}, order(2, "grace") | {"amount": "2"})
    shop.land("orders", known, order(3, "margaret hamilton"), order(4, "grace"), *refused).run()
    counts = Log(shop.settings, "orders").head().counts
    assert (counts["duplicates"], counts["accepted"], counts["quarantined"]) == (1, 3, 2)
    kept = [*quarantine.rejected(shop.settings, "orders", upto=9)]
    assert [(row.reason, "grace" in row.raw) for row in kept[1:]] == [("not in enum", False), ("conflict", True)]
    assert customers(shop) == {1: None, 2: "grace", 3: None, 4: "grace"}
    assert search_files(shop.settings, {"margaret hamilton"}).found == ()
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_person_stays_forgotten_when_the_erasures_table_is_lost(shop: Lakehouse) -> None:
    forget_person(shop)
    shutil.rmtree(Warehouse(shop.settings).book("erasures").path.local)
    refused = order(5, "margaret hamilton") | {"amount": "a lot"}
    shop.land("orders", refused)
    ingest(shop.settings, lambda: shop.spark, shop.project.contracts)
    [*_, last] = quarantine.rejected(shop.settings, "orders", upto=9)
    assert (last.raw, last.reason) == ("", "wrong type")


@pytest.mark.long
def test_second_forget_blanks_unreadable_records(shop: Lakehouse) -> None:
    first = forget_person(shop)
    shop.land("orders", '{"order_id": 7, "customer": "margaret \\u0068amilton"').run()
    assert search_files(shop.settings, first.values).found
    again = forget_person(shop)
    assert (again.quarantined, again.number) == (1, first.number + 1)
    assert search_files(shop.settings, first.values).found == ()
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_run_completes_an_erasure_after_a_crash_before_key_destruction(
    shop: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purging, "destroy_keys", lambda _: None)
    forget(shop.project, lambda: shop.spark, "orders", "margaret hamilton")
    token = open_store(shop.settings).token("orders", "margaret hamilton")
    assert token not in open_store(shop.settings).destroyed("orders")
    monkeypatch.undo()
    assert verdicts(shop) == {"unknown"}, "the tables still have the person"
    shop.run()
    assert token in open_store(shop.settings).destroyed("orders")
    assert customers(shop)[1] is None
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_run_completes_an_erasure_after_a_crash_before_a_checkpoint(
    shop: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_: DeltaTable) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(DeltaTable, "create_checkpoint", dies)
        with pytest.raises(KeyboardInterrupt):
            forget_person(shop)
    shop.run()
    assert search_files(shop.settings, {"margaret hamilton"}).found == ()
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_forget_deletes_files_left_by_killed_processes(shop: Lakehouse) -> None:
    """An unfinished upload of delta-rs, an interrupted removal of a table, and spilled data of a query."""
    parquet = next((shop.settings.warehouse_path / "silver/current_order").glob("*.parquet"))
    gone = shop.settings.warehouse_path / "silver/.current_order@1.gone"
    gone.mkdir()
    spilled = shop.settings.path(".lake/sql/headwater-1-00")
    spilled.mkdir(parents=True)
    left = [parquet.with_name(f"{parquet.name}#1"), gone / parquet.name, spilled / "duckdb_temp_block-1.block"]
    for file in left:
        shutil.copy(parquet, file)
    done = forget_person(shop)
    assert [file for file in left if file.exists()] == []
    assert search_files(shop.settings, done.values).found == ()


@pytest.mark.long
def test_forget_truncates_logs_of_spark(shop: Lakehouse) -> None:
    logs = [shop.settings.path(f".lake/spark/{name}.log") for name in ("driver", "connect")]
    for log_file in logs:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.write_text("The value 'margaret hamilton' of the type STRING cannot be cast")
    done = forget_person(shop)
    assert [log_file.read_text() for log_file in logs] == ["", ""]
    assert search_files(shop.settings, done.values).found == ()


def test_purge_deletes_spilled_files_older_than_every_process(project: Settings) -> None:
    def spilled(name: str) -> Path:
        folder = file_modes.scratch(project, "sql") / name
        folder.mkdir()
        return folder

    project.warehouse_path.mkdir(parents=True)
    before = spilled("headwater-1-00")
    with other_process(project, "reading"):
        theirs, [other] = spilled("headwater-2-00"), list(activity.others(project))
        soon = other.since.timestamp() + 0.001  # Ticks of the kernel may be earlier
        os.utime(theirs, (soon, soon))
        purging._delete_leftovers(project)
        assert (before.exists(), theirs.exists()) == (False, True)
    purging._delete_leftovers(project)
    assert not theirs.exists()


def test_cut_of_before_a_person_was_forgotten_is_not_published(shop: Lakehouse) -> None:
    """Tables that advanced to it before have the person, the others do not."""
    shop.land("orders", order(3, "margaret hamilton"))
    ingest(shop.settings, lambda: shop.spark, shop.project.contracts)
    before = cut(shop.project)
    advance_all(Inputs(lambda: shop.spark, shop.project, before), ["current_order"], on_progress=print)
    forget(shop.project, lambda: shop.spark, "orders", "margaret hamilton")
    advance_all(Inputs(lambda: shop.spark, shop.project, before), on_progress=print)
    with pytest.raises(Unavailable, match=f"a person of orders was forgotten after cut {before.number}"):
        publish(shop.project, before, lambda: shop.spark, print)
    shop.run()
    assert customers(shop) == {1: None, 2: "grace", 3: None}
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_purge_keeps_published_rows_when_a_table_advances_meanwhile(
    shop: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    still_read = purging._still_read

    def goes_on(*given: Any) -> str:
        table = shop.project.table(shop.project.tables["current_order"])
        vacuum.begin_anew(table.path, table.position())
        return still_read(*given)

    monkeypatch.setattr(purging, "_still_read", goes_on)
    forget_person(shop)
    seen = reader(shop.settings).relation("select customer from current_order order by 1").fetchall()
    assert seen == [("grace",), (None,)]


@pytest.mark.long
@pytest.mark.parametrize("first", ["run", "maintain"])
def test_expired_editions_expire_again_when_damage_restores_them(shop: Lakehouse, first: str) -> None:
    forget_person(shop)
    [*_, expiry] = sorted((Warehouse(shop.settings).book("editions").path / "_delta_log").local.glob("*.json"))
    os.truncate(expiry, 100)
    forget_all()
    assert [each.number for each in kept_editions(shop.settings)] == [3, 2, 1]
    if first == "run":
        shop.run()
    done = maintain(shop.project, lambda: shop.spark, Policy.of(shop.settings), quiet)
    assert done.kept == [3]
    assert verdicts(shop) == {"identical"}


class Times(type):
    def __instancecheck__(cls, it: object) -> bool:
        return isinstance(it, datetime)


class Ahead(datetime, metaclass=Times):
    """Class of times by a clock that is ahead."""

    by = timedelta(0)

    def __new__(cls, *parts: Any, **more: Any) -> datetime:  # type: ignore[misc]
        return datetime(*parts, **more)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.by


def clock_ahead(patch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Set the clock that `lake` reads."""
    patch.setattr(Ahead, "by", by)
    for name, loaded in list(sys.modules.items()):
        if name.startswith("lake.") and getattr(loaded, "datetime", None) is datetime:
            patch.setattr(loaded, "datetime", Ahead)


def command(shop: Lakehouse, *words: str) -> str:
    """Run a command that must succeed, and return its output."""
    shell = Shell(project=shop.source.project)
    shell.__dict__ |= {"settings": shop.settings, "spark": shop.spark}
    done = CliRunner().invoke(lake, list(words), obj=shell, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("ahead", [timedelta(days=1), timedelta(days=366)])
def test_editions_after_a_purge_stay_when_the_clock_goes_back(
    shop: Lakehouse, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    with monkeypatch.context() as patch:
        clock_ahead(patch, ahead)
        assert "forgotten: person" in command(shop, "forget", "orders", "subject=margaret hamilton", "--yes")
        [purged] = kept_editions(shop.settings)
        assert purged.published_at > datetime.now(UTC) + ahead / 2
    for number in (3, 4):
        shop.land("orders", order(number, "grace"))
        command(shop, "run")
    command(shop, "maintain")
    later = [each for each in kept_editions(shop.settings) if each.number > purged.number]
    assert len(later) == 2
    assert all(each.published_at < purged.published_at for each in later)
    query = "select count(*) as n from current_order"
    counts = [json.loads(command(shop, "sql", "--edition", str(each.number), "--json", query)) for each in later]
    assert counts == [[{"n": 4}], [{"n": 3}]]


GUEST = """
from lake import Latest, log, table

@table(Latest(key="order_id", sequence="changed_at"), log("STREAM"))
def guest(rows):
    \"\"\"Who is there.

    changed_at: UTC
    \"\"\"
    return rows.select("order_id", "customer", "changed_at")
"""


@pytest.mark.long
def test_forget_purges_the_past_of_a_table_redefined_in_place(shop: Lakehouse) -> None:
    def declared(stream: str) -> Lakehouse:
        job = shop.settings.path("jobs/silver/guest.py")
        job.write_text(GUEST.replace("STREAM", stream))
        return Lakehouse(shop.settings.path("."), shop.home)

    declared("orders").run()
    schemas = shop.settings.path("schemas")
    visits = (schemas / "orders.avsc").read_text().replace('"name": "orders"', '"name": "visits"')
    visits = visits.replace('"subject": "customer", ', "").replace(', "personal": true', "")
    (schemas / "visits.avsc").write_text(visits)
    after = declared("visits").land("visits", order(1, "a guest"))
    ingest(after.settings, lambda: after.spark, after.project.contracts)
    rebuild(Inputs(lambda: after.spark, after.project, cut(after.project)), after.project.tables["guest"])
    after.run()
    assert [row["customer"] for row in after.table("guest")] == ["a guest"]
    done = forget_person(after)
    assert search_files(after.settings, done.values).found == ()
    assert verdicts(after) == {"identical"}


def test_destroyed_key_is_absent_from_the_file(shop: Lakehouse) -> None:
    store = open_store(shop.settings)
    key = all_keys(store)[store.token("orders", "margaret hamilton")]
    assert key in shop.settings.keys_path.read_bytes()
    forget(shop.project, lambda: shop.spark, "orders", "margaret hamilton")
    assert key not in shop.settings.keys_path.read_bytes()


@pytest.mark.long
def test_old_copy_of_the_key_store_restores_no_forgotten_person(shop: Lakehouse) -> None:
    copy = shop.settings.keys_path.read_bytes()
    forget_person(shop)
    shop.settings.keys_path.write_bytes(copy)
    assert verdicts(shop) == {"identical"}
    shop.land("orders", order(5, "grace")).run()
    destroy_keys(shop.settings)
    token = open_store(shop.settings).token("orders", "margaret hamilton")
    assert token in open_store(shop.settings).destroyed("orders")
    assert customers(shop) == {1: None, 2: "grace", 5: "grace"}


@pytest.mark.long
def test_lost_key_store_is_reported_and_can_be_given_up(shop: Lakehouse) -> None:
    copy = shop.settings.keys_path.read_bytes()
    shop.settings.keys_path.unlink()
    with pytest.raises(DeclarationError, match="there is no key store"):
        catch_up_from_scratch(shop)
    open_store(shop.settings, make=True)
    with pytest.raises(DeclarationError, match="the keys of 2 people of orders are not in the key store"):
        catch_up_from_scratch(shop)
    shop.settings.keys_path.write_bytes(copy)
    assert catch_up_from_scratch(shop) == {"margaret hamilton", "grace"}
    shop.settings.keys_path.unlink()
    assert give_up(shop.project, "orders") == LostKeysResult(2, renamed=False)
    assert give_up(shop.project, "orders") == LostKeysResult(0, renamed=False)
    shop.land("orders", order(6, "ada")).run()
    assert customers(shop) == {1: None, 2: None, 6: "ada"}
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_given_up_keys_blank_rejected_records(shop: Lakehouse) -> None:
    shop.settings.keys_path.unlink()
    give_up(shop.project, "orders")
    shop.run()
    [refused] = quarantine.rejected(shop.settings, "orders", upto=9)
    assert (refused.raw, refused.reason) == ("", "wrong type")
    assert search_files(shop.settings, {"margaret hamilton"}).found == ()


@pytest.mark.long
def test_forget_finds_a_person_known_only_from_a_rejected_record(shop: Lakehouse) -> None:
    shop.land("orders", order(7, "katherine johnson") | {"amount": "none"}).run()
    assert search_files(shop.settings, {"katherine johnson"}).found
    done = forget_person(shop, "katherine johnson")
    assert (done.events, done.quarantined) == (0, 1)
    assert search_files(shop.settings, {"katherine johnson"}).found == ()
    shop.land("orders", order(7, "katherine johnson") | {"amount": "nothing"}).run()
    assert search_files(shop.settings, {"katherine johnson"}).found == ()
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
def test_forget_finds_a_person_of_a_rejected_record_again_after_a_crash(
    shop: Lakehouse, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    shop.land("orders", order(7, "katherine johnson") | {"amount": "none"}).run()
    blank = purging._blank

    def dies(*told: Any) -> None:
        if moment == "after":
            blank(*told)
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(purging, "_blank", dies)
        with pytest.raises(KeyboardInterrupt):
            forget(shop.project, lambda: shop.spark, "orders", "katherine johnson")
    forget_person(shop, "katherine johnson")
    assert search_files(shop.settings, {"katherine johnson"}).found == ()
    assert verdicts(shop) == {"identical"}


@pytest.mark.long
def test_forget_ignores_values_shared_by_many_people(shop: Lakehouse) -> None:
    schema = shop.settings.path("schemas/orders.avsc")
    plans = '{"type": "enum", "name": "plan", "symbols": ["basic", "gold"]}'
    more = f"""{{"name": "member", "type": ["null", "boolean"], "default": null, "doc": "d", "personal": true}},
        {{"name": "plan", "type": ["null", {plans}], "default": null, "doc": "d", "personal": true}},
        {{"name": "changed_at" """
    schema.write_text(schema.read_text().replace('{"name": "changed_at"', more))
    shop = Lakehouse(shop.settings.path("."), shop.home)
    own = {"member": True, "plan": "gold"}
    shop.land("orders", order(3, "katherine johnson") | own, order(4, "grace") | own | {"amount": "none"}).run()
    done = forget_person(shop, "katherine johnson")
    assert (done.events, done.quarantined, done.values) == (1, 0, frozenset({"katherine johnson"}))
    assert [row.raw for row in quarantine.rejected(shop.settings, "orders", upto=9)][1:] != [""]


@pytest.mark.long
def test_person_stays_forgotten_when_other_keys_are_lost(shop: Lakehouse) -> None:
    forget_person(shop)
    shop.settings.keys_path.unlink()
    assert give_up(shop.project, "orders") == LostKeysResult(1, renamed=False)
    shop.land("orders", order(2, "grace"), order(5, "margaret hamilton"), order(6, "ada")).run()
    counts = Log(shop.settings, "orders").head().counts
    assert (counts["duplicates"], counts["accepted"]) == (1, 2)
    assert customers(shop) == {1: None, 2: None, 5: None, 6: "ada"}


@pytest.mark.long
def test_purge_creates_no_key_store_if_the_log_had_one(shop: Lakehouse) -> None:
    for who in ("margaret hamilton", "grace"):
        forget(shop.project, lambda: shop.spark, "orders", who)
    shop.settings.keys_path.unlink()
    with pytest.raises(DeclarationError, match="there is no key store"):
        destroy_keys(shop.settings)
    secret_file(shop.settings.keys_path).unlink()
    assert give_up(shop.project, "orders") == LostKeysResult(0, renamed=True)


def catch_up_from_scratch(shop: Lakehouse) -> set[str | None]:
    """Read the log again and return its people."""
    inputs = Inputs(lambda: shop.spark, shop.project, pick_cut(shop.project, None))
    [source] = shop.project.tables["current_order"].inputs
    return {row["customer"] for row in inputs.whole(source).select("customer").collect()}


@pytest.mark.long
def test_purge_waits_for_running_readers(shop: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_WAREHOUSE", str(shop.settings.warehouse_path))
    with other_process(shop.settings, "reading"):
        done = forget_person(shop)
        told: list[str] = []
        purge(shop.project, told.append)
        assert "may still be reading data of the person" in told[-1]
        assert search_files(shop.settings, done.values).found
        assert customers(shop)[1] is None
    shop.run()
    assert search_files(shop.settings, done.values).found == ()
    told.clear()
    purge(shop.project, told.append)
    assert told == []
    assert erasures.purged(shop.settings) == done.number


VALUES: Final[dict[str, list[Any]]] = {
    "string": ["Jörg", "a;b", " x ", "\U0001f600", ""],
    "int": [0, -7, 2147483647, 1000, 1],
    "long": [2**53 + 1, -(2**63), 2**63 - 1, 0, 1],
    "float": [0.1, 1e10, -1.5e-7, 16777216.0, 3.0],
    "double": [1e-5, 12345678.5, 1e7, 1e21, -0.25],
    "decimal(12, 2)": ["0.10", "-5.00", "123456789.99", "7.00", "0.00"],
    "date": ["0001-01-01", "9999-12-31", "2024-02-29", "1970-01-01", "1582-10-04"],
    "timestamp": ["2024-01-01T00:00:00Z", "2024-01-01T00:00:00.120Z", "1969-12-31T23:59:59.999999Z"],
    "boolean": [True, False],
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_a_person_are_found_alike_by_both_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They are texts as Spark writes them. Values that others have too are not the person's."""
    value = (["null", avro(kind)], {"default": None, "personal": True})
    about = contract("guests", {"id": "int", "who": ("string", {"personal": True}), "value": value}, subject="who")
    guests = declare(empty(tmp_path), about)
    given = VALUES[kind]
    records = [{"id": n, "who": f"guest {n % 3}", "value": given[n % len(given)] if n % 4 else None} for n in range(10)]
    guests.land("guests", *records)
    ingest(guests.settings, lambda: guests.spark, guests.project.contracts)
    connect = spark_forbidden if kind in {"string", "int", "long", "date", "decimal(12, 2)"} else lambda: guests.spark
    for number in range(3):
        person, declared = f"guest {number}", guests.project.contracts["guests"]
        found = purging._personal_values(guests.project, connect, declared, person)
        with monkeypatch.context() as only_spark:
            only_spark.setattr(purging, "by_either", lambda _, connect, work: work(connect))
            assert purging._personal_values(guests.project, lambda: guests.spark, declared, person) == found
        theirs, others = ({repr(r["value"]) for r in records if (r["who"] == person) == own} for own in (True, False))
        assert found[0] == sum(record["who"] == person for record in records)
        assert (len(found[1]), person in found[1]) == (1 + len(theirs - others - {"None"}), True)


@pytest.mark.parametrize(
    ("stream", "who", "message"),
    [
        ("orders", "nobody", "orders has no events of a person whose customer is 'nobody'"),
        ("order", "ada", "no stream 'order'"),
    ],
)
def test_forget_rejects_an_unknown_person(read_only_shop: Lakehouse, stream: str, who: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        forget(read_only_shop.project, lambda: read_only_shop.spark, stream, who)


def test_open_store_reports_a_file_that_is_no_database(shop: Lakehouse) -> None:
    shop.settings.keys_path.write_bytes(b"no database at all, but long enough to be looked at" * 99)
    with pytest.raises(DeclarationError, match="the key store cannot be read"):
        open_store(shop.settings)


def test_search_finds_a_value_in_every_encoding(shop: Lakehouse) -> None:
    home = shop.settings.warehouse_path
    assert search_files(shop.settings, {"Ørsted & Söhne"}).found == ()
    guises = ('"Ørsted & Söhne"', '{"a": "\\u00d8rsted & S\\u00f6hne"}', "x=%C3%98rsted%20%26%20S%C3%B6hne/")
    for number, text in enumerate(guises):
        (home / f"guise{number}.json").write_text(text)
    assert len(search_files(shop.settings, {"Ørsted & Söhne"}).found) == len(guises)
    assert search_files(shop.settings, {"rste"}).found == (), "whole words only"


@pytest.mark.long
def test_hmac_tokens_equal_those_of_the_standard_library(read_only_shop: Lakehouse) -> None:
    store = open_store(read_only_shop.settings)
    rows = read_only_shop.spark.createDataFrame([("grace", "x")], "customer string, _id string")
    pads = to_frame(read_only_shop.spark, encryption.hmac_pads(store.secret))
    [row] = encryption.with_tokens(rows, read_only_shop.project.contracts["orders"], pads).collect()
    assert row["_subject"] == store.token("orders", "grace")
    with sqlite3.connect(read_only_shop.settings.keys_path) as con:
        assert con.execute("SELECT count(*) FROM keys").fetchone() == (2,)
