"""Files of this machine: permissions, free space, and flushes that survive a power cut.

Other users cannot enter the folders, whatever the modes of the files are. The command line also sets the umask, which
child processes inherit: files have 0600, or 0640 for a group.
"""

from __future__ import annotations

import grp
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from lake.config import Settings, path_fault
from lake.errors import DeclarationError

ALONE: Final = 0o700
FLUSH_THREADS: Final = 16
"""A disk flushes several files in the time of one."""
SHARED: Final = 0o2750  # set-group-id: new files belong to the folder's group


def umask(settings: Settings) -> int:
    return 0o027 if settings.group else 0o077


def begin(settings: Settings) -> None:
    _group(settings)
    os.umask(umask(settings))


@contextmanager
def for_all(folder: Path, *above: Path) -> Iterator[None]:
    """Let all users read files written in the block, and this user's files in `folder` and `above`.

    This is for installed files, which services of other users read.
    """
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)
    for path in (*above, folder, *folder.rglob("*")):
        status = path.lstat()
        if status.st_uid == os.geteuid() and not path.is_symlink():
            path.chmod(status.st_mode | (0o555 if path.is_dir() else 0o444))


def warehouse(settings: Settings) -> Path:
    """Create the folder if needed, and set the configured permissions if this user owns it."""
    path = settings.warehouse_path
    if path.is_relative_to(settings.path(".lake")):
        _project_folder(settings)
    return _folder(path, SHARED if settings.group else ALONE, _group(settings))


def locks(settings: Settings) -> Path:
    return _folder(warehouse(settings) / "locks", SHARED if settings.group else ALONE, _group(settings))


def readers(settings: Settings) -> Path:
    """Create the folder in which readers register, the only one that the group may write to."""
    return _folder(locks(settings) / "reads", SHARED | 0o020 if settings.group else ALONE, _group(settings))


def cold(settings: Settings, folder: Path) -> None:
    """Create the local folder for archived batches of a log, with the permissions of `warehouse`."""
    _folder(folder, SHARED if settings.group else ALONE, _group(settings))


def scratch(settings: Settings, name: str) -> Path:
    return _folder(_project_folder(settings) / name, ALONE)


def nearest(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def free(path: Path) -> int:
    return shutil.disk_usage(nearest(path)).free


def device(path: Path) -> int:
    return nearest(path).stat().st_dev


def flush(paths: Iterable[Path]) -> None:
    """Flush the content of files and the names in folders, also if another process changed them."""
    paths = list(paths)
    if len(paths) < 3:
        for path in paths:
            _flush(path)
    else:
        with ThreadPoolExecutor(min(FLUSH_THREADS, len(paths))) as pool:
            list(pool.map(_flush, paths))


def flush_above(path: Path) -> None:
    """Flush the names of new folders above `path`, as far as this user may read them."""
    for folder in path.parents:
        with suppress(PermissionError):
            _flush(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _project_folder(settings: Settings) -> Path:
    return _folder(settings.path(".lake"), SHARED if settings.group else ALONE, _group(settings))


def _folder(path: Path, mode: int, group: int | None = None) -> Path:
    if not path.is_dir():
        if not path.parent.is_dir():
            _folder(path.parent, mode, group)
        path.mkdir(mode=mode, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.geteuid():
        return path
    if group is not None and status.st_gid != group:
        _set_group(path, group)
    if status.st_mode & 0o7777 & ~0o2000 != mode & ~0o2000 or mode & ~status.st_mode:
        path.chmod(mode)
    return path


def _set_group(path: Path, group: int) -> None:
    try:
        os.chown(path, -1, group)
    except PermissionError:
        raise DeclarationError(
            f"this user may not assign files to the group {grp.getgrgid(group).gr_name!r}",
            where=f"{path}, setting group",
            fix="add the user to the group and log in again, or set another group",
        ) from None


def _group(settings: Settings) -> int | None:
    if not settings.group:
        return None
    try:
        return grp.getgrnam(settings.group).gr_gid
    except KeyError:
        raise DeclarationError(
            f"no group {settings.group!r} on this machine",
            where=f"[tool.lake] in {settings.project / 'pyproject.toml'}, or LAKE_GROUP",
            fix="name one that `getent group` lists, or leave the setting out",
        ) from None


def check_outside_of_warehouse(settings: Settings, path: Path) -> None:
    if path.resolve().is_relative_to(settings.warehouse_path):
        what = "a copy cannot be in the warehouse: it belongs to no table, and lake forget does not reach it"
        raise DeclarationError(what, where=str(path), fix="name a folder outside of it")


def check_new_or_empty(folder: Path) -> None:
    """Also check that the path is one for tables."""
    if what := path_fault(folder.resolve()):
        raise DeclarationError(what, fix="name another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "the folder is not empty" if folder.is_dir() else "this is not a folder"
        raise DeclarationError(what, where=str(folder), fix="name a new or empty folder")


def kept_secret(file: Path, make: Callable[[], bytes]) -> bytes:
    """Return the content of `file`, created on first use. Concurrent processes get the same."""
    if file.exists() and not file.read_bytes().strip(b"\0"):  # lost in a power cut: the secret would be known
        file.unlink()
    if not file.exists():
        with NamedTemporaryFile(dir=file.parent) as new, suppress(FileExistsError):
            new.write(make())
            new.flush()
            flush([Path(new.name)])
            os.link(new.name, file)
        flush([file.parent])
    return file.read_bytes()


def generated_token(file: Path) -> str:
    """Return the token in `file`, created on first use. Raises DeclarationError if others can read the file."""
    token = kept_secret(file, lambda: secrets.token_urlsafe(32).encode()).decode().strip()
    if file.stat().st_mode & 0o077:
        raise DeclarationError(
            "others can read the server's token", where=str(file), fix=f"rm {file}: the next start creates a new one"
        )
    return token
