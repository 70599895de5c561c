"""Standard output of a command: a write that fails raises an error that names it, as the system's own names no file."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from lake.errors import unwritten


class _StandardOutput(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # drop what is still buffered
            raise unwritten(error, where="standard output", device=True) from error


def install() -> None:
    """Have `sys.stdout` raise LakeError if it cannot be written to, but BrokenPipeError if nobody reads it."""
    before = sys.stdout
    if not before:  # the process was started with it closed
        return
    file = io.BufferedWriter(_StandardOutput(before.fileno(), "wb", closefd=False))
    sys.stdout = io.TextIOWrapper(file, before.encoding, before.errors, line_buffering=before.isatty())
