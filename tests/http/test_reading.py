"""Reading by `lake serve http`: tables and queries in every format, tokens, limits, disconnects."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import duckdb
import httpx
import pyarrow.parquet as pq
import pytest

from lake.config import load_settings
from lake.read import reader_grants
from lake.read.export import export
from lake.read.sql import reader
from lake.serve.problems import KINDS
from lake.store.ledger import editions
from lake.store.ledger.editions import EditionTable
from lake.store.locks import activity
from tests import intake
from tests.docs.pages import DOCS
from tests.processes import PATIENCE, until
from tests.reading import Served, append, served, small
from tests.servers import needed
from tests.servers.http import installed, shop
from tests.warehouse import published, write

pytestmark = pytest.mark.http
FORMS = ("csv", "json", "jsonl", "parquet")
MEDIA = {
    "csv": "text/csv",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


def test_serve_page_shows_the_true_output_of_its_commands(tmp_path: Path) -> None:
    installed()
    needed(shutil.which("curl"), "curl is not installed")
    page = (DOCS / "how-to/serve.md").read_text("utf-8")
    blocks = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE))
    project = published(tmp_path / "shop").settings.project
    environment = os.environ | {"PATH": f"{intake.LAKE.parent}:{os.environ['PATH']}"}
    with intake.serving(project) as serving:
        script = (blocks["read"] + blocks["sql"]).replace("http://127.0.0.1:8480", serving.url)
        line = ["sh", "-ec", script]
        done = subprocess.run(line, cwd=project, env=environment, capture_output=True, text=True, check=False)
    header, *rows = blocks["answer"].splitlines()
    lines = done.stdout.splitlines()
    whole, answers = lines[: len(rows) + 1], lines[len(rows) + 1 :]
    assert (whole[:1], sorted(whole[1:])) == ([header], sorted(rows)), done.stderr
    assert answers == blocks["sql answer"].splitlines()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Server without a source, shared by tests that only read."""
    installed()
    with served(tmp_path_factory.mktemp("reading") / "shop") as site:
        yield site


def kind(answer: httpx.Response) -> str:
    """Return the kind of problem, whose detail and fix are filled."""
    said = answer.json()
    assert answer.headers["content-type"] == "application/problem+json", said
    name = str(said["type"]).removeprefix("/problems#")
    assert said["status"] == answer.status_code == KINDS[name][0]
    assert said["detail"]
    assert said["fix"]
    return name


def test_reader_reads_until_its_token_is_revoked_and_each_read_is_recorded(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        answer = site.get("/tables/nothing.csv", by="ada")
        assert (answer.status_code, answer.text, answer.headers["lake-edition"]) == (200, "a,b\n", "1")
        assert site.sql("select max(n) as m from numbers", by="ada").json() == [{"m": 999}]
        reader_grants.revoke(site.settings, "ada")
        until(lambda: site.get("/tables", by="ada").status_code == 401)
        said = [("table", ["nothing"], None, "answered", 0, 4)]
        assert site.reads("kind", "tables", "query", "outcome", "rows", "bytes", by="ada") == [
            *said,
            ("sql", ["numbers"], "SELECT max(n) AS m FROM numbers", "answered", 1, 14),
        ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("table", ["types", "local", "nothing", "numbers"])
def test_table_is_the_same_by_http_by_sql_and_on_the_command_line(
    site: Served, table: str, form: str, tmp_path: Path
) -> None:
    output = tmp_path / f"answer.{form}"
    export(reader(site.settings), f"FROM {table}", form, output)
    whole = site.get(f"/tables/{table}.{form}")
    asked = [
        site.sql(f"FROM {table}", f"?format={form}"),
        site.sql(f"FROM {table}", accept=MEDIA[form]),
        site.sql({"sql": f"FROM {table}", "format": form, "edition": 1}),
        site.get(f"/tables/{table}", accept=MEDIA[form]),
        whole,
    ]
    for answer in asked:
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == MEDIA[form]
        if form == "parquet":
            assert pq.read_table(io.BytesIO(answer.content)).equals(pq.read_table(output)) or table == "types"
            assert pq.read_table(io.BytesIO(answer.content)).schema == pq.read_table(output).schema
            fetched = tmp_path / "fetched.parquet"
            fetched.write_bytes(answer.content)
            assert _rows(fetched) == _rows(output)
        else:
            assert answer.content == output.read_bytes()
    assert whole.headers["content-disposition"] == f'attachment; filename="{table}.{form}"'


@pytest.mark.http
def test_table_with_a_name_of_another_script_is_answered(tmp_path: Path) -> None:
    name = "таблица"
    with served(tmp_path / "shop") as site:
        write(site.settings, "gold", name, "SELECT 1::BIGINT AS n")
        tables = append(site.settings, 1000, 1).tables
        behind = EditionTable("gold", f"gold/{name}", 0, "f", cut=1)
        editions.record_edition(site.settings, 2, {**tables, name: behind})
        until(lambda: site.get("/tables").headers["lake-edition"] == "3")
        whole = site.get(f"/tables/{name}.csv")
        assert (whole.status_code, whole.text) == (200, "n\n1\n")
        assert whole.headers["content-disposition"] == f"attachment; filename*=UTF-8''{quote(name)}.csv"
        joined = site.sql(f"SELECT count(*) AS rows FROM {name}, nothing", "?format=csv")
        assert joined.text == "rows\n0\n"
        assert (
            unquote(joined.headers["lake-note"])
            == f"tables of different cuts are read: {name} at cut 1; nothing at cut 2"
        )


def _rows(file: Path) -> str:
    """Return the rows of a Parquet file as text, so that NaN equals itself."""
    with duckdb.connect() as con:
        return repr(con.execute("FROM read_parquet(?)", [str(file)]).fetchall())


def test_values_are_exact_in_csv_and_json(site: Served) -> None:
    one, two, three, four = site.get("/tables/types.json").json()
    assert Decimal(one["wide"]) == Decimal("12345678901234567890.1234567890")
    assert (one["money"], one["double"], one["bytes"], one["moment"]) == (
        "25.15",
        "nan",
        "00ff",
        "2024-03-30T09:12:00.000001Z",
    )
    assert (one["items"], one["record"], one["prices"]) == ([1, None, 3], {"a": 1, "b": "x"}, {"k": "1.50"})
    assert (two["float"], two["text"], two["items"], two["prices"]) == ("inf", 'two\nlines, "quoted"; =1+1', [], {})
    assert set(three.values()) == {3, None}
    assert (four["text"], four["record"]["a"], four["day"]) == ("żółć 🌊 null", 9223372036854775807, "9999-12-31")
    assert "_state" not in one
    lines = list(csv.DictReader(io.StringIO(site.get("/tables/types.csv").text)))
    assert [line["text"] for line in lines] == ["plain", 'two\nlines, "quoted"; =1+1', "", "żółć 🌊 null"]


def test_unchanged_table_is_not_sent_again_in_any_edition(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        first = site.get("/tables/types.csv")
        other = site.get("/tables/types.json")
        assert first.headers["etag"] != other.headers["etag"]
        again = site.get("/tables/types.csv", if_none_match=f'"x", W/{first.headers["etag"]}')
        assert (again.status_code, again.content, again.headers["lake-edition"]) == (304, b"", "1")
        append(site.settings, 1000, 5)
        until(lambda: site.get("/tables").headers["lake-edition"] == "2")
        tag, numbers = first.headers["etag"], site.get("/tables/numbers.csv?edition=1").headers["etag"]
        unchanged = site.get("/tables/types.csv", if_none_match=tag)
        assert (unchanged.status_code, unchanged.headers["lake-edition"]) == (304, "2")
        assert site.get("/tables/types.csv", if_none_match="*").status_code == 304
        assert site.get("/tables/numbers.csv", if_none_match=numbers).status_code == 200
        head = httpx.head(
            f"{site.serving.url}/tables/types.csv", headers={"authorization": f"Bearer {site.reader('all')}"}
        )
        assert (head.status_code, head.headers["etag"], head.content) == (200, tag, b"")
        assert ("unchanged",) in site.reads("outcome")


def test_wrong_requests_are_reported_with_the_kind_of_problem(site: Served) -> None:
    everybody = {"authorization": "Bearer nobody"}
    asked = {
        "no-reader": [
            httpx.get(f"{site.serving.url}/tables"),
            site.get("/tables", **everybody),
            site.get("/tables", authorization="Basic !!"),
            site.get("/tables/types.csv", authorization="Digest x"),
            site.sql("select 1", **everybody),
        ],
        "no-table": [site.get("/tables/nume.csv"), site.get("/tables/silver.numbers.csv"), site.get("/tables/x")],
        "no-edition": [site.get("/tables?edition=7"), site.sql("select 1", "?edition=0"), site.get("/tables?cut=0")],
        "not-acceptable": [
            site.get("/tables/types.csv?format=xlsx"),
            site.get("/tables/types", accept="image/png"),
            site.sql("select 1", accept="text/html;q=0.9"),
        ],
        "bad-request": [
            site.get("/tables/types.csv?edtion=1"),
            site.get("/tables/types.csv?edition=1&cut=1"),
            site.get("/tables/types.csv?edition=1&edition=1"),
            site.get("/tables?edition=-1"),
            site.get("/tables?edition=" + "9" * 30),
            site.sql({"sql": "select 1", "edition": 1}, "?edition=1"),
            site.sql({"query": "select 1"}),
            site.sql([1]),
            site.sql("{", content_type="application/json"),
            site.sql(b"select '\xff'"),
            site.sql("select '\0'"),
            site.sql({"sql": "select 1", "rows": 5}),
        ],
        "bad-query": [
            site.sql(""),
            site.sql("selec"),
            site.sql("select 1; select 2"),
            site.sql("delete from numbers"),
            site.sql("explain from numbers"),
            site.sql("select nn from numbers"),
            site.sql("from lake.runs"),
            site.sql("from log.orders"),
            site.sql("select 'x'::int"),
        ],
        "too-long": [site.sql(f"select '{'x' * (1 << 20)}'")],
        "wrong-method": [site.get("/sql"), site.post("/tables", {})],
        "no-page": [site.get("/tablets")],
    }
    for name, answers in asked.items():
        assert [kind(answer) for answer in answers] == [name] * len(answers)
    assert asked["no-table"][0].json()["hint"] == "did you mean 'numbers'?"
    assert "line 1, column 8" in asked["bad-query"][5].json()["detail"]
    assert asked["no-reader"][0].headers.get_list("www-authenticate") == ["Bearer", 'Basic realm="headwater"']


def test_detail_of_an_error_is_short_when_the_query_makes_it_long(site: Served) -> None:
    answer = site.sql("select error(repeat('x', 3000000))")
    assert kind(answer) == "bad-query"
    assert 1_000 < len(answer.json()["detail"]) < 3_000


def test_reader_of_some_tables_sees_no_sign_of_others(site: Served) -> None:
    site.reader("some", "silver.*", "types")
    site.reader("ledgers", "lake.runs", "log.*")
    assert [each["table"] for each in site.get("/tables", by="some").json()["tables"]] == [
        "silver.local",
        "silver.nothing",
        "gold.types",
    ]
    for query in (
        "show tables",
        "show all tables",
        "from information_schema.tables",
        "from information_schema.columns",
    ):
        assert "numbers" not in site.sql(query, by="some").text
    for answer in (
        site.sql("from numbers", by="some"),
        site.sql("from gold.numbers", by="some"),
        site.sql("select * from types, lateral (from numbers)", by="some"),
    ):
        assert (kind(answer), "no table" in answer.json()["detail"]) == ("bad-query", True)
        assert "known: local, nothing, types" in answer.json()["hint"] or "did you mean" in answer.json()["hint"]
    assert kind(site.get("/tables/numbers.csv", by="some")) == "no-table"
    assert site.sql("select count(*) as n from lake.runs", by="ledgers").json() == [{"n": 0}]
    assert kind(site.sql("from lake.editions", by="ledgers")) == "bad-query"
    assert kind(site.sql("from lake.reads", by="ledgers")) == "bad-query"
    assert kind(site.sql("from types", by="ledgers")) == "bad-query"
    assert "lake.runs" in site.sql("show tables", by="ledgers").text
    refused = site.get("/tables/lake.runs", by="ledgers")
    assert (kind(refused), "is read by POST /sql only" in refused.json()["detail"]) == ("no-table", True)
    assert "POST /sql" not in site.get("/tables/lake.editions", by="ledgers").text


@pytest.mark.parametrize(
    "query",
    [
        "explain select 1",
        "delete from types",
        "select 1 % 0.0",
        f"select {'1+' * 3000}1",
        "select 1 +",
        "select nofun(1)",
    ],
)
def test_advice_on_a_query_can_be_followed(site: Served, query: str) -> None:
    refused = site.sql(query)
    assert kind(refused) == "bad-query"
    words = f"{refused.json()['detail']} {refused.json()['hint']}"
    assert "SET " not in words
    assert "lake sql" not in words
    assert "EXPLAIN are" not in words


def test_token_is_a_bearer_or_a_password_and_expires(site: Served) -> None:
    token = site.reader("brief", days=2 / 86_400)
    shown = base64.b64encode(f"anybody:{token}".encode()).decode()
    assert site.get("/tables", authorization=f"basic {shown}").status_code == 200
    assert site.get("/tables", authorization=f"bearer {token}").status_code == 200
    until(lambda: site.get("/tables", by="brief").status_code == 401)
    assert site.get("/tables", by="brief").json()["detail"] == "the token of brief has expired"
    files = [file for file in site.settings.path(".lake").rglob("*") if file.is_file()]
    assert not [file for file in files if token.encode() in file.read_bytes()]


def test_query_reaches_no_file_and_no_state_column(site: Served) -> None:
    [file] = reader(site.settings).table("types").files
    for query in (
        f"FROM '{file}'",
        f"FROM types, '{file}'",
        f"FROM read_parquet('{file}')",
        f"FROM parquet_scan(['{file}'])",
        f"SELECT * FROM types, (FROM read_parquet('{file}'))",
        f"SELECT (SELECT max(_state) FROM read_parquet('{file}')) FROM types",
        f'WITH "{file}" AS (SELECT 1) SELECT (SELECT max(_state) FROM "{file}") FROM types',
        f"FROM types SEMI JOIN '{file}' USING (id)",
        f"DESCRIBE FROM types, '{file}'",
        f"SUMMARIZE '{file}'",
        f"SHOW '{file}'",
        f"FROM query('FROM ''{file}'' -- types')",
        f"FROM query_table('{file}'), types",
        f"SELECT list_transform([1], lambda x: (SELECT max(_state) FROM '{file}')) FROM types",
        f"FROM (PIVOT '{file}' ON id IN (1) USING max(_state)), types",
        f"FROM parquet_metadata('{file}'), types",
        f"FROM glob('{file}'), types",
        f"FROM json_execute_serialized_sql(json_serialize_sql('FROM ''{file}'' -- types'))",
        f"FROM read_text('{site.settings.path('pyproject.toml')}')",
        f"COPY types TO '{site.settings.path('out.csv')}'",
        "SELECT _state FROM types",
        "SELECT current_setting('temp_directory')",
        "SHOW temp_directory",
        "FROM (SHOW allowed_paths)",
        f"SELECT json_serialize_plan('FROM ''{file}''', optimize := true)",
        f"SELECT 'FROM ''{file}'''.json_serialize_plan(optimize := true) FROM types",
        f"FROM types QUALIFY length(JSON_SERIALIZE_PLAN('FROM ''{file}''')) > row_number() OVER ()",
        "SELECT list_aggregate([1], 'sum')",
        "FROM duckdb_settings()",
        "FROM duckdb_views()",
        "FROM duckdb_views",
        "FROM information_schema.views",
        "FROM pg_catalog.pg_views",
        "PRAGMA database_list",
        "SET memory_limit = '10GB'",
        "ATTACH ':memory:'",
        "SELECT getenv('HOME')",
    ):
        answer = site.sql(query)
        assert kind(answer) == "bad-query", (query, answer.text)
    for listing in ("DESCRIBE types", "SHOW ALL TABLES", "SUMMARIZE types", "FROM types", "SHOW types"):
        answer = site.sql(listing)
        assert (answer.status_code, "_state" in answer.text, str(file) in answer.text) == (200, False, False)


def test_query_values_are_not_stored(site: Served) -> None:
    site.sql("select text from types where text = 'ada lovelace' and id in (4711) -- for Mr Babbage", by="private")
    site.sql("selec 'ada lovelace'", by="private")
    site.sql("from nosuch where a = 'ada lovelace'", by="private")
    said = site.reads("outcome", "query", by="private")
    assert said == [
        ("answered", 'SELECT "text" FROM "types" WHERE (("text" = \'?\') AND (id IN (\'?\')))'),
        ("refused", None),
        ("refused", "SELECT * FROM nosuch WHERE (a = '?')"),
    ]
    files = [file for file in site.settings.path(".lake").rglob("*") if file.is_file()]
    assert not [file for file in files if b"lovelace" in file.read_bytes()]


LIMITS = "[tool.lake.serve]\nquery_rows = 100\nquery_bytes = 20000\nquery_seconds = 1.5\nquery_memory = 67108864\n"
SLOW = "select count(*) as n from range(100000000000) t(i) where hash(i) = 1"


def test_query_over_a_limit_is_reported_and_the_server_continues(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", LIMITS + "query_disk = 1000000\n") as site:
        assert len(site.sql("from numbers limit 100").json()) == 100
        over = site.sql("from numbers limit 101")
        assert (kind(over), over.json()["detail"]) == ("too-large", "more than 100 rows")
        long = site.sql("select repeat('x', 30000) as x")
        assert (kind(long), long.json()["detail"]) == ("too-large", "more than 20,000 bytes")
        slow = site.sql(SLOW)
        assert (kind(slow), slow.json()["detail"]) == ("too-slow-query", "more than 1.5 seconds")
        large = site.sql("select count(*) from (select distinct i || 'abcdefghijklmnop' from range(20000000) t(i))")
        assert kind(large) in {"too-much", "too-slow-query"}
        assert len(site.get("/tables/numbers.json").json()) == 1000
        until(lambda: site.reads("outcome")[-1] == ("answered",))
        outcomes = [each for (each,) in site.reads("outcome")]
        assert outcomes[:4] == ["answered", "refused", "refused", "time"]
        assert outcomes[4:] == ["time" if kind(large) == "too-slow-query" else "refused", "answered"]


def test_download_ends_and_releases_its_slot_when_its_client_is_gone(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\nqueries_at_once = 1\n") as site:
        append(site.settings, 1000, 2_000_000)
        until(lambda: site.get("/tables").headers["lake-edition"] == "2")
        head = f"GET /tables/numbers.csv HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.reader('all')}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", site.serving.port)) as client:
            client.sendall(head.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            until(lambda: (None,) in site.reads("outcome"))
        assert site.sql("select 1 as one").json() == [{"one": 1}]
        until(lambda: ("gone",) in site.reads("outcome"))
        whole = site.get("/tables/numbers.csv")
        assert whole.text.count("\n") == 2_001_001
        until(lambda: ("answered", 2_001_000, len(whole.content)) in site.reads("outcome", "rows", "bytes"))


def test_server_terminates_when_a_client_receives_nothing_more(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    append(project, 1000, 2_000_000)
    with intake.start(project.project) as process:
        site = Served(project, intake.ready(process))
        head = f"GET /tables/numbers.csv HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.reader('all')}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", site.serving.port)) as client:
            client.sendall(head.encode())
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            os.kill(site.serving.pid, signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert site.reads("outcome") == [("stopping",)]


def test_download_over_the_time_limit_is_a_problem(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\ndownload_seconds = 0\n") as site:
        late = site.get("/tables/numbers.csv")
        assert (kind(late), late.json()["detail"]) == ("too-slow-query", "more than 0 seconds")
        until(lambda: ("time",) in site.reads("outcome"))


@contextmanager
def slow_download(site: Served) -> Iterator[socket.socket]:
    """Client that has received the beginning of a table of two million rows."""
    head = f"GET /tables/numbers.csv HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.reader('all')}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.serving.port)) as client:
        client.sendall(head.encode())
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        yield client


def rest(client: socket.socket) -> bytes:
    """Return the remaining bytes, up to the last chunk or the end of the connection."""
    text = b""
    while not text.endswith(b"\r\n0\r\n\r\n") and (part := client.recv(1 << 20)):
        text += part
    return text


def test_slow_downloads_use_no_slot_of_queries(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\nqueries_at_once = 1\n") as site:
        append(site.settings, 1000, 2_000_000)
        until(lambda: site.get("/tables").headers["lake-edition"] == "2")
        with slow_download(site) as first, slow_download(site) as second:
            assert site.sql("select 1 as one").json() == [{"one": 1}]
            assert rest(first).endswith(b"\r\n0\r\n\r\n")
            assert rest(second).endswith(b"\r\n0\r\n\r\n")
        until(lambda: site.reads("outcome", "rows").count(("answered", 2_001_000)) == 2)


def test_oldest_answer_is_cut_off_when_answers_exceed_their_disk_space(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\nanswers_bytes = 60000000\n") as site:
        append(site.settings, 1000, 2_000_000)
        until(lambda: site.get("/tables").headers["lake-edition"] == "2")
        with slow_download(site) as first, slow_download(site) as second:
            until(lambda: ("room",) in site.reads("outcome"))
            assert not rest(first).endswith(b"\r\n0\r\n\r\n")
            assert rest(second).endswith(b"\r\n0\r\n\r\n")


def test_answer_larger_than_the_limit_of_all_answers_is_rejected(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\nanswers_bytes = 1000\n") as site:
        for large in (site.get("/tables/numbers.csv"), site.sql("from numbers")):
            assert (kind(large), large.json()["detail"]) == ("too-large", "more than 1,000 bytes")


def test_download_has_a_length_and_no_chunks_by_http_1_0(site: Served) -> None:
    request = f"GET /tables/numbers.csv HTTP/1.0\r\nauthorization: Bearer {site.reader('all')}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", site.serving.port)) as client:
        client.sendall(request.encode())
        head, _, body = rest(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert f"content-length: {len(body)}\r\n".encode() in head
    assert body == site.get("/tables/numbers.csv").content


def test_hundred_readers_at_once_are_all_answered_and_recorded(site: Served) -> None:
    token = site.reader("many")

    async def ask() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=100)
        headers = {"authorization": f"Bearer {token}"}
        asking = httpx.AsyncClient(base_url=site.serving.url, headers=headers, limits=limits, timeout=PATIENCE)
        async with asking as client:
            queries = (client.post("/sql", content=f"select sum(n) + {i} as s from numbers") for i in range(50))
            tables = (client.get("/tables/numbers.jsonl") for _ in range(50))
            return await asyncio.gather(*queries, *tables)

    answers = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [200] * 100
    assert [answer.json()[0]["s"] for answer in answers[:50]] == [499500 + i for i in range(50)]
    assert len({answer.content for answer in answers[50:]}) == 1
    until(lambda: len([1 for each in site.reads("outcome", by="many") if each == ("answered",)]) == 100)


def test_pages_of_one_edition_are_consistent_while_others_are_published(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        first = site.sql("select count(*) as n from numbers")
        edition, pages, total = first.headers["lake-edition"], list[int](), first.json()[0]["n"]
        for page in range(5):
            query = f"select n from numbers order by n desc limit 200 offset {page * 200}"
            pages += [row["n"] for row in site.sql(query, f"?edition={edition}").json()]
            append(site.settings, 1000 + page * 10, 10)
        assert pages == list(range(total - 1, -1, -1))
        until(lambda: site.sql("select count(*) as n from numbers").json() == [{"n": 1050}])
        assert site.get("/tables/numbers.csv?cut=1").text.count("\n") == 1001
        editions.expire_editions(site.settings, [1, 2])
        assert kind(site.sql("from numbers", "?edition=1")) == "no-edition"


def test_answered_queries_are_recorded_when_the_server_is_killed(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    with intake.start(project.project) as process:
        site = Served(project, intake.ready(process))
        for number in range(5):
            assert site.sql(f"select {number}").status_code == 200
        os.kill(site.serving.pid, signal.SIGKILL)
        process.wait()
    assert site.reads("outcome") == [("answered",)] * 5
    with intake.serving(project.project) as serving:
        site.serving = serving
        assert site.sql("select 6").status_code == 200
    assert site.reads("outcome") == [("answered",)] * 6
    assert not list(project.path(".lake/reads").iterdir())


def test_query_is_not_answered_when_it_cannot_be_recorded(tmp_path: Path) -> None:
    installed()
    project = small(tmp_path / "shop")
    limited = ["prlimit", "--fsize=4096"]
    with intake.serving(project.project, under=limited) as serving:
        site = Served(project, serving)
        answers = [site.sql("select 1 as one") for _ in range(30)]
        statuses = [answer.status_code for answer in answers]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert statuses[0] == 200
        assert {kind(answer) for answer in refused} == {"unrecorded"}
    assert len(site.reads("outcome")) == statuses.count(200)


def test_files_stay_while_they_are_read_and_no_longer(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", "[tool.lake.serve]\nlink_seconds = 5\n") as site:
        shared = "/delta-sharing/shares/lake/schemas/gold/tables/numbers/query"
        assert site.post(shared, {}).status_code == 200
        answered = time.monotonic()
        append(site.settings, 1000, 10)
        [server] = activity.others(load_settings(site.settings.project))
        assert server.command == "lake serve http"
        until(lambda: activity.others(site.settings)[0].seen == 2)
        assert time.monotonic() - answered > 3, "while links hold, files stay"


def test_damage_is_reported_without_paths_of_the_server(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop") as site:
        [file] = reader(site.settings).table("numbers").files
        Path(file).write_bytes(b"PAR1 no more PAR1")
        for answer in (site.get("/tables/numbers.csv"), site.sql("from numbers")):
            assert kind(answer) == "unreadable"
            assert str(tmp_path) not in answer.text
        assert site.sql("select count(*) as n from types").json() == [{"n": 4}]


def test_server_accepts_events_and_answers_readers_on_one_port(tmp_path: Path) -> None:
    installed()
    project = shop(tmp_path / "shop")
    with intake.serving(project.project) as serving:
        site = Served(project, serving)
        posted = httpx.post(
            f"{serving.url}/streams/readings", headers=serving.allowed, json={"station": "a", "number": 1}
        )
        assert posted.status_code == 202
        assert kind(site.get("/tables")) == "nothing-published"
        assert kind(httpx.get(f"{serving.url}/tables", headers=serving.allowed)) == "no-reader"
        token = {"authorization": f"Bearer {site.reader('all')}"}
        assert kind(httpx.post(f"{serving.url}/streams/readings", headers=token, json={})) == "no-token"
        page = httpx.get(serving.url).text
        assert "Read tables" in page
        assert "Post events to web" in page


def test_pages_need_a_token_on_an_address_that_others_reach(tmp_path: Path) -> None:
    installed()
    with served(tmp_path / "shop", words=["--host", "0.0.0.0"]) as site:
        url = f"http://127.0.0.1:{site.serving.port}"
        for page in ("/", "/problems", "/openapi.json"):
            assert httpx.get(f"{url}{page}").status_code == 401
            assert (
                httpx.get(f"{url}{page}", headers={"authorization": f"Bearer {site.reader('all')}"}).status_code == 200
            )
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_pages_show_readable_tables_and_commands_that_work(site: Served) -> None:
    page = site.get("/tables", accept="text/html,*/*")
    assert page.headers["content-type"].startswith("text/html")
    for said in ("gold.types", "<code>wide</code>", "DECIMAL(38,10)", "/tables/types.parquet"):
        assert said in page.text
    assert "_state" not in page.text
    home = httpx.get(site.serving.url).text
    assert "Read tables" in home
    assert "types" not in home
    document: Any = json.loads(httpx.get(f"{site.serving.url}/openapi.json").text)
    assert {"/sql", "/tables", "/tables/{table}"} <= document["paths"].keys()
    assert "/streams" not in document["paths"]


def test_head_answers_with_the_headers_of_get(site: Served) -> None:
    shared = "/delta-sharing/shares/lake/schemas/gold/tables/numbers"
    pages = ["/", "/problems", "/openapi.json", "/health", "/tables", "/tables/x", "/nosuch", "/sql"]
    tables = [f"/tables/{table}.{form}" for table in ("types", "nothing", "numbers") for form in FORMS]
    sharing = ["/delta-sharing/shares", f"{shared}/version", f"{shared}/metadata", "/delta-sharing/files/x"]
    headers = {"authorization": f"Bearer {site.reader('all')}"}
    for page in (*pages, *tables, *sharing):
        head, get = (httpx.request(method, f"{site.serving.url}{page}", headers=headers) for method in ("HEAD", "GET"))
        assert (head.status_code, head.content) == (get.status_code, b""), page
        for name in ("content-length", "content-type", "etag", "lake-edition"):
            if name != "content-length" or get.status_code == 200:
                assert head.headers.get(name) == get.headers.get(name), (page, name)
