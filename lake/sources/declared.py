"""Declared sources, `sources/<name>.toml`: the kind of source, its connection and its streams. See
docs/how-to/sources.md.

Several sources and its landing folder may feed one stream. Records that a source reads at once for several streams,
such as a transaction, are never divided by a cut.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from lake.config import Settings
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, did_you_mean, install
from lake.sources.source import FromEnvironment, Source

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "kafka": ("lake.sources.kafka", "kafka"),
    "postgres": ("lake.sources.postgres", "postgres"),
    "http": ("lake.sources.http", "serve"),
    "tap": ("lake.sources.tap", ""),
}
WITHIN: Final = ("http", "tap")
"""Kinds that use the project's files: `of` gets the settings, and options before `env:` is replaced."""
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
ENVIRONMENT: Final = "env:"


@dataclass(frozen=True)
class DeclaredSource:
    """Declared source. `open` returns it, not yet connected."""

    name: str
    kind: str
    streams: tuple[str, ...]
    where: str
    make: Callable[[], Source]

    def open(self) -> Source:
        return self.make()


def sound_sources(
    settings: Settings, contracts: Mapping[str, Contract]
) -> tuple[dict[str, DeclaredSource], dict[str, DeclarationError]]:
    """Return the valid sources by name, and the error of each invalid one."""
    sources: dict[str, DeclaredSource] = {}
    faults: dict[str, DeclarationError] = {}
    for file in sorted(settings.path(settings.sources).glob("*.toml")):
        try:
            sources[file.stem] = _read(settings, file, contracts)
        except DeclarationError as fault:
            faults[file.stem] = fault
    return sources, faults


def names(settings: Settings) -> list[str]:
    """Return the names of all declared sources, valid or not."""
    return sorted(file.stem for file in settings.path(settings.sources).glob("*.toml"))


def decided_by(settings: Settings, stream: str) -> str | None:
    """Return the HTTP source that validates events of a stream, valid or not; None if there is none.

    Such a stream gets events from that source alone.
    """
    for name, options in _declarations(settings):
        decide = options.get("decide")
        if options.get("kind") == "http" and isinstance(decide, dict) and stream in decide:
            return name
    return None


def kinds(settings: Settings) -> dict[str, str]:
    """Return the kind of each declared source, valid or not."""
    return {name: str(options["kind"]) for name, options in _declarations(settings) if "kind" in options}


def _declarations(settings: Settings) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(settings.path(settings.sources).glob("*.toml")):
        with suppress(tomllib.TOMLDecodeError, UnicodeDecodeError):
            yield file.stem, tomllib.loads(file.read_text("utf-8"))


def module_of(what: str, kind: str, kinds: Mapping[str, tuple[str, str]], where: str) -> ModuleType:
    """Import the module of a kind of source or sink, `what`. Raises DeclarationError if its extra is not installed."""
    name, extra = kinds[kind]
    try:
        return import_module(name)
    except ImportError as error:
        if (error.name or "").startswith("lake."):
            raise
        raise DeclarationError(f"a {what} of kind {kind} needs {error.name}", where=where, fix=install(extra)) from None


def _read(settings: Settings, file: Path, contracts: Mapping[str, Contract]) -> DeclaredSource:
    where = str(file.relative_to(settings.project)) if file.is_relative_to(settings.project) else str(file)
    if not NAME.fullmatch(file.stem):
        raise DeclarationError(
            f"{file.stem!r} is not a valid name of a source", where=where, fix="use a-z, digits and _, a letter first"
        )
    try:
        options = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeclarationError(f"invalid TOML: {error}", where=where, fix="see docs/how-to/sources.md") from None
    kind = options.pop("kind", None)
    if kind not in KINDS:
        what = "names no kind" if kind is None else f"unknown kind {kind!r}"
        raise DeclarationError(what, where=where, fix=did_you_mean(str(kind), KINDS))
    of = module_of("source", kind, KINDS, where).of
    if kind in WITHIN:
        source: Source = of(file.stem, options, contracts, where, settings)
    else:
        source = of(file.stem, dict(filled_in(options, where)), contracts, where)
    faults = [
        DeclarationError(f"unknown stream {stream!r}", where=where, fix=did_you_mean(stream, contracts))
        for stream in source.streams
        if stream not in contracts
    ]
    if faults:
        raise DeclarationError.all(faults)
    return DeclaredSource(file.stem, kind, source.streams, where, lambda: source)


def filled_in(options: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Yield the options with `env:` values replaced. Messages never show these values."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield name, dict(filled_in(value, where))
        elif isinstance(value, str) and value.startswith(ENVIRONMENT):
            variable = value.removeprefix(ENVIRONMENT)
            if variable not in os.environ:
                raise DeclarationError(
                    f"{name} comes from the environment variable {variable}, which is not set",
                    where=where,
                    fix=f"export {variable}=…",
                )
            yield name, FromEnvironment(os.environ[variable])
        else:
            yield name, value
