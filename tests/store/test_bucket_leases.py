"""Leases that several hosts acquire: one holder at a time, also if hosts die or are paused. No JVM.

Hosts are simulated: each is a machine of its own, with a lock folder, a process and a clock, over one store in memory.
"""

from __future__ import annotations

import logging
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from lake.config import Settings
from lake.errors import Unavailable
from lake.store.locks import FolderLeases, Holder, LeaseHeld
from lake.store.locks import lease as lease_module
from lake.store.locks.lease import BEAT, EXPIRED, BucketLease, BucketLeases, NewestEpoch, lease
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.store.memory import Bucket, Clock

NAME: Final = "table.orders"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all hosts, which advances by waiting. Leases are renewed by hand."""
    clock = Clock()
    monkeypatch.setattr(lease_module, "clock", clock.now)
    monkeypatch.setattr(lease_module, "sleep", clock.sleep)
    monkeypatch.setattr(BucketLeases, "_renew", lambda _: None)
    return clock


@dataclass
class Hosts:
    """Hosts with one store, each with a folder of its own."""

    home: Path
    bucket: Bucket = field(default_factory=Bucket)
    count: int = 0

    @property
    def root(self) -> Address:
        return Address("s3://bucket", self.bucket)

    @property
    def folder(self) -> Address:
        return self.root / "locks" / NAME

    def new(self) -> BucketLeases:
        self.count += 1
        machine = self.home / f"host-{self.count}"
        machine.mkdir()
        return BucketLeases(self.root / "locks", FolderLeases(machine))

    def acquire(self, *, seconds: float = 10) -> BucketLease:
        """Have a new host acquire the lease."""
        return self.new().acquire(NAME, seconds=seconds)


@pytest.fixture
def hosts(tmp_path: Path) -> Hosts:
    return Hosts(tmp_path)


def test_waiter_fails_in_time_when_the_holder_renews(hosts: Hosts, clock: Clock) -> None:
    first = hosts.acquire()
    clock.meanwhile = lambda: first.renew() if int(clock.at) % 7 == 0 else None
    for seconds, end in ((100, 1100), (10, 1110)):
        with pytest.raises(LeaseHeld):
            hosts.acquire(seconds=seconds)
        assert clock.at == end


def test_waiting_for_another_host_is_reported_once(
    hosts: Hosts, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first = hosts.acquire()
    clock.meanwhile = lambda: first.renew() if int(clock.at) % 7 == 0 else None
    with caplog.at_level(logging.WARNING, "lake"), pytest.raises(LeaseHeld):
        hosts.acquire(seconds=100)
    assert [record.getMessage().partition(", held by ")[0] for record in caplog.records] == [
        "waiting for the table orders"
    ]


@pytest.mark.parametrize("renewals", [0, 1, 3])
def test_holder_without_renewals_is_overtaken_after_any_short_wait(hosts: Hosts, clock: Clock, renewals: int) -> None:
    first = hosts.acquire()
    for _ in range(renewals):
        first.renew()
    second = hosts.acquire(seconds=10)
    assert (clock.at, second.epoch) == (1030, first.epoch + 1)
    for held in (first, second):
        held.renew()
    assert (first.is_lost, second.is_lost) == (True, False)


def test_holder_is_not_overtaken_without_waiting(hosts: Hosts, clock: Clock) -> None:
    hosts.acquire()
    clock.at += 1000
    with pytest.raises(LeaseHeld):
        hosts.acquire(seconds=0)


def test_paused_holder_deletes_nothing(hosts: Hosts, clock: Clock) -> None:
    mine = hosts.acquire(seconds=0)
    mine.must_hold()
    clock.at += EXPIRED - BEAT + 1
    with pytest.raises(Unavailable, match="too long without a sign of life"):
        mine.must_hold()
    mine.renew()
    mine.must_hold()
    clock.at += 2 * EXPIRED
    assert hosts.acquire().epoch == mine.epoch + 1
    mine.renew()
    with pytest.raises(Unavailable, match="another host may hold"):
        mine.must_hold()


def test_prefetched_lease_is_acquired_without_another_lookup(
    hosts: Hosts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is looked up again after some time, and if another host was first."""
    looks, look_up = list[Address](), lease_module.newest_epoch

    def counted(folder: Address) -> NewestEpoch:
        looks.append(folder)
        return look_up(folder)

    monkeypatch.setattr(lease_module, "newest_epoch", counted)
    hosts.acquire().release()
    for stray in ("notes.txt", "00000099.old", ""):
        (hosts.folder / stray).put_if_absent(b"of another program")
    host = hosts.new()
    for passed, others, expected in ((0, 0, 0), (EXPIRED, 0, 0), (EXPIRED + 1, 0, 1), (0, 1, 1), (0, 3, 1)):
        host.prefetch("table")
        before = look_up(hosts.folder).number
        for _ in range(others):
            (hosts.folder / f"{before + 1:08}").put_if_absent(b"{}")
            before += 1
            (hosts.folder / f"{before:08}.end").put_if_absent(b"")
        clock.at += passed
        looks.clear()
        held = host.acquire(NAME, seconds=0)
        assert (held.epoch, len(looks), held.alive) == (before + 1, expected, clock.at)
        held.release()
    host.prefetch("table")
    first = hosts.acquire()
    host.prefetch("table")
    with pytest.raises(LeaseHeld):
        host.acquire(NAME, seconds=0)
    first.renew()
    assert not first.is_lost


@pytest.mark.parametrize(("prefetches", "expected"), [(False, 3), (True, 2)])
def test_free_lease_takes_few_requests(hosts: Hosts, clock: Clock, prefetches: bool, expected: int) -> None:
    """A listing unless it was prefetched, the epoch, and its end."""
    hosts.acquire().release()
    host, requests = hosts.new(), list[int]()
    if prefetches:
        host.prefetch("table")
    hosts.bucket.step = lambda: requests.append(1)
    host.acquire(NAME, seconds=10).release()
    assert len(requests) == expected


@pytest.mark.parametrize("listed", [1, 2, 3, 4, 5])
def test_prefetch_skips_a_lease_that_was_listed_in_part(
    hosts: Hosts, clock: Clock, monkeypatch: pytest.MonkeyPatch, listed: int
) -> None:
    monkeypatch.setattr(lease_module, "LISTED", listed)
    for _ in range(2):
        hosts.acquire().release()
    host = hosts.new()
    host.prefetch("table")
    assert host.acquire(NAME, seconds=0).epoch == 3


def test_lease_deletes_old_files_and_keeps_its_numbers(
    hosts: Hosts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "KEPT", -1.0)
    host = hosts.new()
    for number in range(20):
        held = host.acquire(NAME, seconds=10)
        assert held.epoch == number + 1
        held.renew()
        held.release()
        host.delete_old()
    assert len(list(hosts.folder.list())) < 8


def test_deleted_epoch_number_is_not_reused_by_a_paused_host(
    hosts: Hosts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is paused between looking and writing finds its number free."""
    hosts.acquire().release()
    put, paused = Bucket.put_if_absent, list[str]()

    def late(storage: Any, url: str, content: bytes) -> str | None:
        if not paused:
            paused.append(url)
            for _ in range(3):
                hosts.acquire().release()
            (hosts.folder / "00000002").delete()
            (hosts.folder / "00000002.end").delete()
            clock.at += EXPIRED + 1
        return put(storage, url, content)

    monkeypatch.setattr(Bucket, "put_if_absent", late)
    assert hosts.acquire().epoch == 5
    assert paused == [str(hosts.folder / "00000002")]


def test_lease_of_another_host_is_reported_with_the_host(
    hosts: Hosts, clock: Clock, project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Warehouse, "root", hosts.root)
    holder = Holder("lake run", 1, "today", host="other")
    (hosts.folder / "00000001").put_if_absent(holder.json.encode())
    store = replace(project, warehouse="s3://bucket")
    with (
        pytest.raises(Unavailable, match=r"the table orders is being written by `lake run` on other \(pid 1, since"),
        lease(store, NAME, seconds=0),
    ):
        pass
    assert list((store.warehouse_path / "locks").glob("*.holder")) == []


@pytest.mark.slow
@pytest.mark.turns
@pytest.mark.parametrize("seed", range(20))
def test_racing_hosts_never_hold_the_lease_at_once(hosts: Hosts, seed: int) -> None:
    """When a host acquires an epoch, no other running host believes to hold one. Clocks differ by a tenth in speed."""
    world = World(hosts, random.Random(seed))
    for _ in range(400):
        world.chance.choice(world.hosts).turn()
    assert world.acquired == sorted(set(world.acquired))
    assert len(world.acquired) > 10
    assert world.overtaken


class World:
    """Four hosts over one store, and the true time."""

    def __init__(self, hosts: Hosts, chance: random.Random) -> None:
        self.chance, self.time, self.folder, self.bucket = chance, 0.0, hosts.folder, hosts.bucket
        self.hosts = [Host(self, hosts.new(), chance.uniform(0, 1e6), chance.uniform(0.9, 1.1)) for _ in range(4)]
        self.acquired: list[int] = []
        self.overtaken = 0


@dataclass
class Host:
    """A host that acquires the lease, holds it for some time, and may die then, or be paused."""

    world: World
    leases: BucketLeases
    offset: float
    rate: float
    held: BucketLease | None = None
    until: float = 0
    asleep: float = 0

    def clock(self) -> float:
        return self.offset + self.rate * self.world.time

    def believes(self) -> bool:
        """Return whether the host would delete files now."""
        held = self.held
        return held is not None and not held.is_lost and self.clock() - held.alive <= EXPIRED - BEAT

    def turn(self) -> None:
        """Use or acquire the lease, unless it is paused."""
        self.world.bucket.at = self.world.time = self.world.time + 0.5
        if self.world.time < self.asleep:
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lease_module, "clock", self.clock)
            patch.setattr(lease_module, "sleep", self._sleep)
            patch.setattr(BucketLeases, "_renew", lambda _: None)
            if self.world.chance.random() < 0.2:
                self.leases.prefetch("table")
                self.leases.delete_old()
            elif self.held is None:
                self._acquire()
            else:
                self._hold(self.held)

    def _acquire(self) -> None:
        world = self.world
        with suppress(Tired):
            is_released = lease_module.newest_epoch(world.folder).is_released
            self.held = self.leases.acquire(NAME, seconds=1000)
            world.acquired.append(self.held.epoch)
            world.overtaken += not is_released
            assert [host for host in world.hosts if host.believes()] == [self]
            self.until = world.time + world.chance.uniform(0, 60)

    def _hold(self, held: BucketLease) -> None:
        chance = self.world.chance.random()
        if self.clock() - held.alive >= BEAT:
            held.renew()
        if chance < 0.02:
            self.asleep = self.world.time + 100
        elif self.world.time > self.until and not held.is_lost and chance < 0.9:
            held.release()
        if self.world.time > self.until or held.is_lost:
            self._end(held)

    def _end(self, held: BucketLease) -> None:
        """Die, unless the lease was released. The next process of this host may know it, or be on a new machine."""
        self.held = None
        if self.world.chance.random() < 0.5:
            held.machine.file.unlink(missing_ok=True)
        held.machine.lock.release(force=True)

    def _sleep(self, seconds: float) -> None:
        """Let the others run meanwhile; sometimes give up."""
        for other in self.world.hosts:
            if other.held is not None:
                other.turn()
        self.world.time += seconds
        if self.world.chance.random() < 0.02:
            raise Tired


class Tired(Exception):
    """End of a host's waiting."""
