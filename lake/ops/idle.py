"""Runs without news: `lake run` repeats the answer of its last run if that found nothing to do and nothing changed.

A run depends on the newest versions of the tables, on landed files, on the settings, and on the files of the project
and of all imported modules. Runs that ask systems outside of the project are not repeated, nor those with folders in an
object storage, which would be listed twice.
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
from tempfile import NamedTemporaryFile
from typing import Any, Final

from lake.config import Settings
from lake.session import file_modes
from lake.store.delta import newest_version, prefetch
from lake.store.storage import Address, Entry, address_of
from lake.store.table_log import commit_file
from lake.store.view import view
from lake.store.warehouse import KINDS, Warehouse

ENVIRONMENT: Final = ("AWS_", "AZURE_", "GOOGLE_", "HADOOP_", "JAVA_", "JDK_", "LAKE_", "PYSPARK_", "PYTHON", "SPARK_")
"""Beginnings of the names of variables that a run depends on."""
TICK: Final = 2_000_000_000
"""Nanoseconds in which a file may change twice and have one time of change: the longest tick of a file system."""
Change = tuple[int, int, int]
"""Size, time of change and inode of a file. Unlike the time of modification, users cannot set that of change."""


@dataclass(frozen=True)
class RunInputs:
    """All that decides whether a run has work, except sources, the clock and the program itself.

    `versions` by URL of a table; `declared`: changes by path of the project's files.
    """

    versions: dict[str, int | None]
    landed: list[Entry]
    declared: dict[str, Change]

    @classmethod
    def now(cls, settings: Settings) -> RunInputs:
        landed = list[Entry]()
        with view():
            tables = _tables(settings)
            prefetch(tables)
            versions = {path.url: newest_version(path) for path in tables}
        with suppress(FileNotFoundError):
            landed += address_of(settings, settings.landing).list(deep=True)
        folders = ("schemas", "jobs", "quality", settings.sources, settings.sinks, settings.alerts)
        files = (file for folder in folders for file in settings.path(folder).rglob("*"))
        declared = _changes(str(file) for file in files if "__pycache__" not in file.parts)
        return cls(versions, landed, dict(declared))

    @property
    def newest_change(self) -> int:
        return max((at for _, at, _ in self.declared.values()), default=0)


@dataclass(frozen=True)
class IdleRun:
    """Answer of a run, and the digest of all that it depends on, also the files `imported`."""

    data: dict[str, Any]
    text: str
    warnings: list[str]
    imported: list[str]
    digest: str


class IdleRuns:
    """Last run of a project that found nothing to do."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._began = settings, time.time_ns()
        self._inputs: RunInputs | None = None
        if not settings.urls:
            with suppress(Exception):  # the run reports what cannot be read
                self._inputs = RunInputs.now(settings)

    def last(self) -> IdleRun | None:
        """Return the last run if this one would have the same answer."""
        with suppress(OSError, ValueError, TypeError):
            run = IdleRun(**json.loads(self._file.read_bytes()))
            if self._inputs is not None and run.digest == self._digest(run.imported):
                return run
        return None

    def keep(self, data: dict[str, Any], text: str, warnings: list[str]) -> None:
        """Keep the answer of this run, which neither changed anything nor asked other systems."""
        inputs = self._inputs
        if inputs is None or inputs.newest_change > self._began - TICK or inputs != RunInputs.now(self._settings):
            return
        files = {getattr(module, "__file__", None) for module in [*sys.modules.values()]}
        imported = sorted(file for file in files if file)
        run = IdleRun(data, text, warnings, imported, self._digest(imported))
        with suppress(OSError):
            with NamedTemporaryFile("w", dir=file_modes.scratch(self._settings, "idle"), delete=False) as new:
                json.dump(asdict(run), new)
            os.replace(new.name, self._file)

    @property
    def _file(self) -> Path:
        return self._settings.path(".lake/idle/run.json")

    def _digest(self, imported: list[str]) -> str:
        environment = sorted(variable for variable in os.environ.items() if variable[0].startswith(ENVIRONMENT))
        program = sys.version, sys.path, environment, [*_changes(imported)]
        commits = [commit_file(path, newest_version(path) or 0).head() for path in _tables(self._settings)]
        parts = self._settings, self._settings.keys, program, self._inputs, commits
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _tables(settings: Settings) -> list[Address]:
    """Return the tables that a run depends on: all but the log of runs."""
    places = Warehouse(settings).folders(*KINDS)
    return [place.path for place in places if (place.kind, place.name) != ("book", "runs")]


def _changes(files: Iterable[str]) -> Iterator[tuple[str, Change]]:
    for file in files:
        with suppress(FileNotFoundError):  # removed meanwhile
            status = os.stat(file)
            yield file, (status.st_size, status.st_ctime_ns, status.st_ino)
