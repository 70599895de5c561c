"""A lease that several hosts can take: numbered epochs in the store of the warehouse, of which no clock is compared.

`locks/NAME/` there holds, for the newest epoch and those before it:

    00000007               who holds epoch 7, as JSON; the number is taken by put-if-absent
    00000007.beat00000012  its twelfth sign of life; the one before is removed
    00000007.end           it was let go

Who wants the lease takes the next number once the newest epoch was let go, or once its newest file has been the same
for EXPIRED seconds by the clock of who waits. So a holder that was paused for longer may find itself overtaken. Its
commit is made to the version it has read or fails; before it deletes files it asks `must_hold`.
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Any, Final

from lake.config import Settings
from lake.errors import LakeError, Unavailable
from lake.store.storage import Address, Entry
from lake.store.warehouse import Warehouse

BEAT: Final = 7.0
"""Seconds from one sign of life to the next."""
EXPIRED: Final = 30.0
"""After so many seconds without one, a holder is taken for dead."""
LOOK: Final = 1.0
"""Seconds from one look at a lease that is held to the next."""
_FILE: Final = re.compile(r"\d{8}(\.end|\.beat\d{8})?")
LISTED: Final = 1000
"""So many files of leases are looked at together, at most."""
KEPT: Final = 600.0
"""Files of a lease that are so many seconds older than its newest, by the store's clock, are removed."""


class Held(Exception):
    """Another host holds the lease, and has been waited for."""

    def __init__(self, note: Mapping[str, Any]) -> None:
        super().__init__(note)
        self.note = note


def clock() -> float:
    """Seconds, of which none is left out while the machine sleeps, where it can tell."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def pause(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)


@dataclass(frozen=True)
class Standing:
    """The newest epoch of a lease: its sign of life, and whether it was let go; names of files that may be removed."""

    number: int = 0
    beat: str = ""
    ended: bool = True
    old: tuple[str, ...] = field(default=(), compare=False)


@dataclass
class Epoch:
    """An epoch that this process holds; `alive` is the time of its last sign of life."""

    folder: Address
    number: int
    alive: float
    beats: int = 0
    lost: bool = False

    @property
    def name(self) -> str:
        return f"{self.number:08}"

    def beat(self) -> None:
        """Says that it is held, and finds out whether it still is."""
        begun = clock()
        self._put(f"beat{self.beats + 1:08}")
        if self.beats:
            (self.folder / f"{self.name}.beat{self.beats:08}").delete()
        self.beats += 1
        self.lost = standing(self.folder).number != self.number
        self.alive = begun

    def end(self) -> None:
        """Lets it go."""
        self._put("end")

    def _put(self, what: str) -> None:
        (self.folder / f"{self.name}.{what}").put_if_absent(b"")


def take(settings: Settings, name: str, note: Mapping[str, Any], *, seconds: float, dead: int | None) -> Epoch:
    """Takes the lease `name`, within `seconds`, or EXPIRED where its holder gives no sign of life; says `note` of it.

    Of epoch `dead` it is known that its process has died. Raises Held.
    """
    folder = _folder(settings) / name
    before, since, begun, is_alive = None, 0.0, clock(), False
    seen, seen_at = _seen.pop(folder.url, (Standing(ended=False), 0.0))
    if seen.ended and begun - seen_at <= EXPIRED and (epoch := _taken(folder, note, seen, seen_at)):
        return Keeper.keep(settings, name, epoch)
    while True:
        now, at = standing(folder), clock()
        if before != now:
            is_alive = is_alive or before is not None
            before, since = now, at
        if now.ended or now.number == dead or at - since >= EXPIRED:
            if epoch := _taken(folder, note, now, at):
                return Keeper.keep(settings, name, epoch)
        elif at - begun >= (seconds if is_alive or not seconds else max(seconds, EXPIRED)):
            raise Held(_note(folder, now.number))
        else:
            pause(LOOK)


def _taken(folder: Address, note: Mapping[str, Any], now: Standing, at: float) -> Epoch | None:
    """The epoch after the newest, which was so `now` when it was looked `at`; None where another has taken it."""
    epoch = Epoch(folder, now.number + 1, clock())
    if not (folder / epoch.name).put_if_absent(json.dumps(note).encode()):
        return None
    if clock() - at > EXPIRED and standing(folder).number != epoch.number:
        return None  # its number was taken before, let go and removed meanwhile
    Keeper.old.extend(folder / old for old in now.old)
    return epoch


_seen: Final[dict[str, tuple[Standing, float]]] = {}
"""How leases stood when they were last looked at together, and when that was, by the URLs of their folders."""


def prefetch(settings: Settings, kind: str) -> None:
    """List the leases of a warehouse in a bucket together, from those of a `kind` on. Nothing fails by it.

    For EXPIRED seconds a lease that was released can be taken without a look at it.
    """
    if not settings.store:
        return
    folder, at = _folder(settings), clock()
    files = defaultdict[str, list[Entry]](list)
    with suppress(FileNotFoundError, LakeError):
        for entry in islice(folder.list(deep=True, after=f"{kind}."), LISTED):
            name, _, file = entry.name.partition("/")
            files[name].append(replace(entry, name=file))
    if sum(map(len, files.values())) == LISTED:
        files.popitem()  # of the last one there may be more
    _seen.clear()
    _seen.update({(folder / name).url: (_standing(files[name]), at) for name in files})


def _folder(settings: Settings) -> Address:
    return Warehouse(settings).root / "locks"


def standing(folder: Address) -> Standing:
    """How the lease stands whose files are in `folder`: let go, where there are none."""
    with suppress(FileNotFoundError):
        return _standing(folder.list())
    return Standing()


def _standing(entries: Iterable[Entry]) -> Standing:
    files = [entry for entry in entries if _FILE.fullmatch(entry.name)]  # and nothing that somebody else has put there
    if not files:
        return Standing()
    number = max(int(file.name[:8]) for file in files)
    signs = [file.name for file in files if file.name.startswith(f"{number:08}.")]
    beat = max((sign for sign in signs if "beat" in sign), default="")
    newest = max(file.time for file in files)
    old = (file.name for file in files if int(file.name[:8]) < number and file.time < newest - KEPT)
    return Standing(number, beat, ended=f"{number:08}.end" in signs, old=tuple(old))


def must_hold(settings: Settings, name: str) -> None:
    """Raises Unavailable where this process may have been overtaken: it is to delete nothing. One machine's lock is."""
    epoch = Keeper.held.get((settings.store, name))
    if epoch is not None and (epoch.lost or clock() - epoch.alive > EXPIRED - BEAT):
        raise Unavailable(
            f"this process was too long without a sign of life: another host may hold {name}",
            where=str(epoch.folder),
            fix="run the command again",
        )


def held(settings: Settings, name: str) -> int:
    """The number of the epoch under which this process holds a lease; 0 where that is one machine's alone."""
    epoch = Keeper.held.get((settings.store, name))
    return epoch.number if epoch else 0


def let_go(settings: Settings, name: str) -> None:
    """Release the lease `name` if this process holds it: the next may have it at once."""
    epoch = Keeper.held.pop((settings.store, name), None)
    if epoch is not None:
        try:
            epoch.end()
        except (LakeError, OSError) as error:  # then it expires
            logging.getLogger("lake").warning("%s was not let go: %s", name, error)


def _note(folder: Address, number: int) -> Mapping[str, Any]:
    with suppress(FileNotFoundError, ValueError):
        note = json.loads((folder / f"{number:08}").read())
        return note if isinstance(note, dict) else {}
    return {}


class Keeper:
    """One thread that renews every epoch this process holds, and removes the old files of leases."""

    held: Final[dict[tuple[str, str], Epoch]] = {}
    old: Final[list[Address]] = []
    """Files of leases that may be removed when there is time."""
    thread: threading.Thread | None = None

    @classmethod
    def keep(cls, settings: Settings, name: str, epoch: Epoch) -> Epoch:
        cls.held[settings.store, name] = epoch
        cls.start()
        return epoch

    @classmethod
    def start(cls) -> None:
        if cls.thread is None or not cls.thread.is_alive():
            cls.thread = threading.Thread(target=cls._run, name="leases", daemon=True)
            cls.thread.start()

    @classmethod
    def _run(cls) -> None:
        while True:
            pause(BEAT)
            held = [epoch for epoch in list(cls.held.values()) if not epoch.lost]
            for epoch in held:
                with suppress(LakeError, OSError):  # `alive` tells
                    epoch.beat()
            cls.tidy()

    @classmethod
    def tidy(cls) -> None:
        """Removes what is `old`."""
        old, cls.old[:] = [*cls.old], []
        with suppress(LakeError, OSError):
            for storage, files in groupby(old, lambda file: file.storage):
                storage.delete_all([file.url for file in files])


atexit.register(Keeper.tidy)
