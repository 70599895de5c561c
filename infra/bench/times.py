"""Seconds by name, and how they are printed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median


@dataclass
class Times:
    """Seconds by name, several of each."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)

    def __getitem__(self, name: str) -> float:
        return median(self.seconds[name])


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)


def line(name: str, seconds: float, more: str) -> None:
    print(f"{name:<26}{seconds:9.2f} s  {more}", flush=True)
