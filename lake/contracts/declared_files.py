"""Declarations in TOML files of a project. A value `env:NAME` stands for an environment variable."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from lake.config import Settings
from lake.contracts.declared_text import declared_text, files_in
from lake.errors import DeclarationError, did_you_mean

T = TypeVar("T")
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
ENVIRONMENT: Final = "env:"


class FromEnvironment(str):
    """Text read from the environment, which may be a secret."""


@dataclass(frozen=True)
class DeclaredFile:
    """TOML file as written; `where` is its path in messages."""

    name: str
    options: Mapping[str, Any]
    where: str

    @property
    def values(self) -> dict[str, Any]:
        """Options with values from the environment. Raises DeclarationError if one is not set."""
        return {name: filled_in(value, name, self.where) for name, value in self.options.items()}


@dataclass(frozen=True)
class DeclaredFolder:
    """Folder of declarations; `noun` names one of them, such as "a sink". Their options are in `page` of the docs."""

    noun: str
    page: str
    path: Path
    project: Path

    @property
    def files(self) -> Sequence[Path]:
        return files_in(self.path, ".toml")

    @property
    def names(self) -> list[str]:
        return sorted(file.stem for file in self.files)

    @property
    def texts(self) -> Iterator[DeclaredFile]:
        """Files that are TOML, also if their options are faulty."""
        for file in self.files:
            with suppress(tomllib.TOMLDecodeError, UnicodeDecodeError, OSError):
                yield DeclaredFile(file.stem, tomllib.loads(file.read_text("utf-8")), self._where(file))

    def sound(self, read: Callable[[DeclaredFile], T]) -> tuple[dict[str, T], dict[str, DeclarationError]]:
        found: dict[str, T] = {}
        faults: dict[str, DeclarationError] = {}
        for file in self.files:
            try:
                found[file.stem] = read(self._parsed(file))
            except DeclarationError as fault:
                faults[file.stem] = fault
        return found, faults

    def after_publish_faults(self, faults: Mapping[str, DeclarationError]) -> dict[str, DeclarationError]:
        """Return those of files that ask for delivery after publication, or are no TOML."""
        options = {file.name: file.options for file in self.texts}
        after = {name for name, values in options.items() if values.get("after_publish", False) is not False}
        return {name: fault for name, fault in faults.items() if name in after or name not in options}

    def chosen(
        self, read: Callable[[DeclaredFile], T], wanted: Collection[str]
    ) -> tuple[list[T], dict[str, DeclarationError]]:
        """Return the valid ones of `wanted` (none: all), and faults of others. Raises DeclarationError if unknown."""
        _, noun = self.noun.split()
        known = self.names
        if unknown := [name for name in wanted if name not in known]:
            raise DeclarationError.all(
                [DeclarationError(f"unknown {noun} {name!r}", fix=did_you_mean(name, known)) for name in unknown]
            )
        if not known:
            fix = f"write NAME.toml there; see {self.page}"
            raise DeclarationError(f"no {noun} is declared", where=str(self.path), fix=fix)
        found, faults = self.sound(read)
        chosen = set(wanted or known)
        return (
            [each for name, each in found.items() if name in chosen],
            {name: fault for name, fault in faults.items() if name in chosen},
        )

    def _parsed(self, file: Path) -> DeclaredFile:
        where = self._where(file)
        if not NAME.fullmatch(file.stem):
            raise DeclarationError(
                f"{file.stem!r} is not a valid name of {self.noun}",
                where=where,
                fix="use a-z, digits and _, a letter first",
            )
        fix = f"write {self.noun} as a TOML file; see {self.page}"
        text = declared_text(file, "the declaration", where=where, fix=fix)
        try:
            return DeclaredFile(file.stem, tomllib.loads(text), where)
        except tomllib.TOMLDecodeError as error:
            raise DeclarationError(f"invalid TOML: {error}", where=where, fix=f"see {self.page}") from None

    def _where(self, file: Path) -> str:
        return str(file.relative_to(self.project)) if file.is_relative_to(self.project) else str(file)


def sources(settings: Settings) -> DeclaredFolder:
    return DeclaredFolder("a source", "docs/how-to/sources.md", settings.path(settings.sources), settings.project)


def sinks(settings: Settings) -> DeclaredFolder:
    return DeclaredFolder("a sink", "docs/how-to/sinks.md", settings.path(settings.sinks), settings.project)


def alerts(settings: Settings) -> DeclaredFolder:
    return DeclaredFolder("an alert", "docs/how-to/alerts.md", settings.path(settings.alerts), settings.project)


def filled_in(value: Any, name: str, where: str) -> Any:
    """Return an option with each `env:NAME` in it replaced. Messages name the option, never its value."""
    if isinstance(value, dict):
        return {key: filled_in(member, key, where) for key, member in value.items()}
    if isinstance(value, list):
        return [filled_in(item, name, where) for item in value]
    if not isinstance(value, str) or not value.startswith(ENVIRONMENT):
        return value
    variable = value.removeprefix(ENVIRONMENT)
    if variable not in os.environ:
        raise DeclarationError(
            f"{name} comes from the environment variable {variable}, which is not set",
            where=where,
            fix=f"export {variable}=…",
        )
    return FromEnvironment(os.environ[variable])
