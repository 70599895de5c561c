"""Inputs of `lake run`: while they are unchanged, `IdleRuns` repeats the last answer, and `--follow` starts no cycle.

A run depends on the newest versions of the tables and on files of this machine: landed ones, those of the project, of
the key store and of imported modules, and on which files the tables have.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from stat import S_ISLNK
from tempfile import TemporaryDirectory
from typing import Any, Final

from lake.config import Settings
from lake.session import file_modes
from lake.store.delta import newest_version, prefetch
from lake.store.storage import Address, Entry, address_of
from lake.store.view import view
from lake.store.warehouse import KINDS, Warehouse

ENVIRONMENT: Final = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "JAVA_", "JDK_", "LAKE_", "PYSPARK_", "PYTHON", "SPARK_")
"""Beginnings of the names of variables that a run depends on."""
SECOND: Final = 1_000_000_000
TICK: Final = SECOND // 10
"""Nanoseconds within which two changes may have one time; for a time in whole seconds, twenty times as many."""


@dataclass(frozen=True)
class Change:
    """Identity of a file and of that to which it links, and their times of change, which users cannot set."""

    inode: int
    time: int
    target: int
    target_time: int

    @classmethod
    def of(cls, path: str) -> Change:
        target = own = os.lstat(path)
        if S_ISLNK(own.st_mode):
            with suppress(OSError):  # a link that leads nowhere, or in a circle
                target = os.stat(path)
        return cls(own.st_ino, own.st_ctime_ns, target.st_ino, target.st_ctime_ns)


@dataclass(frozen=True)
class RunInputs:
    """All that decides whether a run has work, except sources, the clock and the program itself.

    `changes`: local files. `versions`: tables in object storage, by URL. `landed`: files there.
    """

    changes: dict[str, Change]
    versions: dict[str, int | None]
    landed: list[Entry]

    @classmethod
    def now(cls, settings: Settings) -> RunInputs:
        paths, remote, landed = list[str](), list[Address](), list[Entry]()
        for place in Warehouse(settings).folders(*KINDS):
            if folder := place.path.on_disk:
                paths += [str(folder), *_folders_and_commits(folder)]
            else:
                remote.append(place.path)
        with view():
            prefetch(remote)
            versions = {table.url: newest_version(table) for table in remote}
        folders = ["schemas", "jobs", "quality", *map(str, (settings.sources, settings.sinks, settings.alerts))]
        landing = address_of(settings, settings.landing)
        if landing.on_disk:
            folders.append(str(settings.landing))
        else:
            with suppress(FileNotFoundError):
                landed += landing.list(deep=True)
        for folder in map(settings.path, folders):
            paths += [str(folder), *_paths_below(folder)]
        paths += [str(settings.keys_path), f"{settings.keys_path}-wal"]
        return cls(dict(_changes(paths)), versions, landed)

    def changed_just_before(self, moment: int) -> bool:
        times = (time for change in self.changes.values() for time in (change.time, change.target_time))
        return any(time > moment - (TICK if time % SECOND else 20 * TICK) for time in times)


@dataclass(frozen=True)
class IdleRun:
    """Answer of a run, and the digest of all that it depends on, also the files `imported`."""

    data: dict[str, Any]
    text: str
    warnings: list[str]
    imported: list[str]
    digest: str


class IdleRuns:
    """Store of the last run of a project, if it found nothing to do.

    Answers are not repeated if a run asks other systems, or lists folders in an object storage, which costs requests.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.began = settings, time.time_ns()
        self.inputs: RunInputs | None = None
        if not (settings.urls or settings.keys_url):
            with suppress(Exception):  # the run reports what cannot be read
                self.inputs = RunInputs.now(settings)

    def last(self) -> IdleRun | None:
        """Return the last run if this one would have the same answer."""
        with suppress(OSError, ValueError, TypeError):
            run = IdleRun(**json.loads(self._file.read_bytes()))
            if self.inputs is not None and run.digest == self._digest(run.imported):
                return run
        return None

    def keep(self, data: dict[str, Any], text: str, warnings: list[str]) -> None:
        """Keep the answer of this run, which neither changed anything nor asked other systems."""
        if self.inputs is None or self.inputs.changed_just_before(self.began):
            return
        if self.inputs != RunInputs.now(self.settings):
            return
        files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
        imported = sorted(file for file in files if file)
        run = IdleRun(data, text, warnings, imported, self._digest(imported))
        with suppress(OSError), TemporaryDirectory(dir=file_modes.scratch(self.settings, "idle")) as folder:
            new = Path(folder, self._file.name)
            new.write_text(json.dumps(asdict(run)), "utf-8")
            new.replace(self._file)

    @property
    def _file(self) -> Path:
        return self.settings.path(".lake/idle/run.json")

    def _digest(self, imported: list[str]) -> str:
        environment = sorted(variable for variable in os.environ.items() if variable[0].startswith(ENVIRONMENT))
        program = os.geteuid(), os.getgroups(), environment, sys.version, sys.path, [*_changes(imported)]
        parts = self.settings, self.settings.keys, self.inputs, program
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _paths_below(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        if not parent.endswith("__pycache__"):
            yield from (f"{parent}/{name}" for name in (*folders, *files))


def _folders_and_commits(table: Path) -> Iterator[str]:
    """Yield the folders of a table, which change when a name in them comes or goes, and its newest commit."""
    for parent, folders, files in os.walk(table):
        yield from (f"{parent}/{name}" for name in folders)
        if parent.endswith("_delta_log"):
            yield from (f"{parent}/{name}" for name in sorted(name for name in files if name.endswith(".json"))[-1:])


def _changes(paths: Iterable[str]) -> Iterator[tuple[str, Change]]:
    for path in paths:
        with suppress(OSError):  # removed meanwhile
            yield path, Change.of(path)
