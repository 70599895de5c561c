"""Privacy: a person is forgotten, removed from all versions of all tables, and proved to be gone."""

from __future__ import annotations

from lake.project.project import Project
from lake.publish.after_publish import AfterPublish, OnFailure, Tell


def _run(project: Project, tell: Tell, on_failure: OnFailure) -> None:
    from lake.privacy.purge import purge

    purge(project, tell)


AFTER_PUBLISH = AfterPublish(_run, before_maintenance=True)
