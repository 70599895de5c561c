"""Cycles of `lake run --follow` while nothing is new: nothing runs and no line is written until something is."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from lake import progress
from lake.errors import DeclarationError, Unavailable
from lake.ops import follow
from lake.ops.follow import _Following
from lake.session import spark_session
from lake.store.ledger.editions import pin_edition, resume_editions
from tests.checks import present
from tests.publish.news import NEWS
from tests.shop import new_shop, order


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def following(spark: SparkSession, tmp_path: Path, lines: list[str]) -> _Following:
    """Return cycles of the shop of `lake init`, whose last one found nothing new."""
    shop = new_shop(tmp_path).land_samples()
    following = _Following(shop.settings, lambda: spark, lines.append)
    following.cycle()
    following.cycle()
    lines.clear()
    return following


def pin_and_resume(following: _Following) -> None:
    pin_edition(following.settings, 1)
    following.cycle()
    resume_editions(following.settings)


@pytest.mark.parametrize("news", [*NEWS.values(), pin_and_resume], ids=[*NEWS, "readers that are pinned no longer"])
@pytest.mark.turns
def test_cycle_runs_and_is_reported_only_with_news(
    following: _Following, lines: list[str], news: Callable[[Any], object]
) -> None:
    assert following.cycle() is None
    assert lines == []
    news(following if news is pin_and_resume else following.settings)
    with suppress(DeclarationError):  # a changed job is refused
        assert following.cycle() is not None
    assert lines != []


def test_cycle_without_news_runs_after_a_while_and_is_not_reported(
    following: _Following, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "IDLE_SECONDS", 0)
    watcher = Mock()
    progress.watch(watcher)
    try:
        assert following.cycle() is not None
        assert (lines, watcher.mock_calls) == ([], [])
        (landing_of(following) / "bad.jsonl").write_text("{")
        following.cycle()
        assert "check" in {each.args[0].verb for each in watcher.ended.mock_calls}
    finally:
        progress.watch(progress.Watcher())


def landing_of(following: _Following) -> Path:
    return following.settings.path(following.settings.landing) / "orders"


def test_link_that_leads_nowhere_stops_no_cycle(following: _Following) -> None:
    folder = landing_of(following)
    (folder / "circle.jsonl").symlink_to("circle.jsonl")
    (folder / "through.jsonl").symlink_to(f"{next(folder.glob('*.jsonl'))}/name")
    (folder / "late.jsonl").write_text(json.dumps(order(77)) + "\n")
    assert present(following.cycle()).streams["orders"].accepted == 1


def test_failing_cycle_is_reported_each_time(following: _Following, lines: list[str]) -> None:
    landing = following.settings.path(following.settings.landing)
    (landing / "orders").rename(landing / "moved")
    (landing / "orders").write_text("a file where a folder should be")
    for _ in range(3):
        lines.clear()
        assert present(following.cycle()).failures.keys() == {"orders"}
        assert any("orders failed" in line for line in lines)


@pytest.mark.parametrize("fault", [Unavailable("another host has the lease"), ValueError("no such value")], ids=repr)
def test_failing_cycle_starts_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def failing(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise fault

    monkeypatch.setattr(follow, "run", failing)
    monkeypatch.setattr(spark_session._Started, "session", None)
    lines, spark = list[str](), Mock()
    follow.follow(new_shop(tmp_path).settings, spark, lines.append, every=0)
    assert (spark.called, lines[-1]) == (False, f"cycle failed: {fault}")
