"""Who is at work on a warehouse in a bucket, on whatever machine: a note of each process there, and signs of its life.

`locks/reads/` there holds, for each process,

    ID            what it says of itself, as JSON
    ID.00000012   its twelfth sign of life; the one before is removed

All times are those of the store's clock, but one: how long before its note a process had begun to read, which is a
duration. Who has given no sign for SILENT seconds is taken for dead, and removed by whoever asks; should it only have
slept, files may be gone that it was about to read, and it fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Lock
from typing import Any, Final

from lake.store.storage import Address, Entry

SILENT: Final = 300.0
"""Seconds after its newest sign of life from which on a process is taken for dead."""
APART: Final = 60.0
"""Seconds by which the clocks of hosts and of the store may differ: who reads is taken to have begun so much before."""


@dataclass(eq=False)
class Presence:
    """What this process says in `folder` under the name `id`; it has given so many signs of life."""

    folder: Address
    id: str = ""
    beats: int = 0
    _lock: Lock = field(default_factory=Lock)

    def say(self, note: Mapping[str, Any]) -> None:
        """Says this from now on, in the place of what it said before: one of both is there at any time."""
        with self._lock:
            name = token_hex(8)
            (self.folder / name).put_if_absent(json.dumps(note).encode())
            before, self.id, self.beats = self._files(), name, 0
            self.folder.storage.delete_all(before)

    def beat(self) -> None:
        """Gives a sign of life."""
        with self._lock:
            if self.id:
                before = self._files()[1:]
                (self.folder / f"{self.id}.{self.beats + 1:08}").put_if_absent(b"")
                self.beats += 1
                self.folder.storage.delete_all(before)

    def leave(self) -> None:
        """Is no longer there."""
        with self._lock:
            before, self.id, self.beats = self._files(), "", 0
            self.folder.storage.delete_all(before)

    def _files(self) -> list[str]:
        note = f"{self.folder}/{self.id}"
        return [note, *([f"{note}.{self.beats:08}"] if self.beats else [])] if self.id else []


def present(folder: Address) -> Iterator[tuple[Mapping[str, Any], float]]:
    """What each process says that is there, and since when it may be reading, in seconds since 1970.

    Those that are dead are removed.
    """
    probe = folder / f"{token_hex(8)}.now"
    probe.put_if_absent(b"")
    entries = list(folder.list())
    now = max(entry.time for entry in entries)
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.name.partition(".")[0], []).append(entry)
    dead = {name for name, own in found.items() if now - max(entry.time for entry in own) > SILENT}
    gone = [f"{folder}/{entry.name}" for name in dead for entry in found[name]]
    folder.storage.delete_all([str(probe), *gone])
    for name in found.keys() - dead:
        for entry in found[name]:
            if entry.name == name:
                with suppress(FileNotFoundError):  # it has said something else since
                    note = json.loads((folder / name).read())
                    yield note, entry.time - note["back"] - APART
