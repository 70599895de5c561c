"""Integrity check of logs, so that damage is not copied into tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain

from lake.config import Settings
from lake.errors import LakeError, StorageError
from lake.progress import step
from lake.project.declaration import Declaration
from lake.project.project import Project
from lake.store.log import Log
from lake.store.proof.chain import breaks, changes, heads_at
from lake.store.recovery import check_complete, read_by_tables
from lake.store.scan import Span


def faults(project: Project, declarations: Iterable[Declaration]) -> dict[str, LakeError | None]:
    return dict(_faults(project, _streams(project, declarations)))


def check_integrity(project: Project, declarations: Iterable[Declaration]) -> set[str]:
    """Return the logs of the declared tables. Raises LakeError if one is damaged."""
    streams = _streams(project, declarations)
    check_integrity_at(project, streams)
    return {*streams}


def check_integrity_at(project: Project, times: Mapping[str, Span | None]) -> None:
    """Raise LakeError if a log is damaged at these times (None: all)."""
    for _, fault in _faults(project, times):
        if fault:
            raise fault


def _streams(project: Project, declarations: Iterable[Declaration]) -> dict[str, None]:
    return dict.fromkeys(stream for declaration in declarations for stream in project.logs(declaration))


def _faults(project: Project, times: Mapping[str, Span | None]) -> Iterator[tuple[str, LakeError | None]]:
    read = cache(lambda: read_by_tables(project.settings))
    return ((stream, _fault(project, stream, read, at)) for stream, at in times.items())


def _fault(
    project: Project, stream: str, read: Callable[[], dict[str, tuple[int, str]]], times: Span | None
) -> LakeError | None:
    contract = project.contracts[stream]
    try:
        with step("check", f"log {stream}") as work:
            log = Log(project.settings, stream)
            head = log.head()
            work.rows = head.events
            check_complete(project.settings, stream, read())
            log.contracts(head)
            if fault := content_fault(project.settings, stream, times):
                return fault
            if contract.sealed and head.keys:
                log.key_store().home.must_be_whole()
    except LakeError as error:
        return error
    return None


def content_fault(settings: Settings, stream: str, times: Span | None = None) -> LakeError | None:
    """Return how rows differ from their fingerprints in batches with events at `times`, if they do."""
    log = Log(settings, stream)
    path, heads = log.path, log.heads()[::-1]
    some = heads if times is None else heads_at(path, heads, times)
    fault = next(chain(breaks(heads), changes(path, some)), None)
    if fault is None:
        return None
    what, *files = re.split(r": (?=/|\w+://)", fault, maxsplit=1)
    where = files[0] if files else path.url
    fix = f"restore it from a backup; lake log {stream} --check lists all damage"
    return StorageError(f"the log of {stream} is damaged: {what}", where=where, fix=fix)
