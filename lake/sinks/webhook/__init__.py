"""A webhook as a target: a signed POST for each change of a row, or for a batch of them.

    kind = "webhook"
    url = "https://crm.example.com/changes"       or "env:NAME"
    secret = "env:CRM_SECRET"      of Standard Webhooks, whsec_ and base64: the messages are signed with it
    batch = 1                      so many changes at most are one message; a batch is an array
    parallel = 4                   so many messages at most are under way at once, of different rows
    ordered = true                 later changes of a row wait while an earlier one was not taken; false: they do not
    attempts = 5                   how often a message is tried
    seconds = 10                   how long an answer is waited for
    pause = 60                     how long a receiver may ask to be left alone before the delivery stops
    bytes = 262144                 the most bytes of a message
    undelivered = 1000             so many rows at most may be undelivered; then the delivery stops

    [headers]                      more headers; a secret is "env:NAME"
    Authorization = "env:CRM_TOKEN"

    [tables.customer_daily]
    on = ["insert"]                the changes that are sent, and a condition on them
    when = "after.orders > 10"

**A message** is `{"type": "customer_daily.insert", "timestamp", "data"}`, its data `{"id", "table", "change",
"edition", "cut", "key", "before", "after"}`; a batch is of type `changes`, its data an array of those. `webhook-id` is
the change's id, of a batch that of all of them: the same whenever it is sent, so that a receiver knows what it has had.

**At least once.** A receiver does not say what it has: the position is in the warehouse, and how far a delivery has
come too, so that one that was cut short goes on there, with the messages of the last second again.

**In order** of a row's changes: there is one of a row in an edition. What a receiver refuses (a status of 4xx), or
fails at again and again, is kept as undelivered, and what comes later of that row waits for it. Where it takes nothing
at all, the delivery stops, and goes on with the next.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from lake.config import Settings
from lake.errors import DeclarationError
from lake.sinks.sink import Mode, Target
from lake.sinks.webhook.receiver import Limits, Receiver
from lake.sinks.webhook.target import WebhookTarget
from lake.sources.source import FromEnvironment

MODES: Final[tuple[Mode, ...]] = ("append",)
LOOSE: Final = MODES
BEGIN: Final = "now"
LEAST: Final[Mapping[str, int]] = {
    "batch": 1,
    "parallel": 4,
    "attempts": 5,
    "seconds": 10,
    "pause": 60,
    "bytes": 256 << 10,
    "undelivered": 1000,
}
"""Numbers that have to be at least 1, with their defaults."""
OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {
    "url": (str, None),
    "secret": (str, None),
    "headers": (dict, {}),
    "ordered": (bool, True),
    **{name: (int, default) for name, default in LEAST.items()},
}
TABLE_OPTIONS: Final[Mapping[str, tuple[type, Any]]] = {}
KEEPS: Final = "its receiver keeps what it was sent"
PRIVATE: Final = ("authorization", "cookie", "token", "secret", "key", "password")
"""Parts of the names of headers that are secrets."""


def of(name: str, options: Mapping[str, Any], where: str, settings: Settings) -> Target:
    """The target of a sink. Raises DeclarationError that tells all faults."""
    return WebhookTarget(settings, name, receiver_of(options, where), options["batch"], ordered=options["ordered"])


def receiver_of(options: Mapping[str, Any], where: str) -> Receiver:
    """Who is told. Raises DeclarationError that tells all faults."""
    if faults := [DeclarationError(what, where=where, fix=fix) for what, fix in _faults(options)]:
        raise DeclarationError.all(faults)
    limits = Limits(**{name: options[name] for name in LEAST if name != "batch"})
    headers = {name: str(value) for name, value in options["headers"].items()}
    return Receiver(where, str(options["url"]), str(options["secret"]), headers, limits)


def _faults(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, default in LEAST.items():
        if options[name] < 1:
            yield f"{name} must be at least 1, found {options[name]}", f"its default is {default}"
    if not _is_url(options["url"]):
        yield "url is none of http or https", 'for example url = "https://crm.example.com/changes"'
    if not isinstance(options["secret"], FromEnvironment):
        yield "secret must come from the environment", 'secret = "env:NAME"'
    elif not _is_secret(options["secret"]):  # it is not shown
        yield "secret is none of Standard Webhooks", "it is whsec_ and base64: make one of 24 random bytes"
    for name, value in options["headers"].items():
        if not isinstance(value, str) or not value.isprintable() or not name.isascii():
            yield f"[headers] {name!r} must be a text on one line", 'a secret is "env:NAME"'
        elif name.lower().startswith("webhook-"):
            yield f"[headers] {name!r} cannot be set", "leave it out: it is part of the signature"
        elif any(part in name.lower() for part in PRIVATE) and not isinstance(value, FromEnvironment):
            yield f"[headers] {name!r} is a secret, and must come from the environment", f'{name} = "env:NAME"'


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def _is_secret(secret: str) -> bool:
    try:
        return bool(Webhook(str(secret)))
    except (EmptyWebhookSecretError, RuntimeError, binascii.Error, ValueError):
        return False
