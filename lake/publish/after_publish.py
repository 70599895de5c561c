"""Work after each publication, such as alerts and the removal of forgotten persons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from lake.config import Settings
from lake.connectors import connector
from lake.errors import DeclarationError, LakeError
from lake.progress import OnProgress
from lake.project.project import Project
from lake.sinks.kind import DeclaredSink

BUILT_IN: Final = ("alerts", "privacy")
OnFailure: TypeAlias = Callable[[str, LakeError], None]
SoundSinks: TypeAlias = tuple[Mapping[str, DeclaredSink], Mapping[str, DeclarationError]]
"""Valid sinks by name, and the error of each invalid one."""


@dataclass(frozen=True)
class AfterPublish:
    """Object of an entry point in the group `lake.after_publish`.

    - `run` does the work, with a callback for its progress, and one for failures by name.
    - `sinks` returns the sinks that it delivers to, for `lake status`.
    - `before_maintenance`: `run` is also called before old versions are removed.
    - `is_due` returns whether `run` may have work although nothing is new: it depends on the clock or other systems.
    """

    run: Callable[[Project, OnProgress, OnFailure], None]
    sinks: Callable[[Settings], SoundSinks] = lambda _: ({}, {})
    before_maintenance: bool = False
    is_due: Callable[[Settings], bool] = lambda _: True


def after_publish(settings: Settings) -> Iterator[AfterPublish]:
    """Yield the work after a publication, in order. Raises DeclarationError as `connector` does."""
    for name in (*BUILT_IN, *settings.publish.after):
        hook: AfterPublish = connector("lake.after_publish", name, "setting 'publish.after'")
        yield hook


def sinks_of_connectors(settings: Settings) -> SoundSinks:
    """Return the sinks of `after_publish`, which no file in the folder `sinks` declares."""
    sound: dict[str, DeclaredSink] = {}
    faults: dict[str, DeclarationError] = {}
    for hook in after_publish(settings):
        more_sound, more_faults = hook.sinks(settings)
        sound |= more_sound
        faults |= more_faults
    return sound, faults


def raise_failure(_: str, failure: LakeError) -> None:
    raise failure
