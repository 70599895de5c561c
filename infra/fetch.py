"""Makes a folder hold the jars of a list, each verified: `python infra/fetch.py LIST FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from lake import jars
from lake.errors import LakeError

if __name__ == "__main__":
    listed, folder = map(Path, sys.argv[1:])
    try:
        count = jars.provide(folder, print, file=listed)
    except LakeError as error:
        sys.exit(f"{listed}: {error}")
    print(f"{count} jars fetched and verified into {folder}" if count else f"all jars are in {folder}")
