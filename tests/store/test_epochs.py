"""Leases that several hosts take: one holder at a time, whoever dies, sleeps or loses an answer. No JVM.

Hosts are simulated: each is a machine of its own, with a lock folder, a process and a clock, over one store, whose
every request is a point at which another host goes on. The store is in memory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from lake.config import Settings
from lake.errors import Unavailable
from lake.store.locks import epochs
from lake.store.locks.lease import lease
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.store.memory import Bucket

NAME: Final = "table.orders"
NOTE: Final = {"command": "lake run", "pid": 1, "since": "today", "host": "other"}


@dataclass
class Clock:
    """A clock that goes on by being waited for; `meanwhile` is what others do then."""

    at: float = 1000.0
    meanwhile: list[Callable[[], object]] = field(default_factory=list)

    def now(self) -> float:
        return self.at

    def pause(self, seconds: float) -> None:
        self.at += seconds
        for act in self.meanwhile:
            act()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The clock of this process, which never waits; nobody gives signs of life but by hand."""
    clock = Clock()
    monkeypatch.setattr(epochs, "clock", clock.now)
    monkeypatch.setattr(epochs, "pause", clock.pause)
    monkeypatch.setattr(epochs.Keeper, "start", lambda: None)
    yield clock
    epochs.Keeper.held.clear()


@pytest.fixture
def store(project: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The project, its warehouse in a store."""
    monkeypatch.setattr(Warehouse, "root", Address("s3://bucket", Bucket()))
    return replace(project, warehouse="s3://bucket")


def folder(store: Settings) -> Address:
    return Warehouse(store).root / "locks" / NAME


def take(store: Settings, *, seconds: float = 10, dead: int | None = None) -> epochs.Epoch:
    """An epoch of another host: nothing of this process knows it."""
    epoch = epochs.take(store, NAME, NOTE, seconds=seconds, dead=dead)
    epochs.Keeper.held.clear()
    return epoch


def test_the_first_takes_it_and_the_next_once_it_is_let_go(store: Settings, clock: Clock) -> None:
    first = take(store)
    with pytest.raises(epochs.Held) as held:
        take(store, seconds=0)
    assert held.value.note["host"] == "other"
    first.end()
    second = take(store, seconds=0)
    assert (second.number, clock.at) == (first.number + 1, 1000)


def test_who_gives_signs_of_life_is_waited_for_as_long_as_is_said(store: Settings, clock: Clock) -> None:
    first = take(store)
    clock.meanwhile = [lambda: first.beat() if int(clock.at) % 7 == 0 else None]
    with pytest.raises(epochs.Held):
        take(store, seconds=100)
    assert clock.at == 1100
    with pytest.raises(epochs.Held):
        take(store, seconds=10)
    assert clock.at == 1110


@pytest.mark.parametrize("beats", [0, 1, 3])
def test_who_gives_none_is_overtaken_however_short_others_wait(store: Settings, clock: Clock, beats: int) -> None:
    first = take(store)
    for _ in range(beats):
        first.beat()
    second = take(store, seconds=10)
    assert (clock.at, second.number) == (1030, first.number + 1)
    first.beat()
    assert first.lost
    second.beat()
    assert not second.lost


def test_of_a_process_that_is_known_to_be_dead_nobody_waits(store: Settings, clock: Clock) -> None:
    first = take(store)
    assert take(store, seconds=0, dead=first.number).number == first.number + 1
    assert clock.at == 1000


def test_who_would_not_wait_overtakes_nobody(store: Settings, clock: Clock) -> None:
    take(store)
    clock.at += 1000
    with pytest.raises(epochs.Held):
        take(store, seconds=0)


def test_who_was_paused_deletes_nothing(store: Settings, clock: Clock) -> None:
    mine = epochs.take(store, NAME, NOTE, seconds=0, dead=None)
    epochs.must_hold(store, NAME)
    clock.at += epochs.EXPIRED - epochs.BEAT + 1
    with pytest.raises(Unavailable, match="too long without a sign of life"):
        epochs.must_hold(store, NAME)
    mine.beat()
    epochs.must_hold(store, NAME)
    clock.at += 2 * epochs.EXPIRED
    held = epochs.Keeper.held.copy()
    assert take(store).number == mine.number + 1
    epochs.Keeper.held.update(held)
    mine.beat()
    with pytest.raises(Unavailable, match="another host may hold"):
        epochs.must_hold(store, NAME)


def test_leases_that_were_looked_at_together_are_taken_without_another_look(
    store: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a while: then, and where another was first, each is looked for."""
    looks = list[Address]()
    standing = epochs.standing

    def counted(folder: Address) -> epochs.Standing:
        looks.append(folder)
        return standing(folder)

    monkeypatch.setattr(epochs, "standing", counted)
    take(store).end()
    for stray in ("notes.txt", "00000099.old", ""):
        (folder(store) / stray).put_if_absent(b"of somebody else")
    for passed, others, expected in (
        (0, 0, 0),
        (epochs.EXPIRED, 0, 0),
        (epochs.EXPIRED + 1, 0, 1),
        (0, 1, 1),
        (0, 3, 1),
    ):
        epochs.prefetch(store, "table")
        before = standing(folder(store)).number
        for _ in range(others):
            (folder(store) / f"{before + 1:08}").put_if_absent(b"{}")
            before += 1
            (folder(store) / f"{before:08}.end").put_if_absent(b"")
        clock.at += passed
        looks.clear()
        epoch = take(store, seconds=0)
        assert (epoch.number, len(looks), epoch.alive) == (before + 1, expected, clock.at)
        epoch.end()
    epochs.prefetch(store, "table")
    first = take(store)
    epochs.prefetch(store, "table")
    with pytest.raises(epochs.Held):
        take(store, seconds=0)
    first.beat()
    assert not first.lost


@pytest.mark.parametrize("listed", [1, 2, 3, 4, 5])
def test_of_more_files_than_are_listed_together_none_is_taken_for_the_newest(
    store: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    monkeypatch.setattr(epochs, "LISTED", listed)
    for _ in range(2):
        take(store).end()
    epochs.prefetch(store, "table")
    assert take(store, seconds=0).number == 3


def test_old_files_go_and_numbers_stay(store: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "KEPT", -1.0)
    for _ in range(20):
        epoch = take(store)
        epoch.beat()
        epoch.end()
        epochs.Keeper.tidy()
    assert epoch.number == 20
    assert len(list(folder(store).list())) < 8


def test_a_number_that_was_taken_let_go_and_removed_is_not_taken_again(
    store: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is paused between looking and taking finds its number free."""
    take(store).end()
    put, paused = type(folder(store).storage).put_if_absent, list[str]()

    def late(storage: Any, url: str, content: bytes) -> str | None:
        if not paused:
            paused.append(url)
            for _ in range(3):
                take(store).end()
            (folder(store) / "00000002").delete()
            (folder(store) / "00000002.end").delete()
            clock.at += epochs.EXPIRED + 1
        return put(storage, url, content)

    monkeypatch.setattr(type(folder(store).storage), "put_if_absent", late)
    assert take(store).number == 5
    assert paused == [str(folder(store) / "00000002")]


def test_a_lease_of_this_machine_is_one_of_the_store_too(store: Settings, clock: Clock) -> None:
    with lease(store, NAME), lease(store, NAME):
        with pytest.raises(epochs.Held):
            epochs.take(store, NAME, NOTE, seconds=0, dead=None)
        note = json.loads((folder(store) / "00000001").read())
        assert note.keys() >= {"host", "pid", "command", "since"}
    assert epochs.standing(folder(store)).ended


def test_another_hosts_lease_is_told_with_its_host(store: Settings, clock: Clock) -> None:
    take(store)
    with (
        pytest.raises(Unavailable, match=r"the table orders is being written by `lake run` on other \(pid 1, since"),
        lease(store, NAME, seconds=0),
    ):
        pass
    assert list((store.warehouse_path / "locks").glob("*.holder")) == []


def test_lease_is_free_at_once_when_its_holder_was_interrupted(store: Settings, clock: Clock) -> None:
    with pytest.raises(KeyboardInterrupt), lease(store, NAME):
        raise KeyboardInterrupt
    with lease(store, NAME, seconds=0):
        pass
    assert clock.at == 1000


def test_lease_of_a_dead_host_is_free_when_it_has_expired(store: Settings, clock: Clock) -> None:
    take(store)
    with lease(store, NAME):
        pass
    assert clock.at == 1030


def test_a_dry_run_leaves_nothing_in_the_store(store: Settings, clock: Clock) -> None:
    with lease(store, NAME, commits=False):
        pass
    assert epochs.standing(folder(store)).number == 0


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("seed", range(20))
def test_of_hosts_that_race_pause_and_die_one_at_a_time_may_delete(store: Settings, seed: int) -> None:
    """Whoever takes an epoch, nobody else who is at work believes to hold one; whose clocks go wrong by a tenth."""
    world = World(store, random.Random(seed))
    for _ in range(400):
        world.chance.choice(world.hosts).turn()
    assert world.taken == sorted(set(world.taken))
    assert len(world.taken) > 10
    assert world.overtaken


class World:
    """Four hosts over one store, and the true time."""

    def __init__(self, store: Settings, chance: random.Random) -> None:
        self.store, self.chance, self.time = store, chance, 0.0
        self.hosts = [Host(self, chance.uniform(0, 1e6), chance.uniform(0.9, 1.1)) for _ in range(4)]
        self.taken: list[int] = []
        self.overtaken = 0


@dataclass
class Host:
    """One that takes the lease, holds it for some time, and may die then, or be paused."""

    world: World
    offset: float
    rate: float
    epoch: epochs.Epoch | None = None
    until: float = 0
    asleep: float = 0
    seen: dict[str, Any] = field(default_factory=dict)

    def clock(self) -> float:
        return self.offset + self.rate * self.world.time

    def believes(self) -> bool:
        """Whether it would delete files now."""
        epoch = self.epoch
        return epoch is not None and not epoch.lost and self.clock() - epoch.alive <= epochs.EXPIRED - epochs.BEAT

    def turn(self) -> None:
        """What it does next, unless it is paused: it goes on with what it holds, or tries to take it."""
        self.world.time += 0.5
        if self.world.time < self.asleep:
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(epochs, "clock", self.clock)
            patch.setattr(epochs, "pause", self._pause)
            patch.setattr(epochs, "_seen", self.seen)
            patch.setattr(epochs.Keeper, "start", lambda: None)
            if self.world.chance.random() < 0.2:
                epochs.prefetch(self.world.store, "table")
            elif self.epoch is None:
                self._take()
            else:
                self._hold(self.epoch)

    def _take(self) -> None:
        world = self.world
        with suppress(Tired):
            ended = epochs.standing(folder(world.store)).ended
            self.epoch = epochs.take(world.store, NAME, NOTE, seconds=1000, dead=None)
            world.taken.append(self.epoch.number)
            world.overtaken += not ended
            assert [host for host in world.hosts if host.believes()] == [self]
            self.until = world.time + world.chance.uniform(0, 60)
        epochs.Keeper.held.clear()

    def _hold(self, epoch: epochs.Epoch) -> None:
        chance = self.world.chance.random()
        if self.clock() - epoch.alive >= epochs.BEAT:
            epoch.beat()
        if chance < 0.02:
            self.asleep = self.world.time + 100
        elif self.world.time > self.until and not epoch.lost and chance < 0.9:
            epoch.end()
        if self.world.time > self.until or epoch.lost:
            self.epoch = None

    def _pause(self, seconds: float) -> None:
        """The others go on meanwhile; now and then it gives up."""
        for other in self.world.hosts:
            if other.epoch is not None:
                other.turn()
        self.world.time += seconds
        if self.world.chance.random() < 0.02:
            raise Tired


class Tired(Exception):
    """What ends a host's waiting."""
