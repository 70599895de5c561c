"""Files that are being read, and those over which whoever read them died: Spark's JVM, or the process itself.

    locks/log.STREAM.reading    {"now": [mark, …], "died": [[mark, deaths, at_most], …]}

Files are noted before they are read and struck out afterwards, however that ends but by a death. After one, whoever
comes next takes few of them at once, `at_most`, in the end each alone; a file alone over which two died is not read
again until it changes. The log's lease is held meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lake import file_modes
from lake.config import Settings
from lake.ingest.files import File, Mark
from lake.session import Gone, gone
from lake.store.log import Log

DEATHS: Final = 2
PARTS: Final = 32
"""How many parts a batch is divided into after its reader died: of a thousand files, 31 are read at once, then one."""
SHOWN: Final = 3


@dataclass(frozen=True)
class Suspect:
    """`deaths` of those who read a file; the next reads `at_most` so many with it, 0 where it was alone already."""

    deaths: int = 0
    at_most: int = 0

    @property
    def fault(self) -> str:
        """Why the file is not read again, "" where it is."""
        if self.deaths < DEATHS or self.at_most:
            return ""
        return f"the JVM or the process ended while it read this file, {self.deaths} times"


def suspects(settings: Settings, stream: str) -> dict[Mark, Suspect]:
    """The files of `stream` over which somebody died."""
    now, died = _read(_path(settings, stream))
    at_most = 0 if len(now) == 1 else max(1, len(now) // PARTS)
    return died | {mark: Suspect(died.get(mark, Suspect()).deaths + 1, at_most) for mark in now}


def few(settings: Settings, stream: str, files: list[File]) -> list[File]:
    """The first of `files`, as many as may be read at once."""
    suspected = suspects(settings, stream)
    doubtful = [file.mark in suspected and not suspected[file.mark].fault for file in files]
    if not any(doubtful):
        return files
    return files[: max(1, suspected[files[0].mark].at_most)] if doubtful[0] else files[: doubtful.index(True)]


@contextmanager
def at_work(settings: Settings, stream: str, marks: Iterable[Mark]) -> Iterator[None]:
    """Notes that `marks` are read while the block runs; they are read then, and above suspicion.

    Raises Gone, which names them, where the session is lost.
    """
    path, suspected, now = _path(settings, stream), suspects(settings, stream), list(marks)
    _write(path, now, suspected)
    try:
        yield
    except BaseException as error:
        lost = gone(error)
        if lost is None:
            _write(path, [], suspected)
            raise
        names = ", ".join(name for name, *_ in now[:SHOWN]) + (f" and {len(now) - SHOWN} more" if now[SHOWN:] else "")
        raise Gone(
            f"{lost.what} while reading {names}",
            where=lost.where,
            fix=f"try again: fewer files are read at once then, and a file that alone ends the JVM goes to quarantine; "
            f"{lost.fix}",
        ) from error
    _write(path, [], {mark: suspect for mark, suspect in suspected.items() if suspect.fault or mark not in now})


def _path(settings: Settings, stream: str) -> Path:
    return file_modes.locks(settings) / f"{Log(settings, stream).lease}.reading"


def _read(path: Path) -> tuple[list[Mark], dict[Mark, Suspect]]:
    """What is noted; nothing where the note is torn."""
    try:
        note = json.loads(path.read_text("utf-8"))
        died = {_mark(mark): Suspect(int(deaths), int(at_most)) for mark, deaths, at_most in note["died"]}
        return [_mark(mark) for mark in note["now"]], died
    except (OSError, ValueError, TypeError, KeyError):
        return [], {}


def _mark(noted: tuple[str, int, int, *tuple[str, ...]]) -> Mark:
    name, size, mtime, *tag = noted
    return (str(name), int(size), int(mtime), *map(str, tag))


def _write(path: Path, now: list[Mark], died: Mapping[Mark, Suspect]) -> None:
    if not now and not died:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".new")
    new.write_text(
        json.dumps({"now": now, "died": [[mark, suspect.deaths, suspect.at_most] for mark, suspect in died.items()]})
    )
    os.replace(new, path)
