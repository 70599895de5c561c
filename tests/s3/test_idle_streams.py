"""Idle streams in a bucket: they are read concurrently, and repaired ones get a session."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Barrier, current_thread, main_thread
from typing import Any

import pytest

from lake.config import Settings
from lake.contracts.contract import Contract, load_contracts
from lake.errors import LakeError, StorageError
from lake.ingest.batch_counts import BatchCounts
from lake.ingest.ingest import Ingestion, ingest
from lake.store.ledger import runs
from tests.processes import PATIENCE
from tests.servers.s3 import S3
from tests.shop import contract, empty

STREAMS = ("one", "two", "three", "four")


@pytest.fixture
def settings(s3: S3, tmp_path: Path) -> Settings:
    made = replace(empty(tmp_path), warehouse=f"{s3.bucket()}/lake", storage=s3.storage)
    for stream in STREAMS:
        schema = contract(stream, {"id": "long", "at": "timestamp"}, id=["id"], time="at")
        made.path(f"schemas/{stream}.avsc").write_text(json.dumps(schema))
    return made


def counted(settings: Settings, monkeypatch: pytest.MonkeyPatch, take: Callable[[str, Any], None]) -> Mapping[str, int]:
    """Return the result of an ingest whose landing files are read by `take`, which can start Spark."""

    def landed(_: Ingestion, spark: Any, contract: Contract, ingested: dict[str, BatchCounts]) -> None:
        take(contract.name, spark)
        ingested[contract.name] = BatchCounts(7)

    monkeypatch.setattr(Ingestion, "_ingest_files", landed)
    done = ingest(settings, lambda: "a session", load_contracts(settings))  # type: ignore[arg-type, return-value]
    return {stream: counts.batch for stream, counts in done.items()}


def test_idle_streams_are_read_concurrently(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(len(STREAMS), timeout=PATIENCE)

    def take(*_: Any) -> None:
        together.wait()

    assert counted(settings, monkeypatch, take) == dict.fromkeys(STREAMS, 7)


@pytest.mark.parametrize("needs", [{"two"}, {"one", "four"}, set(STREAMS)])
def test_streams_that_need_spark_are_ingested_by_the_main_thread(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, needs: set[str]
) -> None:
    asked: list[tuple[str, bool]] = []

    def take(stream: str, spark: Any) -> None:
        asked.append((stream, current_thread() is main_thread()))
        if stream in needs:
            assert spark() == "a session"

    assert counted(settings, monkeypatch, take) == dict.fromkeys(STREAMS, 7)
    assert {stream for stream, main in asked if main} == needs
    assert sorted(stream for stream, main in asked if not main) == sorted(STREAMS)


def test_failure_of_one_stream_is_reported_and_blocks_no_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: dict[str, LakeError] = {}

    def take(stream: str, _: Any) -> None:
        if stream == "three":
            raise StorageError("a file of three is gone")

    with pytest.raises(StorageError, match="three is gone"):
        counted(settings, monkeypatch, take)
    done = ingest(settings, pytest.fail, load_contracts(settings), on_failure=failed.__setitem__)
    assert ([*failed], {*done}) == (["three"], set(STREAMS) - {"three"})
    assert runs.last_runs(settings)["three"].outcome == "failed"
    counted(settings, monkeypatch, lambda *_: None)
    assert runs.last_runs(settings)["three"].outcome == "done"
