"""Privacy: a person is forgotten, removed from all versions of all tables, and proved to be gone."""

from __future__ import annotations

from lake.progress import OnProgress
from lake.project.project import Project
from lake.publish.after_publish import AfterPublish, OnFailure
from lake.store import erasures


def _run(project: Project, on_progress: OnProgress, on_failure: OnFailure) -> None:
    if erasures.entries(project.settings):
        from lake.privacy.forget import purge

        purge(project, on_progress)


AFTER_PUBLISH = AfterPublish(_run, before_maintenance=True, is_due=lambda _: False)
