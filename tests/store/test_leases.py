"""The contract of leases, in a folder and in a bucket: one holder at a time, whatever becomes of it. No JVM."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pytest

from lake.config import Settings
from lake.errors import Unavailable
from lake.store import locks
from lake.store.locks import FolderLease, FolderLeases, Holder, Lease, LeaseHeld, Leases
from lake.store.locks import lease as lease_module
from lake.store.locks.lease import EXPIRED, BucketLease, BucketLeases, lease, leases, must_hold
from lake.store.storage import Address
from lake.store.warehouse import Warehouse
from tests.store.memory import Bucket, Clock

NAME: Final = "table.orders"


@dataclass
class World:
    """A warehouse and its writers. `waits` is how long a dead writer blocks another."""

    settings: Settings
    waits: float
    writers: int = 0
    clock: Clock = field(default_factory=Clock)
    held: list[Lease] = field(default_factory=list)

    def writer(self) -> Leases:
        """Return the leases of another process: of this machine for a folder, of a host of its own for a bucket."""
        self.writers += 1
        if not self.settings.urls:
            folder = self.settings.warehouse_path / "locks"
            folder.mkdir(parents=True, exist_ok=True)
            return FolderLeases(folder)
        machine = self.settings.project / f"host-{self.writers}"
        machine.mkdir()
        return BucketLeases(Warehouse(self.settings).root / "locks", FolderLeases(machine))

    def hold(self, name: str = NAME, *, seconds: float = 0) -> Lease:
        """Have a new writer hold a lease."""
        self.held.append(self.writer().acquire(name, seconds=seconds))
        return self.held[-1]

    def recorded(self) -> Iterator[Path]:
        """Yield the files that name a holder on a machine."""
        return self.settings.project.rglob("*.holder")


def die(held: Lease) -> None:
    """Do what the kernel does when a process dies: unlock its files, and no more."""
    machine = held.machine if isinstance(held, BucketLease) else held
    assert isinstance(machine, FolderLease)
    machine.lock.release(force=True)


@pytest.fixture(params=["folder", "bucket"])
def world(request: pytest.FixtureRequest, project: Settings, monkeypatch: pytest.MonkeyPatch) -> World:
    if request.param == "folder":
        return World(project, waits=0)
    world = World(replace(project, warehouse="s3://bucket"), waits=EXPIRED)
    monkeypatch.setattr(Warehouse, "root", Address("s3://bucket", Bucket()))
    monkeypatch.setattr(lease_module, "clock", world.clock.now)
    monkeypatch.setattr(lease_module, "sleep", world.clock.sleep)
    monkeypatch.setattr(BucketLeases, "_renew", lambda _: None)
    return world


def test_lease_has_one_holder_until_it_is_released(world: World) -> None:
    one, other = world.writer(), world.writer()
    for _ in range(3):
        held = one.acquire(NAME, seconds=0)
        with pytest.raises(LeaseHeld):
            other.acquire(NAME, seconds=0)
        other.acquire("table.customers", seconds=0).release()
        held.release()
        one, other = other, one
    assert world.clock.at == 1000


def test_lease_is_released_by_another_thread(world: World) -> None:
    held = world.hold()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(held.release).result()
    world.hold()


def test_lease_names_its_holder_when_waiting_ends(world: World) -> None:
    world.hold()
    with pytest.raises(Unavailable, match=rf"the table orders is being written by `.*` \(pid {os.getpid()}") as error:
        world.hold()
    assert isinstance(error.value, LeaseHeld)
    assert (error.value.exit_code, error.value.holder.pid) == (75, os.getpid())
    assert "waited 0 s; setting lease_seconds" in error.value.fix


def test_lease_names_no_holder_when_its_record_is_damaged(world: World) -> None:
    world.hold()
    for file in world.recorded():
        file.write_text("[1")
    if world.settings.urls:
        storage = Warehouse(world.settings).root.storage
        assert isinstance(storage, Bucket)
        storage.put(f"s3://bucket/locks/{NAME}/00000001", b'{"command": 1')
    with pytest.raises(LeaseHeld, match="by another process"):
        world.hold()


def test_lease_of_a_dead_holder_is_overtaken(world: World) -> None:
    for _ in range(2):
        before = world.clock.at
        die(world.hold(seconds=10))
        with lease(world.settings, NAME, seconds=10):
            pass
        assert world.clock.at - before == world.waits


def test_lease_of_a_dead_process_of_this_machine_is_overtaken_at_once(world: World) -> None:
    writer = world.writer()
    for _ in range(3):
        die(writer.acquire(NAME, seconds=0))
    writer.acquire(NAME, seconds=0).release()
    assert [*world.recorded()] == []


def test_lease_of_a_paused_holder_allows_no_deletion_when_another_may_have_it(world: World) -> None:
    with lease(world.settings, NAME):
        must_hold(world.settings, NAME)
        world.clock.at += EXPIRED
        with pytest.raises(Unavailable, match="another host may hold") if world.waits else nullcontext():
            must_hold(world.settings, NAME)


def test_lease_of_a_renewing_holder_is_not_overtaken(world: World) -> None:
    held = world.hold()
    world.clock.meanwhile = held.renew
    for _ in range(100):
        held.renew()
    with pytest.raises(LeaseHeld):
        world.hold(seconds=10 * world.waits)
    held.must_hold()


def test_lease_is_reentrant_in_a_thread_alone(world: World) -> None:
    def enter() -> None:
        with lease(world.settings, NAME, seconds=0):
            pass

    with lease(world.settings, NAME) as outer, ThreadPoolExecutor(1) as pool:
        with lease(world.settings, NAME) as inner:
            assert inner is outer
        assert isinstance(pool.submit(enter).exception(), LeaseHeld)
        with pytest.raises(LeaseHeld):
            world.hold()
    enter()
    with pytest.raises(KeyError):
        must_hold(world.settings, NAME)


@pytest.mark.parametrize("error", [KeyboardInterrupt, LeaseHeld(NAME, Holder(), where="", seconds=0)])
def test_lease_is_free_when_its_block_fails(world: World, error: BaseException | type[BaseException]) -> None:
    with pytest.raises((KeyboardInterrupt, LeaseHeld)), lease(world.settings, NAME):
        raise error
    world.hold()
    assert world.clock.at == 1000


def test_lease_leaves_nothing_but_its_number_when_released(world: World) -> None:
    with lease(world.settings, NAME):
        [holder] = world.recorded()
        assert json.loads(holder.read_text()).keys() - {"epoch"} == {"command", "pid", "since"}
    with lease(world.settings, NAME, hosts=False):
        pass
    assert [*world.recorded()] == []
    if world.settings.urls:
        bucket = Warehouse(world.settings).root / "locks" / NAME
        assert [file.name for file in bucket.list()] == ["00000001", "00000001.end"]
        assert json.loads((bucket / "00000001").read()).keys() == {"host", "command", "pid", "since"}


def test_leases_of_a_kind_are_acquired_after_a_prefetch(world: World) -> None:
    leases(world.settings).prefetch("table")
    world.hold().release()
    leases(world.settings).prefetch("table")
    with lease(world.settings, NAME, seconds=0), pytest.raises(LeaseHeld):
        world.hold()


def test_waiting_for_a_process_of_this_machine_is_reported(
    project: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(locks, "SILENT", 0)
    world = World(project, waits=0)
    world.hold("consumer.bi.orders")
    with caplog.at_level(logging.WARNING, "lake"), pytest.raises(LeaseHeld, match="is being read for by"):
        world.hold("consumer.bi.orders", seconds=0.001)
    assert "waiting for consumer bi.orders, held by" in caplog.text
