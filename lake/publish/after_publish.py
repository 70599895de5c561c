"""Work after each publication, such as alerts and the removal of forgotten persons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from lake.config import Settings
from lake.connectors import connector
from lake.errors import DeclarationError, LakeError
from lake.project.project import Project
from lake.sinks.kind import DeclaredSink

OURS: Final = ("alerts", "privacy")
OnProgress: TypeAlias = Callable[[str], None]
OnFailure: TypeAlias = Callable[[str, LakeError], None]
SoundSinks: TypeAlias = tuple[Mapping[str, DeclaredSink], Mapping[str, DeclarationError]]
"""Valid sinks by name, and the error of each invalid one."""


@dataclass(frozen=True)
class AfterPublish:
    """Object of an entry point in the group `lake.after_publish`.

    - `run` reports its progress to the one function, and what failed, by name, to the other.
    - `sinks` returns sinks that it delivers to, for `lake status`.
    - `before_maintenance`: it also runs before old versions are removed.
    """

    run: Callable[[Project, OnProgress, OnFailure], None]
    sinks: Callable[[Settings], SoundSinks] = lambda _: ({}, {})
    before_maintenance: bool = False


def after_publish(settings: Settings) -> Iterator[AfterPublish]:
    """Import and yield what runs after a publication, in order. Raises DeclarationError as `connector` does."""
    for name in (*OURS, *settings.publish.after):
        found: AfterPublish = connector("lake.after_publish", name, "setting 'publish.after'")
        yield found


def sinks_of_connectors(settings: Settings) -> SoundSinks:
    """Return the sinks that run after a publication without being declared in the folder `sinks`."""
    sound: dict[str, DeclaredSink] = {}
    faults: dict[str, DeclarationError] = {}
    for each in after_publish(settings):
        some, wrong = each.sinks(settings)
        sound |= some
        faults |= wrong
    return sound, faults


def raise_failure(_: str, failure: LakeError) -> None:
    """Raise a failure where nobody wants to go on after it."""
    raise failure
