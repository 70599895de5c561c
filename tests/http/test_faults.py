"""Answers of every address when the warehouse cannot be read. No server, no JVM."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import closing
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import MagicMock

import httpx
import pytest
from deltalake.exceptions import DeltaError
from starlette.applications import Starlette
from starlette.requests import Request

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.errors import DeclarationError, StorageError, Unavailable
from lake.serve.access import Access
from lake.serve.app import Intake
from lake.serve.append_decided import append_decided
from lake.serve.backpressure import BodyMemory, IntakeLimits
from lake.serve.commits import GroupPlace
from lake.serve.decide.command_validation import CommandValidator
from lake.serve.intake_folder import GroupWriter
from lake.serve.periodic import repeated
from lake.serve.problems import Problem, problem_of
from lake.serve.reading.app import ReadingApp
from lake.serve.reading.edition_cache import EditionCache
from lake.serve.reading.queries import whole_body
from lake.serve.reading.query_pool import RunningQuery
from lake.serve.reading.stored_answers import MEMORY_BYTES, StoredAnswers
from lake.serve.receipt import Editions, Receipt, StreamReceipt
from lake.serve.server import address_of
from lake.serve.source import find_declaration
from lake.sources.source import DecisionRequest
from lake.store.ledger import grants
from lake.store.ledger.reads import Journal
from tests.checks import present
from tests.processes import PATIENCE
from tests.reading import small
from tests.servers.http import installed, shop

SECRET = "s3://bucket/key"


@pytest.mark.parametrize(
    ("fault", "status", "kind"),
    [
        (Unavailable("there is no such bucket", where=SECRET, fix="make it"), 503, "busy"),
        (StorageError("cut short", where=SECRET, fix="restore it"), 500, "unreadable"),
        (OSError(5, "Input/output error", SECRET), 500, "unreadable"),
    ],
    ids=["unavailable", "damaged", "broken"],
)
def test_address_answers_a_problem_when_grants_cannot_be_read(
    project: Settings, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, kind: str
) -> None:
    def unread(_: object) -> None:
        raise fault

    installed()
    monkeypatch.setattr(grants, "grants", unread)
    monkeypatch.setattr(EditionCache, "renew", lambda _: None)
    answers = asyncio.run(request_all(ReadingApp(project)))
    assert len(answers) > 8
    for path, answer in answers.items():
        assert SECRET not in answer.text, path
        if "/files/" not in path:  # its address is signed
            assert (answer.status_code, answer.json()["type"]) == (status, f"/problems#{kind}"), (path, answer.text)
        assert ("errorCode" in answer.json()) == ("delta-sharing" in path), path


async def request_all(reading: ReadingApp) -> dict[str, httpx.Response]:
    """Return the answer of every address to a request with a token."""
    answers = {}
    transport = httpx.ASGITransport(Starlette(routes=reading.routes), raise_app_exceptions=False)
    async with reading.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for route in reading.routes:
            path = re.sub(r"\{\w+(:\w+)?\}", "x", route.path)
            [method] = (route.methods or {"GET"}) - {"HEAD"}
            answers[f"{method} {path}"] = await client.request(method, path, headers={"authorization": "Bearer any"})
    return answers


def test_problem_of_a_long_error_is_short() -> None:
    problem = problem_of(DeclarationError("x" * 10_000_000))
    assert len(problem.detail) < 3_000


def test_body_that_is_not_complete_is_answered_when_the_server_ends() -> None:
    async def never() -> Any:
        begun.set()
        await asyncio.Event().wait()

    async def read(body: Any) -> None:
        task = asyncio.create_task(body)
        await begun.wait()
        begun.clear()
        task.cancel()
        with pytest.raises(Problem) as problem:
            await task
        assert problem.value.kind == "stopping"

    async def both() -> None:
        request = Request({"type": "http", "method": "POST", "headers": []}, never)
        await read(whole_body(request, 1))
        intake = SimpleNamespace(declared=SimpleNamespace(limits=IntakeLimits()))
        await read(Intake._body(cast(Intake, intake), request, BodyMemory((), 1)))

    begun = asyncio.Event()
    asyncio.run(both())


def test_answer_is_a_problem_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115  `close` ends it
    monkeypatch.setattr("tempfile.TemporaryFile", lambda *_, **__: full)
    answer = StoredAnswers(tmp_path, 1 << 20).add(RunningQuery())
    asyncio.run(answer.write(b"x"))
    with pytest.raises(Problem) as problem:
        asyncio.run(answer.write(bytes(MEMORY_BYTES)))
    answer.close()
    assert problem.value.kind == "disk"


def test_streams_of_a_request_are_waited_for_until_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(stream: str, number: int, *, deadline: float, **_: Any) -> int | None:
        deadlines[stream] = deadline
        now[0] = max(now[0], deadline)
        return None

    now, deadlines, streams = [100.0], dict[str, float](), ("entries", "notes", "orders")
    monkeypatch.setattr("lake.serve.app.time", SimpleNamespace(monotonic=lambda: now[0]))
    intake = object.__new__(Intake)
    intake.contracts = MagicMock()
    intake.editions, intake.ending = cast(Editions, SimpleNamespace(wait=wait)), cast(asyncio.Event, None)
    done = Receipt([StreamReceipt(stream, "web", GroupPlace(1, 0), 1) for stream in streams])
    request = Request({"type": "http", "headers": []})
    answer = asyncio.run(intake._answer(request, done, 30.0, several=True))
    assert (answer.status_code, deadlines) == (202, dict.fromkeys(streams, 130.0))


@pytest.mark.parametrize(
    "fault", [OSError(5, "gone"), StorageError("damaged"), DeltaError("no commit"), ValueError("x")]
)
def test_repeated_work_continues_after_a_fault_which_is_logged_once(
    caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    async def work() -> None:
        calls.append(1)
        if len(calls) < 4:
            raise fault
        done.set()

    async def run() -> None:
        async with repeated("the work", work, 0.0):
            await done.wait()

    calls, done = list[int](), asyncio.Event()
    asyncio.run(run())
    assert [record.message for record in caplog.records] == [f"the work failed and will be retried: {fault}"]


def test_readers_files_are_kept_and_the_server_ends_while_reads_cannot_be_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreadable(_: object) -> None:
        raise DeltaError("no commit")

    async def run() -> None:
        async with ReadingApp(settings).lifespan():
            while not (caplog.records and renewed.count("renewed") > 3):
                await asyncio.sleep(0)
            renewed.clear()
            while not renewed:
                await asyncio.sleep(0)

    installed()
    settings, renewed = small(tmp_path / "shop"), list[str]()
    monkeypatch.setattr(Journal, "record", unreadable)
    monkeypatch.setattr("lake.serve.reading.app.TICK_SECONDS", 0.0)
    monkeypatch.setattr("lake.serve.reading.request_context.BOOK_SECONDS", 0.0)
    monkeypatch.setattr(EditionCache, "renew", lambda _: renewed.append("renewed"))
    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "moving the record of reads to its table failed and will be retried",
        "reads are not in their table yet",
    ]


def test_intake_sees_the_folder_again_after_a_damaged_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(intake: Intake, note: Path) -> None:
        async with intake.lifespan():
            note.write_text("damaged")
            while not caplog.records:
                await asyncio.sleep(0)
            note.write_text('{"upto": 7}')
            while present(intake.validator).taken != 7:
                await asyncio.sleep(0)

    installed()
    settings = shop(tmp_path / "shop")
    contracts = load_contracts(settings)
    declared = find_declaration(settings, contracts, "web")
    monkeypatch.setattr("lake.serve.app.MEASURE_SECONDS", 0.0)
    with closing(GroupWriter(declared.folder)) as writer:
        validator = cast(CommandValidator, SimpleNamespace(taken=0, rules=()))
        intake = Intake(settings, declared, contracts, Access.of(settings, declared), writer, validator)
        asyncio.run(asyncio.wait_for(run(intake, declared.folder.path / "taken.json"), PATIENCE))


def test_command_reports_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed()
    settings = shop(tmp_path / "shop", "decide.readings = 'state'\n")
    declared = find_declaration(settings, load_contracts(settings), "web")
    monkeypatch.setattr("lake.serve.append_decided.ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, closing(GroupWriter(declared.folder)):
        address_of(settings, "web").write_text(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(Unavailable, match="the server of web has not answered after"):
            append_decided(settings, DecisionRequest(("readings",), b"{}"))


FOREIGN: Final = {
    "no JSON": b"HTTP/1.0 404 Not Found\r\n\r\n<html>",
    "no UTF-8": b"HTTP/1.0 500 Error\r\n\r\n\xff",
    "no answer": b"HTTP/1.0 502 Bad Gateway\r\n\r\n",
    "no problem": b'HTTP/1.0 400 Bad Request\r\n\r\n{"error": 1}',
    "no object": b"HTTP/1.0 400 Bad Request\r\n\r\n[1]",
    "an unknown problem": b'HTTP/1.0 400 Bad Request\r\n\r\n{"type": "#other", "detail": "no"}',
    "success without JSON": b"HTTP/1.0 200 OK\r\n\r\n<html>",
    "success without a token": b"HTTP/1.0 200 OK\r\n\r\n[]",
    "a short answer": b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{",
    "no HTTP": b"-ERR unknown command\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", FOREIGN.values(), ids=FOREIGN)
def test_command_reports_that_the_folder_is_in_use_if_another_program_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    class Foreign(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.rfile.read(2)
            self.wfile.write(answer)

    installed()
    settings = shop(tmp_path / "shop", "decide.readings = 'state'\n")
    declared = find_declaration(settings, load_contracts(settings), "web")
    monkeypatch.setattr("lake.serve.append_decided.LOCK_SECONDS", 0.0)
    with ThreadingTCPServer(("127.0.0.1", 0), Foreign) as server, closing(GroupWriter(declared.folder)):
        Thread(target=server.serve_forever, daemon=True).start()
        address_of(settings, "web").write_text(f"http://127.0.0.1:{server.server_address[1]}")
        with pytest.raises(Unavailable, match="another lake serve http takes events"):
            append_decided(settings, DecisionRequest(("readings",), b"{}"))
        server.shutdown()


@pytest.mark.parametrize("address", ["", "127.0.0.1", "http://["])
def test_command_reports_that_the_folder_is_in_use_if_the_address_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    installed()
    settings = shop(tmp_path / "shop", "decide.readings = 'state'\n")
    declared = find_declaration(settings, load_contracts(settings), "web")
    monkeypatch.setattr("lake.serve.append_decided.LOCK_SECONDS", 0.0)
    with closing(GroupWriter(declared.folder)):
        address_of(settings, "web").write_text(address)
        with pytest.raises(Unavailable, match="another lake serve http takes events"):
            append_decided(settings, DecisionRequest(("readings",), b"{}"))
