"""Search for damaged files in a warehouse. It names the file and the repair, which errors of libraries do not.

A truncated newest commit is not damage: no reader uses it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import SEEK_END
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

from deltalake.exceptions import TableNotFoundError

from lake.config import Settings
from lake.errors import LakeError, StorageError, full
from lake.session.spark_session import first_line
from lake.store import archive_tier, delta
from lake.store.storage import Address
from lake.store.table_log import TableState, commit_file
from lake.store.truncated_commit import COMMIT, truncated_version
from lake.store.warehouse import KINDS, LAYERS, Warehouse

NAME_BY_FOLDER: Final = {
    "logs": "the log of {}",
    "quarantine": "the quarantine of {}",
    "redeliveries": "the redeliveries of {}",
    "silver": "{}",
    "gold": "{}",
    "meta": "the ledger of {}",
}
RESTORE: Final = "restore that file from a backup of the warehouse"
REBUILD: Final = "lake rebuild {} makes it again, and lake publish shows it"
PROCESS_ERRORS: Final = frozenset({None, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""`errno` of errors that do not concern the file: None (raised by a library), no descriptors, no memory."""
PARQUET: Final = b"PAR1"
LIBRARIES: Final = frozenset(
    {"deltalake", "_internal", "duckdb", "_duckdb", "pyarrow", "arro3", "pyo3_runtime", "pyspark", "py4j"}
)


@dataclass(frozen=True)
class Damage:
    """Fault `found` in `file` of the table in folder `path`; `special_fix` replaces the usual fix."""

    path: Address
    file: str
    found: str
    special_fix: str = ""

    @property
    def fault(self) -> LakeError:
        name = name_of(self.path)
        derived = self.path.parent.name in LAYERS and "/_delta_log" not in self.file
        repair = REBUILD.format(name.partition("@")[0]) if derived else RESTORE
        if self.path.parent.name in LAYERS and not derived:
            repair += f", or delete the folder {self.path}: lake run makes the table again"
        fix = self.special_fix or f"{repair}; lake status lists all damage"
        return StorageError(f"{name} is damaged: {self.found}", where=self.file, fix=fix)


@contextmanager
def skip_unreadable() -> Iterator[None]:
    """Run the block, and ignore an error of a table that is damaged, denied, or of another format.

    Raise errors that concern all tables: no answer from the storage, a full disk, a lack of memory or of descriptors.
    """
    try:
        yield
    except (delta.Unreadable, StorageError):
        return
    except OSError as error:
        if error.errno in PROCESS_ERRORS or isinstance(error, ConnectionError | TimeoutError) or full(error):
            raise


def name_of(path: Address) -> str:
    return NAME_BY_FOLDER.get(path.parent.name, "{}").format(path.name)


def damages(settings: Settings, *, quickly: bool = False) -> Iterator[Damage]:
    for location in Warehouse(settings).folders(*KINDS):
        if damaged := damage(location.path, quickly=quickly):
            yield damaged


def damage_behind(settings: Settings, error: BaseException) -> LakeError | None:
    """Return the first fault of the warehouse if a library that reads files raised `error`."""
    if type(error).__module__.partition(".")[0] not in LIBRARIES:
        return None
    return next((damaged.fault for damaged in damages(settings)), None)


def damage(path: Address, *, quickly: bool = False) -> Damage | None:
    """Return the first fault of the Delta table in folder `path`; None if it can be read completely.

    `quickly` opens no data file, and only the commits that delta-rs reads; on a disk it compares sizes of files. It
    finds no fault in a table without its first commit, even after a crash.
    """
    found = _damage(path, quickly=quickly)
    if not (quickly and found):
        return found
    # Searched again, as the first commit may have been made meanwhile.
    return _damage(path, quickly=True) if _has_begun(path) else None


def _has_begun(path: Address) -> bool:
    """Return whether the table had its first commit: it has a commit, a checkpoint, or more files than that adds.

    The first commit of a log or derived table adds no file, that of another table one.
    """
    try:
        names = [entry.name for entry in path.list(deep=True)]
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    if any(COMMIT.search(name) or ".checkpoint" in name for name in names):
        return True
    return sum(name.endswith(".parquet") for name in names) > int(path.parent.name not in {*LAYERS, "logs"})


def _damage(path: Address, *, quickly: bool) -> Damage | None:
    try:
        return _damage_of_files(path) if quickly else _damage_of_log(path) or _damage_of_files(path, opens_files=True)
    except OSError as error:
        file = str(error.filename) if error.filename else path.url
        return Damage(path, file, (error.strerror or "it cannot be read").lower())
    except LakeError as error:
        return Damage(path, error.where, error.what, error.fix)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of delta-rs is not an Exception
        unread = Damage(path, f"{path}/_delta_log", f"its log cannot be read: {first_line(error)}")
        return (_damage(path, quickly=False) or unread) if quickly else unread


def _damage_of_log(path: Address) -> Damage | None:
    log = path / "_delta_log"
    names = [entry.name for entry in log.list()]
    commits = sorted(name for name in names if COMMIT.fullmatch(name))
    checkpoints = [int(name[:20]) for name in names if ".checkpoint" in name and name[:20].isdigit()]
    if not commits:
        return Damage(path, log.url, "its log is empty")
    numbers = [int(name[:20]) for name in commits]
    for before, after in pairwise([max([-1, *(n for n in checkpoints if n < numbers[0])]), *numbers]):
        if after != before + 1 and not any(before < number <= after for number in checkpoints):
            return Damage(path, commit_file(path, before + 1).url, "a commit is missing")
    truncated = truncated_version(path)
    for name, number in zip(commits, numbers, strict=True):
        if number != truncated and not _is_commit(log / name):
            return Damage(path, f"{log}/{name}", "a commit cannot be read")
    return None


def _is_commit(file: Address) -> bool:
    content = file.read()
    try:
        return bool(content) and all(isinstance(json.loads(line), dict) for line in content.splitlines())
    except ValueError:
        return False


def _damage_of_files(path: Address, *, opens_files: bool = False) -> Damage | None:
    try:
        with delta.opened(path) as table:
            files = archive_tier.files(path, table)
            sizes = _recorded_sizes(path, table) if opens_files or path.on_disk is not None else {}
    except TableNotFoundError:
        if truncated_version(path) == 0:
            return None
        raise
    if missing := path.missing(files):
        return Damage(path, missing[0], "a file is missing")
    for file in map(path.at, files if opens_files or sizes else ()):
        if opens_files and not _is_parquet(file):
            return Damage(path, file.url, "a file is not whole")
        if (entry := file.head()) and entry.size != sizes.get(file.url, entry.size):
            return Damage(path, file.url, "a file has another size than was written")
    return None


def _recorded_sizes(path: Address, table: TableState) -> dict[str, int]:
    actions = table.get_add_actions(flatten=True)  # read without pyarrow, whose import takes 0.2 s
    files, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
    return {(path / unquote(file)).url: size for file, size in zip(files, sizes, strict=True)}


def _is_parquet(file: Address) -> bool:
    with file.open() as read:
        begins = read.read(len(PARQUET)) == PARQUET
        return begins and read.seek(-len(PARQUET), SEEK_END) > 0 and read.read() == PARQUET
