"""Position of a declared source in the logs."""

from __future__ import annotations

from lake.config import Settings
from lake.sources.declared import DeclaredSource
from lake.sources.source import check_members
from lake.store.log import SourcePosition, source_position


def declared_position(settings: Settings, source: DeclaredSource) -> SourcePosition:
    """Return the position. Raises DeclarationError if a source of another kind had the name before."""
    at = source_position(settings, source.name, source.streams)
    if at.progress is not None:
        check_members(at.progress, source.members, source.name, source.where)
    return at
