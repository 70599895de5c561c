"""Readers with a reused name: addresses and tokens of the first grant are invalid for the second."""

from __future__ import annotations

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier

import httpx
import pytest

from lake.config import Settings
from lake.read import reader_grants
from lake.read.sql import CURRENT, EditionChoice
from lake.serve.problems import Problem
from lake.serve.reading.edition_cache import EditionCache
from lake.serve.reading.signed_urls import FileLink, UrlSigner
from lake.serve.tokens import ReaderTokens
from lake.session import file_modes
from lake.session.file_modes import generated_token, kept_secret
from lake.store.ledger.grants import Grant
from lake.store.locks import activity
from lake.store.warehouse import Warehouse
from tests.intake import LAKE
from tests.processes import PATIENCE, until
from tests.reading import Served, publish, served, small
from tests.servers.http import installed
from tests.warehouse import write

QUERY = "/delta-sharing/shares/lake/schemas/gold/tables/{}/query"


def lake(settings: Settings, *words: str) -> str:
    line = [str(LAKE), "reader", *words, "--project", str(settings.project)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def addresses(site: Served, table: str, token: str) -> list[str]:
    answer = httpx.post(
        site.serving.url + QUERY.format(table), json={}, headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE
    )
    return [line["file"]["url"] for line in map(json.loads, answer.text.splitlines()) if "file" in line]


def test_servers_that_start_at_once_have_one_token(tmp_path: Path) -> None:
    together = Barrier(16)

    def start(_: int) -> str:
        together.wait()
        return generated_token(tmp_path / "token")

    with ThreadPoolExecutor(16) as pool:
        assert len({*pool.map(start, range(16))}) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_secret_is_flushed_before_it_has_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, flushed, flush = tmp_path / "link.key", list[tuple[bool, bytes | Path]](), file_modes._flush

    def noted(path: Path) -> None:
        flush(path)
        flushed.append((file.exists(), path if path.is_dir() else path.read_bytes()))

    monkeypatch.setattr(file_modes, "_flush", noted)
    assert kept_secret(file, lambda: b"secret") == b"secret"
    assert flushed == [(False, b"secret"), (True, tmp_path)]


@pytest.mark.parametrize("content", [b"", bytes(43)])
def test_generated_token_is_replaced_when_a_power_cut_lost_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "web.token"
    file.touch(0o600)
    file.write_bytes(content)
    token = generated_token(file)
    assert len(token) > 40
    assert generated_token(file) == token


@pytest.mark.http
def test_addresses_of_a_revoked_grant_stay_invalid_when_its_name_is_granted_again(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        first = lake(site.settings, "add", "r1", "--table", "*")
        made = [
            url for table in ("numbers", "types") for url in addresses(site, table, first)
        ]  # files of the table, and public copies
        assert [httpx.get(url).status_code for url in made] == [200, 200]
        lake(site.settings, "revoke", "r1")
        until(lambda: {httpx.get(url).status_code for url in made} == {403})
        second = lake(site.settings, "add", "r1", "--table", "*")
        again = [url for table in ("numbers", "types") for url in addresses(site, table, second)]
        assert [httpx.get(url).status_code for url in again] == [200, 200]
        assert [httpx.get(url).json()["errorCode"] for url in made] == ["EXPIRED", "EXPIRED"]
        headers = {"authorization": f"Bearer {first}"}
        assert httpx.get(f"{site.serving.url}/tables", headers=headers).status_code == 401
        ids = site.reads("DISTINCT ON (grant_id) grant_id", by="r1")
        assert len(ids) == 2
        [listed] = json.loads(lake(site.settings, "list", "--json"))
        assert (listed["grant_id"],) in ids


def test_address_names_the_grant_and_not_the_reader(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    tokens, links = ReaderTokens(settings), UrlSigner(b"k" * 32)
    first, _ = reader_grants.grant(settings, "r1", ["*"])
    link = FileLink("w/file", first.id, "gold", "types", 1 << 40)
    opened = links.verify(links.sign(link).removesuffix("?sp=r"))
    assert tokens.covers(opened.grant, opened.schema, opened.table)
    reader_grants.revoke(settings, "r1")
    second, _ = reader_grants.grant(settings, "r1", ["*"])
    fresh = ReaderTokens(settings)
    assert not fresh.covers(opened.grant, "gold", "types")
    assert fresh.covers(second.id, "gold", "types")
    assert not fresh.covers("r1", "gold", "types")


def test_address_signed_by_another_key_is_rejected() -> None:
    link = FileLink("w/file", "r1", "gold", "types", 1 << 40)
    with pytest.raises(Problem, match="no address of this server"):
        UrlSigner(b"k" * 32).verify(UrlSigner(b"l" * 32).sign(link).removesuffix("?sp=r"))


@pytest.mark.http
def test_entity_tag_changes_when_a_table_is_dropped_and_made_again(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        tag = site.get("/tables/nothing.csv").headers["etag"]
        shutil.rmtree(Warehouse(site.settings).root.local / "silver/nothing")
        write(site.settings, "silver", "nothing", "SELECT 7::BIGINT AS a, 'c' AS b")
        publish(site.settings, nothing=0)
        until(lambda: site.get("/tables").headers["lake-edition"] == "2")
        assert site.get("/tables/nothing.csv", if_none_match=tag).text == "a,b\n7,c\n"


def test_token_loaded_just_now_is_cached_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(tmp_path / "shop")
    tokens = ReaderTokens(settings)
    grant, token = reader_grants.grant(settings, "r1", ["*"])
    _, brief = reader_grants.grant(settings, "r2", ["*"], days=1)
    headers = {"authorization": f"Bearer {token}"}
    assert tokens.cached(headers) is None
    assert tokens.of(headers) == grant == tokens.cached(headers)
    assert tokens.cached({}) is tokens.cached({"authorization": "Bearer x"}) is None
    monkeypatch.setattr(Grant, "is_valid", lambda each, _: each.expires is None)
    assert tokens.cached({"authorization": f"Bearer {brief}"}) is None
    monkeypatch.setattr("lake.serve.tokens.RELOAD_SECONDS", 0.0)
    assert tokens.cached(headers) is None


def test_edition_looked_up_just_now_is_cached_without_waiting(tmp_path: Path) -> None:
    settings = small(tmp_path / "shop")
    activity.begin(settings, "test")
    editions, grant = EditionCache(settings), Grant("r1", ("gold.*",), "", datetime.now(UTC))
    assert editions.cached_reader(grant, CURRENT) is None
    found = editions.reader(grant, CURRENT)
    assert editions.cached_reader(grant, CURRENT) == found
    assert found.edition.tables.keys() == {"types", "numbers"}
    assert editions.cached_reader(grant, EditionChoice(edition=1)) is None
    editions.renew()
    assert editions.cached_reader(grant, CURRENT) is None
    publish(settings, nothing=0)
    assert editions.reader(grant, CURRENT).edition.number == 2
