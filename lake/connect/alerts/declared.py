"""Declared alerts, `alerts/<name>.toml`. Options: docs/how-to/alerts.md.

A row alert is a sink of one table that begins with the next change. A state alert is sent when its `measure` exceeds
`above`, and when it no longer does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lake.config import Settings
from lake.connectors import translated_import_errors
from lake.contracts import declared_files
from lake.contracts.declared_files import DeclaredFile
from lake.errors import DeclarationError, did_you_mean
from lake.sinks.condition import condition_of
from lake.sinks.kind import DeclaredSink, DeclaredTable, OptionTable, read_options
from lake.sinks.sink import Target

if TYPE_CHECKING:
    from lake.connect.webhook.receiver import Receiver

SEE: Final = "see docs/how-to/alerts.md"
KIND: Final = "webhook"
CONDITIONS: Final = ("stopped", "failed", "behind", "stale", "missing", "drift")
"""Measures that count the lines of `lake status --fail-if`."""
PROJECT_MEASURES: Final = ("age", *CONDITIONS)
MEASURES: Final = ("lag", "age", "pending", "quarantine", "sink", "undelivered", *CONDITIONS)
ROW_OPTIONS: Final[OptionTable] = {
    "table": (str, None),
    "on": (list, ["insert", "update"]),
    "when": (str, ""),
}
STATE_OPTIONS: Final[OptionTable] = {"measure": (MEASURES, None), "of": (str, ""), "above": (int, 0)}
COMMON_OPTIONS: Final[OptionTable] = {
    "message": (str, ""),
    "format": (("event", "text"), "event"),
    "after_publish": (bool, False),
}
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_ROW_NAMES: Final = re.compile(r"alert|table|change|edition|cut|key|(before|after)\..+")
_STATE_NAMES: Final = re.compile(r"alert|measure|of|above|value|what|state")


@dataclass(frozen=True)
class MessageTemplate:
    text: str
    where: str

    def faults(self, known: re.Pattern[str]) -> Iterator[DeclarationError]:
        for name in _PLACEHOLDER.findall(self.text):
            if not known.fullmatch(name):
                yield self._fault(f"message: {{{name}}} stands for nothing", known.pattern.replace("|", ", "))

    def fill(self, values: Mapping[str, Any]) -> str:
        return _PLACEHOLDER.sub(lambda match: self._value(match[1], values), self.text)

    def _value(self, placeholder: str, values: Mapping[str, Any]) -> str:
        name, _, column = placeholder.partition(".")
        value = values[name]
        if column and value is not None:
            if column not in value:
                raise self._fault(f"message: no column {column!r} in {name}", did_you_mean(column, value))
            value = value[column]
        if value is None:
            return "none"
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _fault(self, what: str, fix: str) -> DeclarationError:
        return DeclarationError(what, where=self.where, fix=fix)


@dataclass(frozen=True)
class RowAlert:
    name: str
    sink: DeclaredSink

    @property
    def after_publish(self) -> bool:
        return self.sink.after_publish


@dataclass(frozen=True)
class StateAlert:
    name: str
    measure: str
    of: str
    above: int
    message: MessageTemplate
    format: str
    where: str
    receiver: Callable[[], Receiver] = field(repr=False)
    after_publish: bool = False


Alert = RowAlert | StateAlert


def sink_name(name: str) -> str:
    return f"alert-{name}"  # no declared sink can have this name


def sound_alerts(settings: Settings) -> tuple[dict[str, Alert], dict[str, DeclarationError]]:
    return declared_files.alerts(settings).sound(partial(_read, settings))


def chosen_alerts(settings: Settings, wanted: Collection[str] = ()) -> tuple[list[Alert], dict[str, DeclarationError]]:
    return declared_files.alerts(settings).chosen(partial(_read, settings), wanted)


def row_sinks(settings: Settings) -> tuple[dict[str, DeclaredSink], dict[str, DeclarationError]]:
    alerts, faults = sound_alerts(settings)
    sinks = {alert.sink.name: alert.sink for alert in alerts.values() if isinstance(alert, RowAlert)}
    return sinks, {sink_name(name): fault for name, fault in faults.items()}


def _read(settings: Settings, file: DeclaredFile) -> Alert:
    given, where = file.values, file.where
    is_row_alert = "table" in given
    if is_row_alert == ("measure" in given):
        raise DeclarationError("it has to name a table or a measure, and not both", where=where, fix=SEE)
    with translated_import_errors("lake.sinks", KIND, where):
        from lake.connect import webhook
    receiver_options = {name: about for name, about in webhook.OPTIONS.items() if name not in {"batch", "ordered"}}
    own = ROW_OPTIONS if is_row_alert else STATE_OPTIONS
    options = read_options({**COMMON_OPTIONS, **own, **receiver_options}, given, where, SEE)
    default = "{alert}: {change} of {key} in {table}" if is_row_alert else "{alert}: {state}: {what}"
    message = MessageTemplate(options["message"] or default, where)
    names = _ROW_NAMES if is_row_alert else _STATE_NAMES
    DeclarationError.raise_any([*message.faults(names), *_faults(options, where, is_row_alert=is_row_alert)])
    receiver = partial(webhook.receiver_of, options, where)
    receiver()  # raises if the declaration is wrong
    if not is_row_alert:
        own_options = {name: options[name] for name in (*STATE_OPTIONS, "format", "after_publish")}
        return StateAlert(file.name, message=message, where=where, receiver=receiver, **own_options)
    condition = condition_of(options["on"], options["when"], where)
    table = DeclaredTable(options["table"], options["table"], mode="append", shaped=False, condition=condition)
    form = partial(_row_body, file.name, message, options["format"])
    make = partial(_target, settings, sink_name(file.name), receiver, form)
    sink = DeclaredSink(
        sink_name(file.name), KIND, {table.name: table}, where, make, options["after_publish"], "now", webhook.KEEPS
    )
    return RowAlert(file.name, sink)


def _target(settings: Settings, name: str, receiver: Callable[[], Receiver], form: Any) -> Target:
    from lake.connect.webhook.target import WebhookTarget

    return WebhookTarget(settings, name, receiver(), ordered=False, form=form)


def _faults(options: Mapping[str, Any], where: str, *, is_row_alert: bool) -> Iterator[DeclarationError]:
    if not is_row_alert and options["of"] and options["measure"] in PROJECT_MEASURES:
        yield DeclarationError(f"of: {options['measure']} is of the whole project", where=where, fix="leave out of")
    if is_row_alert and not options["on"]:
        yield DeclarationError("on names no change", where=where, fix='for example on = ["insert"]')


def _row_body(alert: str, message: MessageTemplate, format: str, changed: Any) -> str:
    data = changed.data
    text = message.fill({**json.loads(data), "alert": alert})
    if format == "text":
        return json.dumps({"text": text}, ensure_ascii=False)
    about = json.dumps({"alert": alert, "message": text}, ensure_ascii=False)
    head = json.dumps({"type": f"alert.{alert}", "timestamp": changed.about.at})
    return f'{head[:-1]}, "data": {about[:-1]}, {data[1:]}}}'


def state_body(alert: StateAlert, id: str, at: str, about: Mapping[str, Any]) -> str:
    values = {"alert": alert.name, "measure": alert.measure, "above": alert.above, **about}
    text = alert.message.fill(values)
    if alert.format == "text":
        return json.dumps({"text": text}, ensure_ascii=False)
    data = {"id": id, "message": text, **values}
    return json.dumps({"type": f"alert.{alert.name}", "timestamp": at, "data": data}, ensure_ascii=False)
