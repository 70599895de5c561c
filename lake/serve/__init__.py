"""HTTP: events that are posted, decisions on them, and published tables for readers."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from typing import Any

from lake.config import Settings
from lake.sources.source import DecisionRequest, Source, SourceDeclaration, SourceKind


def _open(declaration: SourceDeclaration) -> Source:
    from lake.serve.source import HttpSource, read_declaration

    return HttpSource(read_declaration(declaration))


class _IntakeDecider:
    def append(self, settings: Settings, command: DecisionRequest) -> dict[str, Any]:
        from lake.serve.append_decided import append_decided

        return append_decided(settings, command)

    def pause(self, settings: Settings, source: str) -> AbstractContextManager[object]:
        from lake.serve.declarations import intake_writer

        return closing(intake_writer(settings, source))


KIND = SourceKind(_open, decider=_IntakeDecider())
