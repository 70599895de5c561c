"""Kinds of sinks, and the sinks that files declare."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from lake.config import Settings
from lake.connectors import connector, kind_of
from lake.contracts import declared_files
from lake.contracts.declared_files import DeclaredFile
from lake.errors import DeclarationError, did_you_mean
from lake.sinks.condition import Condition, condition_of
from lake.sinks.sink import Mode, SinkPosition, Target, UnreadablePosition

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

    def position(self, target: Target) -> SinkPosition | None:
        """Return the position in its `target`, None if nothing was delivered. Raises UnreadablePosition."""
        try:
            return target.position()
        except UnreadablePosition as unreadable:
            fix = f"lake deliver {self.name} --resync sends all rows and writes it anew"
            raise UnreadablePosition(unreadable.what, where=self.where, fix=fix) from None


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


@runtime_checkable
class RetryingTarget(Target, Protocol):
    """Target for which the warehouse keeps the rows that it has not accepted."""

    def send_again(self, sink: DeclaredSink) -> RetryResult: ...

    def give_up(self) -> RetryResult: ...


OptionTable: TypeAlias = Mapping[str, tuple[type | tuple[str, ...], Any]]
"""Allowed keys of a TOML table: {key: (type, default)}. A default of None means required.

The type may be a tuple of the allowed texts. A text may be empty only by default. A whole number must be at least 1, or
its default if that is less.
"""


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


NOUNS: Final = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "a table"}
SEE: Final = "see docs/how-to/sinks.md"


def read_options(table: OptionTable, given: Mapping[str, Any], where: str, see: str = SEE) -> dict[str, Any]:
    """Return the values of all keys. Raises one DeclarationError with all faults; `see` names their page."""
    faults = [(f"unknown key {key!r}", did_you_mean(key, table)) for key in given if key not in table]
    values = {}
    for key, (kind, default) in table.items():
        value = given.get(key, default)
        if value is None:
            faults.append((f"{key} is missing", f"write {key} = …; {see}"))
        else:
            faults += _value_faults(key, value, kind, default, see)
        values[key] = value
    DeclarationError.raise_any(faults, where)
    return values


def _value_faults(
    key: str, value: Any, kind: type | tuple[str, ...], default: Any, see: str
) -> Iterator[tuple[str, str]]:
    wanted: Any = str if isinstance(kind, tuple) else kind
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        yield f"{key}: expected {NOUNS[wanted]}, found {type(value).__name__}", see
    elif isinstance(kind, tuple) and value not in kind:
        yield f"{key}: found {value!r}", did_you_mean(value, kind)
    elif value == "" != default:
        yield f"{key}: found an empty text", see
    elif wanted is int and value < (least := 1 if default is None else min(1, default)):
        yield f"{key}: found {value}", f"give a number from {least} on"


def sound_sinks(settings: Settings) -> tuple[dict[str, DeclaredSink], dict[str, DeclarationError]]:
    """Return valid sinks, and the faults of others, by name."""
    return declared_files.sinks(settings).sound(partial(_read, settings))


def tables(settings: Settings) -> dict[str, list[str]]:
    """Return the tables of each sink, valid or not."""
    given = {file.name: file.options.get("tables") for file in declared_files.sinks(settings).texts}
    return {name: list(tables) if isinstance(tables, dict) else [] for name, tables in given.items()}


def chosen_sinks(settings: Settings, wanted: Collection[str]) -> tuple[list[DeclaredSink], dict[str, DeclarationError]]:
    """Return the valid ones of the `wanted` sinks (none: all), and the faults of others by name.

    Raises DeclarationError for an unknown name, or if no sink is declared.
    """
    return declared_files.sinks(settings).chosen(partial(_read, settings), wanted)


def declared_sinks(settings: Settings, wanted: Collection[str] = ()) -> list[DeclaredSink]:
    """Return the `wanted` sinks (none: all). Raises DeclarationError if one is faulty or unknown, or none declared."""
    sinks, faults = chosen_sinks(settings, wanted)
    DeclarationError.raise_any(faults.values())
    return sinks


def _read(settings: Settings, file: DeclaredFile) -> DeclaredSink:
    where, name = file.where, kind_of("lake.sinks", file.options, file.where)
    kind: SinkKind = connector("lake.sinks", name, where)
    common: OptionTable = {
        "tables": (dict, None),
        "after_publish": (bool, False),
        "begin": (get_args(Begin), kind.begin),
    }
    given = {key: value for key, value in file.values.items() if key != "kind"}
    options = read_options({**common, **kind.options}, given, where)
    after_publish, begin = options.pop("after_publish"), options.pop("begin")
    tables = dict(_tables(kind, options.pop("tables"), where))
    _check_names_differ(tables.values(), where)
    if begin == "now" and (mirrors := [table.name for table in tables.values() if table.mode == "mirror"]):
        raise DeclarationError(
            f'begin = "now": {mirrors[0]} mirrors the edition, so it begins with all rows',
            where=where,
            fix="give its table another mode, or leave out `begin`",
        )
    make = partial(kind.open, SinkDeclaration(file.name, options, where, settings))
    return DeclaredSink(file.name, name, tables, where, make, after_publish, begin, kind.keeps)


def _tables(kind: SinkKind, given: Mapping[str, Any], where: str) -> Iterator[tuple[str, DeclaredTable]]:
    if not given:
        raise DeclarationError("it has no table", where=where, fix="write [tables.NAME]; lake tables lists them")
    for name, options in given.items():
        place = f"{where}, table {name}"
        if not isinstance(options, dict):
            raise DeclarationError(f"expected a table, found {options!r}", where=place, fix=f"write [tables.{name}]")
        common: OptionTable = {
            "name": (str, name),
            "columns": (list, []),
            "mode": (kind.modes, kind.modes[0]),
            "on": (list, []),
            "when": (str, ""),
        }
        read = read_options({**common, **kind.table_options}, options, place)
        far, columns, mode = read.pop("name"), read.pop("columns"), read.pop("mode")
        if not all(isinstance(column, str) for column in columns) or len(set(columns)) < len(columns):
            raise DeclarationError(f"columns: expected names, each once, found {columns!r}", where=place, fix=SEE)
        condition = condition_of(read.pop("on"), read.pop("when"), place)
        if condition and mode != "append":
            raise DeclarationError(
                f"on and when choose among changes, but mode {mode} takes rows",
                where=place,
                fix='leave them out, or say mode = "append"',
            )
        shaped = mode not in kind.loose
        yield name, DeclaredTable(name, far, tuple(columns), mode, read, shaped, condition)


def _check_names_differ(tables: Collection[DeclaredTable], where: str) -> None:
    far = [table.far for table in tables]
    for name in {name for name in far if far.count(name) > 1}:
        raise DeclarationError(f"two tables are called {name!r} there", where=where, fix="give one another `name`")
