"""Delta log of a table as this process knows it: its newest version, its commits, and states of the table.

`lake.store.table_logs` has the one of a local folder, `lake.store.bucket_log` that of a bucket. `lake.store.view`
decides when it is looked up.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, TypeAlias

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from lake.errors import StorageError
from lake.store import view
from lake.store.storage import Address

KNOWN: Final = 10_000
TableState: TypeAlias = DeltaTable
"""Table at one version, to be read."""


@dataclass
class TableLog(ABC):
    """Log of the table at `path`. Thread-safe."""

    path: Address
    _newest: int | None = None
    _infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)

    def newest(self) -> int | None:
        with self._lock:
            if not view.is_known(self.path):
                if view.is_missing(self.path):
                    self.forget()
                else:
                    self._newest = self._look_up()
                view.mark_known(self.path)
            return self._newest

    def knows(self, writer: str) -> bool:
        with self._lock:
            if self._newest is None or not view.is_known(self.path):
                return False
            return metadata_of(self.info(self._newest)).get("writer") == writer

    def invalidate(self) -> None:
        with self._lock:
            view.forget(self.path)

    def forget(self) -> None:
        with self._lock:
            self._newest = None
            self._infos.clear()

    def info(self, version: int) -> dict[str, Any]:
        """Return the commit's information, which other tools may leave out; its `timestamp` is always there.

        Raises FileNotFoundError, and StorageError if the commit cannot be read.
        """
        with self._lock:
            info = self._infos.get(version)
            if info is None:
                info = self._recorded_info(version)
                if "timestamp" not in info:
                    info = {**info, "timestamp": self._modified_at(version)}
                if self._newest is not None and version <= self._newest:
                    if len(self._infos) > KNOWN:
                        self._infos.clear()
                    self._infos[version] = info
            return info

    def _recorded_info(self, version: int) -> dict[str, Any]:
        lines = (line for line in self.content(version).splitlines() if b'"commitInfo"' in line)
        try:
            return next(filter(None, (json.loads(line).get("commitInfo") for line in lines)), dict[str, Any]())
        except (ValueError, AttributeError):
            raise StorageError(
                f"{self.path.name}: the commit of version {version} cannot be read",
                where=str(commit_file(self.path, version)),
                fix="restore that file from a backup of the warehouse; lake status lists all damage",
            ) from None

    def _modified_at(self, version: int) -> int:
        entry = commit_file(self.path, version).head()
        return int(entry.time * 1000) if entry else 0

    @abstractmethod
    def opened(self, version: int | None = None) -> AbstractContextManager[TableState]: ...

    @abstractmethod
    def _look_up(self) -> int | None: ...

    @abstractmethod
    def content(self, version: int) -> bytes:
        """Raises FileNotFoundError."""

    @abstractmethod
    def state(self, version: int | None = None) -> TableState:
        """Return the table at `version`, by default its newest, to be kept. Raises TableNotFoundError."""

    @abstractmethod
    def committing(self, *, reads: bool) -> AbstractContextManager[DeltaTable]:
        """Yield the table for one commit by delta-rs, which `reads` its rows or not.

        Raises TableNotFoundError, and CommitFailedError if another writer was first.
        """

    @abstractmethod
    def target(self) -> AbstractContextManager[tuple[str, dict[str, str] | None]]: ...

    def must_exist(self) -> int:
        """Return the newest version. Raises TableNotFoundError."""
        newest = self.newest()
        if newest is None:
            raise TableNotFoundError(self.path.url)
        return newest


def commit_file(path: Address, version: int) -> Address:
    return Address(f"{path.url}/_delta_log/{version:020}.json", path.storage)


def delta_table(path: Address, version: int | None = None) -> DeltaTable:
    """Raises TableNotFoundError."""
    return DeltaTable(path.url, version=version, storage_options=path.storage.options)


def metadata_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object in `userMetadata`, else {}."""
    try:
        data = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
