"""Streams are ingested beside each other, work on the same stream one by one, and suspicious streams last and alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from threading import Barrier, Lock
from typing import Any

import pytest

from lake.config import Settings
from lake.contracts.contract import load_contracts
from lake.errors import LakeError
from lake.ingest import crashed_readers
from lake.ingest.ingest import Ingestion, _by_streams, _Task
from tests.processes import PATIENCE
from tests.shop import contract, declare

STREAMS = ("a", "b", "c")
Land = Callable[..., Any]


@pytest.fixture
def streams(project: Settings, land: Land) -> Settings:
    declare(project, *(contract(name, {"id": "long"}) for name in STREAMS))
    for number, name in enumerate(STREAMS, 1):
        land(name, "1.jsonl", *({"id": n} for n in range(number)))
    return project


def no_spark() -> Any:
    raise AssertionError("Spark is not needed")


def ingestion(settings: Settings) -> Ingestion:
    return Ingestion(settings, no_spark, load_contracts(settings))


def watched(monkeypatch: pytest.MonkeyPatch, at_work: Callable[[str], None]) -> list[str]:
    """Call `at_work` with each stream while its files are ingested; return the streams in the order of their ends."""
    original, ended = Ingestion._ingest_files, list[str]()

    def ingest_files(self: Ingestion, spark: Any, contract: Any, counts: Any) -> None:
        at_work(contract.name)
        original(self, spark, contract, counts)
        ended.append(contract.name)

    monkeypatch.setattr(Ingestion, "_ingest_files", ingest_files)
    return ended


def test_ingestion_reads_two_streams_in_parallel(streams: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(2)

    def at_work(stream: str) -> None:
        if stream in "ab":
            together.wait(PATIENCE)

    ended = watched(monkeypatch, at_work)
    counts = ingestion(streams).run()
    assert sorted(ended) == [*STREAMS]
    assert [(name, of.accepted) for name, of in counts.items()] == [("a", 1), ("b", 2), ("c", 3)]


def test_stream_with_a_suspicious_file_comes_last_and_alone(streams: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, at_once, most = Lock(), set[str](), dict[str, set[str]]()
    note = crashed_readers._path(streams, "a")
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps({"now": [], "left": [], "deaths": 1}))

    def at_work(stream: str) -> None:
        with lock:
            at_once.add(stream)
            most[stream] = {*at_once}

    ended = watched(monkeypatch, at_work)
    ingestion(streams).run()
    assert ended[-1] == "a"
    assert "a" not in most["b"] | most["c"]


@pytest.mark.parametrize(
    ("writes", "groups"),
    [
        ({"a": "a", "b": "b"}, [["a"], ["b"]]),
        ({"a": "a", "b": "b", "kafka": "a"}, [["b"], ["a", "kafka"]]),
        ({"a": "a", "b": "b", "kafka": "ab", "tap": "c"}, [["a", "b", "kafka"], ["tap"]]),
        ({"broken": "", "a": "a", "faulty": ""}, [["broken"], ["a"], ["faulty"]]),
    ],
)
def test_work_on_the_same_stream_is_one_group(writes: Mapping[str, str], groups: list[list[str]]) -> None:
    tasks = [_Task(subject, {*streams}, lambda _: None) for subject, streams in writes.items()]
    assert [[task.subject for task in group] for group in _by_streams(tasks)] == groups


def test_first_failure_of_the_session_is_raised_and_not_repeated(streams: Settings) -> None:
    started = list[int]()

    def no_session() -> Any:
        started.append(1)
        raise LakeError("Spark does not start")

    work = Ingestion(streams, no_session, load_contracts(streams))
    for _ in range(2):
        with pytest.raises(Exception, match="Spark does not start"):
            work._session()
    assert started == [1]
