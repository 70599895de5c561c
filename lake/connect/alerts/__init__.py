"""Alerts: signed webhooks about changed rows, or about the state of the project."""

from __future__ import annotations

from lake.config import Settings
from lake.contracts import declared_files
from lake.progress import OnProgress
from lake.project.project import Project
from lake.publish.after_publish import AfterPublish, OnFailure, SoundSinks


def _run(project: Project, on_progress: OnProgress, on_failure: OnFailure) -> None:
    if declared_files.alerts(project.settings).files:
        from lake.connect.alerts.send import send_after_publish

        send_after_publish(project.settings, on_progress, on_failure)


def _is_due(settings: Settings) -> bool:
    if not declared_files.alerts(settings).files:
        return False
    from lake.connect.alerts.declared import sound_alerts

    return any(alert.after_publish for alert in sound_alerts(settings)[0].values())


def _sinks(settings: Settings) -> SoundSinks:
    if not declared_files.alerts(settings).files:
        return {}, {}
    from lake.connect.alerts.declared import row_sinks

    return row_sinks(settings)


AFTER_PUBLISH = AfterPublish(_run, sinks=_sinks, is_due=_is_due)
