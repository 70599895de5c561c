"""Declared alerts, `alerts/<name>.toml`. Options: docs/how-to/alerts.md.

A row alert is a sink of one table that begins with the next change. A state alert is sent when its `measure` passes the
limit `above`, and when it no longer does.
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
"""Counted as lines of `lake status --fail-if`; the other measures have values."""
OF_PROJECT: Final = ("age", *CONDITIONS)
MEASURES: Final = ("lag", "age", "pending", "quarantine", "sink", "undelivered", *CONDITIONS)
OF_ROWS: Final[OptionTable] = {
    "table": (str, None),
    "on": (list, ["insert", "update"]),
    "when": (str, ""),
}
OF_STATE: Final[OptionTable] = {"measure": (MEASURES, None), "of": (str, ""), "above": (int, 0)}
COMMON: Final[OptionTable] = {
    "message": (str, ""),
    "format": (("event", "text"), "event"),
    "after_publish": (bool, False),
}
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_ROWS: Final = re.compile(r"alert|table|change|edition|cut|key|(before|after)\..+")
_STATE: Final = re.compile(r"alert|measure|of|above|value|what|state")


@dataclass(frozen=True)
class MessageTemplate:
    text: str
    where: str

    def faults(self, known: re.Pattern[str]) -> Iterator[DeclarationError]:
        for place in _PLACE.findall(self.text):
            if not known.fullmatch(place):
                yield self._fault(f"message: {{{place}}} stands for nothing", known.pattern.replace("|", ", "))

    def fill(self, values: Mapping[str, Any]) -> str:
        return _PLACE.sub(lambda place: self._value(place[1], values), self.text)

    def _value(self, place: str, values: Mapping[str, Any]) -> str:
        name, _, column = place.partition(".")
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


def sink_of(name: str) -> str:
    """Return a name that no declared sink can have."""
    return f"alert-{name}"


def sound_alerts(settings: Settings) -> tuple[dict[str, Alert], dict[str, DeclarationError]]:
    return declared_files.alerts(settings).sound(partial(_read, settings))


def chosen_alerts(settings: Settings, wanted: Collection[str] = ()) -> tuple[list[Alert], dict[str, DeclarationError]]:
    return declared_files.alerts(settings).chosen(partial(_read, settings), wanted)


def row_sinks(settings: Settings) -> tuple[dict[str, DeclaredSink], dict[str, DeclarationError]]:
    alerts, faults = sound_alerts(settings)
    sinks = {alert.sink.name: alert.sink for alert in alerts.values() if isinstance(alert, RowAlert)}
    return sinks, {sink_of(name): fault for name, fault in faults.items()}


def _read(settings: Settings, file: DeclaredFile) -> Alert:
    given, where = file.values, file.where
    if ("table" in given) == ("measure" in given):
        raise DeclarationError("it has to name a table or a measure, and not both", where=where, fix=SEE)
    with translated_import_errors("lake.sinks", KIND, where):
        from lake.connect import webhook
    receiving = {name: about for name, about in webhook.OPTIONS.items() if name not in {"batch", "ordered"}}
    own = OF_ROWS if "table" in given else OF_STATE
    options = read_options({**COMMON, **own, **receiving}, given, where, SEE)
    default = "{alert}: {change} of {key} in {table}" if own is OF_ROWS else "{alert}: {state}: {what}"
    message = MessageTemplate(options["message"] or default, where)
    faults = [*message.faults(_ROWS if own is OF_ROWS else _STATE), *_faults(options, own, where)]
    DeclarationError.raise_any(faults)
    receiver = partial(webhook.receiver_of, options, where)
    receiver()  # raises if the declaration is wrong
    if own is OF_STATE:
        own_options = {name: options[name] for name in (*OF_STATE, "format", "after_publish")}
        return StateAlert(file.name, message=message, where=where, receiver=receiver, **own_options)
    condition = condition_of(options["on"], options["when"], where)
    table = DeclaredTable(options["table"], options["table"], mode="append", shaped=False, condition=condition)
    form = partial(_row_body, file.name, message, options["format"])
    make = partial(_target, settings, sink_of(file.name), receiver, form)
    sink = DeclaredSink(
        sink_of(file.name), KIND, {table.name: table}, where, make, options["after_publish"], "now", webhook.KEEPS
    )
    return RowAlert(file.name, sink)


def _target(settings: Settings, name: str, receiver: Callable[[], Receiver], form: Any) -> Target:
    from lake.connect.webhook.target import WebhookTarget

    return WebhookTarget(settings, name, receiver(), ordered=False, form=form)


def _faults(options: Mapping[str, Any], own: Mapping[str, Any], where: str) -> Iterator[DeclarationError]:
    if own is OF_STATE and options["of"] and options["measure"] in OF_PROJECT:
        yield DeclarationError(f"of: {options['measure']} is of the whole project", where=where, fix="leave out of")
    if own is OF_ROWS and not options["on"]:
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
