"""Reports of damage to logs, ledgers, contracts and keys; numbers recorded elsewhere are not reused. No JVM."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lake.cli import lake
from lake.engine import integrity
from lake.engine.verify import verify_all
from lake.errors import LakeError, StorageError
from lake.ingest import landing
from lake.ingest.append import append
from lake.ingest.delivery import Delivery
from lake.privacy import forget
from lake.project.project import Project
from lake.publish.cut import cut
from lake.store import damage, delta, duckdb_tables, erasures, quarantine, recovery
from lake.store.keys import open_store
from lake.store.ledger import contract_versions, editions
from lake.store.ledger.cuts import get_cut
from lake.store.locks import activity
from lake.store.locks.lease import lease
from lake.store.log import Log
from lake.store.proof import chain
from lake.store.storage import Address
from lake.store.table_log import commit_file
from lake.store.table_logs import forget_all
from lake.store.warehouse import Warehouse
from tests.checks import fault, no_spark, present
from tests.ingest.test_lost_commits import ORDER, advance_table, at, shop, tear
from tests.permissions import forbidden, modes_applied
from tests.processes import other_process

pytestmark = pytest.mark.slow

__all__ = ["shop"]


def command(shop: Project, *words: str) -> Result:
    return CliRunner().invoke(lake, [*words, "--project", str(shop.settings.project)], standalone_mode=False)


COUNTS = {"read": 0, "accepted": 0, "duplicates": 0, "quarantined": 0, "control": 0}
LOG = """_batch BIGINT, _arrival BIGINT, _bucket INTEGER, _offset BIGINT, _id VARCHAR, _time TIMESTAMPTZ,
    _watermark TIMESTAMPTZ, _ingested_at TIMESTAMPTZ, _source VARCHAR, _version INTEGER, _extra VARCHAR,
    _subject VARCHAR"""


def commit_batch(shop: Project, batch: int, keys: object = None, **counts: int) -> None:
    """Commit a batch without events, with one file."""
    files = [{"path": f"orders/{batch}.jsonl", "size": 1, "mtime": 1}]
    data: dict[str, Any] = {"offsets": {}, "watermark": None, "counts": COUNTS | counts, "files": files, "contract": 1}
    data |= {"at": "2024-01-01T00:00:00Z"} | ({"keys": keys} if keys else {})
    with lease(shop.settings, "log.orders"):
        head = Log(shop.settings, "orders").head()
        data["content"] = chain.entry(head.content, head.batch + 1, {}, [])
        duckdb_tables.append(Warehouse(shop.settings).log("orders").path, LOG, [], head.next(**data))
        landing.record_ingested(Log(shop.settings, "orders"))


@pytest.mark.parametrize("who", ["landed", "cut", "table"])
@pytest.mark.parametrize("gone", ["all", "newest"])
def test_check_and_status_report_a_log_that_lost_batches(shop: Project, who: str, gone: str) -> None:
    settings = shop.settings
    cut(shop)
    for batch in (1, 2):
        commit_batch(shop, batch)
    if who == "cut":
        cut(shop)
    if who == "table":
        table = shop.table(shop.tables[ORDER])
        data = {"cut": 1, "voids": 0, "inputs": {"orders": 2}, "homes": {}, "fingerprint": ""}
        duckdb_tables.append(table.path, "order_id BIGINT", [], delta.start(table.app).next(**data))
    if who != "landed":
        shutil.rmtree(Warehouse(settings).book("landed").path.local)
    assert command(shop, "log", "orders", "--check").exit_code == 0
    assert command(shop, "status").exit_code == 0
    if gone == "all":
        shutil.rmtree(Warehouse(settings).log("orders").path.local)
    else:
        tear(Warehouse(settings).log("orders").path)
    said = "is missing" if gone == "all" else "ends at batch 1"
    for words in (("log", "orders", "--check"), ("status", "--fail-if", "stopped")):
        result = command(shop, *words)
        assert (fault(result).exit_code, said in result.stdout, "the log of orders" in result.stdout) == (
            1,
            True,
            True,
        )
    [found] = recovery.lost_batches(settings, "orders")
    assert (found.found.endswith("goes up to batch 2"), found.path) == (True, Warehouse(settings).log("orders").path)


@pytest.mark.parametrize("who", ["cut 2", ORDER])
def test_lost_log_is_not_restarted_when_a_cut_or_table_knows_its_batches(shop: Project, who: str) -> None:
    settings, contract = shop.settings, shop.contracts["orders"]
    for batch in (1, 2):
        commit_batch(shop, batch)
        cut(shop)
    build_order(shop, 2)
    quarantined = Warehouse(settings).quarantine("orders").path
    duckdb_tables.append(
        quarantined, quarantine.SCHEMA, [(1, 1, "wrong type", "", "one", "a.jsonl", datetime.now(UTC))]
    )
    for location in (Warehouse(settings).log("orders"), Warehouse(settings).book("landed")):
        shutil.rmtree(location.path.local)
    if who == ORDER:
        shutil.rmtree(Warehouse(settings).book("cuts").path.local)
    with pytest.raises(StorageError, match=f"it is missing, but {who} goes up to batch 2"):
        append(settings, no_spark, contract, lambda _: Delivery())
    assert not delta.exists(Log(settings, "orders").path)
    if who != ORDER:
        assert quarantine.counts_by_batch(Warehouse(settings).quarantine("orders"), upto=9) == {1: 1}
    result = command(shop, "ingest", "orders", "--give-up")
    assert (fault(result).exit_code, "orders is a stream" in str(result.exception)) == (2, True)


def garble(path: Address, content: bytes) -> None:
    """Replace the newest commit of the table at `path`, and commit another without a position."""
    version = delta.version(path)
    commit_file(path, version).local.write_bytes(content)
    commit_file(path, version + 1).put_if_absent(b'{"commitInfo":{"timestamp":1}}')
    forget_all()


def set_format(path: Address, number: int) -> None:
    commit = commit_file(path, delta.version(path)).local
    commit.write_bytes(commit.read_bytes().replace(rb"\"format\":1", rb"\"format\":%d" % number))
    forget_all()


def replace_log(path: Address) -> None:
    shutil.rmtree((path / "_delta_log").local)
    (path / "_delta_log").local.touch()
    forget_all()


def deny(path: Address) -> None:
    path.local.chmod(0)
    forget_all()


@pytest.mark.parametrize(
    "harm",
    [
        *(partial(garble, content=content) for content in (b'{"commitInfo":', b'["commitInfo"]', b'"commitInfo" \xff')),
        partial(set_format, number=2),
        replace_log,
        deny,
    ],
    ids=["truncated JSON", "no object", "no UTF-8", "another format", "log is no folder", "denied"],
)
def test_unreadable_table_does_not_hide_what_others_know_of_lost_cuts(
    shop: Project, harm: Callable[[Address], None]
) -> None:
    settings = shop.settings
    for batch in (1, 2):
        commit_batch(shop, batch)
        advance_table(shop, ORDER, cut(shop).number, orders=batch)
    advance_table(shop, "customer_daily", 2, current_order=1)
    shutil.rmtree(Warehouse(settings).book("cuts").path.local)
    path = shop.table(shop.tables["customer_daily"]).path
    harm(path)
    with modes_applied():
        assert get_cut(settings, 1).batches == {"orders": 1}
        assert recovery.read_by_tables(settings) == {"orders": (2, ORDER)}
        assert cut(shop).number == 3
        result = command(shop, "status", "--fail-if", "stopped")
    assert (fault(result).exit_code, path.url in result.stdout) == (1, True), result.stdout


@pytest.mark.parametrize("book", ["runs", "landed", "checks"])
def test_denied_ledger_does_not_hide_the_state_of_tables(shop: Project, book: str) -> None:
    commit_batch(shop, 1)
    advance_table(shop, ORDER, cut(shop).number, orders=1)
    path = Warehouse(shop.settings).book(book).path
    path.local.mkdir(parents=True, exist_ok=True)
    forget_all()
    with forbidden(path.local):
        result = command(shop, "status", "--fail-if", "stopped")
        assert recovery.last_batch(shop.settings, "orders")[0] == 1
    assert (fault(result).exit_code, f"the ledger of {book}: permission denied" in result.stdout) == (1, True)
    assert f"silver.{ORDER}" in result.stdout


OF_TABLE = [errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR]
OF_ALL = [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ECONNREFUSED]


@pytest.mark.parametrize("number", [*OF_TABLE, *OF_ALL], ids=errno.errorcode.get)
def test_error_of_one_table_is_skipped_and_one_of_all_tables_is_raised(number: int) -> None:
    error = OSError(number, os.strerror(number))
    with pytest.raises(type(error)) if number in OF_ALL else nullcontext(), damage.skip_unreadable():
        raise error


def test_number_of_a_lost_edition_is_not_reused(shop: Project) -> None:
    settings = shop.settings
    for number in (1, 2, 3):
        editions.record_edition(settings, number, {})
    tear(Warehouse(settings).book("editions").path)
    assert present(editions.latest_edition(settings)).number == 2
    [found] = editions.lost_editions(settings)
    assert (found.found, found.path) == (
        "it ends at edition 2, but edition 3 was published",
        Warehouse(settings).book("editions").path,
    )
    result = command(shop, "status", "--fail-if", "stopped")
    assert (fault(result).exit_code, "the ledger of editions: it ends at edition 2" in result.stdout) == (
        1,
        True,
    )
    assert editions.record_edition(settings, 3, {}).number == 4
    shutil.rmtree(Warehouse(settings).book("editions").path.local)
    assert editions.record_edition(settings, 3, {}).number == 5
    assert editions.lost_editions(settings) == []


def test_edition_numbers_are_remembered_from_the_next_edition_on(shop: Project) -> None:
    editions.record_edition(shop.settings, 1, {})
    editions.record_edition(shop.settings, 2, {})
    shutil.rmtree(Warehouse(shop.settings).book("numbers").path.local)
    assert editions.record_edition(shop.settings, 2, {}).number == 2
    shutil.rmtree(Warehouse(shop.settings).book("editions").path.local)
    assert editions.record_edition(shop.settings, 2, {}).number == 3


def test_query_fails_when_the_commit_of_its_version_was_cut_short(shop: Project) -> None:
    table = shop.table(shop.tables[ORDER])
    for number in (1, 2):
        version = advance_table(shop, ORDER, number, orders=number).version
    entry = editions.EditionTable("silver", "silver/current_order", version, "")
    editions.record_edition(shop.settings, 2, {ORDER: entry})
    file = commit_file(table.path, version).local
    lines = file.read_bytes().splitlines(keepends=True)
    query = ("sql", "select count(*) as n from current_order")
    assert command(shop, *query).exit_code == 0
    for count in range(len(lines)):
        file.write_bytes(b"".join(lines[:count]))
        forget_all()
        result = command(shop, *query)
        assert isinstance(result.exception, LakeError), lines[:count]
        assert "was cut short" in str(result.exception)
        assert str(file) in str(result.exception)
        with pytest.raises(LakeError, match="was cut short"), delta.opened(table.path, version):
            pass


def test_log_check_reports_lost_quarantine_rows(shop: Project) -> None:
    settings = shop.settings
    rows = [(1, 1, "wrong type", "", "one", "a.jsonl", datetime.now(UTC))]
    duckdb_tables.append(Warehouse(settings).quarantine("orders").path, quarantine.SCHEMA, rows)
    commit_batch(shop, 1, read=1, quarantined=1)
    assert command(shop, "log", "orders", "--check").exit_code == 0
    shutil.rmtree(Warehouse(settings).quarantine("orders").path.local)
    result = command(shop, "log", "orders", "--check")
    assert (fault(result).exit_code, "batch 1: 1 quarantined, 0 in quarantine" in result.stdout) == (1, True)
    append(settings, no_spark, shop.contracts["orders"], lambda _: None)


def test_lost_contract_versions_are_reported_before_events_are_read(shop: Project) -> None:
    settings, contract = shop.settings, shop.contracts["orders"]
    contract_versions.register(settings, contract)
    commit_batch(shop, 1)
    shutil.rmtree(Warehouse(settings).book("contracts").path.local)
    with pytest.raises(LakeError, match=r"of the 1 versions of the contract of orders (.|\n)*meta/contracts"):
        at(shop, 1, orders=1).whole(shop.tables[ORDER].inputs[0])
    with pytest.raises(LakeError, match="of the 1 versions of the contract of orders"):
        append(settings, no_spark, contract, lambda _: Delivery())
    verdict, *_ = verify_all(no_spark, build_order(shop), [ORDER], on_progress=lambda _: None)
    assert (verdict.verdict, "meta/contracts" in verdict.why, "rebuild" in verdict.fix) == ("unknown", True, False)


def build_order(shop: Project, batch: int = 1) -> Project:
    number = cut(shop).number
    advance_table(shop, ORDER, number, orders=batch)
    return shop


@pytest.mark.parametrize("left", [0, 100, 4096, 8192, 12288])
def test_truncated_key_store_is_reported_without_advice_to_rebuild(shop: Project, left: int) -> None:
    settings = shop.settings
    store = open_store(settings, make=True)
    store.make("orders", [f"{n:064}" for n in range(300)])
    keys = {"store": store.id, "secret": store.fingerprint, "subjects": 300}
    commit_batch(shop, 1, keys)
    contract_versions.register(settings, shop.contracts["orders"])
    integrity.check_integrity_at(build_order(shop), {"orders": None})
    content = settings.keys_path.read_bytes()
    assert len(content) > 12288
    settings.keys_path.write_bytes(content[:left])
    result = command(shop, "verify", ORDER)
    said = str(result.exception)
    assert (fault(result).exit_code, "rebuild" in said, "restore its newest backup" in said) == (
        1,
        False,
        True,
    )
    assert str(settings.keys_path) in result.stdout
    assert "the key store" in result.stdout
    assert settings.keys_path.read_bytes() == content[:left], "nothing is made in its place"


def test_purge_expires_editions_by_number_whatever_the_clock(shop: Project) -> None:
    settings, tomorrow = shop.settings, datetime.now(UTC) + timedelta(days=1)
    for number in (1, 2):
        editions.record_edition(settings, number, {})
    erasures.record(settings, "orders", ["somebody"], at=tomorrow)
    erasures.mark_purged(settings, 1, edition=2, at=tomorrow)
    for number in (3, 4):
        editions.record_edition(settings, number, {})
    forget._expire_restored(settings)
    assert [each.number for each in editions.kept_editions(settings)] == [4, 3, 2]


def test_purge_waits_for_readers_by_edition_number_whatever_the_clock(shop: Project) -> None:
    settings = shop.settings
    first = editions.record_edition(settings, 1, {})
    with other_process(settings, "reading"):
        [file] = [each for each in (settings.warehouse_path / "locks/reads").iterdir() if each.read_text()]
        second = editions.record_edition(settings, 2, {})
        for clock in (first.published_at - timedelta(days=1), second.published_at + timedelta(days=1)):
            os.utime(file, (clock.timestamp(), clock.timestamp()))
            [found] = activity.others(settings)
            assert (found.seen, found.since < second.published_at) == (1, True)
            assert forget._still_read(settings, first) == ""
            assert "may still be reading data of the person" in forget._still_read(settings, second)
        editions.expire_editions(settings, [1])
        assert [each.number for each in editions.expired_since(settings, found.seen)] == [1]
        assert editions.expired_since(settings, 3) == []


def test_purge_in_a_bucket_waits_for_readers_of_other_hosts(shop: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = shop.settings
    commit_batch(shop, 1)
    editions.record_edition(settings, cut(shop).number, {})
    assert forget._other_hosts(settings, 0) == ""
    monkeypatch.setattr(Warehouse, "root", Address(str(settings.warehouse_path)))
    monkeypatch.setattr(activity, "has_unlisted", lambda _: True)
    assert "other hosts may still read data of the person until" in forget._other_hosts(settings, 0)
    monkeypatch.setattr(forget, "GRACE", timedelta(0))
    assert forget._other_hosts(settings, 0) == ""


def test_forget_proof_fails_when_it_searched_for_nothing(shop: Project) -> None:
    store = open_store(shop.settings, make=True)
    store.make("orders", [store.token("orders", "joe")])
    result = command(shop, "forget", "orders", "subject=joe", "--proof")
    assert "0 values searched for" in result.stdout
    assert fault(result).exit_code == 1
    assert "nothing was searched for" in str(result.exception)
    result = command(shop, "forget", "orders", "subject=joe", "--proof", "--value", "joseph@example.org")
    assert result.exit_code == 0
