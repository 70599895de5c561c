"""Declared HTTP sources, and exclusive access to the folder of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lake.config import Settings
from lake.contracts.contract import Contract, load_contracts, sound_contracts, streams_of
from lake.errors import DeclarationError, did_you_mean
from lake.ingest.source_position import source_position
from lake.serve.intake_folder import GroupWriter, IntakeFolder
from lake.serve.source import DeclaredIntake, HttpSource
from lake.sources import spool
from lake.sources.declared import sound_sources

KIND: Final = "http"


def find_declaration_if_any(settings: Settings, name: str | None) -> DeclaredIntake | None:
    """Return as `find_declaration` does; None if no name is given and the project has no HTTP source."""
    contracts, _ = sound_contracts(settings)
    sources, faults = sound_sources(settings, contracts)
    if name is None and not faults and not any(source.kind == KIND for source in sources.values()):
        return None
    return find_declaration(settings, load_contracts(settings), name)


def find_declaration(settings: Settings, contracts: Mapping[str, Contract], name: str | None) -> DeclaredIntake:
    """Return the HTTP source of that name, or the only one. Raises DeclarationError if there is none."""
    sources, faults = sound_sources(settings, contracts)
    folder = f"{settings.sources}/"
    if name in faults or (name is None and faults):
        raise faults[name] if name else DeclarationError.all(faults.values())
    if name is not None and name not in sources:
        raise DeclarationError(f"no source {name!r}", where=folder, fix=did_you_mean(name, sources))
    of_kind = [source for source in sources.values() if source.kind == KIND and name in {None, source.name}]
    if len(of_kind) != 1:
        what = f"{len(of_kind) or 'no'} sources are of kind {KIND}" if name is None else f"{name} is not of kind {KIND}"
        names = ", ".join(source.name for source in of_kind)
        fix = f"name one: {names}" if of_kind else f'write {folder}web.toml with the line: kind = "{KIND}"'
        raise DeclarationError(what, where=folder, fix=fix)
    source = of_kind[0].open()
    assert isinstance(source, HttpSource)
    return source.declared


def intake_writer(settings: Settings, source: str) -> GroupWriter:
    """Open an HTTP source's folder for writing. Raises Unavailable if it is in use."""

    def logged() -> int:
        progress = [source_position(settings, source, tuple(streams_of(settings))).progress]
        progress += [delivery.progress for delivery in spool.spooled_deliveries(settings, source)]
        return max((int(position["upto"]) for position in progress if position), default=0)

    return GroupWriter(IntakeFolder.of(settings, source), logged)
