"""Delta Sharing: the official client, and the addresses of shared files."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from lake.read import reader_grants
from lake.read.sql import reader
from lake.serve.reading.sharing import CHANGES
from lake.store.ledger import editions
from tests import intake
from tests.processes import until
from tests.reading import Served, append, served
from tests.servers.sharing import Sharing

SHARE = "/delta-sharing/shares/lake"
TABLE = SHARE + "/schemas/{}/tables/{}/query"


def shared(site: Served, table: str, schema: str = "gold", by: str = "all", **said: Any) -> list[Any]:
    """Return the lines of the answer to a query."""
    answer = site.post(TABLE.format(schema, table), said, by)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def files(site: Served, table: str, **said: Any) -> list[str]:
    return [line["file"]["url"] for line in shared(site, table, **said) if "file" in line]


@pytest.mark.smoke
def test_official_client_reads_an_edition_and_its_successors(sharing: Sharing, tmp_path: Path) -> None:
    with served(tmp_path / "shop") as site:
        append(site.settings, 1000, 10)
        until(lambda: site.get("/tables").headers["lake-edition"] == "2")
        counts = "[len(load('lake.gold.numbers', version=v)) for v in (1, 2)] + [len(load('lake.gold.numbers'))]"
        tables, rows = sharing.ask(site, "[[t.share, t.schema, t.name] for t in client.list_all_tables()]", counts)
        assert rows == [1000, 1010, 1010]
        assert tables == [
            ["lake", "silver", "local"],
            ["lake", "silver", "nothing"],
            ["lake", "gold", "numbers"],
            ["lake", "gold", "types"],
        ]


@pytest.mark.sharing
def test_official_client_reads_every_type_and_no_state_column(sharing: Sharing, tmp_path: Path) -> None:
    with served(tmp_path / "shop") as site:
        columns, texts, local, nothing, few = sharing.ask(
            site,
            "list(load('lake.gold.types').columns)",
            "[[str(v) for v in load('lake.gold.types')[c]] for c in ('wide', 'money', 'text', 'bytes', 'moment')]",
            "rows(load('lake.silver.local'))",
            "[list(load('lake.silver.nothing').columns), len(load('lake.silver.nothing'))]",
            "len(load('lake.gold.numbers', limit=7))",
        )
        assert columns == [column.name for column in reader(site.settings).table("types").columns]
        wide, money, text, bytes_, moment = texts
        assert wide[:2] == ["12345678901234567890.1234567890", "-1E-10"]
        assert money == ["25.15", "-0.01", "None", "0.00"]
        assert text == ["plain", 'two\nlines, "quoted"; =1+1', "None", "żółć 🌊 null"]
        assert bytes_[:2] == [str(b"\x00\xff"), str(b"")]
        assert moment[0] == "2024-03-30 09:12:00.000001+00:00"
        assert local[0]["local_time"].startswith("2024-03-30T09:12:00")
        assert (nothing, few) == ([["a", "b"], 0], 7)


@pytest.mark.sharing
def test_official_client_reports_tables_that_it_may_not_read(sharing: Sharing, tmp_path: Path) -> None:
    with served(tmp_path / "shop") as site:
        names, *told = sharing.ask(
            site,
            "[t.name for s in client.list_schemas(client.list_shares()[0]) for t in client.list_tables(s)]",
            "fails(lambda: load('lake.gold.numbers'))",
            "fails(lambda: load('lake.gold.types', version=9))",
            "fails(lambda: load('other.gold.types'))",
            "fails(lambda: delta_sharing.load_table_changes_as_pandas(file + '#lake.gold.types', 1, 1))",
            tables=["types"],
        )
        assert names == ["types"]
        said = ("no table gold.numbers in edition 1", "no edition 9", "no share 'other'", "changes are not shared")
        assert [words in fault for words, fault in zip(said, told, strict=True)] == [True] * 4


@pytest.mark.http
def test_shared_files_have_no_state_column_and_are_copied_once(tmp_path: Path) -> None:
    with served(tmp_path / "shop") as site:
        copies = site.settings.path(".lake/copies")
        [own], [first], [second] = files(site, "numbers"), files(site, "types"), files(site, "types")
        for url in (own, first):
            names = pq.read_table(io.BytesIO(httpx.get(url).content)).column_names
            assert not [name for name in names if name.startswith("_")]
        [copy] = copies.iterdir()
        assert copy.name.startswith("gold.types.0.")
        made = [file.stat().st_mtime_ns for file in copy.iterdir()]
        assert httpx.get(first).content == httpx.get(second).content
        assert [file.stat().st_mtime_ns for file in copy.iterdir()] == made
        [protocol, metadata, file] = shared(site, "types")
        assert protocol == {"protocol": {"minReaderVersion": 1}}
        assert "_state" not in metadata["metaData"]["schemaString"]
        assert file["file"]["size"] == len(httpx.get(first).content)
        assert json.loads(file["file"]["stats"]) == {"numRecords": 4}


@pytest.mark.http
def test_copies_are_deleted_with_their_edition_and_their_space_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path / "shop", "[tool.lake.serve]\ncopies_bytes = 2000\n") as site:
        answer = site.post(TABLE.format("gold", "types"), {})
        assert (answer.status_code, answer.json()["errorCode"]) == (503, "BUSY")
        assert "without its state columns" in answer.json()["detail"]
        assert files(site, "numbers")
        assert not list(site.settings.path(".lake/copies").iterdir())


@pytest.mark.http
def test_address_is_valid_for_a_while_for_its_reader_and_cannot_be_forged(tmp_path: Path) -> None:
    with served(tmp_path / "shop", "[tool.lake.serve]\nlink_seconds = 3\n") as site:
        site.reader("ada")
        [url] = [line["file"]["url"] for line in shared(site, "numbers", by="ada") if "file" in line]
        whole = httpx.get(url)
        assert (whole.status_code, pq.read_table(io.BytesIO(whole.content)).num_rows) == (200, 1000)
        part = httpx.get(url, headers={"range": "bytes=4-9"})
        assert (part.status_code, part.content) == (206, whole.content[4:10])
        assert httpx.head(url).headers["content-length"] == str(len(whole.content))
        base, _, link = url.removesuffix("?sp=r").rpartition("/")
        for made_up in (f"{link[:-8]}AAAAAAA=", f"{link[:40]}AAAA{link[44:]}", link[:-4], "x", "é"):
            answer = httpx.get(f"{base}/{made_up}")
            assert (answer.status_code, answer.json()["errorCode"]) == (403, "EXPIRED")
        reader_grants.revoke(site.settings, "ada")
        until(lambda: httpx.get(url).status_code == 403)
        [url] = files(site, "numbers")
        until(lambda: httpx.get(url).status_code == 403)
        assert httpx.get(url).json()["detail"] == "the address has expired"


@pytest.mark.http
def test_addresses_outlive_the_server_and_missing_files_are_reported(tmp_path: Path) -> None:
    with served(tmp_path / "shop") as site:
        path = files(site, "types")[0].partition("/delta-sharing/")[2]
    with intake.serving(site.settings.project) as again:
        url = f"{again.url}/delta-sharing/{path}"
        assert httpx.get(url).status_code == 200
        shutil.rmtree(site.settings.path(".lake/copies"))
        assert httpx.get(url).json()["detail"] == "the file has gone: its edition has expired"


@pytest.mark.http
def test_protocol_answers_as_its_specification_requires(tmp_path: Path) -> None:
    with served(tmp_path / "shop") as site:
        table = f"{SHARE}/schemas/GOLD/tables/Numbers"
        assert site.get(f"{table}/version").headers["delta-table-version"] == "1"
        assert site.get(f"{table}/metadata").headers["content-type"] == "application/x-ndjson; charset=utf-8"
        assert len(site.get(f"{table}/metadata").text.splitlines()) == 2
        first = site.get("/delta-sharing/shares/lake/all-tables?maxResults=3").json()
        rest = site.get(f"/delta-sharing/shares/lake/all-tables?maxResults=3&pageToken={first['nextPageToken']}").json()
        assert [item["name"] for item in [*first["items"], *rest["items"]]] == ["local", "nothing", "numbers", "types"]
        assert "nextPageToken" not in rest
        before = editions.current_edition(site.settings)
        assert before is not None
        append(site.settings, 1000, 10)
        until(lambda: site.get(f"{table}/version").headers["delta-table-version"] == "2")
        moment = before.published_at.isoformat()
        assert shared(site, "numbers", timestamp=moment)[2]["file"]["version"] == 1
        since = httpx.QueryParams({"startingTimestamp": moment})
        assert site.get(f"{table}/version?{since}").headers["delta-table-version"] == "1"
        for said, code in (
            ({"version": "x"}, "BAD_REQUEST"),
            ({"version": 1, "timestamp": moment}, "BAD_REQUEST"),
            ({"timestamp": "yesterday"}, "BAD_REQUEST"),
            ({"timestamp": "2024-01-01T00:00:00"}, "BAD_REQUEST"),
            ({"timestamp": "2024-01-01T00:00:00Z"}, "NO_EDITION"),
            ({"version": 3}, "NO_EDITION"),
            *(({member: 1}, "NOT_SHARED") for member in CHANGES),
            ({"version": 1, "startingVersion": 1}, "NOT_SHARED"),
        ):
            answer = site.post(TABLE.format("gold", "numbers"), said)
            assert (answer.json()["errorCode"], bool(answer.json()["message"])) == (code, True), answer.text
        plain = site.post(TABLE.format("silver", "local"), {})
        assert plain.json()["errorCode"] == "NOT_SHARED"
        told = site.post(TABLE.format("silver", "local"), {}, delta_sharing_capabilities="responseformat=delta,parquet")
        assert told.headers["delta-sharing-capabilities"] == "responseformat=delta"
        site.reader("none", "log.orders")
        assert site.get("/delta-sharing/shares", by="none").json() == {"items": []}
        assert site.get("/delta-sharing/shares/lake", by="none").status_code == 404
        assert site.reads("kind", "tables", "edition", "rows")[0] == ("share", ["numbers"], 1, 1000)
