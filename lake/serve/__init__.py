"""HTTP: posted events, decisions on them, and published tables for readers."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from typing import Any, Final

from lake.config import Settings
from lake.sources.source import DecisionRequest, Source, SourceDeclaration, SourceFact, SourceKind

FACTS: Final = (
    SourceFact("http.id", "string", "the id of the request or the CloudEvent"),
    SourceFact("http.received", "timestamp-micros", "when the server had the request's head, by its clock"),
    SourceFact("http.headers.NAME", "string", "a header; its name in lower case"),
    SourceFact("cloudevents.id", "string", "the CloudEvent's id"),
    SourceFact("cloudevents.source", "string", "the CloudEvent's source"),
    SourceFact("cloudevents.type", "string", "the CloudEvent's type"),
    SourceFact("cloudevents.time", "timestamp-micros", "the CloudEvent's time"),
    SourceFact("cloudevents.subject", "string", "the CloudEvent's subject"),
    SourceFact("cloudevents.dataschema", "string", "the CloudEvent's dataschema"),
)


def _open(declaration: SourceDeclaration) -> Source:
    from lake.serve.source import HttpSource, read_declaration

    return HttpSource(read_declaration(declaration))


class _IntakeDecider:
    def append(self, settings: Settings, command: DecisionRequest) -> dict[str, Any]:
        from lake.serve.append_decided import append_decided

        return append_decided(settings, command)

    def pause(self, settings: Settings, source: str) -> AbstractContextManager[object]:
        from lake.serve.source import intake_writer

        return closing(intake_writer(settings, source))


KIND = SourceKind(_open, decider=_IntakeDecider(), facts=FACTS)
