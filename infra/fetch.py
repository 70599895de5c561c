"""Makes a folder hold the jars of a list, each verified: `python -m infra.fetch LIST FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from lake.errors import LakeError
from lake.session import jars


def fetch(name: str, listed: Path, folder: Path) -> None:
    """Fetches what is missing, and says so in a line that begins with `name`."""
    try:
        count = jars.provide(folder, print, file=listed)
    except LakeError as error:
        sys.exit(f"{name}: {error}")
    print(f"{name}: {count} jars fetched and verified into {folder}" if count else f"{name}: all jars are in {folder}")


if __name__ == "__main__":
    file, into = map(Path, sys.argv[1:])
    fetch(file.parent.name, file, into)
