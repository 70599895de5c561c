"""Errors while a file is read: those of its content, and those that it may not have at another try."""

from __future__ import annotations

from typing import Final

from lake.errors import LakeError, full, unreached

SHOWN: Final = 300


def is_of_content(error: Exception) -> bool:
    """Return whether a library raised `error` because of the bytes of a file.

    Else its storage does not answer, a disk is full, or the file was deleted.
    """
    return not (isinstance(error, FileNotFoundError | LakeError) or unreached(error) or full(error))


def words(error: Exception) -> str:
    """Return the first line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:SHOWN]
