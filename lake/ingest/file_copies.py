"""Copies of files where Spark's tasks can read them: of objects on this machine, of its own files in the store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from lake import file_modes
from lake.config import Settings
from lake.ingest.files import Content
from lake.ingest.record_frames import Place
from lake.session import shares_disk
from lake.store import staging_upload
from lake.store.storage import Address, objects
from lake.store.storage.objects import Object


@dataclass
class FileCopies:
    """Copies that a delivery shares with its parts. They exist until it is closed."""

    _places: dict[Content, Place] = field(default_factory=dict)
    _folders: list[TemporaryDirectory[str]] = field(default_factory=list)

    def places(self, settings: Settings, files: Collection[Content]) -> Mapping[Content, Place]:
        """Return where Spark reads each of `files`, copied if it cannot read it where it is.

        Raises FileNotFoundError if an object is gone or replaced.
        """
        new = [file for file in files if file not in self._places]
        if not shares_disk(settings):
            self._places.update(
                staging_upload.upload(settings, [file for file in new if isinstance(file, Path)]).items()
            )
        elif of_bucket := [file for file in new if isinstance(file, Object)]:
            staging = file_modes.scratch(settings, "staging")
            folder = TemporaryDirectory(prefix="objects-", dir=staging, ignore_cleanup_errors=True)
            self._folders.append(folder)
            self._places.update(objects.copy_all(of_bucket, Path(folder.name)).items())
        return {file: self._places.get(file, file) for file in files}

    def delete(self) -> None:
        staging_upload.remove(place for place in self._places.values() if isinstance(place, Address))
        self._places.clear()
        while self._folders:
            self._folders.pop().cleanup()
