"""Alerts: notify a receiver of changed rows, or of a metric above its limit.

A row alert sends the net changes of an edition, at least once, always with the same id. Rows from before its first run
are not sent.

For a metric, each episode sends two messages: when it exceeds the limit, and when it no longer does. Changes between
two calls are not noticed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cached_property
from itertools import islice
from typing import Any, Final

from lake.config import Settings
from lake.connect.alerts.declared import CONDITIONS, Alert, RowAlert, StateAlert, sink_name, sound_alerts, state_body
from lake.contracts import declared_files
from lake.errors import LakeError, StartOver
from lake.ops.render import failed_conditions
from lake.ops.status import status
from lake.ops.status_records import Status
from lake.project.project import sound_project
from lake.read.sql import reader
from lake.sinks.deliver import deliver
from lake.sinks.plan import DeliveryPlan
from lake.store.ledger import runs, sent
from lake.store.ledger.sent import Episode
from lake.store.locks import activity
from lake.store.locks.lease import lease

VERB: Final = "alert"
WHOLE_PROJECT: Final = "the project"
PREVIEWED: Final = 20
POLL_SECONDS: Final = 5.0
FIRING, RESOLVED = "firing", "resolved"


@dataclass(frozen=True)
class AlertResult:
    """`about` is the table or measure. `messages` are the first bodies of a preview."""

    alert: str
    about: str
    sent: int
    state: str = ""
    messages: tuple[str, ...] = ()
    undelivered: int = 0

    def __str__(self) -> str:
        undelivered = f", {self.undelivered} undelivered" if self.undelivered else ""
        return f"{self.alert}: {self.sent} sent{undelivered}{f', {self.state}' if self.state else ''}"


@dataclass
class Measurements:
    settings: Settings

    @cached_property
    def status(self) -> Status:
        return status(*sound_project(self.settings))

    def worst(self, alert: StateAlert) -> tuple[float | None, str, str]:
        """Return value, description and subject. The value is None if unreadable data may raise it above the limit."""
        values = [value for value in _values(self.status, alert.measure) if alert.of in {"", value[2]}]
        if alert.measure in CONDITIONS:
            values = [(float(len(values)), "; ".join(what for _, what, _ in values)[: runs.REASON_LENGTH], "")]
        worst = max(values, default=None, key=lambda value: value[0])
        unreadable = any(alert.of in {"", subject} for subject in _unreadable(self.status, alert.measure))
        if worst is None or (unreadable and worst[0] <= alert.above):
            return None, "", ""
        return worst


def _values(now: Status, measure: str) -> Iterator[tuple[float, str, str]]:
    """Yield value, description and subject."""
    match measure:
        case "lag":
            lags = ((table.name, table.lag) for table in now.tables if table.lag is not None)
            yield from ((lag.total_seconds(), f"{name} is {lag} behind", name) for name, lag in lags)
        case "age":
            if now.edition is not None:
                age = now.at - now.edition.published_at
                yield age.total_seconds(), f"edition {now.edition.number} is {age} old", ""
        case "pending":
            counts = ((stream.name, stream.pending) for stream in now.streams if stream.pending is not None)
            yield from ((float(count), f"{name} has {count} files waiting", name) for name, count in counts)
        case "quarantine":
            known = ((stream.name, stream.quarantined) for stream in now.streams if stream.quarantined is not None)
            counts = ((name, sum(by_reason.values())) for name, by_reason in known)
            yield from ((float(count), f"{name} has {count} records in quarantine", name) for name, count in counts)
        case "sink":
            yield from ((s.seconds or 0.0, f"{s.name} is {s.editions} editions behind", s.name) for s in now.sinks)
        case "undelivered":
            counts = ((sink.name, len(sink.rejected) + sink.undelivered) for sink in now.sinks)
            yield from ((float(count), f"{name} lacks {count} rows", name) for name, count in counts)
        case _:  # of CONDITIONS
            lines = failed_conditions(now, [measure])  # these include damage, which only `stopped` counts
            lines = [line for line in lines if f": {VERB} of " not in line]  # not failures of alerts
            yield from ((1.0, line, "") for line in lines if measure == "stopped" or line.startswith(f"{measure}: "))


def _unreadable(now: Status, measure: str) -> list[str]:
    match measure:
        case "lag":
            return [table.name for table in now.tables if table.behind is None]
        case "pending":
            return [stream.name for stream in now.streams if stream.pending is None]
        case "quarantine":
            return [stream.name for stream in now.streams if stream.quarantined is None]
        case "sink" | "undelivered":
            return [sink.name for sink in now.sinks if sink.error]
        case "age":
            return []
        case _:  # of CONDITIONS
            return [damage.path.name for damage in now.damaged]


def send_alerts(
    settings: Settings, alerts: Iterable[Alert], on_failure: Callable[[str, LakeError], None]
) -> Iterator[AlertResult]:
    yield from _results(settings, alerts, _send_rows, _send_state, on_failure)


def send_after_publish(
    settings: Settings, on_progress: Callable[[str], None], on_failure: Callable[[str, LakeError], None]
) -> None:
    alerts, faults = sound_alerts(settings)
    if faults:
        faults = declared_files.alerts(settings).after_publish_faults(faults)
    for name, fault in faults.items():
        on_failure(f"alert {name}", fault)
    wanted = [alert for alert in alerts.values() if alert.after_publish]
    if wanted:
        runs.wait_until_recorded()
    for result in send_alerts(settings, wanted, lambda name, failure: on_failure(f"alert {name}", failure)):
        if result.sent:
            on_progress(f"alert   {result}")


def preview(
    settings: Settings, alerts: Iterable[Alert], on_failure: Callable[[str, LakeError], None]
) -> Iterator[AlertResult]:
    yield from _results(settings, alerts, _preview_rows, _preview_state, on_failure)


def _results(
    settings: Settings,
    alerts: Iterable[Alert],
    on_rows: Callable[[Settings, RowAlert], AlertResult],
    on_state: Callable[[Settings, StateAlert, Measurements], AlertResult],
    on_failure: Callable[[str, LakeError], None],
) -> Iterator[AlertResult]:
    values = Measurements(settings)
    for alert in alerts:
        try:
            yield on_rows(settings, alert) if isinstance(alert, RowAlert) else on_state(settings, alert, values)
        except LakeError as failure:
            on_failure(alert.name, failure)


def _send_rows(settings: Settings, alert: RowAlert) -> AlertResult:
    try:
        done = deliver(settings, alert.sink)
    except StartOver as behind:
        raise StartOver(
            f"the changes since the last check of alert {alert.name} are no longer kept",
            where=behind.where,
            fix=f"lake alert {alert.name} --from-now continues without them",
        ) from None
    count = sum(table.inserted + table.updated + table.deleted for table in done.tables)
    return AlertResult(alert.name, next(iter(alert.sink.tables)), count, undelivered=done.undelivered)


def _preview_rows(settings: Settings, alert: RowAlert) -> AlertResult:
    from lake.connect.webhook.target import DeliveryInfo, WebhookTarget, changed_rows

    with closing(alert.sink.open()) as target:
        assert isinstance(target, WebhookTarget)
        plan = DeliveryPlan(settings, alert.sink, target.position(), reader(settings).edition)
        [changes] = plan.delivery().tables
        number, edition = sent.state(settings, alert.sink.name).number, plan.edition
        about = DeliveryInfo(alert.sink.name, number, edition.number, edition.cut, edition.published_at)
        rows = changed_rows(changes, about)
        bodies = tuple(target.form(changed) for changed in islice(rows, PREVIEWED))
        return AlertResult(alert.name, changes.table.name, len(bodies) + sum(1 for _ in rows), messages=bodies)


def _send_state(settings: Settings, alert: StateAlert, values: Measurements) -> AlertResult:
    with lease(settings, f"sink.{sink_name(alert.name)}"), runs.failing(settings, VERB, alert.name):
        recorded, count = sent.newest_episodes(settings).get(alert.name), 0
        episode = _next_episode(alert, recorded, values)
        while episode is not None and (episode != recorded or episode.waits):
            if episode != recorded:
                sent.record_episode(settings, episode)
            recorded = _send_next(settings, alert, episode)
            episode, count = _next_episode(alert, recorded, values), count + 1
        runs.record_nothing_to_do(settings, VERB, [alert.name])
        return AlertResult(alert.name, alert.measure, count, _state_text(episode))


def _preview_state(settings: Settings, alert: StateAlert, values: Measurements) -> AlertResult:
    episode = _next_episode(alert, sent.newest_episodes(settings).get(alert.name), values)
    if episode is None or not episode.waits:
        return AlertResult(alert.name, alert.measure, 0, _state_text(episode))
    states = ([FIRING] if episode.told == 0 else []) + ([RESOLVED] if episode.ended else [])
    bodies = tuple(_body(alert, episode, state) for state in states)
    return AlertResult(alert.name, alert.measure, len(bodies), _state_text(episode), bodies)


def _next_episode(alert: StateAlert, before: Episode | None, values: Measurements) -> Episode | None:
    """Begin an episode, end the one `before`, or return that unchanged.

    A new one begins after all messages of the one before are sent. While the value is unknown, none begins or ends.
    """
    value, what, of = values.worst(alert)
    is_above = value is not None and value > alert.above
    at = values.status.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if before is not None and before.ended is None:
        return before if is_above or value is None else replace(before, ended=at)
    if value is None or not is_above or (before is not None and before.waits):
        return before
    return Episode(alert.name, before.number + 1 if before else 1, at, value, what[: runs.REASON_LENGTH], of=of)


def _send_next(settings: Settings, alert: StateAlert, episode: Episode) -> Episode:
    from lake.connect.webhook.receiver import Rejection, WebhookMessage

    state = FIRING if episode.told == 0 else RESOLVED
    id = _id(alert, episode, state)
    answers: dict[str, Rejection | None] = {}
    with closing(alert.receiver()) as receiver:
        receiver.send([WebhookMessage(id, (alert.name,), _body(alert, episode, state).encode())], answers)
    if rejection := answers[id]:
        raise LakeError(
            f"the receiver rejected a message of alert {alert.name}: {rejection.reason}",
            where=alert.where,
            fix="correct the receiver: the next check sends the message again",
        )
    return sent.record_episode(settings, replace(episode, told=episode.told + 1))


def _id(alert: StateAlert, episode: Episode, state: str) -> str:
    of = f"{alert.name} {episode.number} {episode.began} {state}"
    return f"alert_{hashlib.sha256(of.encode()).hexdigest()[:32]}"


def _body(alert: StateAlert, episode: Episode, state: str) -> str:
    at = episode.began if state == FIRING else episode.ended or episode.began
    about: dict[str, Any] = {"state": state, "value": episode.value, "what": episode.what, "since": episode.began}
    about["of"] = alert.of or episode.of or WHOLE_PROJECT
    return state_body(alert, _id(alert, episode, state), at, about)


def _state_text(episode: Episode | None) -> str:
    return f"{FIRING} since {episode.began}: {episode.what}" if episode and episode.ended is None else ""


def follow(
    settings: Settings,
    alerts: list[Alert],
    on_sent: Callable[[AlertResult], None],
    on_failure: Callable[[str, LakeError], None],
) -> None:
    while True:
        activity.renew(settings)
        for result in send_alerts(settings, alerts, on_failure):
            if result.sent:
                on_sent(result)
        time.sleep(POLL_SECONDS)
