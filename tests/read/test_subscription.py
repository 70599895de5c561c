"""Subscriptions: a consumer that applies and acknowledges all changes has the rows of an edition."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pytest

import lake
from lake import cost
from lake.config import Settings, load_settings
from lake.errors import DeclarationError, LakeError, StartOver, Unavailable
from lake.read.subscription import Changes
from lake.store.ledger import consumers, editions
from tests.processes import other_process
from tests.read.things import NAME, Things

pytestmark = pytest.mark.slow


@pytest.fixture
def things(project: Settings) -> Things:
    """Table of two rows in edition 1, with a short patience for leases."""
    file = project.path("pyproject.toml")
    file.write_text(file.read_text() + "lease_seconds = 0.1\n")
    things = Things(load_settings(project.project))
    things.change({1: 1, 2: 2})
    return things


def subscribe(things: Things, **options: Any) -> Iterator[Changes]:
    return lake.open(things.settings.project).changes(NAME, **{"consumer": "crm", **options})


def apply(rows: dict[Any, Any], changes: Changes, most: int | None = None) -> None:
    """Apply at most `most` of the changes."""
    if changes.snapshot:
        rows.clear()
    for change in islice(changes, most):
        [key] = change.key.values()
        if change.after is None:
            rows.pop(key, None)
        else:
            rows[key] = change.after


@dataclass
class Copy:
    """Consumer that keeps a copy of the table, and crashes at random."""

    things: Things
    rows: dict[Any, Any] = field(default_factory=dict)

    def wake(self, chance: random.Random) -> None:
        """Apply the new changes, or crash before the end."""
        for changes in subscribe(self.things, start_over=chance.random() < 0.05):
            match chance.randrange(4):
                case 0:
                    apply(self.rows, changes, chance.randrange(4))
                    return
                case 1:
                    apply(self.rows, changes)
                    return
            apply(self.rows, changes)
            changes.ack()
            assert repr(ordered(self.rows)) == repr(ordered(self.things.as_of(changes.edition)))


def ordered(rows: dict[Any, Any]) -> list[Any]:
    """Return the rows in comparable order, with NaN equal to itself."""
    return sorted(rows.items(), key=repr)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_copy_of_a_consumer_equals_the_edition_through_crashes(
    things: Things, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2 == 0:
        monkeypatch.setattr(cost, "FEED_ROWS", 0)
    chance, copy = random.Random(seed), Copy(things)
    copy.wake(chance)
    for _ in range(25):
        things.step(chance)
        if chance.random() < 0.6:
            copy.wake(chance)
    for changes in subscribe(things):
        apply(copy.rows, changes)
        changes.ack()
    shown = editions.current_edition(things.settings)
    assert shown is not None
    assert repr(ordered(copy.rows)) == repr(ordered(things.as_of(shown.number)))


def test_snapshot_comes_first_and_changes_follow(things: Things) -> None:
    [first] = receive_all(things)
    assert (first.snapshot, first.edition, first.cut, first.since, first.identity) == (True, 1, 1, None, ("k",))
    things.change({1: 1, 2: 3})
    things.change({1: 1, 2: 3, 4: 4})
    [second] = receive_all(things)
    assert (second.snapshot, second.edition, second.cut, second.since) == (False, 3, 3, 1)
    assert [(change.change, change.key) for change in second] == [("update", {"k": 2}), ("insert", {"k": 4})]
    assert second.arrow().read_all().column("change").to_pylist() == ["update", "insert"]
    assert receive_all(things) == []


def receive_all(things: Things, **options: Any) -> list[Changes]:
    """Return all changes for a consumer, and acknowledge them."""
    every = []
    for changes in subscribe(things, **options):
        changes.ack()
        every.append(changes)
    return every


def test_consumer_moves_only_by_an_acknowledgement(things: Things) -> None:
    receive_all(things)
    things.change({1: 5})
    for _ in range(2):
        assert next(subscribe(things)).edition == 2
    things.change({1: 6})
    again = subscribe(things)
    changes = next(again)
    assert (changes.since, changes.edition) == (1, 2), "what may have been applied is given again, to the same edition"
    with pytest.raises(DeclarationError, match=r"changes of edition 2 were not acknowledged.*\n  fix: call ack"):
        next(again)
    assert [(changes.since, changes.edition) for changes in receive_all(things)] == [(1, 2), (2, 3)]


def test_subscription_without_a_name_remembers_nothing(things: Things) -> None:
    for _ in range(2):
        [changes] = subscribe(things, consumer=None)
        assert changes.snapshot
    things.change({1: 5})
    [changes] = subscribe(things, consumer=None, from_edition=1)
    assert (changes.since, changes.edition) == (1, 2)
    assert consumers.consumers(things.settings) == []


def test_consumer_may_begin_after_an_edition_that_it_has(things: Things) -> None:
    things.change({1: 5})
    [changes] = receive_all(things, from_edition=1)
    assert (changes.snapshot, changes.since, changes.edition) == (False, 1, 2)
    with pytest.raises(DeclarationError, match=r"consumer crm of thing has edition 2 already"):
        receive_all(things, from_edition=1)


def test_pin_moves_consumers_back_like_readers(things: Things) -> None:
    things.change({1: 5})
    receive_all(things)
    editions.pin_edition(things.settings, 1)
    [back] = receive_all(things)
    assert (back.since, back.edition) == (2, 1)
    assert [(change.change, change.key["k"]) for change in back] == [("update", 1), ("insert", 2)]
    things.change({7: 7})
    assert receive_all(things) == []
    editions.resume_editions(things.settings)
    assert [(changes.since, changes.edition) for changes in receive_all(things)] == [(1, 3)]


def test_edition_without_changes_has_no_rows_and_is_acknowledged(things: Things) -> None:
    receive_all(things)
    things.publish()
    [changes] = receive_all(things)
    assert (changes.edition, list(changes)) == (2, [])


def test_second_process_cannot_read_for_one_consumer(things: Things) -> None:
    with other_process(things.settings, "consumer.crm.thing"):
        with pytest.raises(Unavailable, match=r"consumer crm\.thing is being read for by .*pid"):
            next(subscribe(things))
        assert next(subscribe(things, consumer="search")).snapshot, "another consumer has nothing to do with it"


def test_acknowledgement_fails_when_another_process_moved_the_consumer(things: Things) -> None:
    first, second = subscribe(things), subscribe(things)
    mine, theirs = next(first), next(second)
    theirs.ack()
    with pytest.raises(Unavailable, match="consumer crm of thing was moved on by another process"):
        mine.ack()


def test_editions_of_a_consumer_do_not_expire_until_it_is_too_far_behind(things: Things) -> None:
    receive_all(things)
    things.change({1: 5})
    next(subscribe(things))
    things.change({1: 6})
    things.expire()
    assert [kept.number for kept in editions.kept_editions(things.settings)] == [3, 2, 1]
    late = replace(things.settings, keep_consumer_days=0.0)
    replace(things, settings=late).expire()
    assert [kept.number for kept in editions.kept_editions(things.settings)] == [3]
    with pytest.raises(
        StartOver, match=r"consumer crm of thing must start over from a snapshot, .*edition 1 has expired"
    ) as error:
        next(subscribe(things))
    assert "lake changes thing --consumer crm --start-over" in error.value.fix
    [changes] = receive_all(things, start_over=True)
    assert (changes.snapshot, changes.edition) == (True, 3)
    things.expire()
    assert [kept.number for kept in editions.kept_editions(things.settings)] == [3]


def test_forgotten_consumer_keeps_no_edition(things: Things) -> None:
    receive_all(things)
    things.change({1: 5})
    assert consumers.forget(things.settings, "crm", NAME)
    things.expire()
    assert [kept.number for kept in editions.kept_editions(things.settings)] == [2]
    assert next(subscribe(things)).snapshot


def test_following_consumer_waits_for_changes(things: Things) -> None:
    following = subscribe(things, follow=True)
    next(following).ack()
    publisher = threading.Timer(0.3, things.change, [{9: 9}])
    publisher.start()
    changes = next(following)
    assert (changes.edition, [change.change for change in changes]) == (2, ["delete", "delete", "insert"])
    publisher.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "thin"}, "no table 'thin' in edition 1.*\n  fix: did you mean 'thing'"),
        ({"from_edition": 9}, "no edition 9"),
        ({"consumer": "a b"}, "'a b' is not a valid name of a consumer"),
        ({"consumer": None, "start_over": True}, "only a consumer can start over"),
        ({"from_edition": 1, "start_over": True}, "only a consumer can start over, and only from a snapshot"),
    ],
)
def test_wrong_subscription_is_rejected_at_once(things: Things, options: dict[str, Any], message: str) -> None:
    options = {"table": NAME, "consumer": "crm", **options}
    with pytest.raises(LakeError, match=message):
        lake.open(things.settings.project).changes(**options)
    assert consumers.consumers(things.settings) == []


def test_follower_without_a_name_is_notified_when_its_edition_has_expired(things: Things) -> None:
    following = subscribe(things, consumer=None)
    next(following)
    things.change({1: 5})
    things.expire()
    with pytest.raises(StartOver, match="edition 1 of thing has expired"):
        next(following)


def test_consumer_releases_its_lease_when_its_loop_is_left(things: Things) -> None:
    for changes in subscribe(things):
        assert changes.snapshot
        break
    gc.collect()
    with other_process(things.settings, "consumer.crm.thing"):
        pass
