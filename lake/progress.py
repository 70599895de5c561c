"""Progress of this process: verbs report the begin, progress and end of their steps to a watcher, if there is one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

OnProgress: TypeAlias = Callable[[str], None]
"""Receiver of progress messages for people."""


@dataclass(eq=False)
class ProgressStep:
    """Work on one subject: a table, a stream, the session.

    `done` of `total` bytes are read, and `rows` written or read, if known. `seconds` and `failed` are set at its end.
    """

    verb: str
    subject: str
    total: int | None = None
    done: int = 0
    rows: int | None = None
    failed: bool = False
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0

    def remain(self, left: int) -> None:
        if self.total is None:
            self.total = left
        self.done = max(self.total - left, self.done)
        _Watching.by.advanced(self)


class Watcher:
    """Receiver of progress, which it ignores; called from several threads if tables are processed in parallel."""

    def begun(self, step: ProgressStep) -> None: ...

    def advanced(self, step: ProgressStep) -> None: ...

    def ended(self, step: ProgressStep) -> None: ...


class _Watching:
    by = Watcher()


def watch(watcher: Watcher) -> None:
    _Watching.by = watcher


class _Delayed(Watcher):
    def __init__(self, watcher: Watcher, reports: list[Callable[[], None]]) -> None:
        self.watcher, self.reports = watcher, reports

    def begun(self, step: ProgressStep) -> None:
        self.reports.append(partial(self.watcher.begun, step))

    def advanced(self, step: ProgressStep) -> None:
        self.reports.append(partial(self.watcher.advanced, step))

    def ended(self, step: ProgressStep) -> None:
        self.reports.append(partial(self.watcher.ended, step))


@contextmanager
def delayed(reports: list[Callable[[], None]]) -> Iterator[None]:
    """Append the reports of steps in the block to `reports`, to be made later or dropped."""
    before = _Watching.by
    watch(_Delayed(before, reports))
    try:
        yield
    finally:
        watch(before)


@contextmanager
def step(verb: str, subject: str) -> Iterator[ProgressStep]:
    work = ProgressStep(verb, subject)
    _Watching.by.begun(work)
    try:
        yield work
    except BaseException:
        work.failed = True
        raise
    finally:
        work.seconds = time.monotonic() - work.began
        _Watching.by.ended(work)
