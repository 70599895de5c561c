"""Worker process of `lake serve http`: runs one task of a reader after another, until its parent ends.

The parent sends tasks as pickles on standard input. On standard output the worker sends frames: an answer's blocks, and
a report at its end. Each frame is a byte for its kind, four for its length, and its content. A worker can be killed at
any moment: what a query holds is gone with it. No part of a server is imported here.
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

from lake.http.problems import Problem
from lake.http.reading.faults import problem_of
from lake.read.export import copy_result
from lake.read.public_files import write_copy
from lake.read.sandbox import check_query
from lake.read.sql import EditionReader
from lake.store import small
from lake.store.snapshot import Published

READY: Final = b"r"
CHECKED: Final = b"c"
BLOCK: Final = b"b"
LOG: Final = b"l"
REPORT: Final = b"e"
HEAD: Final = struct.Struct(">cI")
LENGTH: Final = struct.Struct(">I")
OPEN: Final = 8
"""Editions whose opened tables are kept."""
PR_SET_PDEATHSIG: Final = 1

Send = Callable[[bytes, bytes], None]
Report = dict[str, Any]
"""What the parent needs to know at the end: `rows`, or `problem` with the arguments of one."""


class _TooLong(OSError):
    """An answer is longer than it may be."""


@dataclass(frozen=True)
class QueryTask:
    """A query of `reader` in the format `kind`, of at most `rows` rows and `size` bytes where these are given.

    The query of a remote reader is `checked` first: its tables and its text without values are sent as CHECKED.
    """

    reader: EditionReader
    query: str
    kind: str
    checked: bool = False
    rows: int | None = None
    size: int | None = None

    def run(self, reader: EditionReader, send: Send) -> Report:
        """Send the answer in blocks, and return its number of `rows`. Raises LakeError and Problem."""
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
            rows = copy_result(reader, self.query, self.kind, write, most=None if self.rows is None else self.rows + 1)
        except _TooLong:
            raise Problem("too-large", f"more than {self.size:,} bytes") from None
        if self.rows is not None and rows > self.rows:
            raise Problem("too-large", f"more than {self.rows:,} rows")
        return {"rows": rows}


@dataclass(frozen=True)
class CopyTask:
    """A copy of the visible columns of table `name`, written into `folder`, which is there and empty."""

    reader: EditionReader
    name: str
    folder: Path

    def run(self, reader: EditionReader, send: Send) -> Report:
        """Write the copy. Raises LakeError."""
        del send
        write_copy(reader, reader.table(self.name), self.folder)
        return {}


Task = QueryTask | CopyTask


def main() -> None:
    """Run tasks until standard input ends."""
    _die_with_parent()
    out, lock = os.dup(1), Lock()
    os.dup2(2, 1)  # whatever a library prints is no frame

    def send(kind: bytes, content: bytes) -> None:
        left = memoryview(HEAD.pack(kind, len(content)) + content)
        with lock:
            while left:
                left = left[os.write(out, left) :]

    logging.getLogger("lake").addHandler(_Forwarding(send))
    small.connection().close()  # whose threads are there from now on
    send(READY, b"")
    opened = dict[int, dict[str, Published]]()
    while task := _next(sys.stdin.buffer):
        number = task.reader.edition.number
        tables = opened[number] = opened.pop(number, {})
        for old in list(opened)[:-OPEN]:
            del opened[old]
        report = _report(task, replace(task.reader, _opened=tables), send)
        send(REPORT, json.dumps(report).encode())
    os._exit(0)


class _Forwarding(logging.Handler):
    """Sends warnings to the parent, which knows where they belong."""

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


def _next(source: BinaryIO) -> Task | None:
    head = source.read(LENGTH.size)
    if not head:
        return None
    task: Task = pickle.loads(source.read(*LENGTH.unpack(head)))
    return task


def _die_with_parent() -> None:
    """End this process when its parent ends, however it ends. Ignore signals of the terminal or the service manager."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):  # the kernel that runs out of memory ends this process before the server
            Path("/proc/self/oom_score_adj").write_text("1000")
    os.nice(5)  # the parent has to look at this process in time
    ended = select.poll()
    ended.register(0, 0)  # only that the other end is closed

    def wait() -> None:
        ended.poll()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    main()
