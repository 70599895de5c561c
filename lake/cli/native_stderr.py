"""Filter of native standard error that drops Rust panics, which delta-rs prints besides raising an error.

Output of libraries and child processes passes through a pipe and a thread. It is lost if the process is killed or
aborts; --debug disables the filter.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Final

PANIC: Final = re.compile(rb"thread '[^']*'(?: \([0-9]+\))? panicked at ")
PANIC_DETAILS: Final = re.compile(rb"stack backtrace:|note: |\s+[0-9]+: |\s+at |\s*$")
END_MARK: Final = b"\0the end of what is printed\n"
PATIENCE: Final = 5.0  # seconds


@contextmanager
def without_panics() -> Iterator[None]:
    """Drop panics from native standard error in this block."""
    own, python = os.dup(2), sys.stderr
    come, go = os.pipe()
    os.dup2(go, 2)
    os.close(go)
    sys.stderr = os.fdopen(own, "w", 1, "utf-8", "backslashreplace", closefd=False)
    passing = Thread(target=_copy_lines, args=(come, own), daemon=True)
    passing.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.write(2, END_MARK)
        passing.join(PATIENCE)
        os.dup2(own, 2)
        sys.stderr = python


def _copy_lines(come: int, own: int) -> None:
    """Copy lines, and partial lines that cannot begin a panic, until END_MARK."""
    lines, rest = _PanicFilter(), b""
    while part := os.read(come, 1 << 16):
        *whole, rest = (rest + part).split(b"\n")
        kept = b"".join(lines.kept(line + b"\n") for line in whole)
        if rest and not lines.may_begin_panic(rest):
            kept, rest = kept + lines.waiting() + rest, b""
        _write(own, kept)
        if lines.is_at_end:
            return


class _PanicFilter:
    """Filter of lines. An empty line waits for the next one, because it is dropped before a panic."""

    def __init__(self) -> None:
        self.is_at_end, self._after, self._empty = False, 0, b""

    def kept(self, line: bytes) -> bytes:
        if line.endswith(END_MARK):
            self.is_at_end = True
            return self._empty + line.removesuffix(END_MARK)
        if PANIC.match(line):
            self._after, self._empty = 1, b""
            return b""
        if self._after == 1 or (self._after and PANIC_DETAILS.match(line)):
            self._after = 2
            return b""
        self._after = 0
        if line == b"\n":
            before, self._empty = self._empty, line
            return before
        return self.waiting() + line

    def waiting(self) -> bytes:
        before, self._empty = self._empty, b""
        return before

    def may_begin_panic(self, part: bytes) -> bool:
        return bool(self._after) or b"thread '".startswith(part[:8]) or b"\0" in part


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
