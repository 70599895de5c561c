"""Answers of `POST …?decide` and `lake append --decide`, with and without a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from lake.config import Settings
from lake.errors import LakeError, Unavailable
from lake.ingest.events import void
from lake.read.wait import parse_tokens
from lake.serve.append_decided import append_decided
from lake.sources.source import DecisionRequest
from lake.store import duckdb_tables
from lake.store.log_head import GENERATION
from tests import intake
from tests.decide.accounts import accounts
from tests.decide.bank import Bank
from tests.servers.http import Http, installed

pytestmark = pytest.mark.http


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    installed()
    settings = accounts(tmp_path_factory.mktemp("deciding") / "bank")
    with intake.serving(settings.project) as serving:
        yield Http(settings, serving)


class Teller:
    """Client for the accounts of one test: `at` is the first of ten that no other test uses."""

    def __init__(self, http: Http, at: int) -> None:
        self.http, self.at, self.asked = http, at, 0

    def ask(self, *entries: tuple[int, str], id: str = "", query: str = "?decide", **headers: str) -> httpx.Response:
        self.asked += 1
        body = [{"account": self.at + account, "amount": amount} for account, amount in entries]
        key = id or f"{self.at}-{self.asked}"
        return self.http.post(body[0] if len(body) == 1 else body, "entries", query, idempotency_key=key, **headers)


def problem(answer: httpx.Response) -> tuple[int, str, str]:
    said = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, said["type"].partition("#")[2], said["detail"]


def test_server_accepts_entries_allowed_by_the_state_of_their_key(http: Http) -> None:
    teller = Teller(http, 100)
    first = teller.ask((1, "10.00"))
    assert first.status_code == 202
    assert first.json()["version"] == first.json()["token"].partition("@")[2]
    assert first.headers["etag"] == f'"{first.json()["version"]}"'
    assert problem(teller.ask((1, "-10.01"))) == (409, "refused", "0.01 short")
    assert problem(teller.ask((2, "3.00"), (1, "-5.00"), (1, "-5.01"))) == (409, "refused", "0.01 short")
    several = teller.ask((2, "3.00"), (1, "-5.00"), (1, "-5.00"))
    assert [(each["key"], each["version"][-1]) for each in several.json()["versions"]] == [
        ({"account": 102}, "0"),
        ({"account": 101}, "2"),
    ]
    assert problem(teller.ask((2, "-3.01")))[0] == 409
    assert teller.ask((2, "-3.00")).status_code == 202


def test_server_checks_the_expected_version_and_returns_the_current_one(http: Http) -> None:
    teller = Teller(http, 200)
    assert problem(teller.ask((1, "1.00"), if_match="*")) == (412, "outdated", "the key has no event yet")
    one = teller.ask((1, "1.00"), if_none_match="*").headers["etag"]
    late = teller.ask((1, "1.00"), if_none_match="*")
    assert (problem(late)[:2], late.json()["version"]) == ((412, "outdated"), one.strip('"'))
    two = teller.ask((1, "1.00"), if_match=one).headers["etag"]
    assert teller.ask((1, "1.00"), if_match=one).json()["version"] == two.strip('"')
    assert teller.ask((1, "1.00"), if_match="*").status_code == 202
    for wrong in ({"if_match": "web:1:0"}, {"if_match": one, "if_none_match": "*"}, {"if_none_match": one}):
        assert problem(teller.ask((1, "1.00"), **wrong))[:2] == (400, "wrong-request")
    assert problem(teller.ask((1, "1.00"), (2, "1.00"), if_match=two))[:2] == (400, "wrong-request")


def test_server_repeats_its_answer_for_a_repeated_request(http: Http) -> None:
    teller = Teller(http, 300)
    answers = [teller.ask((1, "1.00"), id="again", if_none_match="*").json() for _ in range(2)]
    assert answers[1] == answers[0] | {"again": True}
    waits = teller.ask((1, "1.00"), id="again", query="?decide&wait=edition&timeout=0").json()
    assert waits == answers[1] | {"edition": None}
    both = [teller.ask((1, "-1.00"), (2, "2.00"), id="two").json() for _ in range(2)]
    assert both[1] == both[0] | {"again": True}
    assert problem(teller.ask((1, "7.00"), (2, "2.00"), (3, "2.00"), id="two"))[:2] == (422, "sent-before")
    assert problem(teller.ask((1, "2.00"), id="again"))[:2] == (422, "sent-before")
    assert problem(teller.ask((1, "-1.00"), (2, "1.00"), id="two"))[:2] == (422, "sent-before")
    assert teller.ask((1, "1"), id="again").json() == answers[1]  # The same amount in another notation
    refused = teller.ask((3, "-1.00"), id="later")
    assert refused.status_code == 409
    assert teller.ask((3, "1.00")).status_code == 202
    assert teller.ask((3, "-1.00"), id="later").json()["again"] is False


def test_server_refuses_a_record_that_breaks_its_contract_or_has_no_decider(http: Http) -> None:
    teller = Teller(http, 400)
    status, kind, detail = problem(teller.ask((1, "1.00"), (1, "1.001")))
    assert (status, kind) == (400, "not-by-contract")
    assert detail.startswith("record 2: wrong type: amount: 1.001 is not decimal(9,2)")
    assert problem(teller.ask((1, "1.00"), query=""))[:2] == (400, "must-decide")
    assert problem(teller.ask((1, "1.00"), query="?decide=1"))[:2] == (400, "wrong-request")
    assert problem(http.post({"number": 1}, "notes", "?decide"))[:2] == (400, "wrong-request")
    assert http.post({"number": 1}, "notes").status_code == 202
    assert problem(http.post({"account": 1, "amount": 1}, "entries", "?decide"))[:2] == (400, "missing-id")


def test_server_accepts_events_of_several_streams_together_or_none(http: Http) -> None:
    def ask(id: str, query: str = "?decide", **streams: Any) -> httpx.Response:
        headers = http.serving.allowed | {"idempotency-key": id}
        return httpx.post(f"{http.serving.url}/streams{query}", json=streams, headers=headers)

    paid = {"order_id": "o", "what": "paid"}
    taken = {"account": 500, "amount": "-5.00"}
    assert ask("s1", entries=taken | {"amount": "5.00"}, orders={"order_id": "o", "what": "placed"}).status_code == 202
    before = intake.spooled([*http.settings.path("landing/.http/web").glob("*.jsonl")])
    assert problem(ask("s2", entries=taken, orders=[paid, paid], notes={"number": 1})) == (409, "refused", "it is paid")
    assert intake.spooled([*http.settings.path("landing/.http/web").glob("*.jsonl")]) == before
    assert problem(ask("s3", "", entries=taken, notes={"number": 1}))[:2] == (400, "must-decide")
    answer = ask("s4", notes={"number": 1}, entries=taken, orders=[paid]).json()
    places = {stream: token.partition("@")[2] for stream, token in answer["tokens"].items()}
    assert len({place.rpartition(":")[0] for place in places.values()}) == 1
    assert [place[-1] for place in places.values()] == ["0", "1", "2"]
    again = ask("s4", notes={"number": 1}, entries=taken, orders=[paid]).json()
    assert again == answer | {"again": True}
    kept = intake.spooled([*http.settings.path("landing/.http/web").glob("*.jsonl")])
    for notes in ({"number": 2}, {"number": 1, "text": "more"}, [{"number": 1}, {"number": 2}]):
        assert problem(ask("s4", notes=notes, entries=taken, orders=[paid]))[:2] == (422, "sent-before")
        assert problem(ask("s4", entries=taken, orders=[paid], notes=notes))[:2] == (422, "sent-before")
    assert intake.spooled([*http.settings.path("landing/.http/web").glob("*.jsonl")]) == kept
    assert problem(ask("s5", entries=taken))[:2] == (409, "refused")
    assert problem(ask("s6", entries=[], notes={"number": 1}))[:2] == (400, "wrong-request")


def test_page_and_openapi_document_describe_decisions(http: Http) -> None:
    assert re.search(r"/streams/entries\?decide", http.get("/").text)
    said = http.get("/openapi.json").json()
    of = {
        name: [each["name"] for each in path.get("post", {}).get("parameters", [])]
        for name, path in said["paths"].items()
    }
    assert {"decide", "If-Match", "If-None-Match"} <= {*of["/streams/entries"]}
    assert "decide" not in of["/streams/notes"]


def command(settings: Settings, body: Any, *options: str, of: str = "entries") -> tuple[int, str, str]:
    """Run `lake append entries - --decide` and return its exit code and output."""
    line = [str(intake.LAKE), "append", of, "-", "--decide", *options]
    done = subprocess.run(
        line,
        cwd=settings.project,
        env={**os.environ},
        input=json.dumps(body),
        text=True,
        capture_output=True,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_append_command_accepts_several_streams_together_or_none(tmp_path: Path) -> None:
    installed()
    settings = accounts(tmp_path / "bank")
    entry, note = {"account": 1, "amount": "10.00"}, {"number": 1}
    answers = list[Any]()
    for serves in (nullcontext(), intake.serving(settings.project)):
        with serves:
            answers.append(command(settings, {"entries": entry, "notes": [note]}, "--id", "a", of="entries,notes"))
            for entries, notes, told in (
                ({**entry, "amount": "-99.00"}, note, "89.00 short"),
                (entry, {"number": "x"}, "wrong type: number: x is not bigint"),
                (entry, [], "record 1"),
            ):
                refused = command(settings, {"entries": entries, "notes": notes or [5]}, of="entries,notes")
                assert (refused[0], told in refused[2]) == (1, True), refused
    assert answers == [(0, "entries@web:1:0\nnotes@web:1:1\nversion web:1:0", "")] * 2
    assert Bank(settings).source.lag(None).events == 2
    assert "no stream 'orders'" in command(settings, {"orders": {}}, of="entries,notes")[2]
    assert "nothing decides on notes" in command(settings, note, of="notes")[2]


def test_void_is_unavailable_when_a_server_decides(tmp_path: Path) -> None:
    bank = Bank(accounts(tmp_path / "bank", 'decide.entries = "account"\n'))
    writer = bank.writer()
    line = json.dumps(["entries", '{"account": 1, "amount": "1.00"}', {"http.id": "a"}]).encode() + b"\n"
    writer.put([line], 1)
    bank.ingest()
    with pytest.raises(Unavailable, match="another lake serve http"):
        void(bank.settings, "entries", ["1:1:0"], reason="it decides")
    writer.close()
    void(bank.settings, "entries", ["1:1:0"], reason="it does not")
    decider = bank.decider()
    decider.begin()
    [state] = decider.read("entries", [(1,)]).values()
    assert (state.state, state.version, [sent.place for sent in state.ids.values()]) == (None, "", ["web:1:0"])


def test_server_that_cannot_decide_does_not_start(tmp_path: Path) -> None:
    installed()
    settings = accounts(tmp_path / "bank")
    line = json.dumps(["entries", '{"account": 1, "amount": 1.001}', {"http.id": "a"}]).encode() + b"\n"
    writer = Bank(settings).writer()
    writer.put([line], 1)
    writer.close()
    with intake.start(settings.project) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.read())["error"]
    assert (process.returncode, told["exit_code"]) == (2, 2)
    assert "an undecided event is pending: wrong type: amount: 1.001" in told["what"]
    assert "take decide out of sources/web.toml" in told["fix"]


@pytest.mark.parametrize(
    ("file", "statuses"),
    [("schemas/orders.avsc", [202, 503]), ("jobs/silver/order.py", [202, 503]), ("jobs/silver/other.py", [202, 202])],
)
def test_faulty_declaration_stops_only_decisions_that_need_it(tmp_path: Path, file: str, statuses: list[int]) -> None:
    installed()
    settings = accounts(tmp_path / "bank")
    settings.path(file).write_text("not valid")
    events = {"entries": {"account": 1, "amount": "1.00"}, "orders": {"order_id": "a", "what": "placed"}}
    with intake.serving(settings.project) as serving:
        http = Http(settings, serving)
        answers = [http.post(event, stream, "?decide", idempotency_key="a") for stream, event in events.items()]
    assert [answer.status_code for answer in answers] == statuses
    for (stream, event), status in zip(events.items(), statuses, strict=True):
        command = DecisionRequest((stream,), json.dumps(event).encode(), "b")
        with nullcontext() if status == 202 and stream == "entries" else pytest.raises(LakeError):
            append_decided(settings, command)


def test_append_command_answers_equally_with_and_without_a_server(tmp_path: Path) -> None:
    installed()
    settings, seen = accounts(tmp_path / "bank"), list[Any]()
    ten, short = {"account": 1, "amount": "10.00"}, {"account": 1, "amount": "-99.00"}
    with intake.serving(settings.project):
        for id in ("a", "a"):
            seen.append(command(settings, ten, "--id", id))
        seen += [command(settings, short), command(settings, ten, "--new"), command(settings, {"account": "x"})]
    assert [code for code, *_ in seen] == [0, 0, 1, 1, 1], seen
    assert seen[0][1] == seen[1][1] == "entries@web:1:0\nversion web:1:0"
    assert "89.00 short" in seen[2][2]
    assert "its version is web:1:0" in seen[3][2]
    assert "wrong type: account" in seen[4][2]
    alone = [command(settings, ten, "--id", "a"), command(settings, short), command(settings, ten, "--new")]
    assert alone == [seen[1], seen[2], seen[3]]
    assert command(settings, ten, "--expect", "web:1:0", "--id", "b")[:2] == (0, "entries@web:2:0\nversion web:2:0")
    assert "nothing decides on notes" in " ".join(
        subprocess.run(
            [intake.LAKE, "append", "notes", "-", "--decide"],
            cwd=settings.project,
            text=True,
            input="{}",
            capture_output=True,
            check=False,
        ).stderr.split()
    )
    assert Bank(settings).source.lag(None).events == 2


def test_receipts_and_places_are_unique_when_the_folder_is_recreated(tmp_path: Path) -> None:
    installed()
    bank = Bank(accounts(tmp_path / "bank", ""))
    tokens = list[list[str]]()
    for generation in range(3):
        with intake.serving(bank.settings.project) as serving:
            teller = Teller(Http(bank.settings, serving), 100 * generation)
            tokens.append([teller.ask((n, "1.00"), query="").json()["token"] for n in range(2)])
            bank.ingest(given_up=generation > 0)
            tokens[-1].append(teller.ask((2, "1.00"), query="").json()["token"])  # Is lost with the folder
        shutil.rmtree(bank.source.declared.folder.path.parent)
    assert tokens == [[f"entries@web:{g * GENERATION + n}:0" for n in (1, 2, 3)] for g in range(3)]
    sources = [
        row["_source"] for row in duckdb_tables.rows(bank.log.path, "SELECT _source FROM t ORDER BY _batch, _arrival")
    ]
    assert [f"entries@{source}" for source in sources] == [token for group in tokens for token in group[:2]]
    for batch, (first, second, lost) in enumerate(tokens, 1):
        assert [str(token) for token in parse_tokens(bank.settings, [first, second, lost])] == [
            f"entries@{batch}",
            f"entries@{batch}",
            lost,
        ]


def test_server_acknowledges_nothing_when_its_folder_is_recreated(tmp_path: Path) -> None:
    installed()
    bank = Bank(accounts(tmp_path / "bank", ""))
    folder = bank.source.declared.folder
    with intake.serving(bank.settings.project) as serving:
        teller = Teller(Http(bank.settings, serving), 100)
        assert teller.ask((1, "1.00"), query="").status_code == 202
        shutil.rmtree(folder.path)
        bank.writer().close()
        assert teller.ask((1, "1.00"), query="").status_code == 503
        assert folder.groups() == []
