"""Backpressure of the intake: limits of concurrent requests, memory, event rate and files not yet ingested."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from lake.serve.intake_folder import Backlog, IntakeFolder
from lake.serve.problems import Problem

MEASURE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 10.0
BUSY_RETRY_SECONDS: Final = 1.0
SIGNED_DIVISOR: Final = 4
"""Divisor of the limits for requests without a token: their signature is checked when the body is complete."""


@dataclass(frozen=True)
class IntakeLimits:
    """Limits of one server, in bytes, requests, files, seconds and events per second (`rate`; 0: none)."""

    max_body: int = 16 << 20
    signed_body: int = 1 << 20
    max_records: int = 10_000
    max_requests: int = 256
    max_memory: int = 64 << 20
    rate: int = 0
    backlog_files: int = 100_000
    backlog_bytes: int = 1 << 30
    free_bytes: int = 1 << 30
    body_seconds: int = 30


@dataclass
class Rate:
    """Token bucket of one stream."""

    per_second: int
    clock: Callable[[], float] = time.monotonic
    left: float = 0.0
    at: float = field(default=-math.inf)

    def take(self, events: int) -> None:
        """Take a token for each event. Raises Problem with the seconds to wait.

        A full bucket admits a request of any size, and is then in debt.
        """
        if not self.per_second:
            return
        now = self.clock()
        self.left, self.at = min(float(self.per_second), self.left + (now - self.at) * self.per_second), now
        missing = min(events, self.per_second) - self.left
        if missing > 0:
            wait = missing / self.per_second
            raise Problem("too-fast", f"more than {self.per_second:,} events a second", after=wait)
        self.left -= events


@dataclass
class Load:
    max_requests: int
    max_bytes: int
    requests: int = 0
    size: int = 0


@dataclass
class BodyMemory:
    loads: Sequence[Load]
    limit: int
    size: int = 0

    @property
    def left(self) -> int:
        return self.limit - self.size

    def check(self, size: int) -> None:
        if size > self.left:
            raise Problem("too-long", f"more than {self.limit:,} bytes", max_body=self.limit)

    def reserve(self, size: int) -> None:
        self.check(size)
        if any(load.size + size > load.max_bytes for load in self.loads):
            raise Problem("too-many", "too many request bytes in flight", after=BUSY_RETRY_SECONDS)
        for load in self.loads:
            load.size += size
        self.size += size


@dataclass
class Backpressure:
    """Limits, and the measured load. `measure` runs in a thread, all else on the event loop."""

    folder: IntakeFolder
    limits: IntakeLimits
    waiting: Backlog = field(default_factory=Backlog)
    free: float = math.inf
    added_files: int = 0
    added_bytes: int = 0

    def __post_init__(self) -> None:
        requests, memory = self.limits.max_requests, self.limits.max_memory
        self._all = Load(requests, memory)
        self._signed = Load(max(1, requests // SIGNED_DIVISOR), memory // SIGNED_DIVISOR)

    def measure(self) -> tuple[Backlog, float]:
        status = os.statvfs(self.folder.path)
        return self.folder.waiting(self.folder.taken), float(status.f_bavail * status.f_frsize)

    def update(self, waiting: Backlog, free: float) -> None:
        self.waiting, self.free, self.added_files, self.added_bytes = waiting, free, 0, 0

    @contextmanager
    def request(self, *, has_token: bool = True) -> Iterator[BodyMemory]:
        """Count a request while the block runs.

        Raises Problem if too many requests run, the backlog is too large, or the disk is nearly full.
        """
        loads = [self._all] if has_token else [self._signed, self._all]
        for load in loads:
            if load.requests >= load.max_requests:
                raise Problem("too-many", f"{load.requests} requests in flight", after=BUSY_RETRY_SECONDS)
        files, size = self.waiting.files + self.added_files, self.waiting.size + self.added_bytes
        if files >= self.limits.backlog_files or size >= self.limits.backlog_bytes:
            raise Problem("backlog", f"{files:,} files of {size:,} bytes have not been ingested", after=RETRY_SECONDS)
        free = max(0.0, self.free - self.added_bytes)
        if free < self.limits.free_bytes or not free:
            detail = f"{free:,.0f} bytes are free, and {self.limits.free_bytes:,} have to stay free"
            raise Problem("disk", detail, after=RETRY_SECONDS)
        largest = self.limits.max_body if has_token else min(self.limits.max_body, self.limits.signed_body)
        memory = BodyMemory(loads, largest)
        for load in loads:
            load.requests += 1
        try:
            yield memory
        finally:
            for load in loads:
                load.requests -= 1
                load.size -= memory.size

    def count_written(self, size: int) -> None:
        self.added_files, self.added_bytes = self.added_files + 1, self.added_bytes + size
