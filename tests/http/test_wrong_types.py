"""Wrong values of every member and parameter of every request: rejected as a problem, never a fault."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from lake.serve.reading.sharing import CHANGES
from tests import intake
from tests.http.test_sharing import SHARE
from tests.processes import PATIENCE
from tests.reading import Served, publish
from tests.servers.http import installed, shop
from tests.warehouse import write

pytestmark = pytest.mark.http
DEEP: Final = 100_000
JSON: Final = (
    *("null", "true", "false", "0", "-1", "1.0", "1e0", "1e400", "9" * 30, "9" * 5000, "NaN", "Infinity", "-0"),
    *('""', '"x"', '"²"', '"\u0661"', '"1 "', '"+1"', '"1_0"', '"\\ud800"', '"\\u0000"', '"é"', '"nan"', '"1e9"'),
    *('"0001-01-01T00:00:00+23:59"', '"9999-12-31T23:59:59-23:59"', '"2024-01-01"', '"' + "9" * 30 + '"'),
    *("[]", "[1]", "{}", '{"a": {}}', "[" * DEEP, "[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500),
)
"""Values of a member of JSON."""
TEXTS: Final = (
    *(
        "",
        "x",
        "²",
        "\u0661",
        "1 ",
        "+1",
        "1_0",
        "-1",
        "1.0",
        "1e9",
        "nan",
        "inf",
        "9" * 30,
        "true",
        "\0",
        "\x7f",
        "é",
        "[]",
    ),
    *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2024-01-01", "%ff", "%ed%a0%80", "'", '"', "*"),
)
"""Values of parameters, parts of paths, and headers."""
QUERY: Final = SHARE + "/schemas/gold/tables/numbers/query"
TABLE: Final = SHARE + "/schemas/gold/tables/numbers"
BODIES: Final = {
    "/sql": ({"sql": '"select 1"'}, ("sql", "edition", "cut", "format", "rows")),
    QUERY: ({}, ("version", "timestamp", "predicateHints", "jsonPredicateHints", "limitHint", *CHANGES)),
    "/streams": ({}, ("readings", "notes", "nosuch")),
    "/streams/readings": ({"station": '"a"', "number": "1"}, ("station", "number", "value", "more")),
    "/streams/readings?decide": ({"station": '"a"', "number": "1"}, ("station", "number")),
}
"""Valid members and tested names of each address that accepts JSON."""
PARAMETERS: Final = {
    "/tables": ("edition", "cut", "rows"),
    "/tables/numbers.csv": ("edition", "cut", "format"),
    f"{SHARE}/schemas": ("maxResults", "pageToken"),
    "/delta-sharing/shares": ("maxResults", "pageToken"),
    f"{TABLE}/metadata": ("version", "timestamp"),
    f"{TABLE}/version": ("startingTimestamp",),
    "/delta-sharing/files/x": ("sig", "sp"),
}
PATHS: Final = ("/tables/{}", f"{SHARE}/schemas/{{}}/tables", f"{SHARE}/schemas/gold/tables/{{}}/metadata",
                "/delta-sharing/shares/{}", "/delta-sharing/files/{}", "/streams/{}", "/{}")  # fmt: skip
HEADERS: Final = ("accept", "if-none-match", "if-match", "content-type", "content-encoding", "authorization", "range",
                  "delta-sharing-capabilities", "idempotency-key", "ce-id", "webhook-id", "x-forwarded-proto",
                  "x-forwarded-for", "origin", "expect", "host")  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Server that accepts events and answers readers."""
    installed()
    settings = shop(tmp_path_factory.mktemp("wrong") / "shop", "secret.notes = 'env:NOTES_SECRET'\n")
    write(settings, "gold", "numbers", "SELECT 1::BIGINT AS n")
    publish(settings, numbers=0)
    with intake.serving(settings.project, NOTES_SECRET="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") as serving:
        yield Served(settings, serving)


@contextmanager
def client(site: Served, *, posts: bool = False) -> Iterator[httpx.Client]:
    token = site.serving.token if posts else site.reader("all")
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=site.serving.url, timeout=PATIENCE, headers=headers) as client:
        yield client


def check(answer: httpx.Response, what: object) -> None:
    """Check that an answer is right or reports what is wrong with the request."""
    status = answer.status_code
    assert status in {200, 202, 206, 304} or 400 <= status < 500, (what, status, answer.text)
    if status >= 400 and answer.request.method != "HEAD" and answer.text != "Invalid HTTP request received.":
        assert answer.headers["content-type"] == "application/problem+json", (what, answer.text)
        said = answer.json()
        assert (said["status"], bool(said["detail"]), bool(said["fix"])) == (status, True, True)
        assert not re.search(r"Error|Traceback|object at 0x|\bNone\b", said["detail"]), (what, said)


def body(members: dict[str, str]) -> bytes:
    return ("{" + ",".join(f"{json.dumps(name)}: {value}" for name, value in members.items()) + "}").encode()


@pytest.mark.parametrize("address", BODIES)
def test_member_of_a_wrong_type_is_rejected(site: Served, address: str) -> None:
    right, names = BODIES[address]
    with client(site, posts=address.startswith("/streams")) as asking:
        headers = {"content-type": "application/json"}
        for name in names:
            for value in JSON:
                answer = asking.post(address, content=body({**right, name: value}), headers=headers)
                check(answer, (address, name, value[:60]))
            twice = body(right)[:-1] + b"," * bool(right) + f'"{name}": 1, "{name}": 2}}'.encode()
            check(asking.post(address, content=twice, headers=headers), (address, name, "twice"))


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "application/cloudevents+json",
                                  "application/cloudevents-batch+json", "text/plain", ""])  # fmt: skip
@pytest.mark.parametrize(
    "address", ["/sql", QUERY, "/streams", "/streams/readings", "/streams/notes?wait=edition&timeout=0"]
)
def test_body_of_anything_is_rejected(site: Served, address: str, kind: str) -> None:
    bodies = [value.encode() for value in JSON]
    bodies += [
        b"",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"\xed\xa0\x80",
        b"{",
        b"}",
        b'{"a"',
        b"\0" * 10,
        b"\n\n",
        b'{"\\ud800": 1}',
    ]
    event = {
        "specversion": '"1.0"',
        "id": '"1"',
        "source": '"s"',
        "type": '"t"',
        "data": '{"station": "a", "number": 1}',
    }
    for name in event:
        bodies += [body({**event, name: value}) for value in JSON if len(value) < 100]
    with client(site, posts=address.startswith("/streams")) as asking:
        for content in bodies:
            answer = asking.post(address, content=content, headers={"content-type": kind})
            check(answer, (address, kind, content[:60]))


@pytest.mark.parametrize("address", PARAMETERS)
def test_parameter_of_a_wrong_type_is_rejected(site: Served, address: str) -> None:
    with client(site) as asking:
        for name in PARAMETERS[address]:
            for value in TEXTS:
                written = value if "%" in value else quote(value)
                check(asking.get(f"{address}?{name}={written}"), (address, name, value))
                check(asking.get(f"{address}?{name}={written}&{name}={written}"), (address, name, value, "twice"))
            check(asking.get(f"{address}?{name}"), (address, name))


def test_intake_parameter_of_a_wrong_type_is_rejected(site: Served) -> None:
    with client(site, posts=True) as asking:
        for name in ("wait", "timeout", "decide", "rows"):
            for value in TEXTS:
                address = f"/streams/notes?{name}={value if '%' in value else quote(value)}"
                check(asking.post(address, json={"number": 1}), (name, value))


@pytest.mark.parametrize("path", PATHS)
def test_path_of_anything_is_rejected(site: Served, path: str) -> None:
    with client(site, posts=path.startswith("/streams")) as asking:
        for value in TEXTS:
            written = value if "%" in value else quote(value, safe="")
            for method in ("GET", "HEAD", "POST"):
                check(asking.request(method, path.format(written or ".")), (method, path, value))


@pytest.mark.parametrize("header", HEADERS)
def test_header_of_anything_is_rejected(site: Served, header: str) -> None:
    for posts, method, address, content in (
        (False, "GET", "/tables", None),
        (False, "GET", "/tables/numbers.csv", None),
        (False, "POST", "/sql", b"select 1"),
        (False, "POST", QUERY, b"{}"),
        (True, "POST", "/streams/notes", b'{"number": 1}'),
        (True, "GET", "/", None),
    ):
        with client(site, posts=posts) as asking:
            for value in (*TEXTS, ";", ",", "a;q=x", "bytes=9-1", "bytes=²-", "Basic é", "Bearer", "Bearer é", "W/"):
                if value == value.strip() and not any(character in value for character in "\0\x7f"):
                    headers: Any = [(header.encode(), value.encode())]
                    check(asking.request(method, address, content=content, headers=headers), (address, header, value))
