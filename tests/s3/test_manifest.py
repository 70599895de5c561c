"""Manifest of an edition: it saves `lake sql` the logs of tables, and is used only if it is right. No JVM."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from lake.config import Settings, load_settings
from lake.read.sql import EditionReader
from lake.store import snapshot
from lake.store.ledger import editions
from lake.store.ledger.editions import Edition
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.s3.test_readers import upload
from tests.s3.wire import wired
from tests.servers.s3 import S3
from tests.warehouse import published

QUERY: Final = "SELECT * FROM current_order JOIN customer_daily USING (customer) ORDER BY ALL"
EARLIER: Final = "2001-01-01T00:00:00+00:00"


@pytest.fixture
def shop(s3: S3, tmp_path: Path) -> Settings:
    """Return the shop in a bucket; its edition has no manifest."""
    published(tmp_path / "shop")
    settings = replace(load_settings(tmp_path / "shop"), warehouse=f"{s3.bucket()}/shop", storage=s3.storage)
    upload(tmp_path / "shop", settings)
    return settings


def edition_of(settings: Settings) -> Edition:
    edition = editions.latest_edition(settings)
    assert edition is not None
    return edition


def rows(settings: Settings) -> list[Any]:
    return EditionReader(settings, edition_of(settings)).relation(QUERY).fetchall()


def content(settings: Settings) -> bytes:
    return Warehouse(settings).manifest(1).read()


def put(settings: Settings, content: bytes) -> None:
    """Replace the manifest of edition 1, and forget the cached one."""
    snapshot._read_manifest.cache_clear()
    file = Warehouse(settings).manifest(1)
    file.delete()
    assert file.put_if_absent(content)


def signed(said: object) -> bytes:
    text = json.dumps(said).encode()
    return sha256(text).hexdigest().encode() + b"\n" + text


def test_manifest_equals_the_logs_of_tables(shop: Settings) -> None:
    edition = edition_of(shop)
    opened = {name: snapshot.opened(shop, name, edition) for name in edition.tables}
    snapshot.write_manifest(shop, edition)
    assert all(snapshot.manifest_entry(shop, edition, name) for name in opened)
    assert {name: snapshot.published(shop, name, edition) for name in opened} == opened


def test_query_with_a_manifest_opens_no_table_log(shop: Settings, s3: S3) -> None:
    snapshot.write_manifest(shop, edition_of(shop))
    with wired(s3.port) as wire:
        assert rows(replace(shop, storage=wire.storage))
    logs = {path.rpartition("/")[0] for _, path in wire.requests if "_delta_log" in path and "list-type" not in path}
    assert all("meta/editions" in log for log in logs), logs


Change = Callable[[dict[str, Any]], object]
CHANGES: Final[dict[str, Change]] = {
    "another edition": lambda said: said.update(number=2),
    "an edition of this number that was lost": lambda said: said.update(published_at=EARLIER),
    "another version": lambda said: said["tables"]["current_order"].update(version=1, files=[]),
    "another definition": lambda said: said["tables"]["current_order"].update(fingerprint="f", files=[]),
    "another folder": lambda said: said["tables"]["current_order"].update(path="silver/other"),
    "no such table": lambda said: said["tables"].pop("current_order"),
    "no tables": lambda said: said.pop("tables"),
    "tables that are none": lambda said: said.update(tables=[1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_manifest_of_another_edition_or_file_is_ignored(shop: Settings, change: str) -> None:
    right = rows(shop)
    snapshot.write_manifest(shop, edition_of(shop))
    said = json.loads(content(shop).partition(b"\n")[2])
    CHANGES[change](said)
    put(shop, signed(said))
    assert snapshot.manifest_entry(shop, edition_of(shop), "current_order") is None
    assert rows(shop) == right


def test_truncated_or_altered_manifest_is_ignored(shop: Settings) -> None:
    chance, edition = random.Random(1), edition_of(shop)
    right = rows(shop)
    snapshot.write_manifest(shop, edition)
    whole = content(shop)
    for turn in range(30):
        at = chance.randrange(len(whole))
        altered = bytes([whole[at] ^ 1 << chance.randrange(8)])
        put(shop, whole[:at] if turn % 2 else whole[:at] + altered + whole[at + 1 :])
        assert snapshot.manifest_entry(shop, edition, "current_order") is None
        assert rows(shop) == right
    put(shop, b"[]")
    assert rows(shop) == right


def test_expired_edition_has_no_manifest(shop: Settings) -> None:
    first = edition_of(shop)
    snapshot.write_manifest(shop, first)
    snapshot.write_manifest(shop, editions.record_edition(shop, 2, first.tables))
    assert editions.expire_editions(shop, [1]) == [1]
    assert [Warehouse(shop).manifest(number).exists() for number in (1, 2)] == [False, True]


def test_warehouse_in_a_folder_gets_no_manifest(tmp_path: Path) -> None:
    published(tmp_path / "shop")
    settings = load_settings(tmp_path / "shop")
    before = {entry.name for entry in Address(str(settings.warehouse_path)).list(deep=True)}
    snapshot.write_manifest(settings, edition_of(settings))
    assert {entry.name for entry in Address(str(settings.warehouse_path)).list(deep=True)} == before
