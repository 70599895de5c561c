"""Import of job files: an error in one is reported once, with its line, and never ends the process."""

from __future__ import annotations

import builtins
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module, invalidate_caches
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from lake.errors import DeclarationError, did_you_mean
from lake.project.declaration import Declaration
from lake.project.jobfile import JobFile

_lake: Final = sys.modules["lake"]  # its public names, which cannot be imported here
_KEYWORD: Final = re.compile(r"^(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_NAME: Final = re.compile(r"^name '(\w+)' is not defined")


class UpstreamFailed(Exception):
    """A job cannot be imported because one that it imports cannot."""


@contextmanager
def importing(project: Path) -> Iterator[None]:
    """Let imports of `jobs` find this project's files, whatever project was loaded before."""
    for name in [name for name in sys.modules if name == "jobs" or name.startswith("jobs.")]:
        del sys.modules[name]
    sys.path.insert(0, str(project))
    invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(project))


def load_declaration(file: JobFile, files: Mapping[Path, JobFile]) -> Declaration:
    """Return the table that `file` declares.

    Raises DeclarationError if it does not declare one of its name, UpstreamFailed if another of `files` is to blame.
    """
    try:
        module = import_module(file.module)
    except (Exception, SystemExit) as error:
        raise _as_fault(file, files, error) from error
    tables = [each for each in vars(module).values() if isinstance(each, Declaration) and each.file.samefile(file.path)]
    if len(tables) != 1 or tables[0].name != file.path.stem:
        raise DeclarationError(
            f"declares {', '.join(sorted(each.name for each in tables)) or 'no table'}",
            where=file.where,
            fix=f"declare one table in it, called {file.path.stem}",
        )
    return tables[0]


def _as_fault(file: JobFile, files: Mapping[Path, JobFile], error: BaseException) -> DeclarationError | UpstreamFailed:
    frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename) in files]
    if frames and Path(frames[-1].filename) != file.path:
        return UpstreamFailed(frames[-1].filename)
    where = f"{file.where}:{frames[-1].lineno}" if frames else file.where
    name = file.path.stem
    if isinstance(error, DeclarationError):
        return DeclarationError(f"{name}: {error.what}", where=error.where or where, fix=error.fix)
    if isinstance(error, SystemExit):
        return DeclarationError(f"{name}: ends the process", where=where, fix="a job may only declare a table")
    what = f"{type(error).__name__}: {error}".replace(".__init__()", "")
    what = re.sub(r" \(/[^)]*\)$", "", what)  # the path of a module is irrelevant to the job
    return DeclarationError(f"{name}: {what}", where=where, fix=_fix(error, files))


def _fix(error: BaseException, files: Mapping[Path, JobFile]) -> str:
    message = str(error)
    if match := _KEYWORD.match(message):
        kind: Any = getattr(_lake, match[1], None)
        return did_you_mean(match[2], inspect.signature(kind).parameters) if kind else "leave it out"
    if isinstance(error, TypeError) and "missing" in message and "required" in message:
        return "add it: `python -c 'import lake; help(lake.…)'` shows what each kind takes"
    if match := _NAME.match(message):
        fix = f"import it: from lake import {match[1]}" if match[1] in _lake.__all__ else ""
        return fix or did_you_mean(match[1], _lake.__all__, dir(builtins))
    if isinstance(error, ImportError) and error.name == "lake":
        return did_you_mean(message.partition("'")[2].partition("'")[0], _lake.__all__)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return did_you_mean(error.name, [file.module for file in files.values()])
    return "correct that line; --debug shows the stack trace"
