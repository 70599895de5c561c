"""What this process is at work on: verbs say what they begin, how far they are and that it has ended.

Nobody need watch. A terminal, or a log for machines, watches by `watch`; see `lake.cli.progress`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(eq=False)
class ProgressStep:
    """A verb's work on one subject: a table, a stream, the session.

    Of `total` bytes, where it is known how many there are to read, so many are `done`. `rows` is how many it
    has written or looked at, where it says so. `seconds`, and whether it `failed`, are set when it has ended.
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
        """So many bytes are left; the first time, all there are."""
        if self.total is None:
            self.total = left
        self.done = max(self.total - left, self.done)
        _Watching.by.advanced(self)


class Watcher(Protocol):
    """Who is told; from several threads, as tables are worked on side by side."""

    def begun(self, step: ProgressStep) -> None:
        """`step` begins."""

    def advanced(self, step: ProgressStep) -> None:
        """More of `step` is done."""

    def ended(self, step: ProgressStep) -> None:
        """`step` has ended."""


class Nobody:
    """Is told, and tells no one."""

    def begun(self, step: ProgressStep) -> None:
        """Does nothing."""

    advanced = ended = begun


class _Watching:
    by: Watcher = Nobody()


def watch(watcher: Watcher) -> None:
    """Has `watcher` told of every step of this process from now on."""
    _Watching.by = watcher


@contextmanager
def step(verb: str, subject: str) -> Iterator[ProgressStep]:
    """The block is work of `verb` on `subject`."""
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
