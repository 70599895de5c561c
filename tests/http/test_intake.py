"""Intake of `lake serve http` as a process: accepted, rejected and deferred requests."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from lake.config import Settings
from lake.contracts.contract import load_contract, load_contracts
from lake.serve.backpressure import Rate
from lake.serve.describe import schema
from lake.serve.intake_folder import GroupWriter
from lake.serve.problems import KINDS, Problem
from lake.serve.source import find_declaration
from tests import intake
from tests.crash.intake import soak
from tests.decide.accounts import accounts
from tests.docs.pages import DOCS
from tests.intake import LAKE, Client, request, spooled
from tests.processes import LOOPBACK, PATIENCE, listening, until
from tests.servers import needed
from tests.servers.http import SECRET, Http, installed, shop
from tests.shop import avro, contract, declare, empty

pytestmark = pytest.mark.http


@contextmanager
def server(folder: Path, options: str = "", *words: str, **environment: str) -> Iterator[Http]:
    """Run a server with additional lines in its declaration."""
    installed()
    settings = shop(folder / "shop", options)
    with intake.serving(settings.project, *words, **environment) as serving:
        yield Http(settings, serving)


def groups(settings: Settings) -> list[Path]:
    return list(settings.path("landing/.http/web").glob("*.jsonl"))


@pytest.mark.smoke
def test_acknowledged_records_are_read_by_the_source_and_deleted_when_ingested(tmp_path: Path) -> None:
    with server(tmp_path) as http:
        first = http.post({"station": "a", "number": 1}, idempotency_key="k")
        lines = b'{"station":"a","number":2,"value":1.50}\n{"station":"b","number":3}\n'
        second = http.post(gzip.compress(lines), content_type="application/x-ndjson", content_encoding="gzip")
        third = http.post([{"number": 4}], "notes")
        assert [answer.status_code for answer in (first, second, third)] == [202, 202, 202]
        assert first.json() == {"token": "readings@web:1:0", "records": 1, "idempotent": True}
        assert (second.json()["token"], second.json()["records"]) == ("readings@web:2:0", 2)
        assert third.json() == {"token": "notes@web:3:0", "records": 1, "idempotent": False}
        records, progress = http.take(None)
        assert [(stream, record.place) for stream, record in records] == [
            ("readings", "1:0"),
            ("readings", "2:0"),
            ("readings", "2:1"),
            ("notes", "3:0"),
        ]
        assert records[1][1].text == '{"station":"a","number":2,"value":1.50}'
        assert records[0][1].facts["http.id"] == "k"
        received = datetime.fromisoformat(records[0][1].facts["http.received"])
        assert timedelta() <= datetime.now(UTC) - received < timedelta(minutes=1)
        assert progress is not None
        http.source.acknowledge(progress)
        assert groups(http.settings) == []
        assert listening(http.serving.process.pid) <= LOOPBACK
        refused = http.post("{", content_type="application/json")
        assert (refused.status_code, refused.json()["type"]) == (400, "/problems#unparseable")
    assert http.serving.process.returncode == 0


def test_records_that_break_the_contract_are_rejected_with_the_whole_request(
    tmp_path: Path,
) -> None:
    ndjson = "application/x-ndjson"
    good = '{"station": "a", "number": 1}'
    with server(tmp_path) as http:
        answer = http.post(f'{good}\n\n{{"station": "b"}}\n{{"station": "c", "number": "x"}}\n', content_type=ndjson)
        said = answer.json()
        assert (answer.status_code, said["type"]) == (400, "/problems#not-by-contract")
        assert (said["reason"], said["stream"]) == ("missing field", "readings")
        assert said["detail"] == "record 2: missing field: number, and 1 more are bad"
        assert said["errors"] == [
            {"record": 2, "stream": "readings", "reason": "missing field", "detail": "number"},
            {"record": 3, "stream": "readings", "reason": "wrong type", "detail": "number: x is not bigint"},
        ]
        event = {"station": "a", "number": 1}
        several = partial(httpx.post, f"{http.serving.url}/streams", headers=http.serving.allowed)
        said = several(json={"notes": {"number": 2}, "readings": [event, {**event, "value": []}]}).json()
        assert (said["stream"], said["errors"][0]["record"], said["reason"]) == ("readings", 2, "wrong type")
        assert groups(http.settings) == []
        taken = http.post({"station": "a", "number": "1", "value": "1.50", "more": None})
        assert (taken.status_code, taken.json()["token"]) == (202, "readings@web:1:0")
    with server(tmp_path / "raw", "check = false\n") as http:
        assert http.post({"station": "a"}).status_code == 202


def test_records_of_several_streams_are_one_delivery(tmp_path: Path) -> None:
    with server(tmp_path) as http:
        post = partial(
            httpx.post, f"{http.serving.url}/streams", headers=http.serving.allowed | {"idempotency-key": "k"}
        )
        answer = post(
            json={"readings": [{"station": "a", "number": 1}, {"station": "b", "number": 2}], "notes": {"number": 3}}
        )
        assert answer.status_code == 202
        assert answer.json()["tokens"] == {"readings": "readings@web:1:0", "notes": "notes@web:1:2"}
        assert (answer.json()["records"], answer.json()["idempotent"]) == (3, False)
        records, progress = http.take(None)
        assert [(stream, record.facts["http.id"]) for stream, record in records] == [
            ("readings", "k:1"),
            ("readings", "k:2"),
            ("notes", "k"),
        ]
        assert progress is not None
        assert progress["upto"] == 1
        for body, kind, told in (
            ({"readings": [{}], "nots": []}, "no-stream", "did you mean 'notes'"),
            ({"readings": [{}], "notes": [5]}, "unparseable", "notes: record 1: it is not a JSON object"),
            ({}, "unparseable", "each stream once"),
            ([], "unparseable", "each stream once"),
            ({"readings": []}, "unparseable", "no record"),
        ):
            refused = post(json=body).json()
            assert (refused["type"], told in refused["detail"]) == (f"/problems#{kind}", True), refused
        assert post(json={"notes": {}}, headers={}).status_code == 401
        assert len(groups(http.settings)) == 1


def test_names_of_streams_are_shown_only_to_those_with_a_token(http: Http) -> None:
    for address in ("/streams/reading", "/streams/reading?wait=no", "/streams"):
        refused = httpx.post(f"{http.serving.url}{address}", json={"reading": {}})
        assert (refused.status_code, "readings" in refused.text) == (401, False)
    assert "readings" in http.post({}, "reading").text


def test_address_with_a_slash_at_its_end_is_no_page(http: Http) -> None:
    for address in ("/streams/readings/", "/tables/"):
        answer = httpx.post(f"{http.serving.url}{address}", json={}, headers=http.serving.allowed)
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems#no-page")


def test_problems_follow_rfc_9457_and_link_an_explanation(http: Http) -> None:
    ndjson = "application/x-ndjson"
    answers = [
        http.post({}, "reading"),
        http.post("{", content_type="application/json"),
        http.post("a=1", content_type="text/plain"),
        http.post("{}", content_type="application/json", content_encoding="br"),
        http.post(b"no gzip", content_type="application/json", content_encoding="gzip"),
        http.post(gzip.compress(b"{}")[:-3], content_type="application/json", content_encoding="gzip"),
        http.post("{}\n" * 10_001, content_type=ndjson),
        http.post('{"a": "' + "x" * (1 << 20) + '"}', content_type="application/json"),
        http.post(b" " * ((16 << 20) + 1), content_type="application/json"),
        http.post(gzip.compress(b" " * (200 << 20)), content_type="application/json", content_encoding="gzip"),
        http.post("", content_type=ndjson),
        http.post({}, query="?wait=forever"),
        http.post({}, query="?timeout=-1"),
        http.post({}, query="?tiemout=1"),
        http.post({}, idempotency_key="k" * 2000),
        http.post({}, authorization="Bearer no"),
        http.get("/nothing"),
        http.get("/streams/readings"),
    ]
    page = http.get("/problems").text
    kinds = []
    for answer in answers:
        said = answer.json()
        kind = said["type"].removeprefix("/problems#")
        kinds.append(kind)
        assert answer.headers["content-type"] == "application/problem+json"
        assert said["status"] == answer.status_code == KINDS[kind][0]
        assert said["title"]
        assert said["detail"]
        assert said["fix"]
        assert f'id="{kind}"' in page
    assert kinds == [
        "no-stream",
        "unparseable",
        "wrong-type",
        "wrong-encoding",
        "wrong-encoding",
        "wrong-encoding",
        "too-long",
        "oversized",
        "too-long",
        "too-long",
        "unparseable",
        "wrong-request",
        "wrong-request",
        "wrong-request",
        "wrong-request",
        "no-token",
        "no-page",
        "wrong-method",
    ]
    assert "did you mean 'readings'?" in answers[0].json()["detail"]
    assert answers[-3].headers["www-authenticate"].startswith("Bearer")


def test_body_signed_by_its_sender_needs_no_token(http: Http) -> None:
    from standardwebhooks import Webhook

    def signed(body: str, *, at: datetime, secret: str = SECRET, stream: str = "notes") -> httpx.Response:
        signature = Webhook(secret).sign("m-1", at, body)
        told = {"webhook-id": "m-1", "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature}
        told |= {"content-type": "application/json"}
        return httpx.post(f"{http.serving.url}/streams/{stream}", headers=told, content=body)

    now = datetime.now(UTC)
    assert signed('{"number": 1}', at=now).status_code == 202
    assert signed('{"number": 1}', at=now, secret="whsec_" + "A" * 32).json()["type"].endswith("#bad-signature")
    assert signed('{"number": 1}', at=now - timedelta(hours=1)).json()["detail"] == "Message timestamp too old"
    assert signed('{"number": 1}', at=now, stream="readings").json()["type"].endswith("#no-token")
    told = {"webhook-id": "ü", "webhook-timestamp": "x", "webhook-signature": "nonsense"}
    answer = httpx.post(
        f"{http.serving.url}/streams/notes", headers=[(k.encode(), v.encode()) for k, v in told.items()], json={}
    )
    assert answer.status_code == 401


def test_bodies_without_a_token_do_not_block_requests_with_one(tmp_path: Path) -> None:
    unsigned = {"webhook-id": "m", "webhook-timestamp": "1", "webhook-signature": "v1,x", "authorization": "none"}
    with server(tmp_path, "secret.notes = 'env:HOOK'\nmax_requests = 4\nsigned_body = 100\n", HOOK=SECRET) as http:
        head, _, body = request(http.serving, "notes", b'{"number": 1}', "application/json", unsigned).partition(b"{")
        with socket.create_connection(("127.0.0.1", http.serving.port)) as slow:
            slow.sendall(head + b"{")
            until(lambda: httpx.post(f"{http.serving.url}/streams/notes", headers=unsigned, json={}).status_code == 503)
            assert http.post({"number": 1, "text": "x" * 100}, "notes").status_code == 202
            slow.sendall(body)
            assert b" 401 " in slow.recv(4096).partition(b"\r\n")[0]
        long = httpx.post(f"{http.serving.url}/streams/notes", headers=unsigned, json={"text": "x" * 100})
        assert (long.status_code, long.json()["max_body"]) == (413, 100)


def test_tokens_come_from_the_environment_per_stream(tmp_path: Path) -> None:
    declared = "token.readings = 'env:READINGS'\ntoken.notes = 'env:NOTES'\n"
    with server(tmp_path, declared, READINGS="alpha", NOTES="beta") as http:
        answers = {
            (stream, token): http.post(
                {"station": "a", "number": 1}, stream, authorization=f"Bearer {token}"
            ).status_code
            for stream in ("readings", "notes")
            for token in ("alpha", "beta")
        }
        assert answers == {
            ("readings", "alpha"): 202,
            ("readings", "beta"): 401,
            ("notes", "alpha"): 401,
            ("notes", "beta"): 202,
        }
        assert not http.settings.path(".lake/http").exists()
    kept = subprocess.run(["grep", "-r", "alpha", tmp_path], capture_output=True, check=False)
    assert kept.stdout == b""


@pytest.mark.parametrize(
    ("options", "words", "told"),
    [
        ("token = 'env:NOT_SET'\n", [], "token comes from the environment variable NOT_SET, which is not set"),
        ("token = 'env:EMPTY'\n", [], "token: EMPTY is empty"),
        ("", ["other"], "no source 'other'"),
        ("secret = 'env:HOME'\n", [], "the secret of notes is none of Standard Webhooks"),
    ],
)
def test_server_reports_wrong_declarations_before_it_listens(
    tmp_path: Path, options: str, words: list[str], told: str
) -> None:
    settings = shop(tmp_path / "shop", options)
    command = [str(LAKE), "serve", "http", *words, "--project", str(settings.project), "--port", "0"]
    environment = os.environ | {"EMPTY": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


@pytest.mark.parametrize("options", ["", "streams = ['notes', 'readings']\n"])
def test_faulty_contract_stops_only_its_stream(tmp_path: Path, options: str) -> None:
    installed()
    settings = shop(tmp_path / "shop", options)
    faulty = settings.path("schemas/notes.avsc")
    faulty.write_text(faulty.read_text().replace('"key"', '"kee"'))
    with intake.serving(settings.project) as serving:
        http = Http(settings, serving)
        assert http.post({"station": "a", "number": 1}).status_code == 202
        several = {"readings": [{"station": "a", "number": 2}], "notes": [{"number": 1}]}
        for path, body in (("/streams/notes", {"number": 1}), ("/streams", several)):
            answer = httpx.post(f"{serving.url}{path}", headers=serving.allowed, json=body)
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems#faulty")
            assert "no key declared" in answer.json()["detail"]
        assert http.post({"number": 1}, "notes", authorization="Bearer wrong").status_code == 401
        assert [*http.get("/openapi.json").json()["paths"]].count("/streams/notes") == 0
        serving.process.terminate()
        assert serving.process.stderr is not None
        assert serving.process.stderr.read().count("no events of notes are taken") == 1


@pytest.mark.parametrize("words", ["serve http", "append entries events.jsonl --decide"])
def test_command_names_its_extra_when_it_is_not_installed(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = None; from lake.cli import main; main()"
    monkeypatch.chdir(accounts(tmp_path / "shop").project)
    Path("events.jsonl").write_text("{}")
    done = subprocess.run([sys.executable, "-c", hidden, *words.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    fault, fix = done.stderr.splitlines()
    assert re.match("lake: lake (serve http|append --decide) needs starlette, uvicorn, which the extra `serve`", fault)
    assert fix.startswith('  fix: pip install "headwater[serve] @ file:///')


def test_backlog_rejects_requests_until_it_is_ingested(tmp_path: Path) -> None:
    with server(tmp_path, "backlog_files = 3\n") as http:
        answers = [http.post({"station": "a", "number": n}) for n in range(5)]
        assert [answer.status_code for answer in answers] == [202, 202, 202, 503, 503]
        assert answers[3].json()["type"] == "/problems#backlog"
        assert int(answers[3].headers["retry-after"]) > 0
        assert http.get("/health").status_code == 503
        records, progress = http.take(None)
        assert len(records) == 3
        assert progress is not None
        http.source.acknowledge(progress)
        until(lambda: http.get("/health").status_code == 200)
        assert http.post({"station": "a", "number": 9}).json()["token"] == "readings@web:4:0"


def test_nearly_full_disk_rejects_requests(tmp_path: Path) -> None:
    with server(tmp_path, f"free_bytes = {1 << 60}\n") as http:
        answer = http.post({"station": "a", "number": 1})
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems#disk")
        assert "retry-after" in answer.headers
        assert groups(http.settings) == []


def test_concurrent_requests_memory_and_time_are_bounded(tmp_path: Path) -> None:
    with server(tmp_path, "max_requests = 1\nmax_memory = 1000\nbody_seconds = 2\n") as http:
        assert http.post({"station": "x" * 2000}).json()["type"] == "/problems#too-many"
        head = request(http.serving, "readings", b"{}", "application/json").partition(b"\r\n\r\n")[0]
        with socket.create_connection(("127.0.0.1", http.serving.port)) as slow:
            slow.sendall(head + b"\r\n\r\n{")
            until(lambda: http.post({"number": 1}).status_code == 503)
            assert b" 408 " in slow.recv(4096).partition(b"\r\n")[0]
        assert http.post({"station": "a", "number": 1}).status_code == 202


def test_rate_is_an_allowance_that_refills() -> None:
    now = [0.0]
    rate, taken = Rate(10, clock=lambda: now[0]), 0
    for tick in range(100):
        now[0] = tick / 10
        for events in (3, 2, 1):
            with suppress(Problem):
                rate.take(events)
                taken += events
    assert 100 <= taken <= 110
    now[0] += 1
    rate.take(25)  # a full allowance covers more than one second
    with pytest.raises(Problem) as told:
        rate.take(1)
    assert told.value.after == pytest.approx(1.6)
    now[0] += 1.7
    rate.take(1)


def test_events_beyond_the_rate_are_rejected_for_now(tmp_path: Path) -> None:
    with server(tmp_path, "rate = 5\n") as http:
        # A full allowance covers more than one second. However slow the machine, it refills within 40 seconds.
        assert http.post([{"station": "a", "number": n} for n in range(200)]).status_code == 202
        late = http.post([{"station": "a", "number": n} for n in range(200)])
        assert late.status_code == 429
        assert 1 <= int(late.headers["retry-after"]) <= 40


def test_server_answers_accepted_requests_and_loses_none_when_terminated(tmp_path: Path) -> None:
    with server(tmp_path) as http:
        client = Client(http.serving.port, lambda n: numbered(http, n))

        async def load() -> None:
            posting = asyncio.create_task(client.post(16, lambda: False))
            while len(client.acknowledged) < 200:
                await asyncio.sleep(0.01)
            http.serving.process.terminate()
            await posting

        asyncio.run(load())
        assert http.serving.process.wait(timeout=PATIENCE) == 0
    assert set(client.statuses) <= {202, 503}
    kept = {json.loads(text)["number"] for _, text, _ in spooled(groups(http.settings))}
    assert set(client.acknowledged) <= kept


def test_waiting_for_an_edition_ends_with_the_server(tmp_path: Path) -> None:
    with server(tmp_path) as http:
        short = http.post({"station": "a", "number": 1}, query="?wait=edition&timeout=0.3")
        assert (short.status_code, short.json()["edition"]) == (202, None)
        with socket.create_connection(("127.0.0.1", http.serving.port)) as waiting:
            whole = request(http.serving, "readings", b'{"station": "a", "number": 2}', "application/json")
            waiting.sendall(whole.replace(b"/streams/readings", b"/streams/readings?wait=edition&timeout=500", 1))
            until(lambda: len(groups(http.settings)) == 2)
            http.serving.process.terminate()
            assert waiting.recv(4096).startswith(b"HTTP/1.1 202 ")
        assert http.serving.process.wait(timeout=PATIENCE) == 0


def test_other_machines_need_a_token_even_for_pages(tmp_path: Path) -> None:
    with server(tmp_path, "", "--host", "0.0.0.0") as http:
        at = f"http://127.0.0.1:{http.serving.port}"
        assert httpx.get(f"{at}/health").status_code == 200
        refused = httpx.get(at)
        assert (refused.status_code, "Basic" in refused.headers["www-authenticate"]) == (401, True)
        assert httpx.get(at, auth=("me", http.serving.token)).status_code == 200
        assert httpx.get(f"{at}/openapi.json", headers=http.serving.allowed).status_code == 200
        http.serving.process.terminate()
        assert http.serving.process.stderr is not None
        assert "there is no TLS" in http.serving.process.stderr.read()


def test_page_shows_each_stream_and_commands_that_work(http: Http) -> None:
    page = http.get("/").text
    texts = Texts(page)
    assert {"readings", "notes"} <= set(texts.of["h2"])
    assert {"station", "number", "value"} <= set(texts.of["code"])
    needed(shutil.which("curl"), "curl is not installed")
    for command in texts.of["pre"]:
        done = subprocess.run(
            ["sh", "-c", command],
            env={"TOKEN": http.serving.token, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            check=False,
        )
        assert json.loads(done.stdout)["records"] == 1, done


def test_http_page_shows_the_true_output_of_its_commands(tmp_path: Path) -> None:
    needed(shutil.which("curl"), "curl is not installed")
    page = (DOCS / "how-to/http.md").read_text("utf-8")
    blocks = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE))
    settings = empty(tmp_path / "shop")
    declare(
        settings, contract("orders", {"order_id": "long", "status": "string", "amount": "decimal(9, 2)"}, id="content")
    )
    settings.path("sources").mkdir()
    settings.path("sources/web.toml").write_text(blocks["sources/web.toml"])
    with intake.serving(settings.project) as serving:
        script = blocks["post"].replace("http://127.0.0.1:8480", serving.url)
        done = subprocess.run(["sh", "-ec", script], cwd=settings.project, capture_output=True, text=True, check=False)
    assert done.stdout == blocks["answer"].strip(), done.stderr


def test_openapi_document_describes_the_records_of_a_contract(http: Http) -> None:
    said = http.get("/openapi.json").json()
    readings = said["components"]["schemas"]["readings"]
    assert readings["required"] == ["station", "number"]
    assert readings["properties"]["value"]["type"] == ["number", "null"]
    content = said["paths"]["/streams/readings"]["post"]["requestBody"]["content"]
    assert http.post(content["application/json"]["example"]).status_code == 202
    for reference in re.findall(r'"\$ref":\s*"#/([^"]+)"', json.dumps(said)):
        found: Any = said
        for part in reference.split("/"):
            found = found[part]


TYPES: Final = (
    "boolean",
    "int",
    "double",
    "string",
    "bytes",
    "date",
    "timestamp",
    "decimal(9, 2)",
    {"type": "enum", "name": "status", "symbols": ["open", "paid"]},
    {"type": "array", "items": "int"},
    {"type": "map", "values": "string"},
)


def allows_null(schema: Mapping[str, Any]) -> bool:
    if "anyOf" in schema:
        return any(map(allows_null, schema["anyOf"]))
    return "null" in schema["type"] and None in schema.get("enum", [None])


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("type", TYPES, ids=str)
def test_openapi_document_allows_null_exactly_where_the_contract_does(
    tmp_path: Path, type: Any, *, nullable: bool
) -> None:
    settings, kind = empty(tmp_path), ["null", avro(type)] if nullable else avro(type)
    types = {
        "field": kind,
        "part": {"type": "record", "name": "parts", "fields": [{"name": "part", "type": kind}]},
        "item": {"type": "array", "items": kind},
    }
    contracts = [contract(f"in_{name}", {"key": "long"}) for name in types]
    for about, of in zip(contracts, types.values(), strict=True):
        about["fields"].append({"name": "value", "type": of})
    declare(settings, *contracts)
    value = {name: schema(load_contract(settings, f"in_{name}"))["properties"]["value"] for name in types}
    described = [value["field"], value["part"]["properties"]["part"], value["item"]["items"]]
    assert [*map(allows_null, described)] == [nullable] * 3


def test_openapi_document_describes_every_path(tmp_path: Path) -> None:
    installed()
    from starlette.routing import Route

    from lake.serve.access import Access
    from lake.serve.app import Intake
    from lake.serve.reading.app import ReadingApp
    from lake.serve.server import Site

    settings = shop(tmp_path / "shop")
    contracts = load_contracts(settings)
    declared = find_declaration(settings, contracts, "web")
    with closing(GroupWriter(declared.folder)) as writer:
        taking = Intake(settings, declared, contracts, Access.of(settings, declared), writer)
        site = Site(ReadingApp(settings), taking)
        there = set[tuple[str, str]]()
        for route in site.app.routes:
            assert isinstance(route, Route)
            paths = [route.path.replace("{stream}", stream) for stream in declared.streams]
            there |= {(path, method) for path in paths for method in route.methods or () if method != "HEAD"}
    described = {(path, method.upper()) for path, of in site.described["paths"].items() for method in of}
    assert described == there


def test_answer_is_sent_after_file_name_and_folder_are_on_disk(tmp_path: Path) -> None:
    """Compare with the order of system calls."""
    needed(shutil.which("strace"), "strace is not installed: make test S=http")
    installed()
    settings, trace = shop(tmp_path / "shop"), tmp_path / "trace"
    calls = "fsync,fdatasync,rename,renameat,renameat2,write,writev,sendto,sendmsg"
    words = ["strace", "-f", "-yy", "-s", "200", "-e", f"trace={calls}", "-o", str(trace)]
    with intake.serving(settings.project, under=words) as serving:
        client = Client(serving.port, lambda n: numbered(Http(settings, serving), n))
        asyncio.run(client.post(4, lambda: len(client.acknowledged) >= 40))
    assert len(client.acknowledged) >= 40
    folder, steps, answered = settings.path("landing/.http/web"), list[str](), 0
    durable, name = set[str](), ""
    for line in trace.read_text().splitlines():
        call = line.split(maxsplit=1)[1]
        if match := re.match(rf"fsync\(\d+<{re.escape(str(folder))}(/\.new)?>\)\s+= 0", call):
            steps.append("file" if match[1] else "folder")
            if steps[-3:] == ["file", "name", "folder"]:
                durable.add(name)
        elif match := re.match(rf'rename\w*\(.*"{re.escape(str(folder))}/(\d+)-\d+\.jsonl".*= 0', call):
            assert steps[-1] == "file", line
            name = match[1]
            steps.append("name")
        for token in re.findall(r"readings@web:(\d+):", call) if "TCP" in call else ():
            answered += 1
            assert f"{int(token):012}" in durable, line
    assert answered >= 40


def numbered(http: Http, number: int) -> bytes:
    body = json.dumps({"station": "a", "number": number}).encode()
    return request(http.serving, "readings", body, "application/json")


class Texts(HTMLParser):
    """Texts of a page by element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.of: dict[str, list[str]] = {}
        self.tag = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag

    def handle_data(self, data: str) -> None:
        self.of.setdefault(self.tag, []).append(data)


def test_kill_under_load_loses_no_acknowledged_record(tmp_path: Path) -> None:
    """`make soak` kills it 200 times."""
    installed()
    outcome = soak(tmp_path, kills=5, seed=1)
    assert outcome.acknowledged > 0
    assert (outcome.lost, outcome.twice) == ([], [])
