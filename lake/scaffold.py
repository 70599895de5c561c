"""`lake init`: a project of one's own that runs at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from lake.errors import DeclarationError

TEMPLATE: Final = Path(__file__).parent / "templates" / "project"


def init(folder: Path) -> list[str]:
    """Makes a project in `folder`, which must be empty or not there yet. Returns the files, relative to it.

    Raises DeclarationError where something is in the way.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DeclarationError(
            "not empty" if folder.is_dir() else "not a folder", where=str(folder), fix="name a new or empty folder"
        )
    try:
        shutil.copytree(TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        reason = error.strerror or str(error)
        raise DeclarationError(f"cannot be written: {reason}", where=str(folder), fix="name another folder") from None
    (folder / "gitignore").rename(folder / ".gitignore")
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
