"""Cache of open editions, and how long their files must be kept.

This process reports to `lake maintain` the start of its oldest running query or valid file URL. Files deleted from
tables after that moment are kept.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final

from lake.config import Settings
from lake.errors import DeclarationError
from lake.read import sql
from lake.read.sql import CURRENT, EditionChoice, EditionReader
from lake.serve.problems import Problem
from lake.store.ledger import editions
from lake.store.ledger.editions import Edition
from lake.store.ledger.grants import Grant
from lake.store.locks import activity
from lake.store.locks.activity import Moment
from lake.store.snapshot import Published

LOOK_SECONDS: Final = 0.2
OPEN: Final = 8


@dataclass
class EditionCache:
    """Open editions of a project. Thread-safe."""

    settings: Settings
    _current: Edition | None = None
    _looked: float = 0.0
    _opened: OrderedDict[int, dict[str, Published]] = field(default_factory=OrderedDict)
    _since: Moment | None = None
    _held: dict[int, tuple[Moment, float]] = field(default_factory=dict)
    _last: int = 0
    _lock: Lock = field(default_factory=Lock)
    _looking: Lock = field(default_factory=Lock)

    def reader(self, grant: Grant, asked: EditionChoice) -> EditionReader:
        return self._reader(grant, self._edition(asked))

    def cached_reader(self, grant: Grant, asked: EditionChoice) -> EditionReader | None:
        """Return a reader without waiting; None if an edition has to be looked up."""
        is_cached = asked == CURRENT and time.monotonic() - self._looked < LOOK_SECONDS
        return self._reader(grant, self._current) if is_cached and self._current else None

    def _reader(self, grant: Grant, edition: Edition) -> EditionReader:
        seen = {name: entry for name, entry in edition.tables.items() if grant.covers(f"{entry.layer}.{name}")}
        return EditionReader(
            self.settings,
            replace(edition, tables=seen),
            may_read=grant.covers,
            is_limited=True,
            opened=self._tables(edition.number),
        )

    @contextmanager
    def keep_files(self, *, seconds: float = 0) -> Iterator[None]:
        """Keep the present files while the block runs, and for at least `seconds` from its start."""
        with self._lock:
            self._last = number = self._last + 1
            since = self._since or activity.moment(self.settings)
            self._held[number] = (since, float("inf"))
        until = time.monotonic() + seconds
        try:
            yield
        finally:
            with self._lock:
                self._held[number] = (since, until)

    def renew(self) -> None:
        now = activity.moment(self.settings)
        with self._looking, self._lock:
            self._looked = 0.0  # the next lookup finds an edition no older than `now`
            clock = time.monotonic()
            self._held = {number: held for number, held in self._held.items() if held[1] > clock}
            oldest = min((since for since, _ in self._held.values()), key=lambda since: since.time, default=now)
            self._since = now
        activity.renew(self.settings, oldest)

    def _edition(self, asked: EditionChoice) -> Edition:
        try:
            if asked != CURRENT:
                return sql.reader(self.settings, asked.edition, cut=asked.cut).edition
        except DeclarationError as error:
            raise Problem("no-edition", error.what) from None
        with self._looking:
            if (now := time.monotonic()) - self._looked >= LOOK_SECONDS:
                self._current, self._looked = editions.current_edition(self.settings), now
            current = self._current
        if current is None:
            raise Problem("nothing-published", "no edition has been published yet", after=10)
        return current

    def _tables(self, number: int) -> dict[str, Published]:
        with self._lock:
            opened = self._opened.setdefault(number, {})
            self._opened.move_to_end(number)
            while len(self._opened) > OPEN:
                self._opened.popitem(last=False)
            return opened
