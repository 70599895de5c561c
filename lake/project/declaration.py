"""Declarations of tables, each by the import of a job file.

An error in a file is reported once, with its line, and never ends the process.
"""

from __future__ import annotations

import builtins
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module, invalidate_caches
from inspect import isfunction
from pathlib import Path
from traceback import extract_tb
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from lake.errors import DeclarationError, did_you_mean
from lake.kinds.kind import Kind
from lake.lazy import DataFrame
from lake.project.jobfile import JobFile

if TYPE_CHECKING:
    from lake.quality.suite import Expectation

_lake: Final = sys.modules["lake"]  # its public names, which cannot be imported here
_KEYWORD: Final = re.compile(r"^(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_NAME: Final = re.compile(r"^name '(\w+)' is not defined")


@dataclass(frozen=True)
class Input:
    name: str
    table: Declaration | None = None

    @property
    def is_log(self) -> bool:
        return self.table is None


@dataclass(frozen=True)
class Declaration:
    """Derived table. It stays callable: a test can pass it small frames.

    Rows of its function that fail an expectation of `parking` go to a second table, whose `parked_of` is this one.
    """

    name: str
    kind: Kind
    inputs: tuple[Input, ...]
    function: Callable[..., DataFrame | tuple[DataFrame, ...]] = field(compare=False)
    parking: tuple[Expectation, ...] = ()
    parked_of: Declaration | None = None

    def __call__(self, *frames: DataFrame) -> Any:
        _pickle_by_value(self.function.__module__.partition(".")[0])
        return self.function(*frames)

    @property
    def _code(self) -> CodeType:
        code: CodeType = inspect.unwrap(self.function).__code__
        return code

    @property
    def file(self) -> Path:
        return Path(self._code.co_filename)

    @property
    def layer(self) -> str:
        return self.file.parent.name

    @property
    def where(self) -> str:
        return f"jobs/{self.layer}/{self.file.name}:{self._code.co_firstlineno}"

    @property
    def doc(self) -> str:
        """The table's comment in the catalogue: one line."""
        if self.parked_of is not None:
            return f"A row that {self.parked_of.name} does not take, and the expectations that it fails."
        paragraph = (self.function.__doc__ or "").strip().split("\n\n")[0]
        return " ".join(paragraph.split())

    @property
    def comments(self) -> dict[str, str]:
        lines = (self.function.__doc__ or "").split("\n\n", 1)[-1].splitlines()
        pairs = (line.strip().partition(": ") for line in lines)
        return {name: meaning for name, colon, meaning in pairs if colon and name.isidentifier()}

    def fault(self, what: str, *, fix: str = "") -> DeclarationError:
        return DeclarationError(f"{self.name}: {what}", where=self.where, fix=fix)


def log(stream: str) -> Input:
    """Return the log of `stream` as an input."""
    return Input(stream)


def table(
    kind: Kind, *inputs: Input | Declaration
) -> Callable[[Callable[..., DataFrame | tuple[DataFrame, ...]]], Declaration]:
    """Declare a table: `kind` says how it grows, `inputs` are its inputs, the function maps rows.

    The function takes one DataFrame per input and returns one, or one per input, as its kind says. Its docstring says
    what one row of the table is. Columns may be described in the docstring's body as `column: comment`.
    """
    if not isinstance(kind, Kind):
        raise DeclarationError(f"not a kind: {_name_of(kind)}", fix='call one: Latest(key="…"), Aggregate(key="…", …)')
    if wrong := [source for source in inputs if not isinstance(source, Input | Declaration)]:
        raise DeclarationError(
            f"not an input: {_name_of(wrong[0])}",
            fix='use log("a_stream"), or a table imported from its job: @table(…, a_table)',
        )
    sources = tuple(source if isinstance(source, Input) else Input(source.name, source) for source in inputs)

    def declare(function: Callable[..., DataFrame | tuple[DataFrame, ...]]) -> Declaration:
        if not isfunction(function):
            raise DeclarationError(
                f"{_name_of(function)} is not a function", fix="write def a_table(its_input): return its_input"
            )
        return Declaration(function.__name__, kind, sources, function)

    return declare


def _name_of(value: object) -> str:
    return str(getattr(value, "__name__", repr(value)))


def _pickle_by_value(package: str) -> None:
    """Send functions of a job's `package` to Spark's workers as code: workers may find no module, or an older one."""
    module = sys.modules.get(package)  # a module that is gone is sent as code anyway
    if package == "jobs" and module:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


class UpstreamFailed(Exception):
    pass


@contextmanager
def importing(project: Path) -> Iterator[None]:
    for name in [name for name in sys.modules if name == "jobs" or name.startswith("jobs.")]:
        del sys.modules[name]
    sys.path.insert(0, str(project))
    invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(project))


def load_declaration(file: JobFile, files: Mapping[Path, JobFile]) -> Declaration:
    """Import `file`. Raises DeclarationError for a fault of it, UpstreamFailed for one of a file that it imports."""
    try:
        module = import_module(file.module)
    except (Exception, SystemExit) as error:
        raise _as_fault(file, files, error) from error
    tables = [
        value for value in vars(module).values() if isinstance(value, Declaration) and value.file.samefile(file.path)
    ]
    if len(tables) != 1 or tables[0].name != file.path.stem:
        raise DeclarationError(
            f"declares {', '.join(sorted(table.name for table in tables)) or 'no table'}",
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
    raised_by = extract_tb(error.__traceback__)[-1].filename
    if "SESSION_OR_CONTEXT" in str(error) or (isinstance(error, AssertionError) and "pyspark" in raised_by):
        what = f"{name}: makes an expression of columns where there is no session yet"
        return DeclarationError(what, where=where, fix="make it in the function")
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
