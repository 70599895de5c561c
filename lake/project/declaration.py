"""Declarations of tables. A job file declares one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lake.errors import DeclarationError
from lake.kinds.kind import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lake.quality.suite import Expectation


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

    Its rows are those of its function that meet each expectation of `parking`; of the table `parked_of`, the others.
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
    def file(self) -> Path:
        return Path(self.function.__code__.co_filename)

    @property
    def layer(self) -> str:
        return self.file.parent.name

    @property
    def where(self) -> str:
        return f"jobs/{self.layer}/{self.file.name}:{self.function.__code__.co_firstlineno}"

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
        raise DeclarationError(f"not a kind: {_shown(kind)}", fix='call one: Latest(key="…"), Aggregate(key="…", …)')
    if wrong := [each for each in inputs if not isinstance(each, Input | Declaration)]:
        raise DeclarationError(
            f"not an input: {_shown(wrong[0])}",
            fix='use log("a_stream"), or a table imported from its job: @table(…, a_table)',
        )
    sources = tuple(each if isinstance(each, Input) else Input(each.name, each) for each in inputs)

    def declare(function: Callable[..., DataFrame | tuple[DataFrame, ...]]) -> Declaration:
        if not isfunction(function):
            raise DeclarationError(
                f"{_shown(function)} is not a function", fix="write def a_table(its_input): return its_input"
            )
        return Declaration(function.__name__, kind, sources, function)

    return declare


def _shown(value: object) -> str:
    return str(getattr(value, "__name__", repr(value)))


def _pickle_by_value(package: str) -> None:
    """Send functions of a job's `package` to Spark's workers as code: workers may find no module, or an older one."""
    if package == "jobs":
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[package])  # type: ignore[no-untyped-call]
