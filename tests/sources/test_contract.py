"""Contract of lake.sources.source.Source, which every kind of source keeps, also that of the page "Write a source"."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lake.sources.source import Progress, SourceRecord
from tests.sources.upstreams import OfKafka, OfPostgres, Upstream, of_http, of_sqlite, of_tap
from tests.spool import Kept

KINDS = (
    "http",
    "sqlite",
    "tap",
    pytest.param("kafka", marks=pytest.mark.kafka),
    pytest.param("postgres", marks=pytest.mark.postgres),
)


@pytest.fixture(params=KINDS)
def upstream(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    match request.param:
        case "http":
            return of_http(tmp_path / "shop")
        case "sqlite":
            return of_sqlite(tmp_path, monkeypatch)
        case "tap":
            return of_tap(tmp_path / "shop")
        case "kafka":
            return OfKafka(request.getfixturevalue("kafka"))
        case _:
            return OfPostgres(request.getfixturevalue("shop"))


def number_of(record: SourceRecord) -> int:
    value: dict[str, Any] = json.loads(record.text)
    return int((value.get("after") or value)["number"])


def take(upstream: Upstream, after: Progress | None) -> tuple[list[SourceRecord], Progress | None]:
    """Read all ranges after a position by a new source. Return their records and the position, as JSON has it."""
    taken = Kept()
    with closing(upstream.source()) as source:
        while (progress := source.read(after, taken)) is not None:
            after = json.loads(json.dumps(progress))
        assert not source.more
    assert {stream for stream, _ in taken.records} <= {*source.streams}
    return [record for _, record in taken.records], after


def acknowledge(upstream: Upstream, upto: Progress | None) -> None:
    assert upto is not None
    with closing(upstream.source()) as source:
        source.acknowledge(upto)
        source.acknowledge(upto)


def test_source_reads_each_record_once_from_the_position_of_the_commit(upstream: Upstream) -> None:
    upstream.add(1, 2, 3)
    records, at = take(upstream, None)
    assert [number_of(record) for record in records] == [1, 2, 3]
    acknowledge(upstream, at)
    assert take(upstream, at) == ([], at)
    upstream.add(4, 5)
    later, after = take(upstream, at)
    assert [number_of(record) for record in later] == [4, 5]
    places = [record.place for record in (*records, *later)]
    assert len({*places}) == len(places)
    acknowledge(upstream, after)
    assert take(upstream, after) == ([], after)


def test_source_repeats_records_until_they_are_acknowledged(upstream: Upstream) -> None:
    upstream.add(1, 2)
    first, _ = take(upstream, None)
    upstream.add(3)
    again, at = take(upstream, None)
    assert [number_of(record) for record in again] == [1, 2, 3]
    if upstream.repeats_places:
        assert [record.place for record in again[:2]] == [record.place for record in first]
    acknowledge(upstream, at)
    upstream.add(4)
    before, _ = take(upstream, at)
    repeated, _ = take(upstream, at)
    assert [number_of(record) for record in repeated] == [number_of(record) for record in before] == [4]


def test_source_counts_waiting_records_or_does_not_know(upstream: Upstream) -> None:
    upstream.add(1, 2, 3)
    _, at = take(upstream, None)
    acknowledge(upstream, at)
    with closing(upstream.source()) as source:
        assert source.lag(at).events in {0, None}
    upstream.add(4)
    with closing(upstream.source()) as source:
        waiting = source.lag(at).events
        assert waiting is None or waiting >= 1  # Kafka counts the marker of the transaction too


def test_source_may_be_closed_twice(upstream: Upstream) -> None:
    upstream.add(1)
    source = upstream.source()
    source.read(None, Kept())
    source.close()
    source.close()
