"""Upload of local files to the warehouse for a Spark that runs on other machines, while it reads them.

<warehouse>/staging/<SHA-256 of path, size and time>/<name>
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from lake.config import Settings
from lake.session.spark_session import shares_disk
from lake.store.storage import Address
from lake.store.warehouse import Warehouse

FOLDER: Final = "staging"


def upload(settings: Settings, files: Iterable[Path]) -> Mapping[Path, Address]:
    """Upload `files` and return the address of each; {} without an upload if Spark reads this machine's disk."""
    if shares_disk(settings):
        return {}
    folder = Warehouse(settings).root / FOLDER
    addresses = {file: folder / _identity(file) / file.name for file in files}
    for file, address in addresses.items():
        address.put_file(file)
    return addresses


def remove(addresses: Iterable[Address]) -> None:
    """Delete uploaded files."""
    for address in addresses:
        address.delete()


def abandoned_uploads(settings: Settings, before: datetime) -> list[Address]:
    """Return the uploads that are older than `before`: their process has died."""
    folder = Warehouse(settings).root / FOLDER
    with suppress(FileNotFoundError):
        return [folder / entry.name for entry in folder.list(deep=True) if entry.time < before.timestamp()]
    return []


def _identity(file: Path) -> str:
    about = file.stat()
    return hashlib.sha256(os.fsencode(file.absolute()) + f" {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()
