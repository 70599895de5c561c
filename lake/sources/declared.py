"""Declared sources, `sources/<name>.toml`: the kind of source, its connection and its streams. See
docs/how-to/sources.md.

Several sources and its landing folder may feed one stream. Records that a source reads at once for several streams,
such as a transaction, are never divided by a cut.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lake.config import Settings
from lake.connectors import connector, connectors, needed_packages
from lake.contracts.contract import Contract
from lake.errors import DeclarationError, did_you_mean, install
from lake.sources.source import Decider, Source, SourceDeclaration, SourceKind

NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


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
    """Return the source that decides on events of a stream, valid or not; None if there is none.

    Such a stream gets events from that source alone.
    """
    decide = ((name, options.get("decide")) for name, options in _declarations(settings))
    return next((name for name, tables in decide if isinstance(tables, dict) and stream in tables), None)


def decider(settings: Settings) -> Decider:
    """Return the decider of the installed kinds of sources. Raises DeclarationError if none has one."""
    where = f"{settings.sources}/"
    kinds = (source_kind(kind, where) for kind in connectors("lake.sources"))
    found = next((kind.decider for kind in kinds if kind.decider), None)
    if found is None:
        raise DeclarationError("no installed kind of source decides on events", where=where, fix=install("serve"))
    return found


def kinds(settings: Settings) -> dict[str, str]:
    """Return the kind of each declared source, valid or not."""
    return {name: str(options["kind"]) for name, options in _declarations(settings) if "kind" in options}


def source_kind(kind: str, where: str) -> SourceKind:
    """Import a kind of source. Raises DeclarationError as `connector` does."""
    found: SourceKind = connector("lake.sources", kind, where)
    return found


def _declarations(settings: Settings) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(settings.path(settings.sources).glob("*.toml")):
        with suppress(tomllib.TOMLDecodeError, UnicodeDecodeError):
            yield file.stem, tomllib.loads(file.read_text("utf-8"))


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
    if not isinstance(kind, str):
        fix = f"kind = one of {', '.join(connectors('lake.sources'))}"
        raise DeclarationError("names no kind", where=where, fix=fix)
    with needed_packages("lake.sources", kind, where):
        source = source_kind(kind, where).open(SourceDeclaration(file.stem, options, contracts, where, settings))
    faults = [
        DeclarationError(f"unknown stream {stream!r}", where=where, fix=did_you_mean(stream, contracts))
        for stream in source.streams
        if stream not in contracts
    ]
    if faults:
        raise DeclarationError.all(faults)
    return DeclaredSource(file.stem, kind, source.streams, where, lambda: source)
