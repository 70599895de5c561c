"""Batch and edition of the token of an acknowledged event, by the commits of logs. No JVM, no server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.config import Settings
from lake.read.wait import BatchToken
from lake.serve.bodies import PostedRecord
from lake.serve.decide.command_validation import Decision
from lake.serve.receipt import Editions, Receipt, VisibleGroups, visible_groups
from lake.store import delta
from lake.store.delta import Position
from lake.store.ledger import cuts, editions
from lake.store.ledger.cuts import Cut
from lake.store.ledger.editions import Edition
from lake.store.log_head import CommittedDelivery

Commits = list[Position]


@st.composite
def logs(draw: Any) -> Commits:
    """Draw the commits of a log, newest first: some batches have a delivery of the source `web`."""
    commits, upto, sources = Commits(), 0, dict[str, Any]()
    for batch in range(1, draw(st.integers(0, 8)) + 1):
        if taken := draw(st.integers(0, 3)):
            upto += taken
            web = CommittedDelivery("web", batch, ("readings",), {"spool": "s", "upto": upto}, batch)
            sources = {**sources, "web": web.as_json}
        head: dict[str, Any] = {"offsets": {}, "watermark": None, "counts": {}, "files": [], "contract": 1, "at": ""}
        data = {"batch": batch, **head, **({"sources": dict(sources)} if sources else {})}
        commits.insert(0, Position("log", batch, data, batch))
    return commits


def batch_of(commits: Commits, group: int) -> int | None:
    """Return the first batch whose delivery has a group, by a full search."""
    for commit in reversed(commits):
        said = commit.data.get("sources", {}).get("web")
        if said and said["progress"]["upto"] >= group:
            return int(said["batch"])
    return None


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@given(logs(), st.integers(1, 20))
def test_token_resolves_to_the_batch_whose_delivery_has_its_group(
    patched: pytest.MonkeyPatch, commits: Commits, group: int
) -> None:
    patched.setattr(delta, "exists", lambda _: bool(commits))
    patched.setattr(delta, "positions", lambda *_: iter(commits))
    posted = BatchToken("readings", None, "web", group, f"readings@web:{group}:0")
    batch = batch_of(commits, group)
    assert posted.resolve(Settings(project=_nowhere())) == (posted if batch is None else BatchToken("readings", batch))
    assert not posted.is_within({"readings": 99})


@given(logs(), st.integers(0, 8), st.integers(1, 20))
def test_readers_see_only_the_groups_of_the_batch_of_their_edition(
    patched: pytest.MonkeyPatch, commits: Commits, cut_at: int, group: int
) -> None:
    batch = min(cut_at, len(commits))
    now = datetime.now(UTC)
    patched.setattr(delta, "positions", lambda *_: iter(commits))
    patched.setattr(editions, "current_edition", lambda _: Edition(7, 3, {}, now))
    patched.setattr(cuts, "get_cut", lambda *_: Cut(3, {"readings": batch}, 0, now))
    told = visible_groups(Settings(project=_nowhere()), "web", "readings")
    had = batch_of(commits, group)
    assert (told.upto >= group) == (had is not None and had <= batch)
    assert told.edition == 7
    assert visible_groups(Settings(project=_nowhere()), "web", "readings", VisibleGroups(7, 99)) == VisibleGroups(7, 99)


def test_token_without_a_log_resolves_to_no_batch(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(delta, "exists", lambda _: False)
    posted = BatchToken("readings", None, "web", 1, "readings@web:1:0")
    assert posted.resolve(Settings(project=_nowhere())) is posted


def _nowhere() -> Path:
    return Path("/nowhere")


def test_wait_ends_when_the_client_is_gone(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait() -> int | None:
        is_gone = AsyncMock(side_effect=[False, True])
        return await Editions(project, "web").wait("s", 1, deadline=inf, ending=asyncio.Event(), is_gone=is_gone)

    monkeypatch.setattr("lake.serve.receipt.visible_groups", lambda *_: VisibleGroups())
    assert asyncio.run(wait()) is None


PLACES: Final = [
    ({"entries": 1, "notes": 1}, ["web:7:4"], {"entries": "web:7:4", "notes": "web:7:5"}),
    (
        {"notes": 2, "entries": 2, "more": 1},
        ["web:7:5", "web:7:6"],
        {"notes": "web:7:3", "entries": "web:7:5", "more": "web:7:7"},
    ),
    ({"entries": 1, "orders": 2}, ["web:7:0", "web:9:3", "web:9:4"], {"entries": "web:7:0", "orders": "web:9:3"}),
]
"""Records of each stream in a repeated request, places of the decided ones, and the token of each stream."""


@pytest.mark.parametrize(("counts", "places", "tokens"), PLACES)
def test_repeated_request_gets_a_token_of_each_stream(
    counts: dict[str, int], places: list[str], tokens: dict[str, str]
) -> None:
    by_stream = {stream: [PostedRecord("{}", {})] * count for stream, count in counts.items()}
    versions = [(stream, ("k",), places[-1]) for stream in counts if stream in ("entries", "orders")]
    receipt = Receipt.earlier(by_stream, Decision(places, versions, again=True, rests_on=0))
    assert {each.stream: each.token for each in receipt.streams} == {
        stream: f"{stream}@{at}" for stream, at in tokens.items()
    }
