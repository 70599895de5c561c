"""HTTP: posted events, decisions on them, and published tables for readers."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing
from importlib.util import find_spec
from typing import Any, Final

from lake.config import Settings
from lake.errors import DeclarationError, install
from lake.sources.source import DecisionRequest, Source, SourceDeclaration, SourceFact, SourceKind

PACKAGES: Final = ("httptools", "starlette", "uvicorn", "uvloop", "standardwebhooks")
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


def check_installed(command: str) -> None:
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        what = f"{command} needs {', '.join(missing)}, which the extra `serve` installs"
        raise DeclarationError(what, fix=install("serve"))


def _open(declaration: SourceDeclaration) -> Source:
    from lake.serve.source import HttpSource, read_declaration

    return HttpSource(read_declaration(declaration))


class _IntakeDecider:
    def append(self, settings: Settings, command: DecisionRequest) -> dict[str, Any]:
        check_installed("lake append --decide")
        from lake.serve.append_decided import append_decided

        return append_decided(settings, command)

    def pause(self, settings: Settings, source: str) -> AbstractContextManager[object]:
        from lake.serve.source import intake_writer

        return closing(intake_writer(settings, source))


KIND = SourceKind(_open, decider=_IntakeDecider(), facts=FACTS, members=("spool", "upto"))
