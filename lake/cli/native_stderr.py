"""Standard error of native code, without the panics of Rust: delta-rs panics beside the error that it raises.

What Python prints goes to standard error as before. What libraries and child processes print there passes through a
pipe, where a thread leaves out panics: the error is reported once, in the words of `lake`. What is in the pipe when the
process is killed, or aborts in native code, is lost: --debug leaves standard error as it is.
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
REST: Final = re.compile(rb"stack backtrace:|note: |\s+[0-9]+: |\s+at |\s*$")
"""Lines that follow a panic and its message."""
END: Final = b"\0the end of what is printed\n"
PATIENCE: Final = 5.0
"""Seconds to wait at the end for what was printed before."""


@contextmanager
def without_panics() -> Iterator[None]:
    """Leave panics out of what native code prints on standard error while the block runs."""
    own, python = os.dup(2), sys.stderr
    come, go = os.pipe()
    os.dup2(go, 2)
    os.close(go)
    sys.stderr = os.fdopen(own, "w", 1, "utf-8", "backslashreplace", closefd=False)
    passing = Thread(target=_pass_on, args=(come, own), daemon=True)
    passing.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.write(2, END)
        passing.join(PATIENCE)
        os.dup2(own, 2)
        sys.stderr = python


def _pass_on(come: int, own: int) -> None:
    """Copy lines, and what is printed without an end of line, from one file to another; until END."""
    lines, rest = _Lines(), b""
    while part := os.read(come, 1 << 16):
        *whole, rest = (rest + part).split(b"\n")
        kept = b"".join(lines.kept(line + b"\n") for line in whole)
        if rest and not lines.may_begin_panic(rest):
            kept, rest = kept + lines.waiting() + rest, b""
        _write(own, kept)
        if lines.is_at_end:
            return


class _Lines:
    """Which lines are kept."""

    def __init__(self) -> None:
        self.is_at_end, self._after, self._empty = False, 0, b""

    def kept(self, line: bytes) -> bytes:
        """What is to be printed of a line. An empty one, as before a panic, waits for the next."""
        if line.endswith(END):
            self.is_at_end = True
            return self._empty + line.removesuffix(END)
        if PANIC.match(line):
            self._after, self._empty = 1, b""
            return b""
        if self._after == 1 or (self._after and REST.match(line)):
            self._after = 2
            return b""
        self._after = 0
        if line == b"\n":
            before, self._empty = self._empty, line
            return before
        return self.waiting() + line

    def waiting(self) -> bytes:
        """The empty line that waited, to be printed now."""
        before, self._empty = self._empty, b""
        return before

    def may_begin_panic(self, part: bytes) -> bool:
        """Whether the beginning of a line has to wait for its end."""
        return bool(self._after) or b"thread '".startswith(part[:8]) or b"\0" in part


def _write(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]
