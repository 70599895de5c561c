"""Worker process of `lake serve http`: runs readers' tasks one after another, until its parent ends.

The parent sends pickled tasks on standard input. The worker answers on standard output with frames (kind: 1 byte,
length: 4 bytes, content): the blocks of an answer, then a report. It can be killed at any moment, which frees all
resources of its query. This module imports no part of a server.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import pickle
import select
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock, Thread
from typing import Any, BinaryIO, Final

from lake.errors import LakeError
from lake.read.export import write_result
from lake.read.locked_database import SharedDatabase
from lake.read.public_files import write_copy
from lake.read.sandbox import check_query
from lake.read.sql import EditionReader
from lake.serve.problems import Problem, problem_of
from lake.store import duckdb_tables

READY: Final = b"r"
CHECKED: Final = b"c"
BLOCK: Final = b"b"
LOG: Final = b"l"
REPORT: Final = b"e"
HEAD: Final = struct.Struct(">cI")
LENGTH: Final = struct.Struct(">I")
OPEN: Final = 8
UNUSED_SECONDS: Final = 600.0
KEPT_BYTES: Final = 96 << 20
"""Most bytes of memory that a worker keeps between tasks, mostly in its databases."""
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
PR_SET_PDEATHSIG: Final = 1

Send = Callable[[bytes, bytes], None]
Report = dict[str, Any]
"""For the parent: `rows`, or `problem` with the arguments of Problem."""


class _TooLong(OSError): ...


@dataclass(frozen=True)
class QueryTask:
    """Query in the format `kind`, limited to `rows` rows and `size` bytes.

    If `checked`, it is validated first. Its tables and its text without literals are sent as CHECKED.
    """

    reader: EditionReader
    query: str
    kind: str
    checked: bool = False
    rows: int | None = None
    size: int | None = None

    def run(self, reader: EditionReader, send: Send) -> Report:
        left = self.size

        def write(block: bytes) -> None:
            nonlocal left
            if left is not None and (left := left - len(block)) < 0:
                raise _TooLong
            send(BLOCK, block)

        if self.checked:
            passed = check_query(reader, self.query)
            send(CHECKED, json.dumps({"tables": passed.tables, "query": passed.text}).encode())
        try:
            limit = None if self.rows is None else self.rows + 1
            rows = write_result(reader, self.query, self.kind, write, limit=limit)
        except _TooLong:
            raise Problem("too-large", f"more than {self.size:,} bytes") from None
        if self.rows is not None and rows > self.rows:
            raise Problem("too-large", f"more than {self.rows:,} rows")
        return {"rows": rows}


@dataclass(frozen=True)
class CopyTask:
    reader: EditionReader
    name: str
    folder: Path

    def run(self, reader: EditionReader, send: Send) -> Report:
        del send
        write_copy(reader, reader.table(self.name), self.folder)
        return {}


Task = QueryTask | CopyTask


def main() -> None:
    _die_with_parent()
    out, lock = os.dup(1), Lock()
    os.dup2(2, 1)  # output that a library prints is no frame

    def send(kind: bytes, content: bytes) -> None:
        left = memoryview(HEAD.pack(kind, len(content)) + content)
        with lock:
            while left:
                left = left[os.write(out, left) :]

    logging.getLogger("lake").addHandler(_Forwarding(send))
    duckdb_tables.connection().close()  # starts DuckDB's threads before memory is measured
    send(READY, b"")
    readers, (fresh, _) = ReaderCache(), memory_used()
    while task := _next(sys.stdin.buffer, readers):
        report = _report(task, readers.get(task.reader), send)
        if memory_used()[0] > fresh + KEPT_BYTES:
            readers.close(but=0)
        send(REPORT, json.dumps(report).encode())
    os._exit(0)


def memory_used(pid: int | str = "self") -> tuple[int, int]:
    """Return resident memory without files, and mapped memory, in bytes; 0 if the process has ended, or off Linux."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0, 0
    return (int(pages[1]) - int(pages[2])) * PAGE, int(pages[5]) * PAGE


class ReaderCache:
    """Readers whose tables and database stay open for later tasks, the last used one last."""

    def __init__(self) -> None:
        self._readers = list[EditionReader]()

    def get(self, reader: EditionReader) -> EditionReader:
        """Return `reader` with the database of an equal one, which has the same edition and granted tables."""
        cached = next((each for each in self._readers if each == reader), None) or self._open(reader)
        self._readers = [*(each for each in self._readers if each is not cached), cached]
        self.close(but=OPEN)
        return replace(cached, may_read=reader.may_read)

    def close(self, *, but: int) -> None:
        """Close all readers except the last `but` used."""
        closed = max(len(self._readers) - but, 0)
        for reader in self._readers[:closed]:
            assert reader.database is not None
            reader.database.close()
        del self._readers[:closed]

    def _open(self, reader: EditionReader) -> EditionReader:
        """Return `reader` with a database of its own, which is opened with the tables of the last used one."""
        database = SharedDatabase(reader.settings, reader.edition, reader.is_limited)
        opened = replace(reader, database=database, opened={})
        if self._readers and (last := self._readers[-1].database):
            for name in filter(reader.edition.tables.__contains__, last.tables):
                with suppress(LakeError):
                    database.tables[name] = opened.table(name)
        return opened


class _Forwarding(logging.Handler):
    def __init__(self, send: Send) -> None:
        super().__init__(logging.WARNING)
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(LOG, record.getMessage().encode())


def _report(task: Task, reader: EditionReader, send: Send) -> Report:
    try:
        return task.run(reader, send)
    except Exception as error:
        problem = problem_of(error)
        more = {"after": problem.after, **problem.more}
        return {"problem": {"kind": problem.kind, "detail": problem.detail, **more}}


def _next(source: BinaryIO, readers: ReaderCache) -> Task | None:
    while not select.select([source], (), (), UNUSED_SECONDS)[0]:
        readers.close(but=0)
    head = source.read(LENGTH.size)
    if not head:
        return None
    task: Task = pickle.loads(source.read(*LENGTH.unpack(head)))
    return task


def _die_with_parent() -> None:
    """End this process if its parent ends in any way. Ignore signals of the terminal or the service manager."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):  # the OOM killer ends this process before the server
            Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(5)  # the parent has to measure this process in time
    ended = select.poll()
    ended.register(0, 0)  # only the event that the other end is closed

    def wait() -> None:
        ended.poll()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
