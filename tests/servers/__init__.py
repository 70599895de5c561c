"""Servers that tests ask something: each file here is one, whose name is its mark and its target, `make test-NAME`.

A file is a plugin with a fixture of its name, of the scope of a run: it takes a free port of this machine, starts the
server, and ends it. What uses the fixture, and what bears the mark, asks the server. One of those tests is its smoke
test, marked so, which takes less than 20 seconds and is in `make test`; all others are further turns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import pytest

T = TypeVar("T")
NAMES: Final = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))


def needed(found: T | None, otherwise: str) -> T:
    """A module of an extra (`find_spec`) or a program of a Debian package (`which`); without it, tests are skipped.

    `otherwise` says what is missing, and how to install it.
    """
    if found is None:
        pytest.skip(otherwise)
    return found
