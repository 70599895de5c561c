"""Temporary files: uploads for a Spark that runs on other machines, and what crashes left on this one.

An upload is <warehouse>/staging/<SHA-256 of path, size and time>/<name>.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.session.remote import shares_disk
from lake.store.storage import Address
from lake.store.warehouse import Warehouse

FOLDER: Final = "staging"


def upload(settings: Settings, files: Iterable[Path]) -> Mapping[Path, Address]:
    """Return the address of each file; {} without an upload if Spark reads this machine's disk."""
    if shares_disk(settings):
        return {}
    folder = Warehouse(settings).root / FOLDER
    addresses = {file: folder / _identity(file) / file.name for file in files}
    for file, address in addresses.items():
        address.put_file(file)
    return addresses


def remove_uploads(addresses: Iterable[Address]) -> None:
    for address in addresses:
        address.delete()


def abandoned_uploads(settings: Settings, before: datetime) -> list[Address]:
    folder = Warehouse(settings).root / FOLDER
    with suppress(FileNotFoundError):
        return [folder / entry.name for entry in folder.list(deep=True) if entry.time < before.timestamp()]
    return []


def _identity(file: Path) -> str:
    about = file.stat()
    return hashlib.sha256(os.fsencode(file.absolute()) + f" {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()


def leftover_files(settings: Settings, before: datetime) -> list[Path]:
    scratch = [file for name in ("staging", "sql", "copies") for file in settings.path(f".lake/{name}").glob("*")]
    old = [file for file in scratch if modified_at(file) < before.timestamp()]
    gone = sorted(settings.warehouse_path.glob("*/.*.gone"))
    return [*gone, *old]


def modified_at(file: Path) -> float:
    """Return infinity if another process has deleted the file."""
    with suppress(FileNotFoundError):
        return file.lstat().st_mtime
    return inf


def delete_files(files: Iterable[Path], *, as_far_as_possible: bool = False) -> None:
    for file in files:
        if file.is_dir() and not file.is_symlink():
            with suppress(FileNotFoundError):
                shutil.rmtree(file, ignore_errors=as_far_as_possible)
        else:
            file.unlink(missing_ok=True)
