"""Processes of other machines at work on a warehouse in a bucket. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lake.config import Settings
from lake.errors import Unavailable
from lake.store.locks import activity, epochs
from lake.store.locks.presence import APART, SILENT, Presence, present
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.store.memory import Bucket

NOTE = {"pid": 7, "command": "lake sql", "edition": 3, "seen": 4, "host": "other", "list": "elsewhere", "back": 5}


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def store(project: Settings, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The project, its warehouse in a bucket; nobody gives signs of life but by hand."""
    monkeypatch.setattr(Warehouse, "root", Address("s3://bucket", bucket))
    monkeypatch.setattr(epochs.Keeper, "start", lambda: None)
    yield replace(project, warehouse="s3://bucket")
    activity.end()


def reads(bucket: Bucket) -> Address:
    return Address("s3://bucket/locks/reads", bucket)


def said(bucket: Bucket) -> list[Any]:
    return [note["edition"] for note, _ in present(reads(bucket))]


def test_who_reads_on_another_machine_is_known_until_it_leaves(store: Settings, bucket: Bucket) -> None:
    bucket.at = 1000.0
    other = Presence(reads(bucket))
    other.say(NOTE)
    [running] = activity.others(store)
    assert (running.pid, running.host, running.edition, running.seen) == (7, "other", 3, 4)
    assert running.since == datetime.fromtimestamp(1000 - 5 - APART, UTC)
    assert str(running).startswith("lake sql of edition 3 (pid 7 on other, since ")
    other.leave()
    assert activity.others(store) == []
    assert bucket.files == {}


def test_who_gives_no_sign_for_long_is_dead_and_removed(store: Settings, bucket: Bucket) -> None:
    living, dead = Presence(reads(bucket)), Presence(reads(bucket))
    for each in (living, dead):
        each.say({**NOTE, "pid": 1 if each is living else 2})
        each.beat()
    for _ in range(3):
        bucket.at += SILENT / 2
        living.beat()
    assert [running.pid for running in activity.others(store)] == [1]
    assert {name.rpartition("/")[2].partition(".")[0] for name in bucket.files} == {living.id}
    dead.beat()
    assert [running.pid for running in activity.others(store)] == [1], "a sign alone says nothing"
    assert len(bucket.files) == 3


def test_this_process_is_told_to_others_and_is_no_other_itself(store: Settings, bucket: Bucket) -> None:
    activity.begin(store, "lake run --follow")
    assert activity.others(store) == []
    [(note, _)] = present(reads(bucket))
    assert note["command"] == "lake run --follow"
    bucket.at = 500.0
    activity.renew(store)
    [(_, since)] = present(reads(bucket))
    assert 500 - APART - 1 < since <= 500 - APART
    [presence] = epochs.Keeper.at_work
    presence.beat()
    activity.end()
    assert (bucket.files, epochs.Keeper.at_work) == ({}, set())


class Cut(Exception):
    """The end of a process."""


@pytest.mark.parametrize("acts", [("say",), ("beat",), ("beat", "say"), ("beat", "beat", "say", "say"), ("leave",)])
def test_wherever_a_process_ends_somebody_reads_what_it_said_last_or_before(acts: Sequence[str]) -> None:
    """Killed before any request, it is known by what it said before or after; and nothing of it stays for good."""
    number, landed = 0, True
    while landed:
        bucket, left, landed = Bucket(), [number], False
        process, editions = Presence(reads(bucket)), [0]
        process.say({**NOTE, "edition": 0})

        def step(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Cut

        bucket.step = step
        try:
            for act in acts:
                if act == "say":
                    editions.append(editions[-1] + 1)
                    process.say({**NOTE, "edition": editions[-1]})
                else:
                    getattr(process, act)()
        except Cut:
            landed = True
        bucket.step = lambda: None
        found = said(bucket)
        assert found or acts == ("leave",)
        assert {*found} <= {*editions[-2:]}
        bucket.at += SILENT + 1
        assert said(bucket) == []
        assert bucket.files == {}
        number += 1
    assert number > len(acts)


def test_who_may_not_write_reads_all_the_same(store: Settings, bucket: Bucket) -> None:
    def refused() -> None:
        raise Unavailable("access denied")

    bucket.step = refused
    activity.begin(store, "lake sql")
    activity.renew(store)
    activity.end()
    assert bucket.files == {}
