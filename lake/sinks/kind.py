"""Kinds of sinks, and the sinks that files declare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from lake.config import Settings
from lake.contracts.declared_files import DeclaredFile
from lake.sinks.condition import Condition
from lake.sinks.sink import Mode, Target

Begin: TypeAlias = Literal["snapshot", "now"]


@dataclass(frozen=True)
class DeclaredTable:
    """Table of a sink: `name` in the edition, `far` in the target. Empty `columns` means all.

    If not `shaped`, it accepts rows of any shape.
    """

    name: str
    far: str
    columns: tuple[str, ...] = ()
    mode: Mode = "mirror"
    options: Mapping[str, Any] = field(default_factory=dict)
    shaped: bool = True
    condition: Condition = field(default_factory=Condition)


@dataclass(frozen=True)
class DeclaredSink:
    """Declared sink. `make` returns its target, not yet connected."""

    name: str
    kind: str
    tables: Mapping[str, DeclaredTable]
    where: str
    make: Callable[[], Target]
    after_publish: bool = False
    begin: Begin = "snapshot"
    keeps: str = ""

    def open(self) -> Target:
        return self.make()


@dataclass(frozen=True)
class SinkDeclaration(DeclaredFile):
    """File `sinks/<name>.toml`; `options` are the values of the kind's options."""

    settings: Settings


@dataclass(frozen=True)
class RetryResult:
    """Numbers of rows that the receiver accepted (or were given up), and that are left."""

    sink: str
    taken: int
    left: int


class Retry(Protocol):
    """Rows that a target has not accepted, and the warehouse keeps for it."""

    def send_again(self, settings: Settings, sink: DeclaredSink) -> RetryResult: ...

    def give_up(self, settings: Settings, sink: DeclaredSink) -> RetryResult: ...


OptionTable: TypeAlias = Mapping[str, tuple[type, Any]]
"""Allowed keys of a TOML table: {key: (type, default)}. A default of None means required."""


@dataclass(frozen=True)
class SinkKind:
    """Kind of sink: the object of an entry point in the group `lake.sinks`, named as the kind.

    - `open` does not connect; it raises one DeclarationError with all faults.
    - `modes`: of a table, the default first; `loose` ones accept rows of any shape.
    - `options`, `table_options`: keys of the file and of its tables, beyond those of every sink.
    - `keeps`: what a target keeps of changed or deleted rows. `begin`: default of the option `begin`.
    """

    open: Callable[[SinkDeclaration], Target]
    modes: tuple[Mode, ...]
    options: OptionTable
    table_options: OptionTable = field(default_factory=dict)
    loose: tuple[Mode, ...] = ()
    keeps: str = ""
    begin: Begin = "snapshot"
    retry: Retry | None = None
