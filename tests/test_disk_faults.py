"""Full and read-only disks: one fault and one exit code for every library."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import NoReturn

import duckdb
import pytest
from click.testing import CliRunner
from deltalake.exceptions import DeltaError

from lake.cli import lake
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.ops.scaffold import init
from lake.store.process import fault_of

FORBIDDEN = [
    OSError(errno.EROFS, os.strerror(errno.EROFS), "/data/.lake/x.lock"),
    PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/data/.lake/x.lock"),
    PermissionError(errno.EPERM, os.strerror(errno.EPERM), "/data/.lake/x.lock"),
    OSError("Generic LocalFileSystem error: Unable to open file /data/t/0.json: Read-only file system (os error 30)"),
    DeltaError("Generic error: Generic LocalFileSystem error: /data/t: Permission denied (os error 13)"),
    duckdb.IOException('IO Error: Cannot open file "/data/.lake/tmp": Read-only file system'),
    sqlite3.OperationalError("attempt to write a readonly database"),
    RuntimeError("java.io.IOException: Cannot create /data/t/_delta_log: Read-only file system"),
]
FULL = [
    OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"),
    OSError("Generic LocalFileSystem error: Unable to copy to /data/x: No space left on device (os error 28)"),
    sqlite3.OperationalError("database or disk is full"),
]
QUOTED = [
    error
    for reason in ("Permission denied", "No space left on device", "Connection refused", "request timeout")
    for error in (
        ValueError(f"{reason!r} is no status"),
        KeyError(reason),
        duckdb.ConversionException(f"Conversion Error: Could not convert string '{reason}' to INT32"),
    )
]
"""Unexpected errors that quote a value."""
GONE = [OSError(errno.ENOENT, os.strerror(errno.ENOENT), "/data/x"), OSError(errno.EIO, os.strerror(errno.EIO), "/x")]


@pytest.mark.parametrize("error", FORBIDDEN, ids=str)
def test_unwritable_place_is_a_declaration_error(error: Exception) -> None:
    fault = fault_of(error, None)
    assert isinstance(fault, DeclarationError)
    assert fault.exit_code == 2
    assert fault.what.startswith("no access: ")
    assert "try again" not in fault.fix


@pytest.mark.parametrize("error", [*FULL, *GONE], ids=str)
def test_full_or_unresponsive_disk_is_unavailable(error: Exception) -> None:
    fault = fault_of(error, None)
    assert isinstance(fault, Unavailable)
    assert fault.exit_code == 75


@pytest.mark.parametrize("error", QUOTED, ids=str)
def test_error_that_quotes_a_value_is_no_fault_of_a_disk_or_storage(error: Exception) -> None:
    assert fault_of(error, None) is None


def test_command_on_a_read_only_disk_exits_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init(tmp_path / "shop")
    opened = os.open

    def refuse(path: str, flags: int, *rest: object, **more: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *rest, **more)  # type: ignore[arg-type]

    def stop() -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(os, "open", refuse)
    done = CliRunner().invoke(lake, ["cut", "--project", str(tmp_path / "shop")])
    fault = done.exception if isinstance(done.exception, LakeError) else fault_of(done.exception or stop(), None)
    assert isinstance(fault, DeclarationError)
    assert fault.what == "no access: read-only file system"
    assert str(tmp_path) in fault.where
