"""Delta log of a table in a bucket: listed once, and each commit read once.

delta-rs itself reads every commit since the newest checkpoint twice, and a checkpoint in eleven requests. Here it
reads a temporary local copy of the log, and commits in it; the result is uploaded, the commit by put-if-absent. The
copy has the table's files too, if the commit reads rows and they are small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from lake.store import view
from lake.store.storage import Address, Entry
from lake.store.storage.objects import THREADS
from lake.store.table_log import TableLog, TableState, commit_file, delta_table
from lake.store.truncated_commit import COMMIT

CHECKPOINT: Final = re.compile(r"\d{20}\.checkpoint\.parquet")
LISTED: Final = 1000
"""From this number of files of a log on, only those after its newest checkpoint are listed."""
COPIED: Final = 32 << 20
"""Maximum bytes copied of a log since its newest checkpoint, or of the files of a table."""
FILES: Final = 64
STATES: Final = 4
"""Versions of a table that are kept open."""


class _CopiedTable(DeltaTable):
    """Table opened from a copy of its log in `folder`, which exists no longer."""

    def __init__(self, folder: str, log: BucketLog) -> None:
        super().__init__(folder)
        self._folder, self._log = folder, log

    def file_uris(self, *given: Any, **options: Any) -> list[str]:
        files = super().file_uris(*given, **options)
        return [f"{self._log.path}/{uri.removeprefix(self._folder).lstrip('/')}" for uri in files]

    def transaction_version(self, app_id: str) -> int | None:
        return self._log.transaction(app_id, self.version())


@dataclass
class BucketLog(TableLog):
    _files: dict[str, Entry] = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _states: dict[int, TableState] = field(default_factory=dict)

    def state(self, version: int | None = None) -> TableState:
        with self._lock:
            newest = self.must_exist()
            at = newest if version is None else version
            state = self._states.pop(at, None) or self._opened(at)
            self._states[at] = state
            while len(self._states) > STATES:  # the least recently used
                del self._states[next(iter(self._states))]
            return state

    @contextmanager
    def opened(self, version: int | None = None) -> Iterator[TableState]:
        yield self.state(version)

    @contextmanager
    def committing(self, *, reads: bool) -> Iterator[DeltaTable]:
        with self.target(reads=reads) as (url, options):
            yield DeltaTable(url, storage_options=options)

    @contextmanager
    def target(self, *, reads: bool = False) -> Iterator[tuple[str, dict[str, str] | None]]:
        with ExitStack() as stack:
            url, options = self.path.url, self.path.storage.options
            try:
                url, options = stack.enter_context(self.commit(reads=reads)), None
            except NotCopied:
                stack.callback(self.invalidate)
            yield url, options

    def content(self, version: int) -> bytes:
        with self._lock:
            content = self._contents.get(version)
            if content is None:
                content = commit_file(self.path, version).read()
                if version in self._commits:
                    self._contents[version] = content
            return content

    def transaction(self, app: str, version: int) -> int | None:
        with self._lock:
            for number in range(version, self._base(version), -1):
                for line in self.content(number).splitlines():
                    if line.startswith(b'{"txn"') and (txn := json.loads(line)["txn"])["appId"] == app:
                        return int(txn["version"])
            return delta_table(self.path, version).transaction_version(app) if self._base(version) >= 0 else None

    def forget(self) -> None:
        with self._lock:
            super().forget()
            self._files = {}
            self._states.clear()
            self._contents.clear()

    @property
    def _commits(self) -> set[int]:
        return {int(name[:20]) for name in self._files if COMMIT.fullmatch(name)}

    def _base(self, version: int) -> int:
        found = (int(name[:20]) for name in self._files if CHECKPOINT.fullmatch(name))
        return max((number for number in found if number <= version), default=-1)

    def _look_up(self) -> int | None:
        if not self._has_grown():
            self.forget()
            self._files = {entry.name: entry for entry in self._list_needed()}
        return max(self._commits, default=None)

    def _has_grown(self) -> bool:
        if not (commits := self._commits):
            return False
        newest = commit_file(self.path, max(commits)).name
        since = {entry.name: entry for entry in self._list_after(after=newest[:20])}
        if newest not in since or not _is_same(since[newest], self._files[newest]):
            return False
        self._files |= since
        return True

    def _list_needed(self) -> list[Entry]:
        entries = [*islice(self._list_after(), LISTED)]
        if len(entries) < LISTED:
            return entries
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            hint = json.loads((self.path / "_delta_log/_last_checkpoint").read())["version"]
            if since := [*self._list_after(after=f"{hint:020}")]:
                return since
        return [*self._list_after()]

    def _list_after(self, after: str = "") -> Iterator[Entry]:
        with suppress(FileNotFoundError):
            yield from (self.path / "_delta_log").list(after=after, deep=True)

    def _opened(self, version: int) -> TableState:
        try:
            with self.copy(version) as folder:
                return _CopiedTable(str(folder), self)
        except (NotCopied, DeltaError, FileNotFoundError):
            return delta_table(self.path, version)

    @contextmanager
    def commit(self, *, reads: bool = False) -> Iterator[str]:
        """Yield a local folder for one commit by delta-rs on top of the newest, then upload the result.

        It has the table's files if the commit `reads` rows. Raises CommitFailedError if another writer was first,
        NotCopied as `copy` does and for a large table.
        """
        newest = self.newest()
        with self.copy(-1 if newest is None else newest) as folder:
            if reads:
                self._download_files(folder)
            copied = {*_files_in(folder)}
            yield str(folder)
            made = [name for name in _files_in(folder) if name not in copied]
            log = [name for name in made if name.startswith("_delta_log/")]
            commits = [name for name in log if COMMIT.fullmatch(name.removeprefix("_delta_log/"))]
            rows = [name for name in made if name not in log]
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(lambda name: (self.path / name).put_file(folder / name), rows))
            for name in commits:
                self._put(int(Path(name).stem), (folder / name).read_bytes())
            for name in sorted(set(log) - {*commits}):  # a checkpoint before _last_checkpoint
                (self.path / name).put_file(folder / name)

    def _put(self, version: int, content: bytes) -> None:
        """Raises CommitFailedError if its number is taken."""
        self.invalidate()
        file = commit_file(self.path, version)
        tag = file.storage.put_if_absent(file.url, content)
        if tag is None:
            raise CommitFailedError(f"another writer has committed _delta_log/{file.name} of {self.path.name}")
        with self._lock:
            if not tag:
                return
            self._files[file.name] = Entry(file.name, len(content), 0, tag)
            self._contents[version] = content
            self._newest = max(self._commits)
            view.mark_known(self.path)

    def _download_files(self, folder: Path) -> None:
        """Raises NotCopied for a large table."""
        files = self.state().get_add_actions(flatten=True)
        names, sizes = (files.column(column).to_pylist() for column in ("path", "size_bytes"))
        if len(names) > FILES or sum(sizes) > COPIED:
            raise NotCopied(self.path.url)

        def fetch(name: str) -> None:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes((self.path / name).read())

        try:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(fetch, names))
        except FileNotFoundError:  # delta-rs reports that itself
            raise NotCopied(self.path.url) from None

    @contextmanager
    def copy(self, version: int) -> Iterator[Path]:
        """Yield a folder with the log of `version`, from its checkpoint on. Raises NotCopied if that is large."""
        with self._lock:
            base = self._base(version)
            # To commit on top of a checkpoint, delta-rs needs the commit of that version as well.
            needed = range(max(min(base + 1, version), 0), version + 1)
            names = [commit_file(self.path, number).name for number in needed]
            names += [f"{base:020}.checkpoint.parquet"] if base >= 0 else []
            if not self._files.keys() >= {*names} or sum(self._files[name].size for name in names) > COPIED:
                raise NotCopied(self.path.url)
            try:
                self._read(needed)
            except FileNotFoundError:  # the table was truncated meanwhile
                raise NotCopied(self.path.url) from None
            with _temporary_folder(self.path) as folder:
                log = folder / "_delta_log"
                if names:
                    log.mkdir()
                for number in needed:
                    (log / commit_file(self.path, number).name).write_bytes(self._contents[number])
                if base >= 0:
                    (log / names[-1]).write_bytes((self.path / "_delta_log" / names[-1]).read())
                yield folder
            self._contents = {n: content for n, content in self._contents.items() if n >= base}

    def _read(self, versions: Iterable[int]) -> None:
        missing = [number for number in versions if number not in self._contents]
        if len(missing) > 1:
            with ThreadPoolExecutor(THREADS) as pool:
                read = pool.map(lambda number: commit_file(self.path, number).read(), missing)
                self._contents |= dict(zip(missing, read, strict=True))
        for number in missing:
            self.content(number)


def _is_same(one: Entry, other: Entry) -> bool:
    # The time of a commit that this process uploaded is unknown.
    return (one.size, one.tag) == (other.size, other.tag)


class NotCopied(Exception):
    """A log or table is too large to copy, or changed meanwhile."""


@contextmanager
def _temporary_folder(path: Address) -> Iterator[Path]:
    staging = path.storage.staging
    try:
        if staging is not None:
            staging.mkdir(mode=0o700, parents=True, exist_ok=True)
        # `lake maintain` deletes those that a crash left.
        temporary = TemporaryDirectory(prefix="log-", dir=staging, ignore_cleanup_errors=True)
    except OSError:  # a project that this user may not write to
        temporary = TemporaryDirectory(prefix="log-", ignore_cleanup_errors=True)
    with temporary as name:
        yield Path(name)


def _files_in(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in sorted(folder.rglob("*")) if file.is_file()]
