"""Declared sources, `sources/<name>.toml`. See docs/how-to/sources.md.

Several sources may feed one stream. Records that a source reads at once for several streams, such as a transaction, are
never divided by a cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lake.config import Settings
from lake.connectors import connector, kind_of, translated_import_errors
from lake.contracts import declared_files
from lake.contracts.contract import Contract, streams_of
from lake.contracts.declared_files import DeclaredFile
from lake.errors import DeclarationError, did_you_mean
from lake.sources.source import Decider, Source, SourceDeclaration, SourceKind


@dataclass(frozen=True)
class DeclaredSource:
    """`make` returns its Source, not yet connected. `members` are those of its kind (see SourceKind)."""

    name: str
    kind: str
    streams: tuple[str, ...]
    where: str
    make: Callable[[], Source]
    members: Sequence[str] = ()

    def open(self) -> Source:
        return self.make()


def sound_sources(
    settings: Settings, contracts: Mapping[str, Contract]
) -> tuple[dict[str, DeclaredSource], dict[str, DeclarationError]]:
    return declared_files.sources(settings).sound(partial(_read, settings, contracts))


def names(settings: Settings) -> list[str]:
    """Return the names of all declarations, valid or not."""
    return declared_files.sources(settings).names


def decided_by(settings: Settings, stream: str) -> str | None:
    """Return the source that decides on events of a stream, valid or not: it gets events from that source alone."""
    decide = ((file.name, file.options.get("decide")) for file in declared_files.sources(settings).texts)
    return next((name for name, tables in decide if isinstance(tables, dict) and stream in tables), None)


def decider(settings: Settings) -> Decider:
    """Return what decides on events. Raises DeclarationError if no source does, valid or not."""
    where = f"{settings.sources}/"
    files = [file for file in declared_files.sources(settings).texts if "decide" in file.options]
    kinds = (source_kind(kind, where) for kind in sorted({str(file.options.get("kind")) for file in files}))
    found = next((kind.decider for kind in kinds if kind.decider), None)
    if found is None:
        fix = 'a source of kind http does, with decide.STREAM = "a table"; see docs/how-to/commands.md'
        raise DeclarationError("no source decides on events", where=where, fix=fix)
    return found


def kinds(settings: Settings) -> dict[str, str]:
    """Return kinds by source, valid or not."""
    files = declared_files.sources(settings).texts
    return {file.name: str(file.options["kind"]) for file in files if "kind" in file.options}


def source_kind(kind: str, where: str) -> SourceKind:
    found: SourceKind = connector("lake.sources", kind, where)
    return found


def _read(settings: Settings, contracts: Mapping[str, Contract], file: DeclaredFile) -> DeclaredSource:
    where, kind = file.where, kind_of("lake.sources", file.options, file.where)
    options = {key: value for key, value in file.options.items() if key != "kind"}
    with translated_import_errors("lake.sources", kind, where) as entry:
        loaded: SourceKind = entry.load()
        source = loaded.open(SourceDeclaration(file.name, options, where, contracts, settings))
    known = streams_of(settings)
    unknown = (stream for stream in source.streams if stream not in known)
    faults = ((f"unknown stream {stream!r}", did_you_mean(stream, known)) for stream in unknown)
    DeclarationError.raise_any(faults, where)
    return DeclaredSource(file.name, kind, source.streams, where, lambda: source, loaded.members)
