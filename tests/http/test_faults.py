"""Answers of every address when the warehouse cannot be read. No server, no JVM."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from lake.config import Settings
from lake.errors import DeclarationError, StorageError, Unavailable
from lake.serve.app import Intake
from lake.serve.backpressure import BodyMemory, IntakeLimits
from lake.serve.problems import Problem, problem_of
from lake.serve.reading.app import ReadingApp
from lake.serve.reading.edition_cache import EditionCache
from lake.serve.reading.queries import whole_body
from lake.serve.reading.query_pool import RunningQuery
from lake.serve.reading.stored_answers import MEMORY_BYTES, StoredAnswers
from lake.store.ledger import grants
from tests.servers.http import installed

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
