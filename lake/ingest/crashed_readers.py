"""Files whose reader crashed: Spark's JVM, or this process.

    locks/log.STREAM.reading    {"now": [mark, …], "left": [mark, …], "deaths": 2}

`now` are the files being read: if a new reader finds this note, the previous one crashed. After two crashes the batch's
files are read one by one; `left` are those not read yet. A file that crashes its reader alone goes to quarantine. The
caller holds the log's lease.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from lake.config import Settings
from lake.ingest.files import File, Mark
from lake.session import file_modes
from lake.session.spark_session import Gone, gone
from lake.store.log import Log
from lake.text import some_of

DEATHS: Final = 2


class Crashes(NamedTuple):
    deaths: int = 0
    now: tuple[Mark, ...] = ()
    left: tuple[Mark, ...] = ()

    @property
    def marks(self) -> set[Mark]:
        return {*self.now, *self.left}

    def fault(self, mark: Mark) -> str:
        killed = self.deaths > DEATHS and self.now == (mark,)
        return "the JVM or the process ended while it read this file alone" if killed else ""


def crashes(settings: Settings, stream: str) -> Crashes:
    try:
        note = json.loads(_path(settings, stream).read_text("utf-8"))
        now, left = (tuple((*mark,) for mark in note[name]) for name in ("now", "left"))
        return Crashes(int(note["deaths"]) + bool(now), now, left)
    except (OSError, ValueError, TypeError, KeyError):
        return Crashes()


def readable_at_once(settings: Settings, stream: str, files: list[File]) -> list[File]:
    """Return `files`; after two crashes only the first of those that may crash the reader again."""
    earlier = crashes(settings, stream)
    suspects = [file for file in files if file.mark in earlier.marks] if earlier.deaths >= DEATHS else []
    return suspects[:1] or files


@contextmanager
def reading_of(settings: Settings, stream: str, marks: Sequence[Mark]) -> Iterator[None]:
    """Record that `marks` are read in the block. Raises Gone, which names them, if the session is lost."""
    path, before = _path(settings, stream), crashes(settings, stream)
    if before.marks.isdisjoint(marks):
        before = Crashes()
    left = sorted(before.marks.difference(marks))
    _write(path, before.deaths, marks, left)
    try:
        yield
    except BaseException as error:
        session_lost = gone(error)
        if session_lost is None:
            _write(path, before.deaths, [], sorted(before.marks))
            raise
        raise Gone(
            f"{session_lost.what} while reading {some_of([name for name, *_ in marks])}",
            where=session_lost.where,
            fix="try again: after two such ends they are read one by one, and one that alone ends the JVM goes to"
            f" quarantine; {session_lost.fix}",
        ) from error
    _write(path, before.deaths, [], left if before.deaths >= DEATHS else [])


def _path(settings: Settings, stream: str) -> Path:
    return file_modes.locks(settings) / f"{Log(settings, stream).lease}.reading"


def _write(path: Path, deaths: int, now: Sequence[Mark], left: Sequence[Mark]) -> None:
    if not now and not left:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"now": now, "left": left, "deaths": deaths}), "utf-8")
    os.replace(new, path)
